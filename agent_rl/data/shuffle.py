"""The rows of supervised files in random order, over all files at once.

An epoch holds each row of an entry of ``data`` as often as the entry's weight says; a new order is drawn for each
epoch. The order is a function of the number of rows, the weights and the seed, so that a restarted stage continues with
the row that would have come next. Memory: a few numbers of 8 bytes for each row. The rows themselves stay in their
files. The rows of compressed and parquet files are first copied to one temporary file, where each can be found.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import math
import os
import tempfile
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from agent_rl.data.conversations import Conversation, conversation, row_fault, sampled_tokens
from agent_rl.data.layouts import NoConversation
from agent_rl.data.rows import json_line
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import read_rows, resolve
from agent_rl.files.disk import writing
from agent_rl.files.reading_json import JsonError, lines_of, open_file, parse_json
from agent_rl.rollout.prompts import PromptError
from agent_rl.rollout.supervised import Masked

AT_ONCE = 65536
"""Numbers that become Python's own objects together."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file of rows: its name for messages, its path (None: in the copy), its first row's number and its begin.

    ``state``: size and time of change in ns when it was read; None for the copy.
    """

    name: str
    path: Path | None
    first: int
    begin: int
    state: tuple[int, int] | None


class Rows:
    """The rows of the files that paths and globs name, each by its number."""

    def __init__(self, patterns: Sequence[str], base: Path, directory: Path) -> None:
        """Read all files once. ``directory`` takes the temporary copy, which has no name and ends with this object.

        Raises TaskError for what is no such file and for files without any row, and DiskError.
        """
        self.counts: list[int] = []
        """The number of rows of each pattern."""
        self._files: list[_File] = []
        self._offsets = array("q")
        self._copy: IO[bytes] | None = None
        for pattern in patterns:
            before = len(self._offsets)
            for name, path in resolve(pattern, base):
                self._add(name, path, directory)
            self.counts.append(len(self._offsets) - before)
        if not self._offsets:
            raise TaskError(f"{', '.join(patterns)}: there is no conversation to train on")

    def _add(self, name: str, path: Path, directory: Path) -> None:
        plain = path.suffix == ".jsonl"
        with writing(directory):
            copy = None if plain else self._copied_to(directory)
            offset = copy.seek(0, os.SEEK_END) if copy else 0
            first, state = len(self._offsets), _state(path.stat()) if plain else None
            self._files.append(_File(name, path if plain else None, first, offset, state))
            for line in _lines(name, path):
                if line.strip():
                    self._offsets.append(offset)
                if copy:
                    copy.write(line)
                offset += len(line)

    def _copied_to(self, directory: Path) -> IO[bytes]:
        if self._copy is None:
            self._copy = cast("IO[bytes]", tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - ends with this object
            weakref.finalize(self, self._copy.close)
        return self._copy

    def encoded(self, number: int, encode: Callable[[Conversation], list[Masked]], vocabulary: int) -> list[Masked]:
        """The sequences of a row, tokens and loss mask: as sampled, or of its conversation by ``encode``.

        Raises TaskError, which names file and line, for what is no conversation, and for tokens of another tokenizer.
        """
        row = self._row(number)
        try:
            tokens = sampled_tokens(row)
            if tokens is None:
                return encode(conversation(row))
        except PromptError as error:
            raise TaskError(f"{self.place(number)}: {error}") from error
        except NoConversation as error:
            raise TaskError(row_fault(error, row, self.place(number))) from error
        if not 0 <= min(tokens[0]) <= max(tokens[0]) < vocabulary:
            raise TaskError(
                f"{self.place(number)}: tokens of another tokenizer: the model has {vocabulary:,} tokens, and the row "
                f"has token {max(tokens[0]):,}; export trajectories of the same model"
            )
        return [tokens]

    def _row(self, number: int) -> dict[str, Any]:
        file, offset = self._file(number), self._offsets[number]
        with self._opened(file) as lines:
            if file.state is not None and _state(os.fstat(lines.fileno())) != file.state:
                raise TaskError(f"{file.name} has changed since this stage began; put it back, and start the run again")
            lines.seek(offset)
            line = lines.readline()
        try:
            row = parse_json(line.decode("utf-8-sig").strip())
        except (JsonError, UnicodeDecodeError) as error:
            raise TaskError(f"{self.place(number)}: {error}; each line must be one JSON object") from error
        if not isinstance(row, dict):
            fault = f"a JSON {type(row).__name__}; each line must be one JSON object"
            raise TaskError(f"{self.place(number)}: {fault}")
        return row

    def place(self, number: int) -> str:
        """Where a row stands, as ``name:line``; the lines before it are read."""
        file, offset = self._file(number), self._offsets[number]
        with self._opened(file) as lines:
            lines.seek(file.begin)
            left, line = offset - file.begin, 1
            while left and (part := lines.read(min(left, 1 << 20))):
                left, line = left - len(part), line + part.count(b"\n")
        return f"{file.name}:{line}"

    def _file(self, number: int) -> _File:
        return self._files[bisect_right(self._files, number, key=lambda file: file.first) - 1]

    def _opened(self, file: _File) -> AbstractContextManager[IO[bytes]]:
        if file.path is not None:
            return file.path.open("rb")
        assert self._copy is not None
        return nullcontext(self._copy)


def _state(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _lines(name: str, path: Path) -> Iterator[bytes]:
    """The lines of a file, each with its line break; of a parquet file, a line of JSON for each row."""
    if path.suffix == ".parquet":
        yield from (json_line(row, name) for _, row in read_rows(name, path))
        return
    try:
        open_file(path).close()  # it is no pipe
        with cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines_of(lines):
                yield line if line.endswith(b"\n") else line + b"\n"
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{name}: cannot be read ({error}); is it JSONL, or gzip if it ends in .gz?") from error


def rows_of_epochs(counts: Sequence[int], weights: Sequence[float], epochs: float) -> int:
    """How many rows the first ``epochs`` bring."""
    return sum(_bound(count, weight, epochs) for count, weight in zip(counts, weights, strict=True))


def shuffled(counts: Sequence[int], weights: Sequence[float], seed: str) -> Iterator[int]:
    """The numbers of rows without end: entry i has the ``counts[i]`` numbers after those of the entries before.

    Epoch by epoch, each in an order of its own. An entry's rows come ``weights[i]`` times an epoch. A part of an
    entry is always made of the rows that have come most rarely: with a weight of 0.5, two epochs bring each row once.
    """
    firsts = [0, *itertools.accumulate(counts)]
    for epoch in itertools.count():
        parts = [
            first + _part(count, weight, f"{seed}/{entry}", epoch)
            for entry, (first, count, weight) in enumerate(zip(firsts, counts, weights, strict=False))
        ]
        numbers = np.concatenate(parts)
        _generator(f"{seed}/{epoch}").shuffle(numbers)
        for start in range(0, len(numbers), AT_ONCE):
            yield from numbers[start : start + AT_ONCE].tolist()


def _part(count: int, weight: float, seed: str, epoch: int) -> NDArray[np.int64]:
    """An epoch's rows of an entry: a stretch of its permutations, which follow each other without end."""
    start, end = _bound(count, weight, epoch), _bound(count, weight, epoch + 1)
    parts = [np.empty(0, np.int64)]
    for number in range(start // max(1, count), -(-end // max(1, count))):
        permutation = _generator(f"{seed}/permutation/{number}").permutation(count)
        parts.append(permutation[max(0, start - number * count) : end - number * count])
    return np.concatenate(parts)


def _bound(count: int, weight: float, epochs: float) -> int:
    """The rows of an entry that so many epochs bring, in exact arithmetic."""
    return math.floor(Fraction(str(weight)) * Fraction(str(epochs)) * count)


def _generator(seed: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))
