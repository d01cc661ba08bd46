"""When the tasks of a call that runs are counted: a call with many yields to the others. Standard library only."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from actors.sandbox.wire import NO_VERDICT

if TYPE_CHECKING:
    from actors.sandbox.inside.children import Call, Child

MOST_TASKS = 2
"""Processes and threads of a call that keeps its share however long it runs: its own, and one that it waits for."""
FIRST_LOOK_SECONDS = 0.05
"""How long a call runs before its tasks are counted; after that as long again, and so on. Most have ended by then."""


class Looks:
    """When to count the tasks of the calls that run."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Child, Call]] = []

    def begin(self, child: Child, call: Call) -> None:
        """``child`` runs ``call`` from here on, with a whole share."""
        child.place.share.restore()
        heapq.heappush(self._due, (call.started + FIRST_LOOK_SECONDS, call.id, child, call))

    def seconds(self, now: float) -> float | None:
        """How long until ``look`` is to be called; None when no call runs."""
        while self._due:
            due, _, child, call = self._due[0]
            if child.call is call and call.verdict == NO_VERDICT:
                return max(0.0, due - now)
            heapq.heappop(self._due)
        return None

    def look(self, now: float) -> None:
        """Have those yield that have many tasks; look at others again."""
        while self.seconds(now) == 0.0:
            _, number, child, call = heapq.heappop(self._due)
            if child.place.share.tasks() > MOST_TASKS:
                child.place.share.give_way()
            else:
                heapq.heappush(self._due, (2 * now - call.started, number, child, call))
