"""Round robin: the engines in turn, whatever their load.

The simplest rule, of a router that knows nothing: each turn goes to the next engine of a circle. A rollout's turns land
on different engines, so its prefix is computed again nearly every time. Source: the usual default of HTTP routers;
prime-rl routed so until its pull request #1791.
"""

from __future__ import annotations

from agent_rl.scheduling.policies.base import WaitingTurn
from agent_rl.scheduling.policies.immediate import Immediate


class RoundRobin(Immediate):
    """See above."""

    def __init__(self, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._next = -1

    def engine_for(self, turn: WaitingTurn) -> str:
        """The next engine."""
        del turn
        self._next = (self._next + 1) % len(self.names)
        return self.names[self._next]
