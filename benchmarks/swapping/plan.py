"""Which changes come in a run, one after the other, and how long a run generated nothing around them. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_REPLICAS = 3
AFTER_SECONDS = 2.0
"""A change may keep rollouts from generators for so long after it is done."""
SCALED = ("rollout_generator", "tool_executor")
"""Roles of which there may be several."""


@dataclass(frozen=True)
class Change:
    """A swap of a role for a class, or with ``number`` another number of its processes."""

    role: str
    class_path: str = ""
    number: int = 0

    def words(self, directory: str) -> list[str]:
        """The arguments of ``agent-rl``."""
        if self.number:
            return ["scale", directory, self.role, str(self.number)]
        return ["swap", directory, self.role, "--class", self.class_path]

    def __str__(self) -> str:
        return f"scale {self.role} {self.number}" if self.number else f"swap {self.role} {self.class_path}"


def make_plan(seed: int, count: int, classes: Mapping[str, tuple[str, str]]) -> list[Change]:
    """So many changes. Every swap and every scaling comes once before any comes again.

    ``classes``: by role, the class that it begins with, and the one that takes turns with it.
    """
    rng = random.Random(f"swap/{seed}")
    kinds = [*((role, False) for role in classes), *((role, True) for role in SCALED)]
    replicas = dict.fromkeys(SCALED, 1)
    swapped = dict.fromkeys(classes, 0)
    plan: list[Change] = []
    while len(plan) < count:
        for role, scales in rng.sample(kinds, len(kinds)):
            if scales:
                replicas[role] = rng.choice([n for n in range(1, MOST_REPLICAS + 1) if n != replicas[role]])
                plan.append(Change(role, number=replicas[role]))
            else:
                swapped[role] = 1 - swapped[role]
                plan.append(Change(role, classes[role][swapped[role]]))
    return plan[:count]


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time between two of the sorted ``times`` that has a part between ``begin`` and ``end``; else NaN."""
    pairs = itertools.pairwise(times)
    return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=math.nan)
