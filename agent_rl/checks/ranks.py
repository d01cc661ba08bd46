"""Check the ranks of actors: which role may have several, whether they make a mesh, and whether each has a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_rl.config.parallel import mesh_sizes
from agent_rl.config.plugins import PluginError, resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import Topology


def rank_faults(topology: Topology, source: Source) -> Iterator[Fault]:
    """Ranks that no class computes with, that make no mesh, or that name one GPU for all of them.

    Whether there are enough GPUs is checked with the placement.
    """
    for role, entry in topology.actors.items():
        place = ("actors", role, "ranks")
        try:
            actor: Any = resolve("actor", entry.class_path)
        except PluginError:
            continue  # told elsewhere
        if not getattr(actor, "ranked", False):
            if entry.ranks > 1:
                yield source.fault(place, f"{entry.class_path} is one process", "leave ranks out, or use replicas")
            continue
        try:
            mesh_sizes(entry.ranks, topology.model.parallel)
        except ValueError as error:
            yield source.fault(place, str(error))
            continue
        if entry.ranks > 1:
            yield from _device_faults(entry, role, source)


def _device_faults(entry: ActorEntry, role: str, source: Source) -> Iterator[Fault]:
    device = str(entry.settings.get("device", "cpu"))
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return
    if number:
        message = f"{device} is one GPU, and each of {entry.ranks} ranks has its own"
        yield source.fault(("actors", role, "settings", "device"), message, 'write "cuda": rank 0 has cuda:0')
        return
