"""Disks that take no more: one error for all the ways in which libraries say so, and files that are written whole or not.

Who writes what, and what happens when it cannot:

- journal, checkpoints, weights, metrics, summary: the run stops with `DiskError`; what was there before stays as it was, and
  nothing was acknowledged that is not in the journal. Starting the run again, once there is room, goes on.
- logs and the timeline: the lines are left out and counted, and the run goes on. Of each there is at most one older file.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BROKEN = frozenset({errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM})
_RUST = re.compile(r"\(os error (\d+)\)")
"""How errors of safetensors and tokenizers end, which have no type for it."""


class DiskError(Exception):
    """A file cannot be written; the message names it, says why, and what to do. Trying again at once would not help."""

    def __init__(self, path: Path, number: int) -> None:
        remedy = "make room on its disk" if number in FULL else "see to its disk and its permissions"
        super().__init__(
            f"{path} cannot be written: {os.strerror(number)}; {remedy}, then run again: the run goes on from its newest "
            "checkpoint and its journal"
        )


def disk_errno(error: BaseException) -> int | None:
    """Which of `FULL` and `BROKEN` an exception of any library says; None when it is about something else."""
    number: int | None = None
    if isinstance(error, OSError):
        number = error.errno
    elif match := _RUST.search(str(error)):
        number = int(match[1])
    return number if number in FULL | BROKEN else None


def disk_error(error: BaseException, directory: Path) -> DiskError | None:
    """What an exception, or one of a group, says of a full disk; ``directory`` is blamed when it does not say which file."""
    if isinstance(error, BaseExceptionGroup):
        found = (disk_error(part, directory) for part in error.exceptions)
        return next((each for each in found if each is not None), None)
    if isinstance(error, DiskError):
        return error
    number = disk_errno(error)
    return DiskError(Path(getattr(error, "filename", None) or directory), number) if number in FULL else None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what a full or broken disk does to the code within into a DiskError about ``path``."""
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        number = disk_errno(error)
        if number is None:
            raise
        raise DiskError(path, number) from error


@contextlib.contextmanager
def whole(path: Path, *, others_write_it: bool = False) -> Iterator[Path]:
    """The path of a partial file or directory to be written, which takes the place of ``path`` at the end.

    Whatever is raised within, the partial one is removed and ``path`` is as it was. Other processes may write the same
    path at the same moment when all say so (``others_write_it``). Raises DiskError for a disk's fault.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial" if others_write_it else f".{path.name}.partial")
    remove(partial)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            partial.replace(path)
    except BaseException:
        remove(partial)
        raise


def remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_partial(directory: Path) -> None:
    """Remove what a process that was killed while it wrote left in ``directory``."""
    for path in directory.glob(".*.partial"):
        remove(path)


class LineFile:
    """A file that grows by whole lines: a line that does not fit leaves nothing behind. One writer at a time."""

    def __init__(self, path: Path) -> None:
        """Open, or make, the file, and cut off a line that a killed writer did not finish. Raises OSError."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._cut_half_line()

    def append(self, line: str) -> None:
        """Write a line, without its end, at once. Raises OSError, with the file as it was."""
        data = line.encode("utf-8", errors="backslashreplace") + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            while written < len(data):  # the disk took a part of it: the next attempt says why not all
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, size)
            raise

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _cut_half_line(self) -> None:
        end = os.fstat(self._file).st_size
        place = end
        while place > 0:
            start = max(0, place - 4096)
            newline = os.pread(self._file, place - start, start).rfind(b"\n")
            if newline >= 0:
                place = start + newline + 1
                break
            place = start
        if place < end:
            os.ftruncate(self._file, place)


def older(path: Path) -> Path:
    """Where a file that grew too long is kept, until the next one takes its place."""
    return path.with_name(f"{path.name}.1")


def rotate_open(path: Path, limit: float) -> bool:
    """Keep a copy of a file that others hold open for appending, and empty it, once it has reached ``limit`` bytes.

    Whether it was. What is written between the two is lost. A disk that cannot take the copy leaves all as it was.
    """
    try:
        if path.stat().st_size < limit:
            return False
        with whole(older(path)) as partial:
            shutil.copyfile(path, partial)
        os.truncate(path, 0)
    except (OSError, DiskError):
        return False
    return True


class LossyLines:
    """Lines whose loss is no harm: what cannot be written is left out and counted, never raised.

    A file that has reached ``limit`` bytes becomes the older one, in place of the one that was: so both together take at most
    twice as much, and a line each. One writer at a time.
    """

    def __init__(self, path: Path, limit: float = math.inf) -> None:
        self._path = path
        self._limit = limit
        self._file: LineFile | None = None
        self.lost = 0
        """Lines left out since one was last written."""
        self.lost_in_all = 0

    def append(self, line: str, *, about_lost: str = "") -> bool:
        """Write a line if it can be; before the first after a loss ``about_lost``, if given. Whether it was written."""
        try:
            if self._file is not None and self._file.size >= self._limit:
                self.close()
                self._path.replace(older(self._path))
            if self._file is None:
                self._file = LineFile(self._path)
            if self.lost and about_lost:
                self._file.append(about_lost)
            self._file.append(line)
        except OSError:
            self.lost += 1
            self.lost_in_all += 1
            return False
        self.lost = 0
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
