"""Least requests: the engine with the fewest requests under way, whatever they need.

Turns of a rollout may land on different engines, so prefixes are lost; requests of 300 and of 30,000 tokens count the
same. Source: the classic router rule; verl's least-requests choice for new requests (pull request #5399) and prime-rl's
least-loaded choice (#1791), here without their stickiness.
"""

from __future__ import annotations

from agent_rl.scheduling.policies.base import WaitingTurn
from agent_rl.scheduling.policies.immediate import Immediate


class LeastRequests(Immediate):
    """See above."""

    def engine_for(self, turn: WaitingTurn) -> str:
        """The engine with the fewest requests."""
        del turn
        return self.requests.least()
