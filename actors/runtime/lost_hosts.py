"""Which actors are not to be waited for: those of hosts that are not heard, and replicas that are not to run now.

::

    PeerGone, PeerLeft of another supervisor --> LostHosts --Doubt--> actors of this host --> Node.doubt
    it is heard ---------------------------------^  ^--- numbers of replicas in force

One silent process may be stopped, or busy, and is waited for (``run.lost_after_seconds``). Two processes of a host that
are silent at once, the actor and the supervisor, are a host without power or network (``run.host_lost_after_seconds``).
An actor that is heard is not lost, whatever its supervisor does. One that was never heard is lost at once: without
that, calls of a new process would wait for replicas that the file allows and nobody has started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from agent_rl.config.addresses import actor_nodes, supervisor_node, wanted_nodes
from agent_rl.config.topology import Topology
from agent_rl.messages.pipes import Doubt

if TYPE_CHECKING:
    from transport import LinkEvent


class LostHosts:
    """The actors that peers here do not wait for. ``tell`` sends them to this host's actors."""

    def __init__(
        self, topology: Topology, hosts: Sequence[str], tell: Callable[[Doubt], object], away: Collection[str] = ()
    ) -> None:
        """``hosts``: those of this process. Optional hosts, and those ``away``, count as lost until they are heard."""
        self._topology = topology
        self._tell = tell
        self._hosts = {supervisor_node(host): host for host in topology.hosts_in_use if host not in hosts}
        self._lost = {node for node, host in self._hosts.items() if topology.hosts[host].optional or host in away}

    @property
    def doubted(self) -> Doubt:
        """The actors of the lost hosts, and replicas that are not to run, in the order of the topology."""
        lost = {self._hosts[supervisor] for supervisor in self._lost}
        wanted = {host: wanted_nodes(self._topology, host) for host in self._topology.hosts_in_use}
        return Doubt(
            tuple(
                name
                for host, names in wanted.items()
                for name, _ in actor_nodes(self._topology, host)
                if host in lost or name not in names
            )
        )

    def follow(self, topology: Topology) -> None:
        """These numbers of replicas are to run now."""
        self._topology = topology
        self._tell(self.doubted)

    def heard(self, supervisor: str) -> None:
        """Another supervisor is heard."""
        if supervisor in self._lost:
            self._lost.discard(supervisor)
            self._tell(self.doubted)

    def link_event(self, event: LinkEvent) -> None:
        """A link to another supervisor reports an event."""
        from transport import PeerBack, PeerGone, PeerLeft

        if isinstance(event, (PeerGone, PeerLeft)) and event.peer in self._hosts and event.peer not in self._lost:
            self._lost.add(event.peer)
            self._tell(self.doubted)
        elif isinstance(event, PeerBack):
            self.heard(event.peer)
