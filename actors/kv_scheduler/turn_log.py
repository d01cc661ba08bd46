"""Completed turns in files of the run directory, from which the scheduler's next process takes them.

::

    TurnsCompleted --> write --> a segment (kept_turns/000000001, ...) --> removed once its rollouts are done
    the next process, of this start of the run or of the next: begin --> TurnsCompleted, as they were written

What was written survives the end of the process without being flushed to disk. A segment takes its room on the disk
when it begins, so that turns are kept also while the disk is full and the run ends.

A message without turns says that its rollout is done. When a segment with such a message is removed early, turns of a
rollout that is done come back, until the filter has said what is unfinished.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.files.disk import remove
from agent_rl.messages import TurnsCompleted
from transport import DecodeError, Registry
from transport.codec import decode, encode
from transport.schema import Buffer

if TYPE_CHECKING:
    import structlog

FOLDER = "kept_turns"
SEGMENT_BYTES = 8 << 20
_COUNT = struct.Struct("<I")


class TurnLog:
    """At most ``limit`` bytes, and a segment more: beyond that, the oldest segment is removed.

    A disk that takes no more is said once, and nothing is written from then on.
    """

    def __init__(
        self,
        directory: Path,
        limit: int,
        log: structlog.typing.FilteringBoundLogger,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """``directory`` is the run directory."""
        self._folder = directory / FOLDER
        self._limit = limit
        self._log = log
        self._segment_bytes = segment_bytes
        self._registry = Registry(TurnsCompleted)
        self._file: int | None = None
        self._number = 0
        self._bytes: dict[int, int] = {}
        """The size of each segment, oldest first."""
        self._rollouts: dict[int, set[str]] = {}
        """The rollouts in each segment that are not done."""
        self._segments: dict[str, set[int]] = {}
        self.continued = False
        """Whether a former process ended with rollouts in flight, or without closing its log."""

    def begin(self) -> list[TurnsCompleted]:
        """Open the log. Returns what former processes wrote, in order."""
        found: list[TurnsCompleted] = []
        try:
            self.continued = self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(path for path in self._folder.iterdir() if path.name.isdigit()):
                self._number, data = int(path.name), path.read_bytes()
                self._bytes[self._number], self._rollouts[self._number] = 0, set()
                for message, end in self._messages(path, data):
                    self._bytes[self._number] = end
                    self._note(message)
                    found.append(message)
                os.truncate(path, self._bytes[self._number])
            self._next_segment()
        except OSError as error:
            self._give_up(error)
        return found

    def write(self, changes: Iterable[TurnsCompleted]) -> None:
        """Append messages. Those of rollouts that are done have no turns."""
        for message in changes:
            if self._file is None:
                return
            try:
                frames = encode(message)
                self._append(self._file, b"".join((_header(frames), *frames)))
                self._note(message)
                self._sweep()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """End writing. Without rollouts that are not done, no file is left."""
        self._end_segment()
        if not self._segments:
            remove(self._folder)

    def _append(self, file: int, record: bytes) -> None:
        if os.write(file, record) < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._bytes[self._number] += len(record)

    def _note(self, message: TurnsCompleted) -> None:
        """Count a message of the newest segment."""
        if message.turns:
            self._rollouts[self._number].add(message.rollout)
            self._segments.setdefault(message.rollout, set()).add(self._number)
        else:
            for segment in self._segments.pop(message.rollout, ()):
                self._rollouts[segment].discard(message.rollout)

    def _sweep(self) -> None:
        """Begin another segment when the newest is full, and remove those that nobody needs."""
        if self._bytes[self._number] < self._segment_bytes:
            return
        self._next_segment()
        while sum(self._bytes.values()) > self._limit and len(self._bytes) > 1:
            self._remove(next(iter(self._bytes)))
        for segment in [each for each, rollouts in self._rollouts.items() if not rollouts and each != self._number]:
            self._remove(segment)

    def _next_segment(self) -> None:
        self._end_segment()
        self._number += 1
        self._file = os.open(self._path(self._number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._bytes[self._number], self._rollouts[self._number] = 0, set()
        with contextlib.suppress(OSError):  # without room, the writes say so when they find none
            os.posix_fallocate(self._file, 0, self._segment_bytes)

    def _end_segment(self) -> None:
        """Write no more into the newest segment, and give back the room that it has left."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.ftruncate(file, self._bytes[self._number])
            finally:
                os.close(file)

    def _remove(self, segment: int) -> None:
        self._path(segment).unlink(missing_ok=True)
        del self._bytes[segment]
        for rollout in self._rollouts.pop(segment):
            self._segments[rollout].discard(segment)
            if not self._segments[rollout]:
                del self._segments[rollout]

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:09d}"

    def _messages(self, path: Path, data: bytes) -> Iterator[tuple[TurnsCompleted, int]]:
        """The messages of a segment, each with the place of its end.

        A last one that was not written whole is left out, and so is the room after it.
        """
        place = 0
        try:
            while place + _COUNT.size <= len(data):
                (count,) = _COUNT.unpack_from(data, place)
                if not count:
                    return
                begin = place + _COUNT.size * (1 + count)
                if begin > len(data):
                    return
                frames: list[Buffer] = []
                for size in struct.unpack_from(f"<{count}I", data, place + _COUNT.size):
                    frames.append(data[begin : begin + size])
                    begin += size
                if begin > len(data):
                    return
                place = begin
                yield decode(frames, self._registry), place
        except DecodeError as error:
            self._log.warning("kept turns are damaged", file=str(path), at_byte=place, error=str(error))

    def _give_up(self, error: OSError) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        lost = "a rollout whose generator and scheduler are lost at once starts again from its beginning"
        self._log.warning(
            "completed turns are not written any more", folder=str(self._folder), error=str(error), so=lost
        )


def _header(frames: list[Buffer]) -> bytes:
    """The number of the frames, and the size of each."""
    sizes = [frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames]
    return struct.pack(f"<{1 + len(sizes)}I", len(sizes), *sizes)
