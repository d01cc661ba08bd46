"""The journal: the only durable state beside checkpoints. Only the filter writes it.

A group is exactly one of: open, ready, trained at step n, evaluated, or dropped for a named reason. audit.py checks the
balance.

::

    Journal (here)     the rules: what may follow what, and what the rows add up to
      Retention        which trajectories stay, and for how long (retention.py)
        SqliteStore    rows in a database, payloads in one file a segment (sqlite.py, journal_rows.py)

Payloads are opaque bytes, so that a replay uses exactly what was received.
"""

from __future__ import annotations

import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.figures import EvaluationFigures, SelectionFigures, StepFigures, TrainingFigures
from agent_rl.messages import Evaluation, Judgement
from agent_rl.records.journal_rows import (
    EvaluationRow,
    FactRow,
    GroupRow,
    RecordRow,
    SampledRow,
    SegmentRow,
    SelectionRow,
    StepRow,
    TrajectoryRow,
)
from agent_rl.records.retention import EVALUATE, INTERIM, SELECT, SELECTED_TOGETHER, TRAIN, Retention
from agent_rl.records.sqlite import EmptyJournalError, JournalError

__all__ = [
    "JOURNAL",
    "LAYOUT",
    "Decode",
    "EmptyJournalError",
    "GroupRow",
    "Journal",
    "JournalError",
    "StepRow",
    "Stored",
    "open_journal",
    "read_journal",
    "stored_decoder",
]

JOURNAL = "journal.sqlite"
LAYOUT = "7"
"""The version of the rows and their meaning. A journal of another layout is refused."""
Decode = Callable[[bytes], Any]
"""Decodes a message that the journal stores; raises ValueError when the bytes are not a message."""
DECODER = "actors.roc_filter.replay"
"""The module that reads a message of the journal. It is named and not imported: only the transport knows the format."""


class Stored(NamedTuple):
    """A trajectory as the journal returns it. ``judgement`` is None while it is not judged; some never are."""

    sample: int
    attempt: int
    status: str
    payload: bytes
    judgement: Judgement | None

    @property
    def reward(self) -> float | None:
        """The judgement's reward; None without a judgement."""
        return None if self.judgement is None else self.judgement.reward


@dataclass(slots=True)
class _OpenGroup:
    """An open group that this process has opened: its rows need not be read again."""

    row: GroupRow
    trajectories: dict[tuple[int, int], TrajectoryRow] = field(default_factory=dict)
    """By sample and attempt."""


class Journal(Retention):
    """The history of a run: groups, steps and evaluations. Methods change the current transaction: see `commit`."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """``read_only`` opens an existing journal and changes no file. Raises JournalError."""
        super().__init__(path, read_only=read_only)
        self._open_groups: dict[str, _OpenGroup] = {}
        self._fates: Counter[tuple[str, str, str]] | None = None
        self._taken: Counter[tuple[bool, bool]] | None = None
        self._records: int | None = None
        try:
            self._begin(read_only=read_only)
        except BaseException:  # whatever ends the opening, also a cancellation: the connection must not stay open
            self._db.close()
            raise

    def _begin(self, *, read_only: bool) -> None:
        if self._open(read_only=read_only):
            self.set_fact("layout", LAYOUT)
            self.set_fact("run", secrets.token_hex(8))
            self.commit()
        # Checksums are not compared: the columns of another layout may differ.
        layout = next((value for (value,) in self._scan(FactRow, ("value",), key="layout")), None)
        if layout != LAYOUT:
            raise JournalError(
                f"{self.path} was written by another version of agent_rl (layout {layout}, this version reads "
                f"{LAYOUT}): use that version, or start again in another run.directory"
            )
        if read_only:
            return
        self._payloads.sweep({number for (number,) in self._scan(SegmentRow, ("number",))})
        if self._killed:
            self.forget_lost(self._payloads.ends())
            self.commit()
        self._guard()

    # Groups -----------------------------------------------------------------------------------------------------------

    def open_group(
        self, group: str, stage: int, number: int, purpose: str, opened: bytes, at_step: int | None = None
    ) -> None:
        """Record a new group. Opening a group again changes nothing."""
        if self.group(group) is None:
            track = {"train": TRAIN, "select": SELECT}.get(purpose, EVALUATE if at_step is None else INTERIM)
            if track == SELECT and number % SELECTED_TOGETHER == 0:
                self._begin_segment(SELECT)
            row = GroupRow(group, stage, at_step, number, purpose, opened, self._segment(track))
            self._open_groups[group] = _OpenGroup(row)
            self._put_group(row)

    def add_trajectory(
        self, group: str, sample: int, attempt: int, status: str, payload: bytes, judgement: Judgement | None = None
    ) -> None:
        """Record a trajectory of an open group; its judgement may follow. A second one of an attempt is ignored."""
        row = self.group(group)
        if row is None or row.state != "open":
            raise JournalError(f"{self.path}: a trajectory of {group}, which is not open, cannot be added")
        if self._trajectory(group, sample, attempt) is None:
            place = self._store(row.segment, payload)
            self._put_trajectory(TrajectoryRow(group, sample, attempt, status, *place, judgement))

    def judge(self, group: str, sample: int, attempt: int, judgement: Judgement) -> None:
        """Record the judgement of a trajectory."""
        row = self._trajectory(group, sample, attempt)
        if row is not None and row.judgement != judgement:
            self._put_trajectory(replace(row, judgement=judgement))

    def _trajectory(self, group: str, sample: int, attempt: int) -> TrajectoryRow | None:
        if known := self._open_groups.get(group):
            return known.trajectories.get((sample, attempt))
        return self._get(TrajectoryRow, group, sample, attempt)

    def _put_trajectory(self, row: TrajectoryRow) -> None:
        self._put(row)
        if known := self._open_groups.get(row.group_id):
            known.trajectories[row.sample, row.attempt] = row

    def ready(
        self, group: str, kept: Sequence[tuple[int, int]], rewards: Sequence[float], oldest: int, order: int
    ) -> None:
        """Open -> ready, with the selected trajectories and their rewards."""
        chosen, given = tuple(kept), tuple(float(reward) for reward in rewards)
        self._change(group, "open", state="ready", kept=chosen, rewards=given, oldest=oldest, decided_order=order)

    def drop(self, group: str, reason: str, success: float, oldest: int, order: int) -> None:
        """Open or ready -> dropped, for a named reason; ``success`` is the share of its rollouts that succeeded."""
        dropped = {"state": "dropped", "reason": reason, "right": success > 0, "oldest": oldest, "decided_order": order}
        if not self._change(group, "open", **dropped):
            self._change(group, "ready", **dropped)

    def evaluated(self, group: str) -> None:
        """Open -> evaluated."""
        self._change(group, "open", state="evaluated")

    def ask_again(self, groups: Sequence[str]) -> None:
        """Evaluated -> open, for those of the groups that are evaluated: all their rollouts are sampled again."""
        for group in groups:
            if self._change(group, "evaluated", state="open"):
                self._delete(TrajectoryRow, group)
                self._not_sampled(group)

    def _not_sampled(self, group: str) -> None:
        """A problem of a select stage counts no more, until it is sampled again."""
        row = self.group(group)
        if row is not None and row.purpose == "select":
            self._delete(SampledRow, row.stage, row.number)

    def leave_stages(self, *, but: int, reason: str) -> int:
        """Drop the open and ready groups of earlier stages, with their untrained steps; return how many groups.

        Groups of later stages stay: the learner went back to a checkpoint before a damaged one, and will reach them
        again.
        """
        for step in self._select(StepRow, trained=False):
            if step.stage < but:
                self._delete(StepRow, step.version)
                for row in filter(None, map(self.group, step.decided)):
                    self._put_group(replace(row, step=None), row)
        left = 0
        for row in self._select(GroupRow, state=("ready", "open")):
            if row.stage < but:
                left += 1
                self._put_group(replace(row, state="dropped", reason=reason), row)
        return left

    def group(self, group: str) -> GroupRow | None:
        """One group; None when it was never opened."""
        known = self._open_groups.get(group)
        return self._get(GroupRow, group) if known is None else known.row

    def groups(self, *, stage: int, states: Sequence[str]) -> list[GroupRow]:
        """The stage's groups in the given states, by number."""
        return sorted(self._select(GroupRow, stage=stage, state=tuple(states)), key=lambda row: row.number)

    def trajectories(self, group: str, only: Container[tuple[int, int]] | None = None) -> list[Stored]:
        """The trajectories of a group by sample and attempt; empty when compaction has removed them.

        ``only``: those of these samples and attempts.
        """
        row = self.group(group)
        rows = self._select(TrajectoryRow, group_id=group) if row is not None else []
        found = []
        for each in rows:
            assert row is not None
            if only is not None and (each.sample, each.attempt) not in only:
                continue
            payload = self._fetch(row.segment, each.offset, each.size)
            if payload is None or zlib.crc32(payload) != each.checksum:
                now = self.group(group)
                if (now is not None and now.segment != row.segment) or not self._select(TrajectoryRow, group_id=group):
                    return self.trajectories(group, only)  # a compaction came between
                raise self._unusable(f"the payload of {group}, sample {each.sample}, is not what was written")
            found.append(Stored(each.sample, each.attempt, each.status, payload, each.judgement))
        return found

    def _change(self, group: str, before: str, **values: Any) -> bool:
        """Change a group if its state is ``before``; return whether it was."""
        row = self.group(group)
        if row is None or row.state != before:
            return False
        self._put_group(replace(row, **values), row)
        return True

    def _put_group(self, row: GroupRow, before: GroupRow | None = None) -> None:
        self._put(row)
        if known := self._open_groups.get(row.id):
            known.row = row
            if row.state != "open":
                del self._open_groups[row.id]
        if self._fates is not None:
            self._fates[row.purpose, row.state, row.reason] += 1
            if before is not None:
                self._fates[before.purpose, before.state, before.reason] -= 1

    # Steps ------------------------------------------------------------------------------------------------------------

    def close_step(
        self, version: int, stage: int, groups: Sequence[str], decided: Sequence[str], figures: StepFigures
    ) -> None:
        """Record a closed step: ``groups`` in training order, and all groups that the step ``decided``."""
        step = StepRow(
            version, stage, trained=False, skipped=False, groups=tuple(groups), decided=tuple(decided), figures=figures
        )
        self._put(step)
        for row in filter(None, map(self.group, decided)):
            self._put_group(replace(row, step=version), row)
        self._begin_segment(TRAIN)

    def step_trained(self, version: int, figures: TrainingFigures, *, dropped_for: str = "") -> bool:
        """Record the learner's result: the step's groups are trained, or dropped for a reason when it was skipped.

        A replay may have another result than the first time. The replay's result counts, since the weights come from
        it. A replay never trains a skipped step. Returns False when the step was recorded before.
        """
        step = self.step(version)
        if step is None:
            raise JournalError(f"{self.path}: the step at version {version} was reported trained but never closed")
        if step.skipped:
            return False
        self._put(replace(step, trained=True, skipped=bool(dropped_for), learner_figures=figures))
        if self._taken is not None:
            self._taken[not step.groups, bool(dropped_for)] += 1
            if step.trained:
                self._taken[not step.groups, step.skipped] -= 1
        for row in filter(None, map(self.group, step.groups)):
            if row.state in {"ready", "trained"}:
                state = "dropped" if dropped_for else "trained"
                self._put_group(replace(row, state=state, reason=dropped_for), row)
        return not step.trained

    def step(self, version: int) -> StepRow | None:
        """The step that brings the policy from ``version`` to the next; None when it was not closed."""
        return self._get(StepRow, version)

    def steps(self, *, stage: int | None = None) -> list[StepRow]:
        """Closed steps by version."""
        return self._select(StepRow) if stage is None else self._select(StepRow, stage=stage)

    def step_counts(self) -> tuple[int, int, int]:
        """The numbers of steps that the learner took, of those without groups, and of those skipped as not finite."""
        if self._taken is None:
            taken = self._scan(StepRow, ("groups", "skipped"), trained=True)
            self._taken = Counter((not groups, bool(skipped)) for groups, skipped in taken)
        counts = self._taken
        empty, skipped = (sum(n for key, n in counts.items() if key[place]) for place in (0, 1))
        return counts.total(), empty, skipped

    # Retention --------------------------------------------------------------------------------------------------------

    def keep_from(self, version: int) -> None:
        """No replay starts before ``version`` any more: `compaction` may remove trajectories of earlier steps."""
        self.set_fact("kept_from", str(version))

    def forget_lost(self, ends: Mapping[int, int]) -> None:
        """Undo the rows whose payloads were lost with the power; ``ends`` are the bytes on disk, by segment.

        A flush writes payloads before it commits their rows, so only payloads after the last flush can be lost, and no
        trained step. Each missing rollout is sampled again.
        """
        segments = dict(self._scan(GroupRow, ("id", "segment")))
        columns = ("group_id", "sample", "attempt", "offset", "size")
        places = list(self._scan(TrajectoryRow, columns))
        lost = [row for row in places if row[3] + row[4] > ends.get(segments[row[0]], 0)]
        for group, sample, attempt, *_ in lost:
            self._delete(TrajectoryRow, group, sample, attempt)
        rows = [row for row in map(self.group, {group for group, *_ in lost}) if row is not None]
        asked_again = {row.id: row for row in rows if row.state in {"ready", "evaluated"}}
        untrained = self._select(StepRow, trained=False)
        affected = [step.version for step in untrained if asked_again.keys() & {*step.decided}]
        for step in untrained:
            if affected and step.version >= min(affected):  # versions of steps must have no gaps
                self._delete(StepRow, step.version)
                for decided in filter(None, map(self.group, step.decided)):
                    self._put_group(replace(decided, step=None), decided)
        for row in asked_again.values():
            fresh = GroupRow(row.id, row.stage, row.at_step, row.number, row.purpose, row.opened, row.segment)
            self._put_group(fresh, self.group(row.id))
            self._not_sampled(row.id)

    # Evaluations ------------------------------------------------------------------------------------------------------

    def add_evaluation(self, evaluation: Evaluation, figures: EvaluationFigures) -> bool:
        """Record a result; False when it was recorded before. Trajectories of an interim evaluation may then leave."""
        stage, at_step = evaluation.stage, evaluation.at_step
        row = EvaluationRow(stage, EvaluationRow.WHOLE if at_step is None else at_step, figures)
        known = bool(self._select(EvaluationRow, stage=stage, at_step=row.at_step))
        if not known:
            self._put(row)
            self._begin_segment(EVALUATE if at_step is None else INTERIM)
        return not known

    def evaluations(self) -> dict[int, EvaluationFigures]:
        """Results of evaluate stages, by stage."""
        return {row.stage: row.figures for row in self._select(EvaluationRow, at_step=EvaluationRow.WHOLE)}

    def interim_evaluations(self, stage: int) -> dict[int, EvaluationFigures]:
        """Results of the evaluations within an rl stage, by ``at_step``."""
        rows = self._select(EvaluationRow, stage=stage)
        return {row.at_step: row.figures for row in rows if row.at_step != EvaluationRow.WHOLE}

    # Selections -------------------------------------------------------------------------------------------------------

    def add_sampled(self, group: str, row: SampledRow) -> None:
        """Open -> evaluated, with what a select stage has counted of its problem."""
        if self._change(group, "open", state="evaluated"):
            self._put(row)

    def add_outcome(self, row: SampledRow) -> None:
        """Record what a curriculum observed of a training group's problem."""
        self._put(row)

    def add_selection(self, stage: int, kept: Sequence[int], figures: SelectionFigures) -> bool:
        """Record the result of a select stage; False when it was recorded before."""
        known = self.selection(stage) is not None
        if not known:
            self._put(SelectionRow(stage, tuple(kept), figures))
        return not known

    # Records ------------------------------------------------------------------------------------------------

    def add_record(self, row: str) -> None:
        """Add a row of metrics.jsonl; the file gets it after the commit."""
        self._put(RecordRow(self.record_count(), row))
        self._records = self.record_count() + 1

    def records(self) -> list[str]:
        """The rows of metrics.jsonl, in order."""
        return [record.row for record in self._select(RecordRow)]

    def record_count(self) -> int:
        """The number of rows of metrics.jsonl."""
        if self._records is None:
            self._records = sum(1 for _ in self._scan(RecordRow, ("number",)))
        return self._records

    # What the rows add up to ------------------------------------------------------------------------------------------

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Number of groups by (purpose, state, reason)."""
        if self._fates is None:
            self._fates = Counter(self._scan(GroupRow, ("purpose", "state", "reason")))
        return {fate: count for fate, count in self._fates.items() if count}

    def group_ids(self) -> list[str]:
        """Every group, by stage and number."""
        return [group for _, _, group in sorted(self._scan(GroupRow, ("stage", "number", "id")))]

    def opened_counts(self, stage: int) -> Counter[int | None]:
        """The number of groups that the stage (key None), and each evaluation within it (``at_step``), has opened."""
        counts: Counter[int | None] = Counter()
        for at_step, number in self._scan(GroupRow, ("at_step", "number"), stage=stage):
            counts[at_step] = max(counts[at_step], number + 1)  # numbers have no gaps
        return counts

    def uncounted(self, stage: int, reason: str) -> int:
        """The number of the stage's groups that were dropped for this reason and that no step counts."""
        where = {"stage": stage, "state": "dropped", "reason": reason, "decided_order": 0}
        return sum(1 for _ in self._scan(GroupRow, ("id",), **where))

    def stored_groups(self) -> set[str]:
        """The groups that have trajectories."""
        return {group for (group,) in self._scan(TrajectoryRow, ("group_id",))}

    def left(self) -> int:
        """The number of groups, trained, evaluated or counted towards a step, whose trajectories were removed."""
        there = self.stored_groups()
        groups = self._scan(GroupRow, ("id", "state", "decided_order"))
        return sum(group not in there for group, state, order in groups if order or state in {"trained", "evaluated"})

    def group_states(self) -> Iterator[tuple[str, str, int | None]]:
        """Every group with its state and the step that decided it."""
        return self._scan(GroupRow, ("id", "state", "step"))

    def outlines(self, group: str) -> dict[tuple[int, int], Judgement | None]:
        """The judgement of each trajectory of a group, by sample and attempt; None while it is not judged."""
        return {(each.sample, each.attempt): each.judgement for each in self._select(TrajectoryRow, group_id=group)}

    def closed_versions(self) -> list[int]:
        """The versions of all closed steps."""
        return [version for (version,) in self._scan(StepRow, ("version",))]

    def judged(self, stage: int) -> dict[str, float]:
        """How many rollouts of each evaluated group of a stage succeeded."""
        evaluated = [group for (group,) in self._scan(GroupRow, ("id",), stage=stage, state="evaluated")]
        judged = {group: filter(None, self.outlines(group).values()) for group in evaluated}
        return {group: float(sum(judgement.success for judgement in found)) for group, found in judged.items()}

    def sampled(self, stage: int) -> list[SampledRow]:
        """What a select stage has counted so far, by number."""
        return self._select(SampledRow, stage=stage)

    def selection(self, stage: int) -> SelectionRow | None:
        """The result of a select stage; None while there is none."""
        return self._get(SelectionRow, stage)

    def selections(self) -> list[SelectionFigures]:
        """The figures of all select stages that have a result, by stage."""
        return [row.figures for row in self._select(SelectionRow)]

    def kept_problems(self, stage: int) -> dict[str, tuple[str, ...]] | None:
        """The ids of the problems that a select stage keeps, by environment; None while it has no result."""
        if (result := self.selection(stage)) is None:
            return None
        numbers, found = set(result.kept), dict[str, list[str]]()
        for number, environment, problem in self._scan(SampledRow, ("number", "environment", "problem"), stage=stage):
            if number in numbers:
                found.setdefault(environment, []).append(problem)
        return {environment: tuple(ids) for environment, ids in found.items()}

    def ages(self) -> Iterator[tuple[str, int, int, int | None]]:
        """Group, version, staleness and the step's limit of it, for every group in a step that is not skipped."""
        oldest = dict(self._scan(GroupRow, ("id", "oldest"), purpose="train", state=("ready", "trained")))
        for row in self._select(StepRow):
            for group in () if row.skipped else row.groups:
                if group in oldest:  # otherwise `faults` names the group
                    yield group, row.version, row.version - oldest[group], row.figures.staleness_limit

    def lost_steps(self) -> list[str]:
        """Signs that rows of steps are missing: the learner would wait for such a step for ever."""
        versions: dict[int, list[int]] = {}
        for stage, version in self._scan(StepRow, ("stage", "version")):
            versions.setdefault(stage, []).append(version)
        faults = [
            f"stage {stage} has {len(each)} steps at versions {min(each)} to {max(each)}"
            for stage, each in sorted(versions.items())
            if len(each) != max(each) - min(each) + 1
        ]
        there = {None, *(version for each in versions.values() for version in each)}
        lost = ((step, group) for group, step in self._scan(GroupRow, ("id", "step")) if step not in there)
        return faults + [
            f"{group} is in the step at version {step}, which is missing" for step, group in sorted(lost)[:1]
        ]

    def faults(self) -> Iterator[str]:
        """Every contradiction of the journal's rules, group by group."""
        numbers: dict[str, list[int]] = {}
        settled: dict[str, tuple[str, int]] = {}
        for group, stage, at_step, number, purpose, state, reason, step in self._scan(
            GroupRow, ("id", "stage", "at_step", "number", "purpose", "state", "reason", "step")
        ):
            where = f"stage {stage}" if at_step is None else f"stage {stage}, its evaluation after {at_step} steps"
            numbers.setdefault(where, []).append(number)
            if step is not None:
                settled[group] = state, step
            contradictions = (
                ("trained without a step", state == "trained" and step is None),
                ("dropped without a reason", state == "dropped" and not reason),
                ("a training group marked evaluated", state == "evaluated" and purpose == "train"),
                ("an evaluation group marked trained", state == "trained" and purpose != "train"),
                ("open, yet in a step", state == "open" and step is not None),
            )
            yield from (f"{group}: {what}" for what, found in contradictions if found)
        for where, each in sorted(numbers.items()):
            if len(each) != max(each) + 1:
                yield f"{where}: {len(each)} groups recorded, but numbers reach {max(each) + 1}"
        seen: dict[str, int] = {}
        for row in self._select(StepRow):
            expected = "dropped" if row.skipped else "trained" if row.trained else "ready"
            for group in row.groups:
                if group in seen:
                    yield f"{group}: in the steps at versions {seen[group]} and {row.version}"
                seen[group] = row.version
                state, at = settled.get(group, ("missing or in no step", None))
                if (state, at) != (expected, row.version):
                    yield f"{group}: in the step at version {row.version}, but {state} (step {at})"
        for group, (state, _) in settled.items():
            if state == "trained" and group not in seen:
                yield f"{group}: trained, but in no step"

    def verify(self) -> tuple[int, list[str]]:
        """Read every byte again; return the number of rows, and the faults."""
        count, faults = super().verify()
        for group in [] if faults else self.group_ids():
            try:
                self.trajectories(group)
            except JournalError as error:
                faults.append(str(error))
        return count, faults


def open_journal(directory: Path) -> Journal:
    """Open the journal of a run directory for writing; create it if there is none. Raises JournalError."""
    return Journal(directory / JOURNAL)


def read_journal(directory: Path) -> Journal:
    """Open the journal of a run directory, which may be under way, for reading. Raises JournalError without one."""
    path = directory / JOURNAL
    if not path.is_file():
        raise JournalError(f"{path}: no journal here; give the directory of a run")
    return Journal(path, read_only=True)


def stored_decoder() -> Decode:
    """The function that reads a message; it raises JournalError for a message of another release."""
    decode: Decode = import_module(DECODER).decode_stored
    return decode
