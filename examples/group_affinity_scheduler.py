"""A scheduler that keeps a group's rollouts on one engine, whose prefix cache then holds their common prompt once.

Two lines of a topology beside it choose it::

    [actors.kv_scheduler]
    class = "group_affinity_scheduler:GroupAffinityScheduler"
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.kv_scheduler import KVScheduler
from agent_rl.scheduling.placement import EngineRoom, MostRoom, Placement, Waiting


class GroupAffinity(MostRoom):
    """The engine that holds most of the rollout's group; the first of a group goes where there is most room."""

    def engine(self, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
        """Only engines on which the rollout fits are offered, so a group that outgrows one goes on to the next."""
        del rollout
        best = min(engines, key=lambda engine: (-engine.of_group, -engine.room, engine.rollouts, engine.generator))
        return best.generator


class GroupAffinityScheduler(KVScheduler):
    """Budget, KV promises and restarts are the scheduler's as before; the placement alone is another."""

    def placement(self) -> Placement:
        """Which rollout is placed next, and on which engine."""
        return GroupAffinity()
