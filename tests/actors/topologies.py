"""Topologies for tests of single actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from tests.end_to_end.topologies import write_micro


def micro(folder: Path, **settings: dict[str, Any]) -> Topology:
    """The micro topology; ``settings`` are changed by role."""
    path, _ = write_micro(folder)
    topology = load_topology(path)
    actors = dict(topology.actors)
    for role, changes in settings.items():
        actors[role] = actors[role].model_copy(update={"settings": {**actors[role].settings, **changes}})
    return topology.model_copy(update={"actors": actors})
