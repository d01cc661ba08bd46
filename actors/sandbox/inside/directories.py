"""Slots where there are no namespaces: a directory for each call, and a search for what it leaves running.

Standard library only.
"""

# pathlib is memory that every fork would pay for:
# ruff: noqa: PTH102, PTH106, PTH101

from __future__ import annotations

import ctypes
import os
import resource
import signal

from actors.sandbox.inside.shares import Share, Shares
from actors.sandbox.isolation import kernel


class Directory:
    """One place for a call: a directory of its own."""

    def __init__(self, path: str, share: Share) -> None:
        self.path, self.share = path, share
        os.mkdir(path, 0o700)
        self.door = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def processes(self) -> list[int]:
        """Nothing is adopted here: see ``Directories.kill_orphans``."""
        return []


def devices() -> list[int]:
    """Descriptors of the devices that calls may write to as well as read."""
    return [os.open(f"/dev/{name}", os.O_PATH) for name in ("null", "zero", "full")]


class Directories:
    """Directories as slots, up to ``most`` at once. The process must be the subreaper of what its children leave."""

    fileno = -1
    spares = 0
    """No child waits here for its call: other calls could reach it."""

    def __init__(self, parent: str, most: int, readable: list[str], shares: Shares, *, filtered: bool) -> None:
        self._parent, self._room, self._filtered, self._shares = parent, most, filtered, shares
        self._made = 0
        self._landlock_version = landlock_version = kernel.landlock_version() if filtered else 0
        self.keep = tuple(os.open(path, os.O_PATH) for path in readable) if landlock_version else ()
        self._cleaners: set[int] = set()
        self._left: list[str] = []
        """Directories that are not empty, until there is a process to remove them."""
        pid = os.getpid()
        self._children = os.open(f"/proc/self/task/{pid}/children", os.O_RDONLY)

    def get(self) -> Directory | None:
        """A new directory; None when there are as many as may be."""
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
        """Nothing can be had that ``get`` would not give."""

    def arrive(self) -> None:
        """Nothing arrives later."""

    def put_back(self, slot: Directory) -> bool:
        """A call has ended: remove its directory. Says whether it was empty."""
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
        """Nothing is to be done before the fork."""
        return True

    def entering(self, door: ctypes.c_int) -> list[kernel.Step]:
        """The steps by which a child goes to its directory, and is confined to it where the kernel can and gives up what root may do."""
        return [(self._enter, (door,)), *([kernel.drop_capabilities()] if self._filtered else [])]

    def _enter(self, door: ctypes.c_int) -> None:
        os.fchdir(door.value)
        if self._landlock_version:
            kernel.landlock(self._landlock_version, self.keep, [door.value, *devices()])

    def process_limit(self, limit: int) -> int | None:
        """The kernel counts all of the user's tasks: room for what the machine has now, and the limit on top."""
        if os.geteuid() == 0:
            return None  # root is exempt from it
        with open("/proc/loadavg") as load:  # noqa: PTH123
            return int(load.read().split()[3].split("/")[1]) + limit

    def _clean(self, directory: str) -> bool:
        """Remove what the code left, in a process of its own: a large tree takes long, and the loop has deadlines.

        False where there can be none now, as after a call that has used all processes up.
        """
        try:
            pid = os.fork()
        except OSError:
            return False
        if pid == 0:
            try:
                kernel.set_signal(int(signal.SIGTERM), None)
                kernel.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL))
                remove_tree(directory)
            finally:
                os._exit(0)
        self._cleaners.add(pid)
        return True

    def kill_orphans(self, forker: int, wait: int = os.WNOHANG) -> bool:
        """Kill and reap what children of ended calls left behind, all below this process but the forker; False when there was nothing."""
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
            pass  # the next generation has become ours


def remove_tree(directory: str) -> None:
    """Remove a directory, whatever the code made of its permissions."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        for _, names, _, parent in os.fwalk(directory):
            for name in names:
                try:  # not by its path: what the code has left running may put a link in its place at any time
                    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
                except OSError:  # a link, or gone
                    continue
                os.chmod(f"/proc/self/fd/{fd}", 0o700)
                os.close(fd)
        shutil.rmtree(directory, ignore_errors=True)


def open_files_limit() -> None:
    """Allow this process as many descriptors as it may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
