"""A scheduler that keeps a group's rollouts on one engine, whose prefix cache then holds their common prompt once.

Two lines of a topology beside it choose it::

    [actors.kv_scheduler]
    class = "group_affinity_scheduler:GroupAffinityScheduler"

or, since only the scheduling policy is another::

    [actors.kv_scheduler.settings]
    policy = "group_affinity_scheduler:GroupAffinity"
"""

from __future__ import annotations

from actors.kv_scheduler import KVScheduler
from agent_rl.scheduling.policies.base import PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.worst_case import Reserved, WorstCase


class GroupAffinity(WorstCase):
    """The engine that got the group's last rollout, as long as rollouts fit there; then the one with the most room."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, str] = {}

    def begin(self, setting: Setting) -> None:
        """The groups of an earlier stage are over."""
        super().begin(setting)
        self._last.clear()

    def engine_for(self, turn: WaitingTurn) -> Reserved | None:
        """The engine for the rollout that is next; None: it waits."""
        engine = self.engines.get(self._last.get(turn.group, ""))
        if engine is None or not engine.fits(turn.limit):
            engine = super().engine_for(turn)
        if engine is not None:
            self._last[turn.group] = engine.facts.engine
        return engine


class GroupAffinityScheduler(KVScheduler):
    """Budget, groups and restarts are the scheduler's as before; the policy alone is another."""

    def policy(self) -> PlacementPolicy:
        """Which rollout is placed next, and on which engine."""
        return GroupAffinity()
