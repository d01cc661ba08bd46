"""The balance of a run: every group that was opened is trained once, dropped for a reason, or open.

No group is trained with more staleness than the rule of its step permits.
"""

from __future__ import annotations

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
        faults=(*journal.faults(), *late),
    )


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
