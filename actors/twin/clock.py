"""The clock of a twin: time passes only when no task can run, and then at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import trio
from trio.abc import Clock

T = TypeVar("T")


class VirtualClock(Clock):
    """Seconds since the start of the run. When every task waits, the next deadline is reached at once.

    ``trio.testing.MockClock`` does the same with one more turn of trio's loop at each deadline.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Nothing: the time is 0."""

    def current_time(self) -> float:
        """The time."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Asked by trio when no task can run: go to the deadline, and sleep for no time."""
        if deadline == math.inf:  # nothing will ever happen, but a signal or a thread may come
            return math.inf
        self._now = max(self._now, deadline)
        return 0.0


async def in_place(work: Callable[..., T], *arguments: object, **options: object) -> T:
    """Do in trio's thread what an actor does in another one: virtual time would not wait for a thread."""
    await trio.lowlevel.checkpoint()
    return work(*arguments, **options)
