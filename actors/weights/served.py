"""Which policies the engines serve, and the oldest of them. A report costs what changed, not what there is.

Pure.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

from agent_rl.messages import Policy


class ServedPolicies:
    """The policy of each engine. An engine reports several times a second, and mostly what it reported before."""

    def __init__(self) -> None:
        self._served: dict[str, Policy] = {}
        self._engines: Counter[Policy] = Counter()
        """How many engines serve a policy; also 0, for those that are still in ``_order``."""
        self._order: list[Policy] = []
        """A heap of the policies in ``_engines``. The first is served by an engine."""

    @property
    def oldest(self) -> Policy | None:
        """The oldest policy that an engine serves; None without engines."""
        return self._order[0] if self._order else None

    def served(self, engine: str, policy: Policy) -> bool:
        """An engine reports its policy. Returns whether `oldest` changed."""
        before = self._served.get(engine)
        if before == policy:
            return False
        oldest = self.oldest
        self._served[engine] = policy
        if policy not in self._engines:
            heappush(self._order, policy)
        self._engines[policy] += 1
        self._leaves(before)
        return self.oldest != oldest

    def gone(self, engine: str) -> bool:
        """An engine is lost, or has left. Returns whether `oldest` changed."""
        oldest = self.oldest
        self._leaves(self._served.pop(engine, None))
        return self.oldest != oldest

    def _leaves(self, policy: Policy | None) -> None:
        if policy is not None:
            self._engines[policy] -= 1
        while self._order and not self._engines[self._order[0]]:
            del self._engines[heappop(self._order)]
