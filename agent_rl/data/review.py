"""Find, count and name the rows that training would refuse or skip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent_rl.data.rows import DataError, Row
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import answer_of, problem_of, text_of
from agent_rl.messages import Problem

NAMED = 5
"""How many rows of a kind are named."""
FAULTS = {
    "without_problem": "has no problem: neither text in `problem` nor verl's `prompt`",
    "without_answer": "has no answer: neither text or a number in `answer` nor verl's `reward_model.ground_truth`",
    "unreadable": "holds half of a surrogate pair, which is no character",
    "duplicate_id": "has the id of an earlier row",
    "prompt_too_long": "has a prompt that leaves no room for a response",
}
"""What a row may lack, and the words for it."""


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


@dataclass(slots=True)
class Review:
    """Counts and names the faults of rows. Memory: the ids."""

    too_long: Callable[[Problem], bool] | None = None
    """Whether a problem's prompt is too long, where that can be told."""
    _ids: set[str] = field(default_factory=set)
    _places: dict[str, list[str]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def faults(self, row: Row, where: str) -> list[str]:
        """What is wrong with a row, of `FAULTS`. A conversation needs neither problem nor answer."""
        faults = list(self._faults(row, where))
        for fault in faults:
            self._counts[fault] = self._counts.get(fault, 0) + 1
            places = self._places.setdefault(fault, [])
            if len(places) < NAMED:
                places.append(where)
        return faults

    def _faults(self, row: Row, where: str) -> list[str]:
        faults = []
        if not ("problem" not in row and "prompt" not in row and ("messages" in row or "conversations" in row)):
            faults += [
                name
                for name, read in (("without_problem", text_of), ("without_answer", answer_of))
                if _fails(read, row, where)
            ]
            if not faults:
                try:
                    problem = problem_of(row, where)
                except TaskError:
                    faults.append("unreadable")
                else:
                    if self.too_long is not None and self.too_long(problem):
                        faults.append("prompt_too_long")
        identity = row.get("id")
        if identity is not None:
            if str(identity) in self._ids:
                faults.append("duplicate_id")
            self._ids.add(str(identity))
        return faults

    def counts(self) -> dict[str, int]:
        """Rows by fault, of those there are."""
        return {name: self._counts[name] for name in FAULTS if name in self._counts}

    def lines(self) -> list[str]:
        """A sentence a fault, with the first rows that have it."""
        said = []
        for name, count in self.counts().items():
            places = ", ".join(self._places[name]) + (", ..." if count > NAMED else "")
            rows = "1 row" if count == 1 else f"{count:,} rows"
            words = (
                FAULTS[name] if count == 1 else FAULTS[name].replace("has ", "have ", 1).replace("holds ", "hold ", 1)
            )
            said.append(f"note: {rows} {words}: {places}")
        return said


def _fails(read: Callable[[Row, str], str], row: Row, where: str) -> bool:
    try:
        read(row, where)
    except TaskError:
        return True
    return False
