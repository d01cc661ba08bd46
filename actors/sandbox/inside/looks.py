"""Decides when to count the tasks of a running call: a call with many tasks yields to others. Standard library only."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from actors.sandbox.wire import NO_VERDICT

if TYPE_CHECKING:
    from actors.sandbox.inside.children import Child, SandboxCall

MOST_TASKS = 2
"""A call with at most this many processes and threads keeps its share: its own task, and one that it waits for."""
FIRST_LOOK_SECONDS = 0.05
"""A call's tasks are counted after this time, then again after as long, and so on. Most calls end before."""


class Looks:
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
