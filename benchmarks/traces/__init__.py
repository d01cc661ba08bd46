"""Traces on which scheduling policies are compared: generated from seeds, each with the source of its shape.

The shapes were fixed before the policies. ``TRAINING_SEEDS`` serve every kind of tuning; ``JUDGING_SEEDS`` serve tables
only. A seed of one kind is never used as the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_rl.simulation.trace import Trace, check
from benchmarks.traces import agentic, maths, recorded

TRAINING_SEEDS = (101, 102, 103)
JUDGING_SEEDS = (1, 2, 3, 4, 5)

GENERATORS: Mapping[str, Callable[[int, float], Trace]] = {
    "paper": maths.paper,
    "paper_tp4": maths.paper_tp4,
    "mild": maths.mild,
    "brutal": maths.brutal,
    "agentic": agentic.agentic,
    "mixed_engines": maths.mixed_engines,
    "engine_lost": maths.engine_lost,
    "drain": maths.drain,
    "recorded": recorded.recorded,
}


def generate(name: str, seed: int, scale: float = 1.0) -> Trace:
    """The trace. ``scale`` below 1 makes fewer engines and groups of the same kind. Raises ValueError for no trace."""
    if name not in GENERATORS:
        raise ValueError(f"there is no trace {name!r}; there are {', '.join(GENERATORS)}")
    return check(GENERATORS[name](seed, scale))
