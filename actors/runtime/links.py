"""The links of an actor: made as the topology says, also to hosts and replicas that are not there yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors.base import Actor, Announce, Call, LinkKind, Push, passing_link
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import Topology

if TYPE_CHECKING:
    from transport import Node, Permit

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


class SenderPermits:
    """What each peer may send to the actor ``name``: the messages of the links that the topology leads from its role,
    and of those that actors open to each other (`Actor.passes_on`). Where each replica is needed, the former may come
    over a link to this actor alone (`passing_link`).

    Supervisors and commands have no links to actors, and are not judged.
    """

    def __init__(self, topology: Topology, name: str, cls: type[Actor]) -> None:
        self._topology = topology
        self._name = name
        self._cls = cls
        self._role = name.rpartition(".")[0]
        links = topology.actors[self._role].links
        self._passes_on = frozenset(link for link in getattr(cls, "passes_on", ()) if link in links)
        self._receives: dict[str, dict[str, type]] = {"push": {}, "call": {}, "announce": {}}
        for each in cls.receives:
            self._receives[each.kind] |= {message.__name__: message for message in each.messages}
        self._swapped: set[str] = set()
        self._made: dict[str, dict[tuple[str, str], Permit]] = {}

    def __call__(self, peer: str) -> dict[tuple[str, str], Permit] | None:
        """The permits of a node."""
        role = peer.rpartition(".")[0]
        if role not in self._topology.actors:
            return None
        if role not in self._made:
            self._made[role] = self._swapped_permits(role) if role in self._swapped else self._permits(role)
        return self._made[role]

    def swapped(self, role: str) -> None:
        """The role may get another class, which may send other types over the links of the topology."""
        self._swapped.add(role)
        self._made.pop(role, None)

    def _leads_here(self, role: str, link: str) -> bool:
        return self._role in self._topology.actors[role].targets(link)

    def _permits(self, role: str) -> dict[tuple[str, str], Permit]:
        from transport import Permit, Registry

        entry = self._topology.actors[role]
        sender: type[Actor] = resolve("actor", entry.class_path)
        settings = sender.Settings.model_validate(entry.settings)
        made: dict[tuple[str, str], Permit] = {}
        for link, kind in sender.links.items():
            if link not in entry.links:
                continue
            options = DEFAULT_LINK_OPTIONS[type(kind)] | sender.link_options(link, settings)
            types = [message for message in kind.messages if self._receives[kind.kind].get(message.__name__)]
            permit = Permit(Registry(*types), options.get("window", options.get("outstanding", 0)))
            if self._leads_here(role, link):
                made[kind.kind, link] = permit
            if link in self._passes_on or (self._leads_here(role, link) and getattr(self._cls, "each_needed", False)):
                made[kind.kind, passing_link(link, self._name)] = permit
        return made

    def _swapped_permits(self, role: str) -> dict[tuple[str, str], Permit]:
        from transport import Permit, Registry

        its_links = self._topology.actors[role].links
        links = [link for link in its_links if self._leads_here(role, link)]
        own = [link for link in its_links if link in self._passes_on]
        own += links if getattr(self._cls, "each_needed", False) else []
        links += [passing_link(link, self._name) for link in own]
        return {
            (kind, link): Permit(Registry(*types.values())) for kind, types in self._receives.items() for link in links
        }
