"""The children of a warm interpreter: forked before their call comes, each for one call or session.

::

    fork --> seal off, enter the slot --> wait --> the call: descriptors, limits --> run --> report, "done" --> exit
             `------------ off the way of any call ------------'

A child that waits holds what the interpreter holds: no code, no input, no output of anybody. It has left the
interpreter's descriptors and is in a slot of its own, where no call can reach it.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from typing import TypeAlias

from actors.sandbox.inside.directories import Directory
from actors.sandbox.inside.slots import Slot
from actors.sandbox.isolation.rlimits import Bounds
from actors.sandbox.wire import NO_VERDICT, NOT_RUN, send

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

    def __init__(self, pid: int, place: Place, control: socket.socket) -> None:
        self.pid, self.place, self.control = pid, place, control
        self.pidfd = os.pidfd_open(pid)
        self.call: Call | None = None
        self.session = 0
        self.first: Call | None = None
        self.settling: Call | None = None
        """The cell after which it was stopped, until that is sure to have happened."""
        self.unread: Call | None = None
        """A first call that it never took: it was dying when that was handed over."""

    def hand_over(self, call: Call, limits: bytes) -> bool:
        """Give it the call that it waits for, with its limits packed; False when that can't be, which is its end."""
        try:
            send(self.control, limits, call.fds)
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
            call.verdict = NOT_RUN  # it does not listen
            self.kill()

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
        """Kill it and its group; nothing, where a forker that has died since has reaped it. With a whole share: who dies holds locks."""
        self.place.share.restore()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.kill_group()

    def kill_group(self) -> None:
        """Kill what is left of its group, as long as it is not reaped."""
        with suppress(ProcessLookupError, PermissionError):  # it may not lead a group yet
            os.killpg(self.pid, signal.SIGKILL)

    def has_descendants(self, proc: int) -> bool:
        """Whether a session has processes beside its own, which would go on running between its cells. ``proc``: of the host."""
        return bool(self.place.processes()) or any(self._read_tasks(proc, "children"))

    def is_at_rest(self, proc: int) -> bool:
        """Whether a session stands until its next cell: each of its threads is stopped, and no process is left that could make it go on.

        A process that ends can do that, by the signals that its parent or an orphaned group of processes gets then.
        """
        states = [text.rpartition(b")")[2].split()[:1] for text in self._read_tasks(proc, "stat")]
        return all(state == [b"T"] for state in states) and not self.has_descendants(proc)

    def _read_tasks(self, proc: int, name: str) -> list[bytes]:
        """A file of the kernel's about each thread, at most 4 KiB of it."""
        said = []
        tasks = os.open(f"{self.pid}/task", os.O_RDONLY, dir_fd=proc)
        try:
            for task in os.listdir(tasks):  # noqa: PTH208  pathlib is memory that every fork would pay for
                try:
                    fd = os.open(f"{task}/{name}", os.O_RDONLY, dir_fd=tasks)
                except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                    continue
                try:
                    said.append(os.read(fd, 4096))
                except ProcessLookupError:
                    pass
                finally:
                    os.close(fd)
        finally:
            os.close(tasks)
        return said
