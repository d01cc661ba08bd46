"""Which incarnation each node of a run has: said by the supervisor that started it, to all who hear of the node.

::

    an actor starts --> Roster.started --> its own nodes, the host's actors (over their lifelines), the other supervisors
    Incarnations    --> Roster.heard   --> the same, of what the sender may speak for

A process that claims a higher incarnation than its supervisor gave it is refused, so nobody can have a node's frames taken for
those of a process that was replaced. A lifeline is a pipe from the supervisor: what comes over it does not depend on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.messages import Incarnations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport import Node


class Process(Protocol):
    """An actor's process, as the roster needs it."""

    def tell(self, incarnations: Mapping[str, int], /) -> None:
        """Say to the process which incarnations nodes have."""


class Roster:
    """The incarnations that the supervisor of ``hosts`` knows. ``first`` is its own, and that of its actors' first processes."""

    def __init__(self, topology: Topology, hosts: Sequence[str], first: int) -> None:
        own = [supervisor_node(host) for host in hosts]
        self._supervisor = {
            node: supervisor_node(host) for host in topology.hosts_in_use for node, _ in actor_nodes(topology, host)
        }
        self._own = [node for node, supervisor in self._supervisor.items() if supervisor in own]
        self._others = [name for name in map(supervisor_node, topology.hosts_in_use) if name not in own]
        self.incarnations = dict.fromkeys([*own, *self._own], first)
        self._nodes: list[Node] = []
        self._announce: list[Callable[[object], None]] = []
        self.actors: Mapping[str, Process] = {}
        """The processes to tell."""

    def link(self, node: Node) -> None:
        """A node of this supervisor: it believes the roster, and the first one tells the other supervisors."""
        for name, incarnation in self.incarnations.items():
            node.expect(name, incarnation)
        if self._others and not self._nodes:
            self._announce.append(node.announce("incarnations", self._others).set)
        self._nodes.append(node)
        self._tell_others()

    def started(self, actor: str, incarnation: int) -> None:
        """A process of this supervisor's is about to be started."""
        if self._set(actor, incarnation):
            self._tell_others()

    def heard(self, sender: str, said: Incarnations) -> None:
        """Another supervisor says which incarnations its actors have; it speaks for no others."""
        for name, incarnation in said.incarnations.items():
            if self._supervisor.get(name) == sender and sender in self._others:
                self._set(name, incarnation)

    def _set(self, name: str, incarnation: int) -> bool:
        if self.incarnations.get(name) == incarnation:
            return False
        self.incarnations[name] = incarnation
        for node in self._nodes:
            node.expect(name, incarnation)
        for actor in self.actors.values():
            actor.tell({name: incarnation})
        return True

    def _tell_others(self) -> None:
        for announce in self._announce:
            announce(Incarnations({name: self.incarnations[name] for name in self._own}))


def written(incarnations: Mapping[str, int]) -> bytes:
    """As it goes over a lifeline."""
    return b"".join(f"{name} {incarnation}\n".encode() for name, incarnation in incarnations.items())


def read(line: bytes) -> tuple[str, int]:
    """A node and its incarnation, from a line of what `written` wrote."""
    name, _, incarnation = line.decode().rpartition(" ")
    return name, int(incarnation)
