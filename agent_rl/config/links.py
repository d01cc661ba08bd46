"""Which roles stand at the ends of a link, by the classes' declarations and the topology: roles may have any name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_rl.config.plugins import resolve
from agent_rl.config.topology import Topology


def peers(topology: Topology, role: str, message: type) -> tuple[str, ...]:
    """The roles that send ``message`` to ``role``, and those that ``role`` sends it to, in the order of the file.

    Raises PluginError when a class cannot be imported.
    """
    found = set(_targets(topology, role, message)) if role in topology.actors else set()  # `Actor.on_trial` has no role
    found.update(other for other in topology.actors if role in _targets(topology, other, message))
    return tuple(other for other in topology.actors if other in found)


def wait_for(topology: Topology, role: str, message: type, thing: str) -> str:
    """``ActorStatus.waiting_for`` of an actor that needs ``thing`` of the peers with which it exchanges ``message``."""
    return f"{', '.join(peers(topology, role, message)) or 'no actor'}: {thing}"


def awaited_roles(waiting_for: str) -> tuple[str, ...]:
    """The roles that a text of `wait_for` names."""
    return tuple(waiting_for.partition(":")[0].split(", "))


def _targets(topology: Topology, role: str, message: type) -> list[str]:
    entry = topology.actors[role]
    declared: Mapping[str, Any] = getattr(resolve("actor", entry.class_path), "links", {})
    return [target for link, kind in declared.items() if message in kind.messages for target in entry.targets(link)]
