"""Places for calls, given out in turn to those who ask, so that a storm from one does not starve the others."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class FairQueue:
    """At most ``places`` holders at once. Who waits is served in order of arrival within a name, and names take turns."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[trio.lowlevel.Task]] = {}  # in the order of their turns
        self.waiting = 0

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[None]:
        """Hold a place; waits for one under ``name``."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(name)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, name: str) -> None:
        task = trio.lowlevel.current_task()
        self._waiting.setdefault(name, deque()).append(task)
        self.waiting += 1

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            line = self._waiting[name]
            line.remove(task)
            self.waiting -= 1
            if not line:
                del self._waiting[name]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _pass_on(self) -> None:
        """A place is free: it goes to the first of the name whose turn it is, which then goes to the end of the line."""
        if not self._waiting:
            self._free += 1
            return
        name = next(iter(self._waiting))
        line = self._waiting.pop(name)
        task = line.popleft()
        self.waiting -= 1
        if line:
            self._waiting[name] = line
        trio.lowlevel.reschedule(task)
