"""The types of a journal's rows, and how SQLite stores them: a table for each type, a checksum for each row.

`KEY` identifies a row; `INDEXES` are further search columns.
"""

from __future__ import annotations

import types
import typing
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar

from agent_rl.figures import EvaluationFigures, SelectionFigures, StepFigures, TrainingFigures, from_json, to_json
from agent_rl.messages import Judgement


@dataclass(frozen=True, slots=True)
class Row:
    """A row. Columns are numbers, text, bytes, booleans, or values stored as JSON (tuples, records of figures)."""

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    INDEXES: ClassVar[tuple[tuple[str, ...], ...]] = ()


@dataclass(frozen=True, slots=True)
class GroupRow(Row):
    """A group. ``kept`` pairs samples with attempts; ``step`` is the version of the step that decided the group.

    ``at_step`` is set for groups of an evaluation within an rl stage: the steps of the stage before the evaluation.
    ``segment`` holds the payloads of its trajectories. ``right`` says whether any rollout of a dropped group succeeded.
    """

    TABLE = "groups"
    KEY = ("id",)
    INDEXES = (("state", "stage"), ("segment",))
    id: str
    stage: int
    at_step: int | None
    number: int
    purpose: str
    opened: bytes
    segment: int
    state: str = "open"
    reason: str = ""
    step: int | None = None
    kept: tuple[tuple[int, int], ...] = ()
    rewards: tuple[float, ...] = ()
    oldest: int = 0
    decided_order: int = 0
    right: bool = False


@dataclass(frozen=True, slots=True)
class TrajectoryRow(Row):
    """A trajectory. Its payload is ``size`` bytes from byte ``offset`` on of its group's segment, with their CRC-32.

    ``judgement`` is None while the trajectory is not judged; some never are.
    """

    TABLE = "trajectories"
    KEY = ("group_id", "sample", "attempt")
    group_id: str
    sample: int
    attempt: int
    status: str
    offset: int
    size: int
    checksum: int
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True)
class SegmentRow(Row):
    """A segment of payloads, and the track whose groups it holds."""

    TABLE = "segments"
    KEY = ("number",)
    number: int
    track: str


@dataclass(frozen=True, slots=True)
class StepRow(Row):
    """A closed step, with the filter's and (once trained) the learner's figures.

    ``skipped``: the learner skipped the step because it was not finite. Its groups are dropped, and no replay trains
    them.
    """

    TABLE = "steps"
    KEY = ("version",)
    version: int
    stage: int
    trained: bool
    skipped: bool
    groups: tuple[str, ...]
    decided: tuple[str, ...]
    figures: StepFigures
    learner_figures: TrainingFigures | None = None


@dataclass(frozen=True, slots=True)
class EvaluationRow(Row):
    """The result of an evaluate stage, or within an rl stage after ``at_step`` steps of it."""

    TABLE = "evaluations"
    KEY = ("stage", "at_step")
    WHOLE = -1
    """``at_step`` of an evaluate stage."""
    stage: int
    at_step: int
    figures: EvaluationFigures


@dataclass(frozen=True, slots=True)
class SampledRow(Row):
    """A problem that a select stage has sampled, by the number of its group; ``problem`` is its id.

    Of its ``samples`` rollouts, ``right`` were right and ``lost`` failed in all their attempts; ``tokens`` are those of
    all responses.
    """

    TABLE = "sampled"
    KEY = ("stage", "number")
    stage: int
    number: int
    environment: str
    problem: str
    right: int
    samples: int
    lost: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SelectionRow(Row):
    """The result of a select stage: the numbers of the problems that it keeps, and its figures."""

    TABLE = "selections"
    KEY = ("stage",)
    stage: int
    kept: tuple[int, ...]
    figures: SelectionFigures


@dataclass(frozen=True, slots=True)
class FactRow(Row):
    """A named fact, such as the epoch."""

    TABLE = "facts"
    KEY = ("key",)
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RecordRow(Row):
    """A row of metrics.jsonl."""

    TABLE = "records"
    KEY = ("number",)
    number: int
    row: str


ROWS: tuple[type[Row], ...] = (
    GroupRow,
    TrajectoryRow,
    SegmentRow,
    StepRow,
    EvaluationRow,
    SampledRow,
    SelectionRow,
    FactRow,
    RecordRow,
)
"""Every type of row."""


@dataclass(frozen=True, slots=True)
class Table:
    """The table for a type of rows: columns in the order of the fields, then the checksum."""

    kind: type[Row]
    columns: tuple[str, ...]
    stored: dict[str, tuple[type, ...]]
    """The types in which SQLite returns each column."""
    texts: dict[str, Any]
    """Columns that hold JSON, with the type of the decoded value."""
    truths: frozenset[str]
    put: str
    """The statement that inserts a row, or replaces the row of its key."""
    read: attrgetter[tuple[Any, ...]]
    json_at: tuple[int, ...]
    """The places of the columns ``texts``."""

    @property
    def schema(self) -> list[str]:
        """The statements that make the table and its indexes."""
        names = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB"}
        lines = [
            f"{column} {names[kinds[0]]}{'' if type(None) in kinds else ' NOT NULL'}"
            for column, kinds in self.stored.items()
        ]
        name = self.kind.TABLE
        body = ", ".join([*lines, "crc INTEGER NOT NULL", f"PRIMARY KEY ({', '.join(self.kind.KEY)})"])
        indexes = [f"CREATE INDEX {name}_by_{each[0]} ON {name} ({', '.join(each)})" for each in self.kind.INDEXES]
        return [f"CREATE TABLE {name} ({body}) WITHOUT ROWID", *indexes]

    def values(self, row: Row) -> list[Any]:
        """A row's columns in stored form."""
        values = list(self.read(row))
        for place in self.json_at:
            values[place] = to_json(values[place])
        for column in self.truths:
            place = self.columns.index(column)
            values[place] = int(values[place])
        return values

    def value(self, column: str, stored: Any) -> Any:
        """The row's value of a stored column."""
        if column in self.texts:
            return from_json(self.texts[column], stored)
        return bool(stored) if column in self.truths else stored


def _table(kind: type[Row]) -> Table:
    """The table of a type of rows, from the annotations of its fields."""
    hints = typing.get_type_hints(kind)
    columns = tuple(field.name for field in fields(kind))
    stored: dict[str, tuple[type, ...]] = {}
    texts, truths = {}, set()
    for column in columns:
        hint = hints[column]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if bool in parts:
            truths.add(column)
            parts = (int,)
        elif parts[0] not in {str, int, float, bytes}:
            texts[column] = hint
            parts = (str,)
        stored[column] = parts
    marks = ", ".join("?" * (len(columns) + 1))
    return Table(
        kind,
        columns,
        stored,
        texts,
        frozenset(truths),
        put=f"INSERT OR REPLACE INTO {kind.TABLE} VALUES ({marks})",  # noqa: S608 - constants
        read=attrgetter(*columns),
        json_at=tuple(columns.index(column) for column in texts),
    )


TABLES = {kind: _table(kind) for kind in ROWS}


def row_crc(values: Sequence[object]) -> int:
    """CRC-32 of a row's columns, each with its type. The CRC detects every burst of up to 32 changed bits."""
    parts = []
    for value in values:
        content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        parts.append(b"%s %d %s" % (type(value).__name__.encode(), len(content), content))
    return zlib.crc32(b"".join(parts))
