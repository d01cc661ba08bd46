"""The links of an actor: made as the topology says, also to hosts and replicas that are not there yet.

::

    PeerGone, PeerLeft, PeerBack --> UnreachableLinks.look --> a link leads to nobody: logged, shown, counted
                                                        `--(run.give_up_minutes)--> NobodyLeftError
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from actors.base import Actor, Announce, Call, LinkKind, Push
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.topology import Topology
from transport import LinkEvent, Node, PeerBack, PeerGone, PeerLeft

if TYPE_CHECKING:
    import structlog

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


class NobodyLeftError(Exception):
    """A link has led to nobody for ``run.give_up_minutes``. The message says what to do."""


SHOWN_SECONDS = 5.0
"""A link that leads to nobody for a shorter time is not worth a line: most processes are back by then."""


class UnreachableLinks:
    """Watches the links over which an actor needs an answer or an acknowledgement: push links and call links."""

    def __init__(
        self, node: Node, links: Mapping[str, Any], minutes: float | None, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        """``minutes``: after which to give up; None: never."""
        self._node, self._links, self._minutes, self._log = node, links, minutes, log
        self._since: dict[str, float] = {}
        self._changed = trio.Event()

    def look(self, event: LinkEvent) -> None:
        """A peer is gone, or back: note which links lead to nobody from now on."""
        if not isinstance(event, PeerGone | PeerLeft | PeerBack):
            return
        for name, link in self._links.items():
            unreachable = bool(link.targets) and link.targets.keys() <= self._node.gone
            if unreachable and name not in self._since:
                self._since[name] = trio.current_time()
                self._log.warning("a link leads to nobody", link=name, gone=sorted(link.targets))
            elif not unreachable and self._since.pop(name, None) is not None:
                self._log.warning("a link leads to somebody again", link=name)
        self._changed.set()
        self._changed = trio.Event()

    @property
    def text(self) -> str:
        """The peers of which none is there for a while, in words; empty when each link leads to somebody."""
        shown = trio.current_time() - SHOWN_SECONDS
        unreachable = [name for name, since in self._since.items() if since <= shown]
        missing = {target: None for name in unreachable for target in sorted(self._links[name].targets)}
        return f"none of {', '.join(missing)} is heard" if missing else ""

    async def run(self) -> None:
        """Wait until cancelled. Raises NobodyLeftError."""
        while True:
            changed, began = self._changed, min(self._since.values(), default=math.inf)
            with trio.move_on_at(math.inf if self._minutes is None else began + 60.0 * self._minutes):
                await changed.wait()
                continue
            raise NobodyLeftError(
                f"{self.text} for {self._minutes:g} minutes (run.give_up_minutes); start one of them, "
                "and run again: the run goes on where it stopped"
            )
