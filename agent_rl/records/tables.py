"""How SQLite stores the rows of a journal: a table for each type of row, and a checksum for each row."""

from __future__ import annotations

import types
import typing
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from agent_rl.figures import from_json, to_json
from agent_rl.records.rows import ROWS, Row


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
