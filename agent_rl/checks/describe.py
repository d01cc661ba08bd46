"""A sound topology in words: its actors, links, addresses, and what it needs of memory and disk."""

from __future__ import annotations

from agent_rl.checks.needs import needs
from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import Topology


def describe(topology: Topology) -> list[str]:
    """The lines ``agent-rl check`` prints of a topology without faults."""
    return [*_actors(topology), "", *_links(topology), "", *_addresses(topology), "", *needs(topology)]


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
