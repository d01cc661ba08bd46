"""A list of all trajectories in a journal, in short rows that grow with the journal. Bodies stay on the disk.

::

    journal (read-only, opened for each look) --> Catalogue.look --> Changes --> page
                                                  rollouts_of        --> trajectories whole, on demand

A look reads only groups that are new, changed or open, and of them only payloads that it has not read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent_rl.messages import Problem, Trajectory
from agent_rl.observe.report.charts import FATES
from agent_rl.records.journal import Decode, GroupRow, Journal

Key = tuple[str, int, int]
"""Group, sample, attempt."""

MOST_ROWS = 50_000
"""Trajectories that are listed."""
AT_ONCE = 400
"""Groups and payloads that a look reads; a further look goes on."""
SHOWN_TEXT, SHOWN_ANSWER = 200, 80
"""Characters of a problem and of an answer in the list."""
GROUP_COLUMNS = (
    "stage", "purpose", "at_step", "step", "environment", "subject", "problem", "text", "samples", "fate",
)  # fmt: skip
ROW_COLUMNS = (
    "group", "sample", "attempt", "status", "success", "reward", "calls", "errors", "turns", "tokens", "kept",
    "seconds", "oldest", "newest", "answer", "branches",
)  # fmt: skip


class Changes(NamedTuple):
    """What a look found: the rows of groups (by id) and of trajectories. ``more``: another look goes on."""

    groups: dict[str, list[Any]]
    rows: list[list[Any]]
    more: bool = False


def columns() -> dict[str, Any]:
    """The names of the columns, for the page."""
    words = {name: words for name, (words, _) in FATES.items()}
    return {"columns": {"group": GROUP_COLUMNS, "row": ROW_COLUMNS}, "fates": words}


def listed(changes: Changes) -> dict[str, Any]:
    """Rows for the page."""
    return {"groups": changes.groups, "rows": changes.rows}


@dataclass(slots=True)
class _Group:
    row: GroupRow
    shown: list[Any]
    rows: dict[tuple[int, int], list[Any]] = field(default_factory=dict)


class Catalogue:
    """The groups and trajectories of one journal."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._groups: dict[str, _Group] = {}
        self._unread: dict[str, None] = {}
        self._versions: list[int] = []
        self.count = 0
        """Trajectories that are listed."""
        self.unreadable = ""
        """Why the first unreadable message cannot be read."""

    @property
    def full(self) -> bool:
        """Whether no further trajectory is listed."""
        return self.count >= MOST_ROWS

    def look(self, journal: Journal) -> Changes:
        """Read what has changed. Raises JournalError."""
        self._versions = sorted(journal.closed_versions())
        groups: dict[str, list[Any]] = {}
        for group, state, step in journal.group_states():
            known = self._groups.get(group)
            if known is None or (known.row.state, known.row.step) != (state, step):
                self._unread[group] = None
        waiting = {group for group, each in self._groups.items() if each.row.state == "open"}
        rows: list[list[Any]] = []
        left = AT_ONCE
        for group in [*self._unread, *(waiting - self._unread.keys())]:
            if left <= 0:
                return Changes(groups, rows, more=True)
            if group in self._unread and (row := journal.group(group)) is not None:
                groups[group] = self._take(row).shown
                left -= 1
            if (known := self._groups.get(group)) is not None:
                found, read = self._rows(journal, known)
                rows += found
                left -= read
            self._unread.pop(group, None)
        return Changes(groups, rows)

    def _take(self, row: GroupRow) -> _Group:
        known = self._groups.get(row.id)
        if known is None:
            known = self._groups[row.id] = _Group(row, self._shown(row))
        known.row = row
        known.shown[GROUP_COLUMNS.index("step")] = self.step_number(row.step)
        known.shown[-1] = fate(row)
        return known

    def everything(self) -> Changes:
        """All rows so far."""
        shown = {group: each.shown for group, each in self._groups.items()}
        return Changes(shown, [row for each in self._groups.values() for row in each.rows.values()])

    def fates(self) -> list[tuple[int | None, str, int]]:
        """Numbers of training groups by (version of the step that decided them or None, fate)."""
        groups = (each.row for each in self._groups.values() if each.row.purpose == "train")
        counts = Counter((row.step, fate(row)) for row in groups)
        return [(step, its, count) for (step, its), count in counts.items()]

    def kept_rewards(self) -> dict[int, float]:
        """Mean reward of the rollouts that each step trained on, by version."""
        found: dict[int, list[float]] = {}
        for each in self._groups.values():
            if each.row.state == "trained" and each.row.step is not None:
                found.setdefault(each.row.step, []).extend(each.row.rewards)
        return {step: sum(rewards) / len(rewards) for step, rewards in found.items() if rewards}

    def step_number(self, version: int | None) -> int | None:
        """The number of a step, from 1, by its version."""
        return None if version is None else bisect_left(self._versions, version) + 1

    def _shown(self, row: GroupRow) -> list[Any]:
        try:
            opened = self._decode(row.opened)
            problem, samples = opened.problem, opened.samples
        except ValueError as error:
            self.unreadable = self.unreadable or f"{row.id}: {error}"
            problem, samples = Problem("?", "cannot be read"), 0
        subject = str(problem.payload.get("subject", ""))
        text = " ".join(problem.text[: 2 * SHOWN_TEXT].split())[:SHOWN_TEXT]
        about = row.stage, row.purpose, row.at_step, self.step_number(row.step)
        return [*about, problem.environment, subject, problem.id, text, samples, fate(row)]

    def _rows(self, journal: Journal, known: _Group) -> tuple[list[list[Any]], int]:
        """Rows of the group's trajectories that are new or were judged or decided, and how many payloads were read."""
        room = MOST_ROWS - self.count
        outlines = journal.outlines(known.row.id)
        new = [key for key in outlines if key not in known.rows][: max(0, room)]
        stored = journal.trajectories(known.row.id, only=set(new)) if new else []
        payloads = {(each.sample, each.attempt): each.payload for each in stored}
        changed = []
        for key, judgement in outlines.items():
            if key in payloads:  # of a new one
                known.rows[key] = self._row(known.row.id, key, payloads[key])
                self.count += 1
            if (row := known.rows.get(key)) is None:
                continue
            before = None if key in payloads else list(row)
            if judgement is not None:
                row[4:6] = judgement.success, judgement.reward
                row[14] = judgement.answer[:SHOWN_ANSWER]
            row[10] = key in known.row.kept if known.row.kept else None
            if row != before:
                changed.append(row)
        return changed, len(payloads)

    def _row(self, group: str, key: tuple[int, int], payload: bytes) -> list[Any]:
        try:
            made: Trajectory = self._decode(payload)
        except ValueError as error:
            self.unreadable = self.unreadable or f"{group}: {error}"
            return [group, *key, "unreadable", None, None, 0, 0, 0, 0, None, None, None, None, "", 0]
        calls = made.transcript.calls
        errors = sum(call.outcome != "success" for call in calls)
        sizes = len(calls), errors, made.turns, made.response_length
        about = round(made.seconds, 2), made.oldest, made.newest, "", len(made.branches)
        return [group, *key, made.status, None, None, *sizes, None, *about]


def fate(row: GroupRow) -> str:
    """What became of a group: a key of `charts.FATES`, or the reason why it was dropped."""
    if row.state == "dropped" and row.reason == "equal_rewards":
        return "all_right" if row.right else "all_wrong"
    if row.state == "dropped":
        return row.reason or "dropped"
    return row.state if row.state in {"trained", "evaluated"} else "open"
