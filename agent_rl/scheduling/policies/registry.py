"""The policies by name. Their settings are the defaults of their classes, unless a user or a benchmark changes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.scheduling.policies.base import Policy
from agent_rl.scheduling.policies.cache_aware import CacheAware
from agent_rl.scheduling.policies.cost_aware import CostAware
from agent_rl.scheduling.policies.least_requests import LeastRequests
from agent_rl.scheduling.policies.margin import Margin
from agent_rl.scheduling.policies.predictive import Predictive
from agent_rl.scheduling.policies.program_aware import ProgramAware
from agent_rl.scheduling.policies.round_robin import RoundRobin
from agent_rl.scheduling.policies.static import Static
from agent_rl.scheduling.policies.sticky_least_loaded import StickyLeastLoaded
from agent_rl.scheduling.policies.worst_case import WorstCase


@dataclass(frozen=True)
class Spec:
    """A policy's class. ``evicts_half``: its engines evict half of their rollouts when they are full."""

    policy: Callable[..., Policy]
    evicts_half: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: each.default for name, each in inspect.signature(self.policy).parameters.items()}

    def make(self, **changes: Any) -> Policy:
        """A new policy, with the defaults except for ``changes``."""
        return self.policy(**changes)


POLICIES: Mapping[str, Spec] = {
    "static": Spec(Static, evicts_half=True),
    "round_robin": Spec(RoundRobin),
    "least_requests": Spec(LeastRequests),
    "worst_case": Spec(WorstCase),
    "sticky_least_loaded": Spec(StickyLeastLoaded),
    "cache_aware": Spec(CacheAware),
    "margin": Spec(Margin),
    "cost_aware": Spec(CostAware),
    "program_aware": Spec(ProgramAware),
    "predictive": Spec(Predictive),
}
