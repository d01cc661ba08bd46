"""Who of the calls gets how much of the processors, from the side of the interpreter that runs them. Standard library only.

Each place for a call has a group of its own there (``control_groups``). Whatever a call has of processes, threads and sessions shares what one group gets.
A call that goes on with more tasks than most ever have yields: it gets what no other call wants. So a storm of wake-ups, forks or
interrupts, which costs neighbours more than the processor time it is charged for, lasts a moment.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque

from actors.sandbox.isolation.kernel import Step, direct

MYSELF = b"0"
IDLE = "cpu.idle"
"""From Linux 5.15 on, in both versions: a group gets what others leave, and yields as soon as one of them wakes."""
LEAST = {"tasks": ("cpu.shares", b"2", b"1024"), "cgroup.threads": ("cpu.weight", b"1", b"100")}
"""Without it: the file of the weight, its least and its usual value, by the file in which a task writes itself down."""


def joining(members: ctypes.c_int) -> Step:
    """The step by which a child with a single thread moves to the group that the descriptor is of."""
    return direct.write, (members, MYSELF, len(MYSELF))


class Share:
    """The group of one place. ``members``: where a child writes itself down, and its tasks can be read."""

    __slots__ = ("_usual", "_weight", "_yielding", "_yields", "members")

    def __init__(self, directory: str, alone: str) -> None:
        self.members = os.open(f"{directory}/{alone}", os.O_RDWR)
        name, self._yielding, self._usual = LEAST[alone]
        if os.access(f"{directory}/{IDLE}", os.W_OK):
            name, self._yielding, self._usual = IDLE, b"1", b"0"
        self._weight, self._yields = os.open(f"{directory}/{name}", os.O_WRONLY), False

    def tasks(self) -> int:
        """How many tasks are in it; above ``looks.MOST_TASKS`` maybe less than there are."""
        return os.pread(self.members, 64, 0).count(b"\n")

    def give_way(self) -> None:
        """Have all in it yield to others."""
        os.pwrite(self._weight, self._yielding, 0)
        self._yields = True

    def restore(self) -> None:
        """It has a whole share again: another call begins, or what is in it is to die."""
        if self._yields:
            os.pwrite(self._weight, self._usual, 0)
            self._yields = False


class NoShare(Share):
    """What takes its place where there are no groups."""

    def __init__(self) -> None:
        self.members = os.open(os.devnull, os.O_RDWR)
        self._yields = False

    def tasks(self) -> int:
        """None can be counted."""
        return 0


class Shares:
    """The groups of an interpreter's places. Those used last are given out last, since processes that are killed take a while to leave."""

    def __init__(self, directories: list[str], alone: str) -> None:
        """Open them, while the host's files can be seen."""
        self._none = NoShare()
        self._free = deque(Share(directory, alone) for directory in directories)

    def get(self) -> Share:
        """A group for one more place."""
        return self._free.popleft() if self._free else self._none

    def put_back(self, share: Share) -> None:
        """The place is no more. What is left in it dies with a whole share: it holds locks that neighbours wait for."""
        share.restore()
        if share is not self._none:
            self._free.append(share)
