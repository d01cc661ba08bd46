"""Typed rows as tables: the columns of a type of rows, and its rows for polars, pandas and arrow.

A column is a field of the row. Fields of records within the row are columns too, under their own names, so that a step
has the columns of ``metrics.jsonl``; of two fields with one name that of the row itself counts. Values with a shape of
their own (figures by name, lists) are JSON texts. A figure that was not measured is null.
"""

from __future__ import annotations

import importlib
import json
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

from agent_rl.files.reading_json import json_value

T = TypeVar("T")
PLAIN = {str: "string", bool: "bool", int: "int64", float: "float64"}
JSON = "json"
BATCH_ROWS = 4096
"""Rows that are Python objects at once while a table is made."""


class MissingPackageError(ImportError):
    """A package that makes tables is not installed; the message has the command that installs it."""


def columns(kind: type[Any]) -> dict[str, str]:
    """The columns of a type of rows with their types: ``string``, ``bool``, ``int64``, ``float64`` or ``json``."""
    hints = typing.get_type_hints(kind)
    found: dict[str, str] = {}
    for field in fields(kind):
        if not field.repr:  # what a row carries for its methods
            continue
        hint = hints[field.name]
        value: Any = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        if is_dataclass(value):
            found |= {name: its for name, its in columns(cast("type[Any]", value)).items() if name not in found}
        else:
            found[field.name] = PLAIN.get(value, JSON)
    return found


def cells(row: Any) -> dict[str, Any]:
    """A row's value of each column that it has; one of a record that is None is left out."""
    found: dict[str, Any] = {}
    for field in fields(row):
        value = getattr(row, field.name) if field.repr else None
        if is_dataclass(value):
            found |= {name: cell for name, cell in cells(value).items() if name not in found}
        elif field.repr:
            found[field.name] = value
    return found


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The rows of one kind. Each iteration reads them again, so that a run under way shows what it has by then."""

    kind: type[T]
    read: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.read()

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the tables, with their types."""
        return columns(self.kind)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Each row as a dictionary of all columns; ``json`` columns hold texts."""
        for row in self:
            known = cells(row)
            yield {
                name: json.dumps(json_value(value), ensure_ascii=False)
                if kind == JSON and (value := known.get(name)) is not None
                else known.get(name)
                for name, kind in self.columns.items()
            }

    def arrow(self) -> Any:
        """A `pyarrow.Table`. Raises MissingPackageError."""
        pa = _package("pyarrow")
        types_of = {JSON: pa.string(), "bool": pa.bool_()}
        schema = pa.schema([(n, types_of.get(kind) or getattr(pa, kind)()) for n, kind in self.columns.items()])
        batches, batch = [], []
        for row in self.dicts():
            batch.append(row)
            if len(batch) == BATCH_ROWS:
                batches.append(pa.RecordBatch.from_pylist(batch, schema=schema))
                batch = []
        return pa.Table.from_batches([*batches, pa.RecordBatch.from_pylist(batch, schema=schema)], schema=schema)

    def pandas(self) -> Any:
        """A `pandas.DataFrame` whose columns can all hold missing values. Raises MissingPackageError."""
        pd = _package("pandas")
        names = {"string": "string", JSON: "string", "bool": "boolean", "int64": "Int64", "float64": "Float64"}
        return pd.DataFrame({n: pd.array(v, dtype=names[self.columns[n]]) for n, v in self._lists().items()})

    def polars(self) -> Any:
        """A `polars.DataFrame`. Raises MissingPackageError."""
        pl = _package("polars")
        names = {"string": pl.String, JSON: pl.String, "bool": pl.Boolean, "int64": pl.Int64, "float64": pl.Float64}
        return pl.DataFrame(self._lists(), schema={name: names[kind] for name, kind in self.columns.items()})

    def _lists(self) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {name: [] for name in self.columns}
        for row in self.dicts():
            for name, value in row.items():
                lists[name].append(value)
        return lists


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"this table needs {name}: pip install {name}") from error
