"""The children of a warm interpreter: forked before their call comes, each for one call or session.

::

    fork --> seal off, enter the slot --> wait --> the call: descriptors, limits --> run --> report, "done" --> exit
             `------------- before any call arrives -------------'

A waiting child holds what the interpreter holds: no code, no input and no output of any call. It has closed the
interpreter's descriptors and waits in a slot of its own, where no call can reach it.
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

CallPlace: TypeAlias = Slot | Directory


class SandboxCall:
    """A call that runs or waits for a child, with its descriptors and the interpreter's verdict."""

    def __init__(self, number: int, session: int, bounds: Bounds, fds: list[int]) -> None:
        self.id, self.session, self.bounds, self.fds = number, session, bounds, fds
        self.started = self.deadline = 0.0
        self.verdict = NO_VERDICT

    def close(self) -> None:
        """Close the call's descriptors, after the child has them or when no child will."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Child:
    """A process that waits for a call, runs it, or runs the cells of a session one after the other."""

    def __init__(self, pid: int, place: CallPlace, control: socket.socket) -> None:
        self.pid, self.place, self.control = pid, place, control
        self.pidfd = os.pidfd_open(pid)
        self.call: SandboxCall | None = None
        self.session = 0
        self.first: SandboxCall | None = None
        self.settling: SandboxCall | None = None
        """The cell after which the child was stopped, until the stop is confirmed."""
        self.unread: SandboxCall | None = None
        """A first call that the child never took, because it was dying at the time."""

    def hand_over(self, call: SandboxCall, limits: bytes) -> bool:
        """Send the child its call, with packed limits. False when the child has died."""
        try:
            send(self.control, limits, call.fds)
        except OSError:  # it has died
            self.kill()
            return False
        self.session, self.first = call.session, call
        return True

    def next_cell(self, call: SandboxCall) -> None:
        """Continue the stopped process of a session with its next cell."""
        try:
            while self.control.recv(16):  # discard unrequested bytes from the code; empty when the code closed the link
                pass
        except (BlockingIOError, ConnectionResetError):
            pass
        os.kill(self.pid, signal.SIGCONT)
        try:
            send(self.control, b"c", call.fds)
        except OSError:
            call.verdict = NOT_RUN  # the process does not read its link
            self.kill()

    def said(self) -> bool | None:
        """Whether the child says that it has reported; None when it has closed the link."""
        try:
            return bool(self.control.recv(16)) or None
        except BlockingIOError:
            return False
        except ConnectionResetError:  # the child ended before reading
            self.unread = self.first
            return None

    def kill(self) -> None:
        """Kill the child and its group, with a whole share because it may hold locks. No effect after it was reaped."""
        self.place.share.restore()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.kill_group()

    def kill_group(self) -> None:
        """Kill the rest of the child's group. Call this before the child is reaped."""
        with suppress(ProcessLookupError, PermissionError):  # the child may not lead a group yet
            os.killpg(self.pid, signal.SIGKILL)

    def has_descendants(self, proc: int) -> bool:
        """Whether a session has further processes, which would run on between cells. ``proc``: /proc of the host."""
        return bool(self.place.processes()) or any(self._read_tasks(proc, "children"))

    def is_at_rest(self, proc: int) -> bool:
        """Whether a session is stopped until its next cell: each thread is stopped, and no process can continue it.

        A process that ends could: its end sends signals to its parent or to an orphaned process group.
        """
        states = [text.rpartition(b")")[2].split()[:1] for text in self._read_tasks(proc, "stat")]
        return all(state == [b"T"] for state in states) and not self.has_descendants(proc)

    def _read_tasks(self, proc: int, name: str) -> list[bytes]:
        """Read a /proc file of each thread, at most 4 KiB."""
        said = []
        tasks = os.open(f"{self.pid}/task", os.O_RDONLY, dir_fd=proc)
        try:
            for task in os.listdir(tasks):  # noqa: PTH208  pathlib takes memory, and every fork would pay for it
                try:
                    fd = os.open(f"{task}/{name}", os.O_RDONLY, dir_fd=tasks)
                except (FileNotFoundError, ProcessLookupError):  # the thread has ended
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
