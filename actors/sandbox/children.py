"""The children of a warm interpreter: forked before their call comes, each for one call or session.

::

    fork --> seal off, enter the slot --> wait --> the call: descriptors, limits --> run --> report, "done" --> exit
             `------------ off the way of any call ------------'

A child that waits holds what the interpreter holds: no code, no input, no output of anybody. It has left the
interpreter's descriptors and is in a slot of its own, where no call can reach it.
"""

from __future__ import annotations

import _socket
import os
import resource
import signal
import socket
from typing import NoReturn, TypeAlias

from actors.sandbox.child import (
    BROKEN_OFF,
    Bounds,
    Work,
    ceilings,
    die_with_parent,
    leave_server,
    reseed,
    run,
)
from actors.sandbox.directories import Directory
from actors.sandbox.kernel import fork
from actors.sandbox.namespaces import Slot
from actors.sandbox.wire import HAND_OVER, NO_VERDICT, send

Place: TypeAlias = Slot | Directory


class Call:
    """A call that runs, or waits for a child: its descriptors and what was decided about it."""

    def __init__(self, number: int, session: int, bounds: Bounds, fds: list[int]) -> None:
        self.id, self.session, self.bounds, self.fds = number, session, bounds, fds
        self.started = self.deadline = 0.0
        self.verdict = NO_VERDICT

    def close(self) -> None:
        """Close its descriptors: the child has them, or nobody will."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Child:
    """A process that waits for a call, runs it, or runs the cells of a session one after the other."""

    def __init__(self, pid: int, place: Place, control: _socket.socket) -> None:
        self.pid, self.place, self.control = pid, place, control
        self.pidfd = os.pidfd_open(pid)
        self.call: Call | None = None
        self.session = 0
        self.first: Call | None = None
        self.unread: Call | None = None
        """A first call that it never took: it was dying when that was handed over."""

    def hand_over(self, call: Call, processes: int | None) -> bool:
        """Give it the call that it waits for; False when that can't be, which is its end. ``processes``: see ``child.set_limits``."""
        tasks = -1 if processes is None else processes
        try:
            send(self.control, HAND_OVER.pack(bool(call.session), *call.bounds, tasks), call.fds)
        except OSError:  # it has died
            self.kill()
            return False
        self.session, self.first = call.session, call
        return True

    def next_cell(self, call: Call) -> None:
        """Let a session's process, stopped since its last cell, run another."""
        try:
            while self.control.recv(16):  # what the code may have said unasked; nothing when it has closed it
                pass
        except (BlockingIOError, ConnectionResetError):
            pass
        os.kill(self.pid, signal.SIGCONT)
        try:
            send(self.control, b"c", call.fds)
        except OSError:
            self.kill()  # it does not listen: its end is reported as that of the cell

    def said(self) -> bool | None:
        """Whether it says that it has reported; None when it has closed the link."""
        try:
            return bool(self.control.recv(16)) or None
        except BlockingIOError:
            return False
        except ConnectionResetError:  # what was sent to it was not read
            self.unread = self.first
            return None

    def kill(self) -> None:
        """Kill it and its group, as long as it is not reaped."""
        os.kill(self.pid, signal.SIGKILL)
        try:  # noqa: SIM105  each object that is made after a fork may cost a page
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it may not lead a group yet

    def has_descendants(self, proc: int) -> bool:
        """Whether a session has processes beside its own, which would go on running between its cells. ``proc``: of the host."""
        if self.place.processes():
            return True
        tasks = os.open(f"{self.pid}/task", os.O_RDONLY, dir_fd=proc)
        try:
            for task in os.listdir(tasks):  # noqa: PTH208  pathlib is memory that every fork would pay for
                try:
                    fd = os.open(f"{task}/children", os.O_RDONLY, dir_fd=tasks)
                except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                    continue
                try:
                    if os.read(fd, 16):
                        return True
                finally:
                    os.close(fd)
            return False
        finally:
            os.close(tasks)


class Forks:
    """Makes children. To be made once the interpreter is warm, since it measures what they inherit."""

    def __init__(self, work: Work, proc: int, null: int) -> None:
        self.work, self.null = work, null
        self.tasks = os.open("self/task", os.O_PATH, dir_fd=proc)
        statm = os.open("self/statm", os.O_RDONLY, dir_fd=proc)
        self.inherited_bytes = int(os.read(statm, 256).split()[0]) * resource.getpagesize()
        os.close(statm)
        self.ceilings = ceilings()

    def require_single_thread(self) -> None:
        """Raise RuntimeError when a module has started a thread: a fork would be without it, and what it holds locked."""
        threads = os.fstat(self.tasks).st_nlink - 2
        if threads != 1:
            raise RuntimeError(f"the warm interpreter has {threads} threads: warm modules must start none")

    def child(self, place: Place) -> Child:
        """A new child, that waits in ``place``. Raises OSError."""
        self.require_single_thread()
        ours, theirs = _socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )  # those of ``socket`` touch twice the memory
        try:
            ours.setblocking(False)
            place.prepare()
            pid = fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            try:
                self._be_child(place, theirs.fileno())
            finally:
                os._exit(BROKEN_OFF)  # whatever happens, a child never returns into the server's loop
        theirs.close()
        return Child(pid, place, ours)

    def _be_child(self, place: Place, control: int) -> NoReturn:
        """The child's side of the fork."""
        place.enter()
        leave_server(control, self.null)
        reseed()
        die_with_parent()
        run(self.work, self.inherited_bytes, self.ceilings)
