"""The incarnation of each node of a run. The supervisor that starts a node tells it to everyone who hears the node.

::

    an actor starts --> Roster.started --> its own nodes, the host's actors (over lifelines), the other supervisors
    Incarnations    --> Roster.heard   --> the same, of what the sender may speak for

A process that claims a higher incarnation than its supervisor announced is refused. So no process can present itself as
the successor of a node. Supervisors tell their actors over lifelines, which are pipes and do not depend on the network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.messages import Incarnations
from agent_rl.messages.pipes import Expect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport import Node


class Roster:
    """The incarnations that the supervisor of ``hosts`` knows. ``first``: its own, and its actors' first ones."""

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
        self.tell_actors: Callable[[Expect], object] = lambda _: None
        """Sends the incarnations of nodes to the processes of this host's actors."""

    def link(self, node: Node) -> None:
        """Add a node of this supervisor, which accepts the roster's incarnations. The first tells the other hosts."""
        for name, incarnation in self.incarnations.items():
            node.expect(name, incarnation)
        if self._others and not self._nodes:
            self._announce.append(node.announce("incarnations", self._others).set)
        self._nodes.append(node)
        self._tell_others()

    def started(self, actor: str, incarnation: int) -> None:
        """Record a process that this supervisor is about to start."""
        if self._set(actor, incarnation):
            self._tell_others()

    def heard(self, sender: str, message: Incarnations) -> None:
        """Another supervisor announces the incarnations of its actors. Entries for other actors are ignored."""
        for name, incarnation in message.incarnations.items():
            if self.speaks_for(sender, name):
                self._set(name, incarnation)

    def speaks_for(self, supervisor: str, actor: str) -> bool:
        """Whether this is the supervisor of the actor, in another process."""
        return self._supervisor.get(actor) == supervisor and supervisor in self._others

    def _set(self, name: str, incarnation: int) -> bool:
        if self.incarnations.get(name) == incarnation:
            return False
        self.incarnations[name] = incarnation
        for node in self._nodes:
            node.expect(name, incarnation)
        self.tell_actors(Expect({name: incarnation}))
        return True

    def _tell_others(self) -> None:
        for announce in self._announce:
            announce(Incarnations({name: self.incarnations[name] for name in self._own if name in self.incarnations}))
