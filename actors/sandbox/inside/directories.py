"""Slots on hosts without namespaces: a directory for each call, and a search for processes that calls leave behind.

Standard library only.
"""

# pathlib takes memory, and every fork would pay for it:
# ruff: noqa: PTH102, PTH106, PTH101

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from functools import partial

from actors.sandbox.inside.shares import CpuShare, Shares
from actors.sandbox.isolation import kernel


class Directory:
    """A place for one call: its own directory."""

    def __init__(self, path: str, share: CpuShare) -> None:
        self.path, self.share = path, share
        os.mkdir(path, 0o700)
        self.door = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def processes(self) -> list[int]:
        """Empty: ``Directories.kill_orphans`` finds processes left behind."""
        return []


def devices() -> list[int]:
    """Descriptors of the devices that calls may read and write."""
    return [os.open(f"/dev/{name}", os.O_PATH) for name in ("null", "zero", "full")]


def _opened(paths: Sequence[str]) -> Iterator[int]:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # removed since the owner has listed it
            yield os.open(path, os.O_PATH)


class Directories:
    """Directories as slots, at most ``most`` at once. The process must be the subreaper of its descendants."""

    fileno = -1
    spares = 0
    """No child waits here for its call: other calls could reach it."""

    def __init__(
        self, parent: str, most: int, readable: list[str], listed: list[str], shares: Shares, *, filtered: bool
    ) -> None:
        self._parent, self._room, self._filtered, self._shares = parent, most, filtered, shares
        self._made = 0
        self._landlock_version = landlock_version = kernel.landlock_version() if filtered else 0
        self._readable, self._listed = (
            tuple(_opened(paths)) if landlock_version else () for paths in (readable, listed)
        )
        self.keep = (*self._readable, *self._listed)
        self._cleaners: set[int] = set()
        self._left: list[str] = []
        """Used directories that are not empty and wait for a process to remove them."""
        pid = os.getpid()
        self._children = os.open(f"/proc/self/task/{pid}/children", os.O_RDONLY)

    def get(self) -> Directory | None:
        """A new directory; None when ``most`` are in use."""
        if not self._room:
            return None
        self._made += 1
        share = self._shares.get()
        try:
            directory = Directory(f"{self._parent}/{self._made}", share)
        except OSError:
            self._shares.put_back(share)
            raise
        self._room -= 1
        return directory

    def want(self, count: int) -> None:
        """No effect: ``get`` makes directories at once."""

    def arrive(self) -> None:
        """No effect: nothing arrives later."""

    def put_back(self, slot: Directory) -> bool:
        """Remove the directory of a call that has ended. Returns whether it was empty."""
        self._room += 1
        self._shares.put_back(slot.share)
        os.close(slot.door)
        empty = False
        try:
            os.rmdir(slot.path)
            empty = True
        except FileNotFoundError:
            pass  # the code removed it
        except OSError:
            self._left.append(slot.path)
        while self._left and self._clean(self._left[-1]):
            self._left.pop()
        return empty

    discard = put_back

    def prepare(self, _door: int) -> bool:
        """No effect: there is nothing to do before the fork."""
        return True

    def entering(self, door: ctypes.c_int) -> list[kernel.IsolationStep]:
        """The steps by which a child enters its directory, confines itself with Landlock and drops root's rights."""
        return [(self._enter, (door,)), *([kernel.drop_capabilities()] if self._filtered else [])]

    def _enter(self, door: ctypes.c_int) -> None:
        os.fchdir(door.value)
        if self._landlock_version:
            kernel.landlock(self._landlock_version, self._readable, self._listed, [door.value, *devices()])

    def process_limit(self, limit: int) -> int | None:
        """The limit plus the machine's present tasks: the kernel counts all tasks of the user."""
        if os.geteuid() == 0:
            return None  # the limit does not bind root
        with open("/proc/loadavg") as load:  # noqa: PTH123
            return int(load.read().split()[3].split("/")[1]) + limit

    def _clean(self, directory: str) -> bool:
        """Remove the call's files in a separate process: a large tree takes long, and the loop has deadlines.

        False when no process can be started, for example after a call used all processes up.
        """
        try:
            self._cleaners.add(kernel.start_helper(partial(remove_tree, directory)))
        except OSError:
            return False
        return True

    def kill_orphans(self, forker: int, wait: int = os.WNOHANG) -> bool:
        """Kill and reap all processes below this one except the forker. False when there were none."""
        children = map(int, os.pread(self._children, 1 << 16, 0).split())
        orphans = [pid for pid in children if pid != forker]
        for pid in orphans:
            if pid not in self._cleaners:
                os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, wait)[0]:
                self._cleaners.discard(pid)
        return bool(orphans)

    def end(self) -> None:
        """Kill every process below this one, and wait for them."""
        self._cleaners.clear()
        while self.kill_orphans(0, wait=0):
            pass  # their children are now children of this process


def remove_tree(directory: str) -> None:
    """Remove a directory, whatever permissions the code has set."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        for _, names, _, parent in os.fwalk(directory):
            for name in names:
                try:  # not by path: a process left behind may replace the directory by a link at any time
                    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
                except OSError:  # a link, or already removed
                    continue
                os.chmod(f"/proc/self/fd/{fd}", 0o700)
                os.close(fd)
        shutil.rmtree(directory, ignore_errors=True)


def open_files_limit() -> None:
    """Raise the limit of open files to the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
