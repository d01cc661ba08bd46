"""Export the trajectories of a run, one row each, as JSON lines or Parquet. The run may be under way.

::

    journal (read-only) --> one group --> its rows --> JSON lines, or a batch of a Parquet file --> renamed to FILE

A row holds the group and its fate, the judgement, and the trajectory as the filter received it. Policies are run-length
coded: ``[epoch, version, tokens]`` in the order of the response's tokens. ``branches`` are ``[sequence that it goes on
from, tokens shared, where its own begin in the response, cause]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from agent_rl.files.disk import whole
from agent_rl.files.reading_json import json_value
from agent_rl.messages import Tokens
from agent_rl.records.journal import Decode, Journal, JournalError, read_journal
from agent_rl.records.reading import Rollout, rollouts_of

Format = Literal["jsonl", "parquet"]
Row = dict[str, Any]
BATCH_ROWS = 256
"""Rows of a Parquet file that are in memory at once."""
PARQUET = {
    "run": "string",
    "group": "string",
    "stage": "int32",
    "at_step": "int64",
    "number": "int64",
    "purpose": "string",
    "problem": "json",
    "fate": "string",
    "reason": "string",
    "step": "int64",
    "sample": "int32",
    "attempt": "int32",
    "status": "string",
    "kept": "bool_",
    "reward": "float64",
    "judgement": "json",
    "rollout": "string",
    "transcript": "json",
    "prompt_tokens": "int32s",
    "tokens": "int32s",
    "loss_mask": "uint8s",
    "logprobs": "float32s",
    "policies": "json",
    "branches": "json",
    "generator": "string",
    "seconds": "float64",
}
"""The type of each column. A final ``s``: a list; ``json``: a JSON text, since a tool's arguments have any shape."""


class ExportError(Exception):
    """The export is not possible; the message says why and what to do."""


@dataclass(slots=True)
class Exported:
    """What was written. The journal no longer holds the trajectories of ``left`` further groups."""

    file: Path
    groups: int = 0
    rows: int = 0
    left: int = 0

    def lines(self) -> list[str]:
        """For people."""
        left = f"the journal no longer holds the trajectories of {self.left:,} more groups (see run.keep_trajectories)"
        return [f"{self.file}: {self.rows:,} trajectories of {self.groups:,} groups", *([left] if self.left else [])]


def export(directory: Path, decode: Decode, form: Format, file: Path | None = None, *, right: bool = False) -> Exported:
    """Write the trajectories of a run to ``file`` (default: a file in the run directory), completely or not at all.

    ``right``: those alone that succeeded and were sampled on training problems, as an sft stage may take them.
    Raises JournalError, ExportError and DiskError.
    """
    exported = Exported(file or directory / f"trajectories.{form}")
    with closing(read_journal(directory)) as journal:
        with whole(exported.file) as partial, WRITERS[form](partial) as write:
            for group in journal.group_ids():
                rows = [row for row in _rows(journal, group, decode, apart=right) if not right or _is_right(row)]
                exported.groups += bool(rows)
                exported.rows += len(rows)
                for row in rows:
                    write(row)
        exported.left = journal.left()
    return exported


def _is_right(row: Row) -> bool:
    return row["purpose"] in {"train", "select"} and bool((row["judgement"] or {}).get("success"))


def _rows(journal: Journal, group: str, decode: Decode, *, apart: bool) -> Iterator[Row]:
    """A row for each trajectory; ``apart``: for each of its sequences, what it shares as its prompt."""
    try:
        for each in rollouts_of(journal, group, decode):
            about, body = _about(journal, each), each.trajectory.unpack()  # raises ValueError where it is damaged
            for part in body.apart if apart else (body,):
                yield _columns(each.trajectory, part) | about
    except ValueError as error:
        raise JournalError(f"{journal.path}: {group} cannot be read: {error}") from error


def _about(journal: Journal, rollout: Rollout) -> Row:
    group, made, judgement = rollout.group, rollout.trajectory, rollout.judgement
    return {
        "run": journal.fact("run"),
        "group": group.id,
        "stage": group.stage,
        "at_step": group.at_step,
        "number": group.number,
        "purpose": group.purpose,
        "fate": group.state,
        "reason": group.reason,
        "step": group.step,
        "problem": asdict(rollout.problem),
        "sample": made.sample,
        "attempt": made.attempt,
        "status": made.status,
        "reward": None if judgement is None else judgement.reward,
        "judgement": None if judgement is None else asdict(judgement),
        "kept": rollout.kept,
    }


def _columns(trajectory: Any, body: Tokens) -> Row:
    """The fields of a trajectory with this body, without those that `_about` gives."""
    fields = {**asdict(trajectory), **body._asdict()}
    found = {name: value for name, value in fields.items() if name in PARQUET}
    policies = map(tuple, found["policies"].tolist())
    found["policies"] = [[*policy, sum(1 for _ in tokens)] for policy, tokens in groupby(policies)]
    causes = [branch.cause for branch in trajectory.branches]
    found["branches"] = [[*row, cause] for row, cause in zip(body.branches.tolist(), causes, strict=False)]
    return found


@contextmanager
def _jsonl(path: Path) -> Iterator[Callable[[Row], None]]:
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        yield lambda row: print(json.dumps(json_value(row), ensure_ascii=False, allow_nan=False), file=file)


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Row], None]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ExportError("parquet needs pyarrow: pip install 'agent-rl[parquet]', or take --format jsonl") from error
    types = {"json": pa.string(), **{f"{n}s": pa.list_(getattr(pa, n)()) for n in ("int32", "uint8", "float32")}}
    schema = pa.schema([(name, types.get(kind) or getattr(pa, kind)()) for name, kind in PARQUET.items()])
    texts = [name for name, kind in PARQUET.items() if kind == "json"]
    batch: list[Row] = []

    def flush() -> None:
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
        batch.clear()

    def write(row: Row) -> None:
        batch.append(row | {name: json.dumps(json_value(row[name]), ensure_ascii=False) for name in texts})
        if len(batch) >= BATCH_ROWS:
            flush()

    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        yield write
        flush()


WRITERS: dict[Format, Callable[[Path], AbstractContextManager[Callable[[Row], None]]]] = {
    "jsonl": _jsonl,
    "parquet": _parquet,
}
