"""A sound topology in words: its actors, links, addresses, and the memory its windows may take."""

from __future__ import annotations

from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import RlStage, Topology

BYTES_PER_TOKEN = 4 + 4 + 1 + 8 + 4
"""Of a trajectory: token and log-probability of 4 bytes each, loss mask 1, policy 2 * 4, and about 4 of its text."""


def describe(topology: Topology) -> list[str]:
    """The lines ``agent-rl check`` prints of a topology without faults."""
    return [*_actors(topology), "", *_links(topology), "", *_addresses(topology), "", *_windows(topology)]


def open_groups(topology: Topology) -> int:
    """How many groups may be open at once: the staleness budget, (max_staleness + 1) * groups_per_step."""
    return (topology.max_staleness + 1) * topology.algorithm.groups_per_step


def window_bytes(topology: Topology) -> int:
    """The most memory the trajectories of all open groups can take, in bytes."""
    longest = max((stage.max_response_tokens for stage in topology.stages if isinstance(stage, RlStage)), default=0)
    return open_groups(topology) * topology.algorithm.samples * longest * BYTES_PER_TOKEN


def _actors(topology: Topology) -> list[str]:
    lines = ["actors:"]
    for role, entry in topology.actors.items():
        lines.append(f"  {role:<20} {entry.replicas} x {entry.class_path} on {entry.host}")
    return lines


def _links(topology: Topology) -> list[str]:
    lines = ["links:"]
    for role, entry in topology.actors.items():
        for link, declared in resolve("actor", entry.class_path).links.items():
            types = ", ".join(message.__name__ for message in declared.messages)
            reply = f" / {declared.reply.__name__}" if declared.kind == "call" else ""
            if not entry.targets(link) and not getattr(declared, "required", True):
                continue
            targets = ", ".join(entry.targets(link)) or "nobody"
            lines.append(f"  {role}.{link} -> {targets}: {declared.kind} {types}{reply}")
    return lines


def _addresses(topology: Topology) -> list[str]:
    table = addresses(topology, runtime_directory(topology))
    processes = len(list(actor_nodes(topology)))
    return [f"addresses ({processes} actor processes):", *(f"  {node:<24} {where}" for node, where in table.items())]


def _windows(topology: Topology) -> list[str]:
    groups = open_groups(topology)
    size = window_bytes(topology)
    steps = f"{topology.max_staleness + 1} steps of {topology.algorithm.groups_per_step}"
    rollouts = groups * topology.algorithm.samples
    return [f"windows: at most {groups} groups open ({steps}), {rollouts} rollouts of at most {_bytes(size)} in all"]


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1024
    return f"{size:.3g} TiB"
