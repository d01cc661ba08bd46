"""The clock of a twin: time passes only when no task can run, and then at once.

::

    Alarm.wait --(ring, or its time)--> the task goes on

A wait with a deadline of trio's own ends by an exception, and takes several times as long to run as an `Alarm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

import trio
from trio.abc import Clock
from trio.lowlevel import Abort, Task, current_clock, current_task, reschedule, wait_task_rescheduled

T = TypeVar("T")


class VirtualClock(Clock):
    """Seconds since the start of the run. When every task waits, the next alarm or deadline is reached at once.

    ``trio.testing.MockClock`` does the same with one more turn of trio's loop each time, and knows no alarms.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._alarms: list[tuple[float, int, Alarm, int]] = []
        """A heap of time, order, alarm, and the number of the alarm's wait."""
        self._order = 0

    def start_clock(self) -> None:
        """Nothing: the time is 0."""

    def current_time(self) -> float:
        """The time."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Asked by trio when no task can run: go to the next alarm, or to trio's deadline, and sleep for no time."""
        alarms = self._alarms
        while alarms and not alarms[0][2].waits(alarms[0][3]):
            heappop(alarms)
        when = alarms[0][0] if alarms else math.inf
        if min(when, deadline) == math.inf:  # nothing will ever happen, but a signal or a thread may come
            return math.inf
        self._now = max(self._now, min(when, deadline))
        while alarms and alarms[0][0] <= self._now:
            _, _, alarm, wait = heappop(alarms)
            if alarm.waits(wait):
                alarm.ring()
        return 0.0

    def set(self, when: float, alarm: Alarm, wait: int) -> None:
        """Ring the alarm at this time, if this wait is not over by then."""
        self._order += 1
        heappush(self._alarms, (when, self._order, alarm, wait))


class Alarm:
    """Wakes a task when it rings, or at a time by a `VirtualClock`. One task waits at a time."""

    __slots__ = ("_number", "_task")

    def __init__(self) -> None:
        self._task: Task | None = None
        self._number = 0
        """Of the newest wait."""

    def waits(self, number: int) -> bool:
        """Whether this wait is not over."""
        return self._task is not None and self._number == number

    def ring(self) -> None:
        """Wake the task that waits, if there is one."""
        if self._task is not None:
            task, self._task = self._task, None
            reschedule(task)

    async def wait(self, until: float = math.inf) -> None:
        """Wait until the alarm rings, at most until this time."""
        clock = current_clock()
        assert isinstance(clock, VirtualClock), "alarms are of virtual time"
        if until <= clock.current_time():
            await trio.lowlevel.checkpoint()
            return
        self._task = current_task()
        self._number += 1
        if until < math.inf:
            clock.set(until, self, self._number)
        await wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED


async def sleep_until(when: float) -> None:
    """Wait until this time."""
    await Alarm().wait(when)


async def sleep(seconds: float) -> None:
    """Wait for so long."""
    await sleep_until(trio.current_time() + seconds)


async def in_place(work: Callable[..., T], *arguments: object, **options: object) -> T:
    """Do in trio's thread what an actor does in another one: virtual time would not wait for a thread."""
    await trio.lowlevel.checkpoint()
    return work(*arguments, **options)
