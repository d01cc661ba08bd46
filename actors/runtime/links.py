"""The links of an actor: made as the topology says, also to hosts and replicas that are not there yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors.base import Actor, Announce, Call, LinkKind, Push
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.topology import Topology

if TYPE_CHECKING:
    from transport import Node

DEFAULT_LINK_OPTIONS: Mapping[type, dict[str, Any]] = {
    Push: {"window": 256},
    Call: {"outstanding": 64, "timeout": 60.0},
    Announce: {},
}


def make_links(node: Node, topology: Topology, role: str, cls: type[Actor], settings: Any) -> dict[str, Any]:
    """Make the links that the class declares, to the nodes that the topology names."""
    links: dict[str, Any] = {}
    for name, targets in link_targets(topology, role, cls).items():
        kind = cls.links[name]
        options = DEFAULT_LINK_OPTIONS[type(kind)] | cls.link_options(name, settings)
        links[name] = _make_link(node, name, kind, targets, options)
    return links


def link_targets(topology: Topology, role: str, cls: type[Actor]) -> dict[str, list[str]]:
    """The nodes to which each link of a role leads. Optional links that the topology does not lead anywhere are left
    out.
    """
    nodes: dict[str, list[str]] = {}
    for name, its_role in actor_nodes(topology):
        nodes.setdefault(its_role, []).append(name)
    entry = topology.actors[role]
    return {
        name: [target for to in entry.targets(name) for target in nodes[to]]
        for name in cls.links
        if name in entry.links
    }


def _make_link(node: Node, name: str, kind: LinkKind, targets: Sequence[str], options: dict[str, Any]) -> Any:
    match kind:
        case Push():
            return node.push(name, targets, **options)
        case Call():
            return node.call(name, targets, reply=kind.reply, **options)
        case Announce():
            return node.announce(name, targets)
