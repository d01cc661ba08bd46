"""The process that forks children: it is warm and does little else. Standard library only.

::

    server: keeps the books; small --- slot, the child's end of a link ---> forker: warm --fork--> child of a call
       ^                           <------ number of the child -----------                            |
       +----------------------------- the link to it; its end (a pidfd) ------------------------------+

After a fork, a process pays for each page that it is the first to write. Bookkeeping writes many pages, because each
use of an object changes its reference count. So a process that never forks keeps the books, and the forker runs a loop
that touches few pages. The forker is the parent of all children and reaps them when the server says so. Until then, the
number of a dead child cannot name another process.
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
from actors.sandbox.inside.children import CallPlace, Child
from actors.sandbox.inside.shares import joining
from actors.sandbox.inside.warm_up import REHEARSALS
from actors.sandbox.isolation import kernel
from actors.sandbox.isolation.kernel import fork
from actors.sandbox.isolation.namespaces import close_all_but
from actors.sandbox.isolation.rlimits import Bounds, ceilings, pack, unchanged
from actors.sandbox.wire import DONE_SAID, memory_file, receive, send

WARM = b"."
"""The forker's first message when it is warm; otherwise the message says why it is not."""
AT_ONCE = 2
"""The most children of one order: the forker then copies its pages once for both. Their descriptors are six."""
DONE = struct.Struct("!iiid")
"""The answer: pids of the new children (-1: none), and status and CPU seconds of the last reaped one if none is new."""
PACKED = 16
"""Packed limits that are cached. Most calls have the same limits."""
REAPED_AT_ONCE = 256
ORDER_BYTES = 4 + 4 * REAPED_AT_ONCE
"""An order is integers: the number of descriptors that come with it, and the children to reap."""


OF_INTERPRETERS, OF_CHILDREN = b"500", b"1000"
"""Scores (``oom_score_adj``) for the kernel when memory runs out: calls end first, then interpreters, then the owner.

Without scores interpreters would end first, because a call can hold memory that counts for no process.
"""


class ForkerGone(BaseException):
    """The forker was killed from outside. The interpreter then ends too."""


class Forks:
    """The server's side of the forker."""

    def __init__(self, proc: int, keep: list[int], body: Callable[[socket.socket], None]) -> None:
        """Fork the forker, before large imports. It runs ``body``, keeps descriptors, and ends with this process."""
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.unreaped: list[int] = []
        self.packed: dict[tuple[Bounds, int | None, bool], bytes] = {}
        self.inherited_bytes, self.ceilings = 0, ceilings()

        def work() -> None:
            close_all_but(theirs.fileno(), proc, *keep)
            body(theirs)

        self.pid = kernel.start_helper(work)
        theirs.close()
        self.process = os.open(str(self.pid), os.O_PATH | os.O_DIRECTORY, dir_fd=proc)
        self.tasks = os.open("task", os.O_PATH, dir_fd=self.process)

    def wait_until_warm(self) -> bytes:
        """Returns b"" once the forker is warm, or why it cannot be. Raises ForkerGone, RuntimeError."""
        said = self._hear(1 << 16)
        if said != WARM:
            return said
        self.require_single_thread()
        statm = os.open("statm", os.O_RDONLY, dir_fd=self.process)
        self.inherited_bytes = int(os.read(statm, 256).split()[0]) * resource.getpagesize()
        os.close(statm)
        return b""

    def limits(self, bounds: Bounds, processes: int | None, *, is_session: bool) -> bytes:
        """Pack the limits of a call for its child. ``processes``: see ``rlimits.pack``."""
        limits = self.packed.get((bounds, processes, is_session))
        if limits is None:
            if len(self.packed) == PACKED:
                self.packed.clear()
            limits = pack(bounds, self.inherited_bytes, processes, self.ceilings, is_session=is_session)
            self.packed[bounds, processes, is_session] = limits
        return limits

    def require_single_thread(self) -> None:
        """Raise RuntimeError when a module has started a thread: a fork loses the thread but keeps its locks."""
        threads = os.fstat(self.tasks).st_nlink - 2
        if threads != 1:
            raise RuntimeError(f"the warm interpreter has {threads} threads: warm modules must start none")

    def children(self, places: list[CallPlace]) -> list[Child | None]:
        """A new waiting child in each of the places (at most ``AT_ONCE``); None where a fork is impossible.

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
    def _child(pid: int, place: CallPlace, link: socket.socket) -> Child | None:
        if pid < 0:
            link.close()
            return None
        link.setblocking(False)
        return Child(pid, place, link)

    def reap(self, pid: int) -> tuple[int, float]:
        """Exit status (as of ``wait``) and CPU seconds of a child that has ended. Raises ForkerGone."""
        self.unreaped.append(pid)
        while self.unreaped:
            *_, status, seconds = self._order([])
        return status, seconds

    def reap_later(self, pid: int) -> None:
        """Reap a child with the next order or when idle, for a child whose status is not needed."""
        self.unreaped.append(pid)

    def reap_some(self) -> None:
        """Reap the children that wait for it."""
        self._order([])

    def end(self) -> None:
        """Kill the forker. Its children become children of this process."""
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
    """The forker itself. It uses the descriptors up to CONTROL, which its children then use."""

    def __init__(self, link: socket.socket, slots: Any, null: int, work: Work, child_filter: bytes, proc: int) -> None:
        """``child_filter``: seccomp filter that each child adds to the forker's, or empty. ``proc``: of the host."""
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
        """Handle ``requests`` here as a child would, often enough to fill the interpreter's caches of its own code.

        A fork that writes to these caches pays more for the pages than for running the code.
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
        """Carry out the server's orders until it ends. Each object used here may cost every fork a page."""
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
                write(score, OF_CHILDREN, len(OF_CHILDREN))  # children inherit it: without memory, calls end first
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
            os._exit(BROKEN_OFF)  # a child must never return to the forker's loop
