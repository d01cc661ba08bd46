"""Which hosts are lost: their supervisors are heard no more, so that an actor of them that is silent, too, is lost.

::

    PeerGone of another supervisor --> LostHosts --line--> actors of this host --> Node.doubt: silent ones are lost
    PeerBack of it -------------------^

One silent process may be stopped, or busy, and is waited for (``run.lost_after_seconds``). Two processes of a host that
are silent at once, the actor and the supervisor, are a host without power or network (``run.host_lost_after_seconds``).
An actor that is heard is not lost, whatever its supervisor does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.topology import Topology

if TYPE_CHECKING:
    from transport import LinkEvent

WORD = b"doubted "
"""The first word of the line about the actors of lost hosts; other lines are those of other files (`Peers.lines`)."""


class LostHosts:
    """The lost ones among the hosts that other processes supervise. ``tell`` sends a line to this host's actors."""

    def __init__(self, topology: Topology, hosts: Sequence[str], tell: Callable[[bytes], None]) -> None:
        """``hosts``: those of this process."""
        self._tell = tell
        self._lost: set[str] = set()
        self._actors = {
            supervisor_node(host): [name for name, _ in actor_nodes(topology, host)]
            for host in topology.hosts_in_use
            if host not in hosts
        }

    @property
    def doubted(self) -> list[str]:
        """The actors of the lost hosts, in the order of the topology."""
        return [name for supervisor, actors in self._actors.items() if supervisor in self._lost for name in actors]

    def line(self) -> bytes:
        """The line for a lifeline."""
        return WORD + json.dumps(self.doubted).encode() + b"\n"

    def link_event(self, event: LinkEvent) -> None:
        """A link to another supervisor reports an event. A supervisor that says goodbye has stopped its actors."""
        from transport import PeerBack, PeerGone

        if isinstance(event, PeerGone) and event.peer in self._actors and event.peer not in self._lost:
            self._lost.add(event.peer)
            self._tell(self.line())
        elif isinstance(event, PeerBack) and event.peer in self._lost:
            self._lost.discard(event.peer)
            self._tell(self.line())


def read(text: bytes) -> list[str]:
    """Parse what follows `WORD` in a line of `LostHosts`."""
    return list(json.loads(text))
