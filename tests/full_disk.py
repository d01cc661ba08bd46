"""Disks that take no more, for tests: a small file system of its own, or a limit on how long a file may grow."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos import host
from benchmarks.chaos.host import fill

__all__ = ["fill", "no_file_longer_than", "small_disk"]


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of that size at ``path``. Skips where this user may not mount one."""
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(host.small_disk(path, size))
        except OSError as error:
            pytest.skip(str(error))
        yield disk


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Writes of this process beyond that many bytes of a file fail (EFBIG), as a quota's would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
