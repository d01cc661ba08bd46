"""The process that forks: the warm one, which does little else. Standard library only.

::

    server: keeps the books; small --- slot, the child's end of a link ---> forker: warm --fork--> child of a call
       ^                           <------ number of the child -----------                            |
       +----------------------------- the link to it; its end (a pidfd) ------------------------------+

After a fork, a process pays for each page that it is the first to write to, and books touch many: with each object that is
used, if only by counting who uses it. So they are kept by a process that never forks, and the one that does goes round a loop
that touches few pages. As the parent of all children it reaps them too, when it is told to: until then the number of one that
has ended can't name another process.
"""

from __future__ import annotations

import _socket
import array
import ctypes
import linecache
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from actors.sandbox.inside.child import (
    BROKEN_OFF,
    CONTROL,
    MAIN,
    REPORT,
    USER_FILE,
    Work,
    leaving,
    reseed,
    run,
    run_call,
    take,
)
from actors.sandbox.inside.children import Child, Place
from actors.sandbox.inside.shares import joining
from actors.sandbox.inside.warm_up import REHEARSALS
from actors.sandbox.isolation import kernel
from actors.sandbox.isolation.kernel import fork
from actors.sandbox.isolation.namespaces import close_all_but
from actors.sandbox.isolation.rlimits import Bounds, ceilings, pack, unchanged
from actors.sandbox.wire import DONE_SAID, memory_file, receive, send

WARM = b"."
"""The forker's first message, unless it says why it can't be."""
AT_ONCE = 2
"""Children that one order may have forked: what the forker copies after it is copied once for them. Their links, doors and shares are six descriptors."""
DONE = struct.Struct("!iiid")
"""The answer: the numbers of the new children (-1: there could be none), status and CPU seconds of the last that was reaped, where none was new."""
PACKED = 16
"""Limits that are kept packed: most calls have the same."""
REAPED_AT_ONCE = 256
ORDER_BYTES = 4 + 4 * REAPED_AT_ONCE
"""An order is integers: how many descriptors come with it, and the children to be reaped."""


OF_INTERPRETERS, OF_CHILDREN = b"500", b"1000"
"""Scores (``oom_score_adj``) by which the kernel chooses what ends when memory runs out: a call before its interpreter, and that before the owner.

By their size alone interpreters would end first, since a call can hold memory that the kernel counts as no process' own.
"""


class ForkerGone(BaseException):
    """The forker has died, by nothing that it does itself: the interpreter ends with it."""


class Forks:
    """The forker, from the server's side."""

    def __init__(self, proc: int, keep: list[int], body: Callable[[socket.socket], None]) -> None:
        """Fork it, before anything large is loaded: it runs ``body``, has ``proc`` and the other descriptors ``keep``, and ends with this process."""
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.unreaped: list[int] = []
        self.packed: dict[tuple[Bounds, int | None, bool], bytes] = {}
        self.inherited_bytes, self.ceilings = 0, ceilings()
        server = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                kernel.set_signal(int(signal.SIGTERM), None)
                kernel.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL))
                if os.getppid() == server:
                    close_all_but(theirs.fileno(), proc, *keep)
                    body(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self.process = os.open(str(self.pid), os.O_PATH | os.O_DIRECTORY, dir_fd=proc)
        self.tasks = os.open("task", os.O_PATH, dir_fd=self.process)

    def wait_until_warm(self) -> bytes:
        """Empty once it is warm, or why it can't be. Raises ForkerGone, RuntimeError."""
        said = self._hear(1 << 16)
        if said != WARM:
            return said
        self.require_single_thread()
        statm = os.open("statm", os.O_RDONLY, dir_fd=self.process)
        self.inherited_bytes = int(os.read(statm, 256).split()[0]) * resource.getpagesize()
        os.close(statm)
        return b""

    def limits(self, bounds: Bounds, processes: int | None, *, is_session: bool) -> bytes:
        """The limits of a call, as its child is told them. ``processes``: see ``rlimits.pack``."""
        limits = self.packed.get((bounds, processes, is_session))
        if limits is None:
            if len(self.packed) == PACKED:
                self.packed.clear()
            limits = pack(bounds, self.inherited_bytes, processes, self.ceilings, is_session=is_session)
            self.packed[bounds, processes, is_session] = limits
        return limits

    def require_single_thread(self) -> None:
        """Raise RuntimeError when a module has started a thread: a fork would be without it, and what it holds locked."""
        threads = os.fstat(self.tasks).st_nlink - 2
        if threads != 1:
            raise RuntimeError(f"the warm interpreter has {threads} threads: warm modules must start none")

    def children(self, places: list[Place]) -> list[Child | None]:
        """A new child that waits in each of the places (``AT_ONCE`` at most); None where there can be none.

        Raises OSError, RuntimeError, ForkerGone.
        """
        self.require_single_thread()
        links: list[tuple[socket.socket, socket.socket]] = []
        try:
            fds = []
            for place in places:
                links.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                fds += [links[-1][1].fileno(), place.door, place.share.members]
            *pids, _, _ = self._order(fds)
        except BaseException:
            for ours, _ in links:
                ours.close()
            raise
        finally:
            for _, theirs in links:
                theirs.close()
        return [self._child(*each) for each in zip(pids, places, (ours for ours, _ in links), strict=False)]

    @staticmethod
    def _child(pid: int, place: Place, link: socket.socket) -> Child | None:
        if pid < 0:
            link.close()
            return None
        link.setblocking(False)
        return Child(pid, place, link)

    def reap(self, pid: int) -> tuple[int, float]:
        """Exit status, as ``wait`` gives it, and CPU seconds of a child that has ended. Raises ForkerGone."""
        self.unreaped.append(pid)
        while self.unreaped:
            *_, status, seconds = self._order([])
        return status, seconds

    def reap_later(self, pid: int) -> None:
        """With the next order, or when there is nothing else to do: nobody wants to know how it ended."""
        self.unreaped.append(pid)

    def reap_some(self) -> None:
        """Reap what waits for it."""
        self._order([])

    def end(self) -> None:
        """Kill it. The children are this process' then."""
        self.link.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _order(self, fds: list[int]) -> tuple[Any, ...]:
        ended = self.unreaped[:REAPED_AT_ONCE]
        try:
            send(self.link, array.array("i", [len(fds), *ended]).tobytes(), fds)
        except (BrokenPipeError, ConnectionResetError):
            raise ForkerGone from None
        done = self._hear(DONE.size)
        del self.unreaped[: len(ended)]
        return DONE.unpack(done)

    def _hear(self, size: int) -> bytes:
        try:
            said = self.link.recv(size)
        except ConnectionResetError:
            raise ForkerGone from None
        if not said:
            raise ForkerGone
        return said


class Forker:
    """The forker itself. It takes the descriptors up to CONTROL, which then are its children's."""

    def __init__(self, link: socket.socket, slots: Any, null: int, work: Work, child_filter: bytes, proc: int) -> None:
        """``child_filter``: the seccomp filter that each child adds to the forker's; empty for none. ``proc``: of the host."""
        self.link, self.slots, self.work = link, slots, work
        self.score = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc)
        self.child_link, self.door, self.members = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self.sealing = [joining(self.members), *slots.entering(self.door), *leaving(self.child_link)]
        if child_filter:
            self.sealing.append(kernel.filter_step(child_filter))
        for target in range(CONTROL):
            os.dup2(null, target, target < REPORT)
        ours, theirs = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.dup2(theirs.fileno(), CONTROL, False)
        theirs.close()
        self.control = _socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, CONTROL)
        self.other_end = ours

    def rehearse(self, null: int, requests: list[bytes]) -> None:
        """Do here as a child does with ``requests``, so often that forks find full what the interpreter keeps of its own code.

        Each page of that which they write to costs them more than the code itself.
        """
        names = set(MAIN.__dict__)
        for request in requests * REHEARSALS:
            take([(kernel.direct.getpid, ())] * 2)
            reseed()
            report = memory_file(request)
            send(self.other_end, unchanged(1000), [report, null, null])
            os.close(report)
            run_call(self.work, self.control)
            self.control.send(DONE_SAID)
            self.other_end.recv(len(DONE_SAID))
        self.other_end.close()
        for target in range(CONTROL):
            os.dup2(null, target, target < REPORT)
        for name in set(MAIN.__dict__) - names:
            del MAIN.__dict__[name]
        linecache.cache.pop(USER_FILE, None)

    def serve(self) -> None:
        """Do as the server says, until it is gone. Each object that this uses may be a page for every fork to copy."""
        link, prepare, child_link, door = self.link, self.slots.prepare, self.child_link, self.door
        members, score, write = self.members, self.score, kernel.direct.write
        while True:
            data, fds = receive(link, ORDER_BYTES)
            if not data:
                return
            ended = memoryview(data).cast("i")[1:]
            status, seconds = 0, 0.0
            if fds:
                for pid in ended:
                    os.waitpid(pid, 0)
            else:
                for pid in ended:
                    _, status, used = os.wait4(pid, 0)
                    seconds = used.ru_utime + used.ru_stime
            pids = [0, 0]
            if fds:
                write(
                    score, OF_CHILDREN, len(OF_CHILDREN)
                )  # inherited: where memory runs out, calls end before this does
            for at in range(0, len(fds), 3):
                child_link.value, door.value, members.value = fds[at], fds[at + 1], fds[at + 2]
                pid = pids[at // 3] = fork() if prepare(door) else -1
                if pid == 0:
                    self.be_child()
            if fds:
                write(score, OF_INTERPRETERS, len(OF_INTERPRETERS))
            for fd in fds:
                os.close(fd)
            link.send(DONE.pack(*pids, status, seconds))

    def be_child(self) -> NoReturn:
        """The child's side of the fork."""
        try:
            take(self.sealing)
            reseed()
            run(self.work, self.control)
        finally:
            os._exit(BROKEN_OFF)  # whatever happens, a child never returns into the forker's loop
