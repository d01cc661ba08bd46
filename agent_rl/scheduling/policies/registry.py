"""The policies by name, each with its settings. The settings were tuned on the training seeds of the traces."""

from __future__ import annotations

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
    """A policy's class and settings. ``evicts_half``: its engines evict half of their rollouts when they are full."""

    policy: Callable[..., Policy]
    settings: Mapping[str, Any]
    evicts_half: bool = False

    def make(self, **changes: Any) -> Policy:
        """A new policy, with the tuned settings except for ``changes``."""
        return self.policy(**{**self.settings, **changes})


POLICIES: Mapping[str, Spec] = {
    "static": Spec(Static, {}, evicts_half=True),
    "round_robin": Spec(RoundRobin, {}),
    "least_requests": Spec(LeastRequests, {}),
    "worst_case": Spec(WorstCase, {}),
    "sticky_least_loaded": Spec(StickyLeastLoaded, {}),
    "cache_aware": Spec(CacheAware, {}),
    "margin": Spec(Margin, {}),
    "cost_aware": Spec(CostAware, {}),
    "program_aware": Spec(ProgramAware, {}),
    "predictive": Spec(Predictive, {}),
}
