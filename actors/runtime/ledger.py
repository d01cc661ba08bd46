"""A supervisor keeps the run's document (`agent_rl.records.document`); that of the main host writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.files.disk import DiskError
from agent_rl.messages import ActorStatus, Changed
from agent_rl.records.document import Document, State

if TYPE_CHECKING:
    from transport import LinkEvent

WRITE_SECONDS = 1.0
"""What is seen is on disk after so long at most; what is wanted, at once."""


class Ledger:
    """Takes in what is wanted and what is seen. ``former``: the document of the last start."""

    def __init__(
        self, topology: Topology, hosts: Sequence[str], former: Document | None, say: Callable[[str], object]
    ) -> None:
        self.document = Document.begun(topology, hosts, former)
        self._topology = topology
        self._directory = topology.run.directory if topology.main_host in hosts else None
        self._say = say
        self._news = True
        self._next = -float("inf")
        self._hosts = {supervisor_node(host): host for host in topology.hosts_in_use if host not in hosts}

    @property
    def away(self) -> set[str]:
        """Hosts that were drained and have not come back."""
        return {name for name, host in self.document.hosts.items() if not host.wanted}

    # What is wanted.

    def changed(self, role: str, topology: Topology, keys: Sequence[str] = ()) -> None:
        """A role is from now on what the topology says. ``keys``: its swap; empty when it was scaled."""
        self._topology = topology
        self.document.changed(role, topology, keys)
        self._write(f"a supervisor that is started again will not know that {role} was changed")

    def taken_back(self, role: str, topology: Topology) -> None:
        """The last swap of a role is not in force any more."""
        self._topology = topology
        self.document.taken_back(role, topology)
        self._write(f"a supervisor that is started again will not know that {role} was swapped back")

    def drains(self, host: str) -> None:
        """The run goes on without a host, which stops in order."""
        self._host(host, "draining")

    def left(self, host: str) -> None:
        """The actors of a host have stopped."""
        self._host(host, "gone")

    def answered(self, what: str, answer: Changed) -> None:
        """A change that somebody asked for was carried out, or refused."""
        self.document.edited(time.time(), what, answer.done, answer.refused)
        self._news = True

    # What is seen.

    def observe(self, status: ActorStatus) -> None:
        """An actor tells its status."""
        self._news |= self.document.process(status.actor, status.state, status.detail)

    def process(self, actor: str, word: str) -> None:
        """A process of this supervisor starts, stops or has stopped."""
        self._news |= self.document.process(actor, word)

    def heard(self, supervisor: str) -> None:
        """The supervisor of another host is heard."""
        self._host(self._hosts.get(supervisor, ""), "up")

    def link_event(self, event: LinkEvent) -> None:
        """A link to another supervisor reports an event."""
        from transport import PeerBack, PeerGone, PeerLeft

        if isinstance(event, (PeerGone, PeerLeft)):
            self.left(self._hosts.get(event.peer, ""))
        elif isinstance(event, PeerBack):
            self.heard(event.peer)

    def _host(self, host: str, state: State) -> None:
        self._news |= self.document.host(host, state, self._topology)

    # What is on disk.

    def tick(self, incarnations: Mapping[str, int]) -> None:
        """Write what is new, once in `WRITE_SECONDS`."""
        if self._news and trio.current_time() >= self._next:
            self._next = trio.current_time() + WRITE_SECONDS
            for name, process in self.document.processes.items():
                process.incarnation = incarnations.get(name, process.incarnation)
            self._write("agent-rl status shows what was before")

    def end(self) -> None:
        """The run ends, or is stopped: nothing is in force any more."""
        self.document.end()
        self._write("the next start takes changes of this one as in force")

    def _write(self, consequence: str) -> None:
        self._news = False
        if self._directory is not None:
            try:
                self.document.write(self._directory)
            except DiskError as error:
                self._say(f"{consequence}: {error}")
