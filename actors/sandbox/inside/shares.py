"""Shares calls' processor time, on the side of the interpreter that runs the calls. Standard library only.

Each place for a call has a control group (``control_groups``). The processes, threads and sessions of a call share the
time of one group. A call that keeps running with unusually many tasks yields: it gets only the time that other calls
leave. Otherwise a storm of wake-ups, forks or interrupts would cost other calls more than the processor time it is
charged for.
"""

from __future__ import annotations

import ctypes
import heapq
import os
from collections import deque
from typing import TYPE_CHECKING

from actors.sandbox.isolation.kernel import IsolationStep, direct
from actors.sandbox.wire import NO_VERDICT

if TYPE_CHECKING:
    from actors.sandbox.inside.children import Child, SandboxCall


MYSELF = b"0"
IDLE = "cpu.idle"
"""Since Linux 5.15, in both versions: the group gets what others leave, and yields as soon as another wakes."""
LEAST = {"tasks": ("cpu.shares", b"2", b"1024"), "cgroup.threads": ("cpu.weight", b"1", b"100")}
"""Without cpu.idle: the file of the weight, its least and its usual value, by the name of the file of tasks."""


def joining(members: ctypes.c_int) -> IsolationStep:
    """The step by which a child with a single thread moves to the group of the descriptor."""
    return direct.write, (members, MYSELF, len(MYSELF))


class CpuShare:
    """The group of one place. ``members``: the file in which a child enters itself and from which tasks are read."""

    __slots__ = ("_usual", "_weight", "_yielding", "_yields", "members")

    def __init__(self, directory: str, alone: str) -> None:
        self.members = os.open(f"{directory}/{alone}", os.O_RDWR)
        name, self._yielding, self._usual = LEAST[alone]
        if os.access(f"{directory}/{IDLE}", os.W_OK):
            name, self._yielding, self._usual = IDLE, b"1", b"0"
        self._weight, self._yields = os.open(f"{directory}/{name}", os.O_WRONLY), False

    def tasks(self) -> int:
        """Number of tasks in the group; a count above ``MOST_TASKS`` may be too low."""
        return os.pread(self.members, 64, 0).count(b"\n")

    def give_way(self) -> None:
        """Make all tasks in the group yield to others."""
        os.pwrite(self._weight, self._yielding, 0)
        self._yields = True

    def restore(self) -> None:
        """Give the group a whole share again, for the next call or so that killed processes end soon."""
        if self._yields:
            os.pwrite(self._weight, self._usual, 0)
            self._yields = False


class NoShare(CpuShare):
    """Replaces `CpuShare` where there are no groups."""

    def __init__(self) -> None:
        self.members = os.open(os.devnull, os.O_RDWR)
        self._yields = False

    def tasks(self) -> int:
        """0: tasks cannot be counted."""
        return 0


class Shares:
    """The groups of an interpreter's places, least recently used first: killed processes take time to leave."""

    def __init__(self, directories: list[str], alone: str) -> None:
        """Open the groups while the host's files are visible."""
        self._none = NoShare()
        self._free = deque(CpuShare(directory, alone) for directory in directories)

    def get(self) -> CpuShare:
        """A group for one more place."""
        return self._free.popleft() if self._free else self._none

    def put_back(self, share: CpuShare) -> None:
        """Take back the group of a closed place. Its processes die with a whole share, because they may hold locks."""
        share.restore()
        if share is not self._none:
            self._free.append(share)


MOST_TASKS = 2
"""A call with at most this many processes and threads keeps its share: its own task, and one that it waits for."""
FIRST_LOOK_SECONDS = 0.05
"""A call's tasks are counted after this time, then again after as long, and so on. Most calls end before."""


class TaskThrottle:
    """When to count the tasks of running calls."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Child, SandboxCall]] = []

    def begin(self, child: Child, call: SandboxCall) -> None:
        """``child`` starts to run ``call``, with a whole share."""
        child.place.share.restore()
        heapq.heappush(self._due, (call.started + FIRST_LOOK_SECONDS, call.id, child, call))

    def seconds(self, now: float) -> float | None:
        """Seconds until ``look`` is due; None when no call runs."""
        while self._due:
            due, _, child, call = self._due[0]
            if child.call is call and call.verdict == NO_VERDICT:
                return max(0.0, due - now)
            heapq.heappop(self._due)
        return None

    def look(self, now: float) -> None:
        """Make calls with many tasks yield; plan the next look at the others."""
        while self.seconds(now) == 0.0:
            _, number, child, call = heapq.heappop(self._due)
            if child.place.share.tasks() > MOST_TASKS:
                child.place.share.give_way()
            else:
                heapq.heappush(self._due, (2 * now - call.started, number, child, call))
