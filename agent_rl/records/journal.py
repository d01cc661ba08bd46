"""The journal: the only durable state beside checkpoints, written by the filter's shell alone.

A group is exactly one of: open, ready, trained at step n, evaluated, or dropped for a named reason; audit.py proves the balance.
Payloads are opaque bytes (the wire's encoding), so that what is replayed is what was received. How the file is kept is in
journal_file.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agent_rl.records.journal_file import JournalError, JournalFile

__all__ = ["GroupRow", "Journal", "JournalError", "StepRow", "interim_stage"]


def interim_stage(stage: int) -> int:
    """The stage number under which the groups of evaluations within an rl stage are kept: below 0, none of a recipe's own."""
    return -1 - stage


TRAINED, SKIPPED = 1, 2
"""What became of a closed step: trained, or skipped as not finite; 0 before the learner has taken it."""
SAMPLES_TRAINED, SAMPLES_DROPPED = 2, 1
"""Groups of a stage's first and last step that keep their trajectories."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as the journal holds it. ``kept`` pairs samples with attempts; ``step`` is the version trained at."""

    id: str
    stage: int
    number: int
    purpose: str
    opened: bytes
    state: str
    reason: str
    step: int | None
    kept: tuple[tuple[int, int], ...]
    rewards: tuple[float, ...]
    oldest: int
    decided_order: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """A closed step, with the filter's and (once trained) the learner's figures."""

    version: int
    stage: int
    trained: bool
    groups: tuple[str, ...]
    decided: tuple[str, ...]
    figures: dict[str, float]
    learner_figures: dict[str, float]
    skipped: bool = False
    """Whether the learner skipped the step as not finite: its groups are dropped, and no replay trains them."""


class Journal(JournalFile):
    """What a run has done, by groups, steps and evaluations."""

    # Groups ------------------------------------------------------------------------------------------------------------

    def open_group(self, group: str, stage: int, number: int, purpose: str, opened: bytes) -> None:
        """A group exists. Opening it again changes nothing."""
        self._write(
            "INSERT OR IGNORE INTO groups (id, stage, number, purpose, opened, state) VALUES (?, ?, ?, ?, ?, 'open')",
            (group, stage, number, purpose, opened),
        )

    def add_trajectory(self, group: str, sample: int, attempt: int, status: str, payload: bytes) -> None:
        """A trajectory arrived; its reward follows."""
        self._write(
            "INSERT OR IGNORE INTO trajectories (group_id, sample, attempt, status, payload, crc) "
            "VALUES (?1, ?2, ?3, ?4, ?5, row_crc(?1, ?2, ?3, ?4, NULL, ?5))",
            (group, sample, attempt, status, payload),
        )

    def reward(self, group: str, sample: int, attempt: int, reward: float) -> None:
        """A trajectory was judged."""
        self._write(
            "UPDATE trajectories SET reward = ?1, crc = row_crc(group_id, sample, attempt, status, ?1, payload) "
            "WHERE group_id = ?2 AND sample = ?3 AND attempt = ?4",
            (float(reward), group, sample, attempt),
        )

    def ready(
        self, group: str, kept: Sequence[tuple[int, int]], rewards: Sequence[float], oldest: int, order: int
    ) -> None:
        """Open -> ready, with the selection made."""
        self._write(
            "UPDATE groups SET state = 'ready', kept = ?, rewards = ?, oldest = ?, decided_order = ? "
            "WHERE id = ? AND state = 'open'",
            (json.dumps(list(kept)), json.dumps(list(rewards)), oldest, order, group),
        )

    def drop(self, group: str, reason: str, mean_length: float, success: float, oldest: int, order: int) -> None:
        """Open -> dropped, for a named reason."""
        self._write(
            "UPDATE groups SET state = 'dropped', reason = ?, mean_length = ?, success = ?, oldest = ?, decided_order = ? "
            "WHERE id = ? AND state = 'open'",
            (reason, mean_length, success, oldest, order, group),
        )

    def evaluated(self, group: str) -> None:
        """Open -> evaluated."""
        self._write("UPDATE groups SET state = 'evaluated' WHERE id = ? AND state = 'open'", (group,))

    def ask_again(self, groups: Sequence[str]) -> None:
        """Evaluated -> open, of those groups that are: no rollout of them counts, and each is to be sampled anew."""
        for group in groups:
            if self._write("UPDATE groups SET state = 'open' WHERE id = ? AND state = 'evaluated'", (group,)):
                self._write("DELETE FROM trajectories WHERE group_id = ?", (group,))

    def leave_stages(self, *, but: int, reason: str) -> int:
        """Drop what earlier stages left ready, and forget their closed steps that were not trained; returns how many groups.

        Those of later stages stay: the learner went back, to a checkpoint before a damaged one, and will come to them again.
        """
        self._write("DELETE FROM steps WHERE trained = 0 AND stage < ?", (but,))
        return self._write(
            "UPDATE groups SET state = 'dropped', reason = ?, step = NULL "
            "WHERE (stage >= 0 AND stage < ? OR stage < 0 AND stage > ?) AND state IN ('ready', 'open')",
            (reason, but, interim_stage(but)),
        )

    def groups(self, *, stage: int, states: Sequence[str]) -> Iterator[GroupRow]:
        """The stage's groups in the given states, by number."""
        marks = ", ".join("?" * len(states))
        yield from self.rows(
            "groups", f"WHERE stage = ? AND state IN ({marks}) ORDER BY number", (stage, *states), make=_group_row
        )

    def group(self, group: str) -> GroupRow | None:
        """One group; None when it was never opened."""
        return next(iter(self.rows("groups", "WHERE id = ?", (group,), make=_group_row)), None)

    def trajectories(self, group: str) -> list[tuple[int, int, str, float | None, bytes]]:
        """(sample, attempt, status, reward, payload) of a group, by sample and attempt."""
        where = "WHERE group_id = ? ORDER BY sample, attempt"
        return self.rows("trajectories", where, (group,), make=lambda _, *row: row)

    def opened_groups(self) -> list[bytes]:
        """How each group was opened, of every stage."""
        return [bytes(row[0]) for row in self._read("SELECT opened FROM groups ORDER BY stage, number")]

    def opened_count(self, stage: int) -> int:
        """How many group numbers of the stage were opened (numbers are dense)."""
        return int(self._read("SELECT COALESCE(MAX(number) + 1, 0) FROM groups WHERE stage = ?", (stage,))[0][0])

    def uncounted(self, stage: int, reason: str) -> int:
        """How many groups of the stage, which no step counts, were dropped for a reason."""
        query = "SELECT COUNT(*) FROM groups WHERE stage = ? AND state = 'dropped' AND reason = ? AND decided_order = 0"
        return int(self._read(query, (stage, reason))[0][0])

    # Steps -------------------------------------------------------------------------------------------------------------

    def close_step(
        self, version: int, stage: int, groups: Sequence[str], decided: Sequence[str], figures: dict[str, float]
    ) -> None:
        """A step was closed with these groups, in training order; all groups it decided remember it."""
        self._write(
            "INSERT OR REPLACE INTO steps (version, stage, groups, decided, figures) VALUES (?, ?, ?, ?, ?)",
            (version, stage, json.dumps(list(groups)), json.dumps(list(decided)), json.dumps(figures)),
        )
        for group in decided:
            self._write("UPDATE groups SET step = ? WHERE id = ?", (version, group))

    def step_trained(self, version: int, figures: dict[str, float], *, dropped_for: str = "") -> bool:
        """The learner took the step: its groups are trained, or dropped for a reason when it skipped them.

        A replay may end otherwise than the first time, and is what counts then, since the weights are now of it; a step once
        skipped is not trained by a replay. False when the step was recorded before.
        """
        found = self.steps(from_version=version)
        if not found or found[0].version != version:
            raise JournalError(f"step at version {version} was reported trained but never closed")
        step = found[0]
        if step.skipped:
            return False
        self._write(
            "UPDATE steps SET trained = ?, learner_figures = ? WHERE version = ?",
            (SKIPPED if dropped_for else TRAINED, json.dumps(figures), version),
        )
        state = "dropped" if dropped_for else "trained"
        for group in step.groups:
            self._write(
                "UPDATE groups SET state = ?, reason = ? WHERE id = ? AND state IN ('ready', 'trained')",
                (state, dropped_for, group),
            )
        return not step.trained

    def steps(self, *, stage: int | None = None, from_version: int = 0) -> list[StepRow]:
        """Closed steps by version."""
        where = "WHERE version >= ? AND (? IS NULL OR stage = ?) ORDER BY version"
        return self.rows("steps", where, (from_version, stage, stage), make=_step_row)

    def last_step(self) -> int:
        """The version of the last step that was trained; -1 before the first."""
        return int(self._read("SELECT COALESCE(MAX(version), -1) FROM steps WHERE trained > 0")[0][0])

    def step_counts(self) -> tuple[int, int, int]:
        """How many steps the learner took, and how many of them had no groups, or were skipped as not finite."""
        query = "SELECT COUNT(*), TOTAL(groups = '[]'), TOTAL(trained = ?) FROM steps WHERE trained > 0"
        steps, empty, skipped = self._read(query, (SKIPPED,))[0]
        return int(steps), int(empty), int(skipped)

    def compact(self, before_version: int) -> None:
        """Forget the payloads that no replay can need: of groups settled in steps before ``before_version``, or dropped.

        The samples stay, for the report. From now on no replay can start before ``before_version``.
        """
        self.set_fact("kept_from", str(before_version))
        self._write(
            "DELETE FROM trajectories WHERE group_id IN (SELECT id FROM groups WHERE state = 'dropped' "
            "AND (step IS NULL OR step < ?) OR state = 'trained' AND step < ?) "
            "AND group_id NOT IN (SELECT value FROM json_each(?))",
            (before_version, before_version, json.dumps(self.samples())),
        )

    def samples(self) -> list[str]:
        """Groups whose trajectories are kept for people to read: of each stage's first and last trained step a few.

        They are the first ones the step decided: `SAMPLES_TRAINED` that it trained, `SAMPLES_DROPPED` that it dropped.
        """
        ends = self._read("SELECT MIN(version), MAX(version) FROM steps WHERE trained > 0 GROUP BY stage")
        found: list[str] = []
        for version in sorted({version for pair in ends for version in pair}):
            (step,) = self.rows("steps", "WHERE version = ?", (version,), make=_step_row)
            found += step.groups[:SAMPLES_TRAINED]
            found += [group for group in step.decided if group not in set(step.groups)][:SAMPLES_DROPPED]
        return found

    # Evaluations -------------------------------------------------------------------------------------------------------

    def add_evaluation(self, stage: int, figures: dict[str, float]) -> None:
        """The result of an evaluation stage."""
        self._write("INSERT OR REPLACE INTO evaluations (stage, figures) VALUES (?, ?)", (stage, json.dumps(figures)))

    def evaluations(self) -> dict[int, dict[str, float]]:
        """Results by stage."""
        return dict(self.rows("evaluations", "ORDER BY stage", make=lambda stage, text: (int(stage), json.loads(text))))

    def add_interim_evaluation(self, stage: int, number: int, figures: dict[str, float], groups: range) -> None:
        """The result of an evaluation within an rl stage; what its ``groups`` wrote is of no more use."""
        self._write(
            "INSERT OR REPLACE INTO interim_evaluations (stage, number, figures) VALUES (?, ?, ?)",
            (stage, number, json.dumps(figures)),
        )
        self._write(
            "DELETE FROM trajectories WHERE group_id IN "
            "(SELECT id FROM groups WHERE stage = ? AND number >= ? AND number < ?)",
            (interim_stage(stage), groups.start, groups.stop),
        )

    def interim_evaluations(self, stage: int) -> dict[int, dict[str, float]]:
        """Results of the evaluations within an rl stage, by number."""
        where = "WHERE stage = ? ORDER BY number"
        return dict(
            self.rows("interim_evaluations", where, (stage,), make=lambda _, number, text: (number, json.loads(text)))
        )

    # Records -----------------------------------------------------------------------------------------------------------

    def add_record(self, row: str) -> None:
        """A row of metrics.jsonl, which is written once it is committed."""
        self._write("INSERT INTO records (row) VALUES (?)", (row,))

    def records(self) -> list[str]:
        """The rows of metrics.jsonl, in order."""
        return self.rows("records", "ORDER BY number", make=lambda _, row: str(row))

    def record_count(self) -> int | None:
        """How many rows there are; None in a file that is no journal yet."""
        return int(self._read("SELECT COUNT(*) FROM records")[0][0]) if self._columns["records"] else None

    # For people ----------------------------------------------------------------------------------------------------------

    def fates(self) -> list[tuple[int | None, str, str, bool, int]]:
        """Training groups by (step, state, reason, whether any rollout of a dropped group was right), and how many."""
        rows = self._read(
            "SELECT step, state, reason, success > 0, COUNT(*) FROM groups WHERE purpose = 'train' GROUP BY 1, 2, 3, 4"
        )
        return [(step, state, reason, bool(right), count) for step, state, reason, right, count in rows]

    def kept_rewards(self) -> dict[int, float]:
        """Mean reward of the rollouts that each step trained on, by version."""
        query = "SELECT step, AVG(value) FROM groups, json_each(rewards) WHERE state = 'trained' GROUP BY step"
        return {int(step): float(mean) for step, mean in self._read(query)}

    def judged(self, stage: int) -> dict[str, float]:
        """The sum of the rewards of each evaluated group of a stage."""
        query = (
            "SELECT id, SUM(COALESCE(trajectories.reward, 0)) FROM groups LEFT JOIN trajectories ON group_id = id "
            "WHERE stage = ? AND state = 'evaluated' GROUP BY id"
        )
        return {str(group): float(total or 0.0) for group, total in self._read(query, (stage,))}

    # Balance -----------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Number of groups by (purpose, state, reason)."""
        rows = self._read("SELECT purpose, state, reason, COUNT(*) FROM groups GROUP BY 1, 2, 3")
        return {(purpose, state, reason): count for purpose, state, reason, count in rows}

    def lost_steps(self) -> list[str]:
        """What says that rows of steps are gone: the learner would wait for such a step for ever."""
        gaps = self._read("SELECT stage, MIN(version), MAX(version), COUNT(*) FROM steps GROUP BY stage")
        faults = [
            f"stage {stage} has {count} steps at versions {first} to {last}"
            for stage, first, last, count in gaps
            if count != last - first + 1
        ]
        found = "step IS NOT NULL AND step NOT IN (SELECT version FROM steps)"
        query = f"SELECT id, step FROM groups WHERE {found} ORDER BY step LIMIT 1"  # noqa: S608 - constants above
        return faults + [
            f"{group} is in the step at version {at}, which is not there" for group, at in self._read(query)
        ]

    def faults(self) -> Iterator[str]:
        """Everything that contradicts the journal's own rules, group by group."""
        for row in self._read("SELECT stage, COUNT(*), MAX(number) + 1 FROM groups GROUP BY stage"):
            if row[1] != row[2]:
                yield f"stage {row[0]}: {row[1]} groups recorded, but numbers reach {row[2]}"
        queries: Iterable[tuple[str, str]] = (
            ("trained without a step", "state = 'trained' AND step IS NULL"),
            ("dropped without a reason", "state = 'dropped' AND reason = ''"),
            ("a training group marked evaluated", "state = 'evaluated' AND purpose = 'train'"),
            ("an evaluation group marked trained", "state = 'trained' AND purpose != 'train'"),
            ("open, yet in a step", "state = 'open' AND step IS NOT NULL"),
        )
        for what, condition in queries:
            for (group,) in self._read(f"SELECT id FROM groups WHERE {condition}"):  # noqa: S608 - constants above
                yield f"{group}: {what}"
        seen: dict[str, int] = {}
        for step in self.steps():
            for group in step.groups:
                if group in seen:
                    yield f"{group}: in the steps at versions {seen[group]} and {step.version}"
                seen[group] = step.version
                query = "SELECT state, step FROM groups WHERE id = ?"
                state, at = next(iter(self._read(query, (group,))), ("missing", None))
                expected = "dropped" if step.skipped else "trained" if step.trained else "ready"
                if state != expected or at != step.version:
                    yield f"{group}: in the step at version {step.version}, but {state} (step {at})"
        for (group,) in self._read("SELECT id FROM groups WHERE state = 'trained'"):
            if group not in seen:
                yield f"{group}: trained, but in no step"


def _group_row(
    group: str,
    stage: int,
    number: int,
    purpose: str,
    opened: bytes,
    state: str,
    reason: str,
    step: int | None,
    kept: str,
    rewards: str,
    oldest: int,
    decided_order: int,
    *_: float,
) -> GroupRow:
    chosen = tuple((int(sample), int(attempt)) for sample, attempt in json.loads(kept))
    given = tuple(float(reward) for reward in json.loads(rewards))
    return GroupRow(
        group, stage, number, purpose, bytes(opened), state, reason, step, chosen, given, oldest, decided_order
    )


def _step_row(version: int, stage: int, trained: int, *texts: str) -> StepRow:
    groups, decided, figures, learner_figures = map(json.loads, texts)
    return StepRow(
        version, stage, trained > 0, tuple(groups), tuple(decided), figures, learner_figures, trained == SKIPPED
    )
