"""Which rows are faulty and how many there are, and columns under other names. Rows come one by one, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from agent_rl.data.rows import DataError, Row
from agent_rl.environments.base import TaskError
from agent_rl.environments.maths.rewards import is_read
from agent_rl.environments.task_files import answer_of, problem_of, text_of
from agent_rl.observe.words import count_of

NAMED = 5
"""Rows of a kind that are named."""
UNREAD = "unread_answer"
FAULTS = {
    "without_problem": "without a problem: neither text in `problem` nor verl's `prompt`",
    "without_answer": "without an answer: neither text or a number in `answer` nor verl's `reward_model.ground_truth`",
    "unreadable": "with half of a surrogate pair, which is no character",
    "duplicate_id": "with the id of an earlier row",
    UNREAD: "with an answer that the checker of `maths` cannot read, so that only the same text equals it",
}
"""Faults of rows that training would refuse, skip or change, in words; and what is no fault in other environments."""


def renamed(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """The row with columns under new names, in their old places; a dot in an old name leads into a column of columns.

    Raises DataError when a row has no such column, or already has the new one.
    """
    if not columns:
        return row
    values = {}
    for new, old in columns.items():
        value = row.get(old)
        if old not in row:
            value = row
            for part in old.split("."):
                if not isinstance(value, Mapping) or part not in value:
                    known = ", ".join(sorted(row))
                    raise DataError(
                        f"{where}: --columns {new}={old}: there is no column {old!r:.60}; there is {known:.300}"
                    )
                value = value[part]
        values[new] = value
    gone = {old for old in columns.values() if old in row}
    twice = next((new for new in values if new in row and new not in gone), None)
    if twice is not None:
        raise DataError(
            f"{where}: --columns {twice}={columns[twice]}: there is a column {twice!r} already; rename that one too"
        )
    new_name = {old: new for new, old in columns.items() if old in row}
    kept = {new_name.get(name, name): value for name, value in row.items()}
    return {**kept, **values}


class Tally:
    """How many rows were read, kept, and dropped by reason; the first rows of each reason are named."""

    def __init__(self) -> None:
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self._places: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, where: str = "") -> bool:
        """Count a row; whether it is kept."""
        self.read += 1
        if reason:
            self.note(reason, where)
        return not reason

    def note(self, reason: str, where: str) -> None:
        """Count a reason alone."""
        self.dropped[reason] += 1
        if where and len(self._places[reason]) < NAMED:
            self._places[reason].append(where)

    def lines(self) -> list[str]:
        """A line for each reason with rows to name: their number, the reason, and the first of them."""
        return [
            f"note: {count_of(self.dropped[reason], 'row')} {FAULTS.get(reason, f'left out ({_words(reason)})')}: "
            f"{', '.join(places)}{', ...' if self.dropped[reason] > len(places) else ''}"
            for reason, places in sorted(self._places.items())
        ]

    def figures(self) -> dict[str, int]:
        """By name."""
        kept = self.read - sum(self.dropped.values())
        return {"read": self.read, "kept": kept} | {f"dropped_{name}": n for name, n in sorted(self.dropped.items())}


class Review:
    """Counts and names the faults of rows. Memory: the ids."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self.found = Tally()

    def faults(self, row: Row, where: str) -> list[str]:
        """What is wrong with a row, of `FAULTS`. A conversation needs neither problem nor answer.

        An answer that cannot be read is counted alone, since a judge of the user's own may take it.
        """
        faults, problem = [], None
        if "problem" in row or "prompt" in row or not ("messages" in row or "conversations" in row):
            for fault, read in (("without_problem", text_of), ("without_answer", answer_of)):
                try:
                    read(row, where)
                except TaskError:
                    faults.append(fault)
            if not faults:
                try:
                    problem = problem_of(row, where)
                except TaskError:
                    faults.append("unreadable")
        if row.get("id") is not None:
            if str(row["id"]) in self._ids:
                faults.append("duplicate_id")
            self._ids.add(str(row["id"]))
        for fault in faults:
            self.found.note(fault, where)
        if problem is not None and not is_read(problem.answer):
            self.found.note(UNREAD, where)
        return faults


def _words(reason: str) -> str:
    return reason.replace("_", " ")
