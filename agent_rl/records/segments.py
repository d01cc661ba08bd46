"""The payloads of a journal on disk.

Each segment is a file: payloads are appended, and the file is removed as a whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path

OPEN_FILES = 32
"""At most so many segments are open at once: the groups of one step are rarely in more."""


class SegmentFiles:
    """The segment files of a folder. The first payload creates the folder. One writer at a time."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self.folder = folder
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)
        self._read_only = read_only
        self._files: dict[int, int] = {}
        self._unsettled: set[int] = set()

    def path(self, segment: int) -> Path:
        """The file of a segment."""
        return self.folder / f"{segment:08d}"

    def append(self, segment: int, payload: bytes) -> int:
        """Append a payload; return its offset in bytes. On OSError the file is unchanged."""
        file = self._file(segment)
        end = os.fstat(file).st_size
        try:
            written = 0
            while written < len(payload):  # after a partial write, the next write raises the reason
                written += os.pwrite(file, memoryview(payload)[written:], end + written)
        except OSError:
            os.ftruncate(file, end)
            raise
        self._unsettled.add(segment)
        return end

    def fetch(self, segment: int, offset: int, size: int) -> bytes | None:
        """A payload; None when the file is not there or does not reach so far. Raises OSError."""
        if segment not in self._files and not self.path(segment).exists():
            return None
        payload = os.pread(self._file(segment), size, offset)
        return payload if len(payload) == size else None

    def remove(self, segment: int) -> Callable[[], None]:
        """A function that removes the file, from any thread."""
        if segment in self._files:
            os.close(self._files.pop(segment))
        self._unsettled.discard(segment)
        return partial(self.path(segment).unlink, missing_ok=True)

    def ends(self) -> dict[int, int]:
        """The size of every segment in bytes."""
        if not self.folder.is_dir():
            return {}
        return {int(path.name): path.stat().st_size for path in self.folder.iterdir() if path.name.isdecimal()}

    def sweep(self, keep: Container[int]) -> None:
        """Remove the segments that are not in ``keep``: a killed process has left them."""
        for segment in self.ends():
            if segment not in keep:
                self.path(segment).unlink()

    def settle(self) -> None:
        """Flush all payloads to the disk, from any thread. Raises OSError."""
        for segment in list(self._unsettled):
            self._unsettled.discard(segment)  # before the flush: a write during it marks the segment again
            sync(self.path(segment))

    @property
    def removed(self) -> bool:
        """Whether another program removed a file that is open here."""
        return any(os.fstat(file).st_nlink == 0 for file in self._files.values())

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _file(self, segment: int) -> int:
        file = self._files.pop(segment, None)
        if file is None:
            if len(self._files) >= OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            if not self._read_only:
                self.folder.mkdir(exist_ok=True)
            file = os.open(self.path(segment), self._flags, 0o666)
        self._files[segment] = file  # moved to the end: the file used least recently is closed first
        return file


def sync(path: Path) -> None:
    """Flush a file to the disk; a missing file is no error. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(file)
        finally:
            os.close(file)
