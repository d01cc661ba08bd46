"""The limit of open files of a process, and the number that each process of a topology needs."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass

from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.topology import Topology

OWN = 512
"""Files, libraries, engine or interpreters, and the 128 strangers that an inbox on TCP takes (transport/curve.py)."""
EACH_CHILD = 4
"""Of a supervisor: a process, a pipe, a file in memory, and a log while it starts."""


def descriptor_limit() -> int:
    """What this machine lets a process have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_descriptor_limit() -> None:
    """Raise the limit of this process and its children to the hard limit; shells set a lower one by default."""
    hard = descriptor_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of one process.

    A peer that sends to it costs a connection; a target costs a connection and a socket.
    """

    node: str
    senders: int
    targets: int
    children: int = 0

    @property
    def descriptors(self) -> int:
        """All of them."""
        return OWN + self.senders + 2 * self.targets + EACH_CHILD * self.children

    def __str__(self) -> str:
        children = f", {EACH_CHILD} for each of {self.children:,} processes" if self.children else ""
        return (
            f"{self.node} needs {self.descriptors:,} file descriptors: {OWN} of its own, 1 for each of "
            f"{self.senders:,} that send to it, 2 for each of {self.targets:,} that it sends to{children}"
        )


def descriptor_needs(topology: Topology, host: str) -> Iterator[tuple[str, Need]]:
    """The needs of one process of each role of a host, as (role, need); first the supervisor's, with an empty role."""
    elsewhere = len(topology.hosts_in_use) - 1
    here = len(list(actor_nodes(topology, host)))
    heard = len(list(actor_nodes(topology))) if host == topology.main_host else here
    yield "", Need(supervisor_node(host), heard + elsewhere, elsewhere, here)
    for role, entry in topology.actors.items():
        if host in topology.homes(role).values():
            senders = sum(
                len(topology.homes(name))
                for name, other in topology.actors.items()
                if any(role in other.targets(link) for link in other.links)
            )
            targets = {target for link in entry.links for target in entry.targets(link)}
            supervisors = len({host, topology.main_host})
            known = sum(len(topology.homes(target)) for target in targets if target in topology.actors)
            first = next(number for number, home in topology.homes(role).items() if home == host)
            yield role, Need(f"{role}.{first}", senders, known + supervisors)
