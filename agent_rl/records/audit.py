"""The balance of a run: every group that was opened is trained once, dropped for a reason, or open.

No group is trained with more staleness than the rule of its step permits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from agent_rl.records.checkpoint_files import CheckpointError, verify
from agent_rl.records.history import CHECKPOINTS, faults_between
from agent_rl.records.journal import Journal, read_journal
from agent_rl.records.run_directory import in_use


@dataclass(frozen=True, slots=True)
class Audit:
    """The balance of a run: opened = trained + dropped by reason + open. A ready group counts as open until trained."""

    opened: int
    trained: int
    open: int
    dropped: dict[str, int]
    evaluated: int
    evaluation_open: int
    steps: int
    empty_steps: int
    skipped_steps: int
    left: int
    """Groups whose trajectories have left the journal."""
    staleness: int | None
    """The most with which a group was trained; None where none was."""
    delivered: dict[str, int]
    """Tokens of the groups that steps have decided: ``sampled``, ``trained``, and the others by cause."""
    branches: dict[str, int]
    """Branches of their rollouts, by cause."""
    faults: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        """Whether every group is counted exactly once and no rule is broken."""
        return not self.faults and self.opened == self.trained + sum(self.dropped.values()) + self.open

    def figures(self) -> dict[str, float]:
        """The counts by the names the summary uses."""
        return {
            "groups_opened": self.opened,
            "groups_trained": self.trained,
            "groups_dropped": sum(self.dropped.values()),
            "groups_open": self.open,
            **{f"tokens_delivered_{name}": count for name, count in sorted(self.delivered.items())},
            **{f"branches_{name}": count for name, count in sorted(self.branches.items())},
        }

    def lines(self) -> list[str]:
        """For people."""
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items())) or "none"
        lost = sum(self.dropped.values())
        sign = "=" if self.opened == self.trained + lost + self.open else "!="
        groups = f"{self.opened} opened {sign} {self.trained} trained + {lost} dropped ({dropped}) + {self.open} open"
        unused = f"{self.empty_steps} without a group to train and {self.skipped_steps} skipped as not finite"
        lines = [
            f"training groups: {groups}",
            f"steps: {self.steps}, of which {unused}",
            f"groups of evaluations and selections: {self.evaluated} evaluated, {self.evaluation_open} open or dropped",
        ]
        if self.staleness is not None:
            lines.append(f"staleness of what was trained: at most {self.staleness}")
        if self.delivered:
            causes = {name: count for name, count in self.delivered.items() if name not in {"sampled", "trained"}}
            named = ", ".join(f"{count:,} {name}" for name, count in sorted(causes.items())) or "none"
            sampled, of_them = self.delivered.get("sampled", 0), self.delivered.get("trained", 0)
            lines.append(
                f"sampled tokens of decided groups: {sampled:,} = {of_them:,} trained + {sum(causes.values()):,} "
                f"excluded ({named})"
            )
        if self.branches:
            named = ", ".join(f"{count:,} {name}" for name, count in sorted(self.branches.items()))
            lines.append(f"branches of their rollouts: {named}")
        if self.left:
            lines.append(
                f"trajectories: those of {self.left} groups were removed from the journal (see run.keep_trajectories)"
            )
        lines += [f"FAULT {fault}" for fault in self.faults]
        lines.append("balanced" if self.balanced else "NOT BALANCED")
        return lines


def audit_journal(journal: Journal) -> Audit:
    """Balance an open journal."""
    opened = trained = still_open = evaluated = evaluation_open = 0
    dropped: dict[str, int] = {}
    for (purpose, state, reason), count in journal.counts().items():
        if purpose != "train":
            evaluated += count if state == "evaluated" else 0
            evaluation_open += count if state != "evaluated" else 0
            continue
        opened += count
        if state == "trained":
            trained += count
        elif state == "dropped":
            dropped[reason] = dropped.get(reason, 0) + count
        else:
            still_open += count
    steps, empty, skipped = journal.step_counts()
    ages = list(journal.ages())
    late = (
        f"{group}: trained at version {version} with staleness {age}, beyond its limit of {limit}"
        for group, version, age, limit in ages
        if limit is not None and age > limit
    )
    tokens, branches, undelivered = _delivered(journal)
    return Audit(
        opened=opened,
        trained=trained,
        open=still_open,
        dropped=dropped,
        evaluated=evaluated,
        evaluation_open=evaluation_open,
        steps=steps,
        empty_steps=empty,
        skipped_steps=skipped,
        left=journal.left(),
        staleness=max((age for _, _, age, _ in ages), default=None),
        delivered=tokens,
        branches=branches,
        faults=(*journal.faults(), *late, *undelivered),
    )


def _delivered(journal: Journal) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Tokens and branches of all steps, and the faults in them: the filter sends what the learner has trained."""
    tokens: Counter[str] = Counter()
    branches: Counter[str] = Counter()
    faults = []
    for step in journal.steps():
        counts = dict(step.figures.delivered)
        sent = counts.pop("trained", 0)
        learner = step.learner_figures
        if not step.trained or learner is None:
            counts["waiting"] = sent
        elif step.skipped or learner.skipped:
            counts["step_skipped"] = sent
        else:
            told = learner.trained_tokens or learner.trained_rollouts  # a learner of one's own may count nothing
            counts["trained"] = learner.trained_tokens if told else sent
            if told and counts.get("sampled") and learner.trained_tokens != sent:
                faults.append(
                    f"step {step.version}: {sent} tokens were sent to be trained, and {learner.trained_tokens} were"
                )
        if "sampled" in counts:
            tokens.update(counts)
        branches.update(step.figures.branches)
    return {name: count for name, count in tokens.items() if count}, dict(branches), faults


def audit(directory: Path) -> Audit:
    """Balance the journal of a run directory. Raises JournalError when there is none."""
    journal = read_journal(directory)
    try:
        return audit_journal(journal)
    finally:
        journal.close()


@dataclass(frozen=True, slots=True)
class DeepAudit:
    """The result: ``faults`` name bytes that changed or were lost, ``notes`` name what was not checked."""

    rows: int
    checkpoints: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"read again: {self.rows} rows of the journal, {self.checkpoints} checkpoints",
            *(f"note: {note}" for note in self.notes),
            *(f"FAULT {fault}" for fault in self.faults),
            "every byte is as it was written" if not self.faults else "NOT AS WRITTEN",
        ]


def deep_audit(directory: Path) -> DeepAudit:
    """Read a run directory again. Raises JournalError when the journal cannot be read at all."""
    under_way = in_use(directory)
    notes = ["the run is under way: journal and checkpoints were not compared"] if under_way else []
    journal = read_journal(directory)
    try:
        rows, faults = journal.verify()
        if not under_way:
            faults += faults_between(directory, journal)
    finally:
        journal.close()
    folders = sorted(path for name in ("best-*", "version-*") for path in (directory / CHECKPOINTS).glob(name))
    for folder in folders:
        try:
            verify(folder)
        except CheckpointError as error:
            faults.append(str(error))
    return DeepAudit(rows, len(folders), tuple(faults), tuple(notes))
