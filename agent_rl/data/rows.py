"""Rows of JSONL (also gzipped) and parquet files, read and written one at a time."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any, TypeAlias, cast

from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import FORMATS, PARQUET_BATCH, read_rows, resolve
from agent_rl.files.disk import whole

Row: TypeAlias = Mapping[str, Any]
Placed: TypeAlias = tuple[str, Row]
"""Where a row stands (``name:line``), and what it holds."""
Write: TypeAlias = Callable[[Row], None]


class DataError(Exception):
    """Data cannot be prepared; the message says what is wrong and what to do."""


def rows_of(patterns: Sequence[str], base: Path) -> Iterator[Placed]:
    """The rows of the files of paths and globs, in order. Raises TaskError for what is no such file or no row."""
    for pattern in patterns:
        for name, path in resolve(pattern, base):
            yield from read_rows(name, path)


@contextmanager
def writer(path: Path) -> Iterator[Write]:
    """Write rows to a new file, in the format its name ends in; it appears whole or not at all.

    Raises DataError when the file exists or has another ending, or when the format cannot hold the rows.
    """
    if path.exists():
        raise DataError(f"{path} exists: remove it, or name another --out")
    if not path.name.endswith(FORMATS):
        raise DataError(f"{path}: name an --out that ends in one of {', '.join(FORMATS)}")
    parquet = path.suffix == ".parquet"
    with whole(path) as partial, _parquet(partial, str(path)) if parquet else _json(partial, path) as write:
        yield write


@contextmanager
def _json(partial: Path, path: Path) -> Iterator[Write]:
    # mtime 0: the same rows make the same bytes
    with (
        partial.open("wb") as raw,
        cast("Any", gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw) as out,
    ):

        def write(row: Row) -> None:
            out.write(json_line(row, str(path)))

        yield write


@contextmanager
def _parquet(partial: Path, name: str) -> Iterator[Write]:
    """Rows are kept as JSON until all columns and their types are known: later rows may have more of them."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise TaskError(f"{name}: parquet needs pyarrow (pip install pyarrow); or write JSONL") from error
    with tempfile.TemporaryFile(dir=partial.parent) as spool:

        def write(row: Row) -> None:
            spool.write(json_line(row, name))

        def batches() -> Iterator[list[Row]]:
            spool.seek(0)
            while batch := [json.loads(line) for line in islice(spool, PARQUET_BATCH)]:
                yield batch

        yield write
        try:
            schema = pa.schema([])
            for batch in batches():
                columns = {key: None for row in batch for key in row}
                of_batch = pa.table({key: [row.get(key) for row in batch] for key in columns}).schema
                schema = pa.unify_schemas([schema, of_batch], promote_options="permissive")
            with parquet.ParquetWriter(partial, schema) as out:
                for batch in batches():
                    out.write_table(pa.Table.from_pylist(batch, schema=schema))
        except pa.ArrowException as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{name}: a column does not hold values of one type ({reason}); write JSONL") from error


def json_line(row: Row, name: str) -> bytes:
    """The row as one line of JSONL. Raises DataError, which names the file ``name``, when JSON cannot hold it."""
    try:
        try:
            line = json.dumps(dict(row), ensure_ascii=False, allow_nan=False)
        except ValueError:  # NaN and infinity, which JSON does not know
            line = json.dumps(_known(dict(row)), ensure_ascii=False, allow_nan=False)
        return line.encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{name}: a row cannot be written as JSON ({error}); convert such columns to text") from error


def _known(value: Any) -> Any:
    """With null in place of NaN, by which tables say that a value is missing; infinity stays, and is refused."""
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and isnan(value) else value
