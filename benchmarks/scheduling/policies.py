"""The policies that are compared: the two that are shipped, and their opponents.

A topology names an opponent by its class, for instance ``policy = "benchmarks.scheduling.routers:Margin"``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.config.plugins import resolve
from agent_rl.scheduling.policies.base import PlacementPolicy
from agent_rl.scheduling.policies.sticky import Sticky
from agent_rl.scheduling.policies.worst_case import WorstCase
from benchmarks.scheduling.program_aware import ProgramAware
from benchmarks.scheduling.routers import (
    CacheAware,
    CostAware,
    LeastRequests,
    Margin,
    RoundRobin,
    Static,
    StickyLeastLoaded,
)


@dataclass(frozen=True)
class Spec:
    """A policy's class. ``evicts_half``: its engines evict half of their rollouts when they are full.

    ``each_turn``: see `Simulator`.
    """

    policy: Callable[..., PlacementPolicy]
    evicts_half: bool = False
    each_turn: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: each.default for name, each in inspect.signature(self.policy).parameters.items()}

    def make(self, **changes: Any) -> PlacementPolicy:
        """A new policy, with the defaults except for ``changes``."""
        return self.policy(**changes)


POLICIES: Mapping[str, Spec] = {
    "static": Spec(Static, evicts_half=True, each_turn=True),
    "round_robin": Spec(RoundRobin, each_turn=True),
    "least_requests": Spec(LeastRequests, each_turn=True),
    "worst_case": Spec(WorstCase),
    "sticky_least_loaded": Spec(StickyLeastLoaded, each_turn=True),
    "cache_aware": Spec(CacheAware, each_turn=True),
    "margin": Spec(Margin, each_turn=True),
    "cost_aware": Spec(CostAware, each_turn=True),
    "program_aware": Spec(ProgramAware, each_turn=True),
    "sticky": Spec(Sticky),
}


def spec_of(name: str) -> Spec:
    """The policy of this name, or ``module:Class``. Raises PluginError."""
    return POLICIES[name] if name in POLICIES else Spec(resolve("scheduling_policy", name))
