"""What is probably a mistake in a sound topology. `check` and `run` print it and go on."""

from __future__ import annotations

from collections.abc import Sequence

from agent_rl.config.source import Fault, Files, Source
from agent_rl.config.topology import SftStage, Topology

HIGH_RATE = 1e-4
"""Full training of a given model diverges, or forgets what the model knew, at higher supervised rates."""


def warnings(topology: Topology, files: Files, overrides: Sequence[str] = ()) -> list[Fault]:
    """The warnings about a topology that was loaded from ``files``, in the order of its stages."""
    if topology.model.initialise is not None:
        return []
    source = Source(files, overrides)
    message, remedy = f"is above {HIGH_RATE:g}, which can destroy what the given model knows", "the default is 5e-6"
    return [
        source.fault(("stages", index, "learning_rate"), f"{stage.learning_rate:g} {message}", remedy)
        for index, stage in enumerate(topology.stages)
        if isinstance(stage, SftStage) and stage.learning_rate > HIGH_RATE
    ]
