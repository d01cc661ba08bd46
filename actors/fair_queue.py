"""Places for calls, given out in turn to those who ask, so that a storm from one does not starve the others."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class FairQueue:
    """At most ``places`` holders at once. Who waits is served in order of arrival within a name, and names take turns.

    A name gets another place only while more places are free than it holds. So one alone gets half of them, the next
    half of the rest, and whoever comes then need not wait until a call of theirs ends. Holders without a name are not
    bound: nobody asks in their place.
    """

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[trio.lowlevel.Task]] = {}  # in the order of their turns
        self.waiting = 0

    def resize(self, places: int) -> None:
        """Have so many places. Holders keep theirs when there are fewer."""
        if places != self._places:
            self._free += places - self._places
            self._places = places
            self._pass_on()

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[None]:
        """Hold a place; waits for one under ``name``."""
        if name not in self._waiting and self._may_take(name):
            self._take(name)
        else:
            await self._wait(name)
        try:
            yield
        finally:
            self._free += 1
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
            self._pass_on()

    def _may_take(self, name: str) -> bool:
        return self._free > (self._held[name] if name else 0)

    def _take(self, name: str) -> None:
        self._free -= 1
        self._held[name] += 1

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
        """Free places go to the first who wait under the names whose turn it is; these go to the end of the line."""
        while self._free > 0:  # with no place free, nobody may take one, and a look at all names would be in vain
            name = next((name for name in self._waiting if self._may_take(name)), None)
            if name is None:
                return
            line = self._waiting.pop(name)
            task = line.popleft()
            self.waiting -= 1
            if line:
                self._waiting[name] = line
            self._take(name)
            trio.lowlevel.reschedule(task)
