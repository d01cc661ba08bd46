"""The policies by name, each with its settings. The settings were tuned on the training seeds of the traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.scheduling.policies.base import Policy
from agent_rl.scheduling.policies.least_requests import LeastRequests
from agent_rl.scheduling.policies.round_robin import RoundRobin


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
    "round_robin": Spec(RoundRobin, {}),
    "least_requests": Spec(LeastRequests, {}),
}
