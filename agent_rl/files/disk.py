"""Full and broken disks: one error for all libraries, and files that are written completely or not at all.

What happens when a file cannot be written:

- journal, checkpoints, weights, metrics, summary: the run stops with `DiskError`. The previous files are unchanged, and
  only what the journal holds was acknowledged. Once there is room, the next start of the run continues.
- logs and the timeline: the lines are dropped and counted, and the run continues. Each has at most one older file.
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
"""How error messages of safetensors and tokenizers end; these libraries have no exception type for it."""


class DiskError(Exception):
    """A file cannot be written; the message names the file, the reason and the remedy.

    An immediate retry would not help. ``reason`` is the message for what is no run, which does not go on.
    """

    def __init__(self, path: Path, number: int) -> None:
        remedy = "make room on its disk" if number in FULL else "see to its disk and its permissions"
        self.reason = f"{path} cannot be written: {os.strerror(number)}; {remedy}, then run again"
        super().__init__(f"{self.reason}: the run goes on from its newest checkpoint and its journal")


def disk_errno(error: BaseException) -> int | None:
    """The error number, of `FULL` or `BROKEN`, in an exception of any library; None for another kind of error."""
    number: int | None = None
    if isinstance(error, OSError):
        number = error.errno
    elif match := _RUST.search(str(error)):
        number = int(match[1])
    return number if number in FULL | BROKEN else None


def disk_error(error: BaseException, directory: Path) -> DiskError | None:
    """The disk error in an exception or an exception group. ``directory`` is named when no file is."""
    if isinstance(error, BaseExceptionGroup):
        found = (disk_error(part, directory) for part in error.exceptions)
        return next((each for each in found if each is not None), None)
    if isinstance(error, DiskError):
        return error
    number = disk_errno(error)
    here = number in FULL or number == errno.EROFS  # other errors may be of files that are not the run's
    return DiskError(Path(getattr(error, "filename", None) or directory), number) if number and here else None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of a full or broken disk in the code within into a DiskError about ``path``."""
    try:
        yield
    except DiskError:
        raise
    except Exception as error:  # safetensors and tokenizers raise types of their own; what is no disk error goes on
        number = disk_errno(error)
        if number is None:
            raise
        raise DiskError(path, number) from error


@contextlib.contextmanager
def whole(path: Path, *, others_write_it: bool = False, private: bool = False, flushed: bool = True) -> Iterator[Path]:
    """Write ``path`` atomically: yields the path of a partial file or directory, renamed to ``path`` at the end.

    All is flushed to the disk before it has its name, and the name after that: a machine that loses its power has the
    former file or the new one, never an empty one. ``flushed`` is False for files that no later start reads.

    If the code within raises, the partial file is removed and ``path`` is unchanged. Several processes may write the
    same path at the same time if all pass ``others_write_it``. A ``private`` file is for its owner only, from its first
    byte on. Raises DiskError for a full or broken disk.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial") if others_write_it else partial_of(path)
    remove(partial)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if private:
                partial.touch(0o600)
            yield partial
            for each in (*partial.rglob("*"), partial) if flushed else ():
                flush(each)
            partial.replace(path)
            if flushed:
                flush(path.parent)
    except BaseException:
        remove(partial)
        raise


def flush(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk. Flushing a file does not flush its name."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def partial_of(path: Path) -> Path:
    """The name under which `whole` has ``path`` written, unless others write it too."""
    return path.with_name(f".{path.name}.partial")


def remove(path: Path) -> None:
    """Remove a file or a directory with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_partial(directory: Path) -> None:
    """Remove the partial files that a killed process left in ``directory``."""
    for path in directory.glob(".*.partial"):
        remove(path)


class LineFile:
    """A file that grows by complete lines: a line that does not fit is not written at all. One writer at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and remove an incomplete last line of a killed writer. Raises OSError."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._cut_half_line()

    def append(self, line: str) -> None:
        """Write a line (given without its newline). On OSError the file is unchanged."""
        data = line.encode("utf-8", errors="backslashreplace") + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            while written < len(data):  # after a partial write, the next write raises the reason
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
    """The name under which a file that grew too long is kept, until the next one replaces it."""
    return path.with_name(f"{path.name}.1")


def rotate_open(path: Path, limit: float) -> bool:
    """Copy and empty a file that others hold open for appending, once it has reached ``limit`` bytes.

    Returns whether it did. Lines written between copying and emptying are lost. When the disk is full, the file stays
    as it is.
    """
    try:
        if path.stat().st_size < limit:
            return False
        with whole(older(path), flushed=False) as partial:
            shutil.copyfile(path, partial)
        os.truncate(path, 0)
    except (OSError, DiskError):
        return False
    return True


class LossyLines:
    """A file of lines that may be lost: a line that cannot be written is counted, and no error is raised.

    A file that has reached ``limit`` bytes replaces the older file. So both together take at most twice the limit and a
    line each. One writer at a time.
    """

    def __init__(self, path: Path, limit: float = math.inf) -> None:
        self._path = path
        self._limit = limit
        self._file: LineFile | None = None
        self.lost = 0
        """Lines lost since the last line was written."""
        self.lost_in_all = 0

    def append(self, line: str, *, about_lost: str = "") -> bool:
        """Try to write a line; return whether it was written. After a loss, ``about_lost`` is written before it."""
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
