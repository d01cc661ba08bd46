"""A supervisor keeps the run's document (`agent_rl.records.document`); that of the main host writes it.

What follows from it: which hosts are `absent`, which actors are `starting`, and which are not to be waited for
(`doubted`). One silent process may be stopped, or busy, and is waited for (``run.lost_after_seconds``). Two processes
of a host that are silent at once, the actor and the supervisor, are a host without power or network
(``run.host_lost_after_seconds``). An actor that is heard is not lost, whatever its supervisor does. One that was never
heard is lost at once: without that, calls of a new process would wait for replicas that the file allows and nobody has
started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from agent_rl.config.addresses import actor_nodes, supervisor_node, wanted_nodes
from agent_rl.config.topology import Topology
from agent_rl.files.disk import DiskError
from agent_rl.messages import ActorStatus, Changed
from agent_rl.messages.pipes import Doubt
from agent_rl.records.document import Document, State

if TYPE_CHECKING:
    from transport import LinkEvent

RESTART_SECONDS = 60.0
"""How long a change waits for actors that are started again. Their processes load their models meanwhile."""
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
        self._waits_for = {*hosts, *(self._hosts.values() if topology.main_host in hosts else ())}
        """The hosts whose actors a change waits for: all hosts at the main host, else those of this process."""
        self.absent = {host for host in self._hosts.values() if topology.hosts[host].optional} | self.away
        """Hosts that nothing waits for: their actors stopped in order, or they are optional and not heard."""
        self._ran: set[str] = set()
        """Actors that have been ready."""
        self._changed = trio.Event()

    @property
    def away(self) -> set[str]:
        """Hosts that were drained and have not come back."""
        return {name for name, host in self.document.hosts.items() if not host.wanted}

    @property
    def starting(self) -> list[str]:
        """The actors that are wanted and not ready, in the order of the document."""
        hosts = self._waits_for - self.absent
        processes = self.document.processes.items()
        return [name for name, each in processes if each.wanted and each.state != "up" and each.host in hosts]

    async def restarted(self, *, without: Collection[str]) -> None:
        """Wait until all actors are ready that have been ready before, at most `RESTART_SECONDS`.

        Returns at once where another one starts for the first time, apart from those ``without`` which it goes.
        """
        with trio.move_on_after(RESTART_SECONDS):
            while (names := {*self.starting} - {*without}) and names <= self._ran:
                await self._changed.wait()

    @property
    def doubted(self) -> Doubt:
        """The actors of hosts that are not heard, and replicas that are not to run, in the order of the topology."""
        hosts = self.document.hosts
        lost = {
            host
            for host in self._hosts.values()
            if hosts[host].state == "gone" or (hosts[host].state == "wanted" and host in self.absent)
        }
        wanted = {host: wanted_nodes(self._topology, host) for host in self._topology.hosts_in_use}
        return Doubt(
            tuple(
                name
                for host, names in wanted.items()
                for name, _ in actor_nodes(self._topology, host)
                if host in lost or name not in names
            )
        )

    # What is wanted.

    def follow(self, topology: Topology) -> None:
        """These numbers of replicas are to run now."""
        self._topology = topology
        self.document.follow(topology)
        self._news_of_processes()

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
        """The actors of a host have stopped in order."""
        if host in self.document.hosts:
            self.absent.add(host)
            self._host(host, "gone")

    def answered(self, what: str, answer: Changed) -> None:
        """A change that somebody asked for was carried out, or refused."""
        self.document.edited(time.time(), what, answer.done, answer.refused)
        self._news = True

    # What is seen.

    def observe(self, status: ActorStatus) -> None:
        """An actor tells its status."""
        self.process(status.actor, status.state, status.detail)

    def process(self, actor: str, word: str, detail: str = "") -> None:
        """A process of this supervisor starts, stops or has stopped; or an actor says what it does."""
        if self.document.process(actor, word, detail):
            self._news_of_processes()

    def _news_of_processes(self) -> None:
        self._news = True
        self._ran |= {name for name, each in self.document.processes.items() if each.state == "up"}
        self._changed.set()
        self._changed = trio.Event()

    def heard(self, supervisor: str) -> None:
        """The supervisor of another host is heard."""
        host = self._hosts.get(supervisor, "")
        self.absent.discard(host)
        self._host(host, "up")

    def link_event(self, event: LinkEvent) -> None:
        """A link to another supervisor reports an event."""
        from transport import PeerBack, PeerGone, PeerLeft

        if isinstance(event, PeerLeft):
            self.left(self._hosts.get(event.peer, ""))
        elif isinstance(event, PeerGone):
            self._host(self._hosts.get(event.peer, ""), "gone")
        elif isinstance(event, PeerBack):
            self.heard(event.peer)

    def _host(self, host: str, state: State) -> None:
        if self.document.host(host, state, self._topology):
            self._news_of_processes()

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
            except (DiskError, OSError) as error:
                self._say(f"{consequence}: {error}")
