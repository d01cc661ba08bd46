"""The state of a run at its main host: what is wanted, in one document, and what each host has of it.

::

    commands, hosts that leave or come back --> Document (on disk) --wanted--> every host, this one too
    Observed, links, statuses ----------------> hosts, processes --> `waiting`, `starting`, `doubted`

A change is an edit of the document, which begins a generation, and is done when every host that is heard has reached it
or says why it cannot. A host that is not heard is not waited for: it is told when it is back. Two processes of a host
that are silent at once, an actor and its supervisor, are a host without power or network, and the actors of that are
`doubted`; one silent process may be stopped, or busy, and is waited for (``run.lost_after_seconds``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import trio

from actors.runtime.target import chosen, in_force
from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.full import resolved_text
from agent_rl.config.source import TopologyError
from agent_rl.files.disk import DiskError
from agent_rl.messages import Observed, RoleWanted, Wanted
from agent_rl.records.document import Document, Role

if TYPE_CHECKING:
    from actors.runtime.start import Start
    from agent_rl.messages import Changed

Undo: TypeAlias = tuple[Role, "tuple[float, Role] | None"]
"""What a role was, and when it was swapped before that from what."""
RESTART_SECONDS = 60.0
"""How long a change waits for actors that are started again. Their processes load their models meanwhile."""
TRIAL_SECONDS = 600.0
"""For so long after a swap the former class comes back when a process of the role spends its restarts."""
WRITE_SECONDS = 1.0
"""What is seen is on disk after so long at most; what is wanted, at once."""


@dataclass(slots=True)
class HostSeen:
    """What is known of a host. ``heard``: it is not waited for otherwise."""

    heard: bool = False
    incarnation: int = 0
    """That of its supervisor, which was heard last."""
    observed: Observed | None = None
    statuses: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The process and the number of the newest status of each of its actors."""
    up: bool = False
    """It was heard once: the end of the run waits for it."""
    ended: bool = False


class RunState:
    """``former``: the document of the last start. ``say`` tells the user. Raises TopologyError for swaps that no longer
    fit the file.
    """

    def __init__(self, start: Start, former: Document | None, say: Callable[[str], object]) -> None:
        self._start, self._say = start, say
        self._before: dict[str, tuple[float, Role]] = {}
        """When roles were swapped last, and what they were before."""
        self.document = Document.begun(start.topology, start.hosts, former)
        self._text = resolved_text(start.topology)
        self.topology = in_force(self._text, self.roles)
        """The topology in force."""
        self.document.follow(self.topology)
        self.generation = start.incarnation
        self.hosts = {host: HostSeen(heard=host in start.hosts) for host in start.topology.hosts_in_use}
        self._telling = [start.hosts[0], *(host for host in self.hosts if host not in start.hosts)]
        """A host of each supervisor's process."""
        self._check: tuple[str, ...] = ()
        self._ending: tuple[int, bool] | None = None
        self._ran: set[str] = set()
        """Actors that have been ready."""
        self._news, self._next = True, -float("inf")
        self.changed = trio.Event()
        """Set when something is new; then another one takes its place."""

    def _tell(self) -> None:
        self._news = True
        self.wake()

    def wake(self) -> None:
        """Wake those who wait for something new."""
        self.changed.set()
        self.changed = trio.Event()

    # What is wanted.

    @property
    def roles(self) -> dict[str, RoleWanted]:
        """What each role is to be."""
        roles = self.document.roles.items()
        return {name: RoleWanted(role.keys, role.since, self.on_trial(name), tuple(role.runs)) for name, role in roles}

    def wanted(self, incarnations: Mapping[str, int]) -> Wanted:
        """What all hosts are told. ``incarnations``: those of all nodes."""
        leaving = {name: host.left for name, host in self.document.hosts.items() if not host.wanted}
        code, finished = self._ending or (0, False)
        doubted, ending = self.doubted, self._ending is not None
        return Wanted(
            self.generation, self.roles, leaving, self._check, dict(incarnations), doubted, ending, code, finished
        )

    def _begin(self, check: Sequence[str] = ()) -> None:
        self.generation += 1
        self._check = tuple(check)
        self.topology = in_force(self._text, self.roles)
        self.document.follow(self.topology)
        self._tell()

    def try_out(self, keys: Sequence[str]) -> None:
        """All hosts are to say whether the topology could be changed so."""
        self._begin(keys)

    def swap(self, role: str, keys: Sequence[str]) -> Undo:
        """A role has another class or settings from now on. Raises TopologyError, and changes nothing."""
        undo = self.document.change(role, keys=keys, since=self.generation + 1), self._before.get(role)
        try:
            in_force(self._text, self.roles)
        except TopologyError:
            self.document.roles[role] = undo[0]
            raise
        self._before[role] = trio.current_time(), undo[0]
        self._begin()
        self._write(f"a supervisor that is started again will not know that {role} was swapped")
        return undo

    def scale(self, role: str, number: int) -> Undo:
        """A role has so many processes from now on."""
        runs = chosen(self.topology.homes(role), self.document.roles[role].runs, number, self.away)
        undo = self.document.change(role, runs=runs), self._before.get(role)
        self._begin()
        self._write(f"a supervisor that is started again will not know that {role} was scaled")
        return undo

    def restore(self, role: str, undo: Undo) -> None:
        """A role is what it was."""
        self.document.roles[role], before = undo
        self._before.pop(role, None)
        if before is not None:
            self._before[role] = before
        self._begin()
        self._write(f"a supervisor that is started again will not know that {role} is what it was")

    def drain(self, host: str) -> None:
        """The run goes on without a host, which stops in order."""
        seen = self.hosts[host]
        here = host in self._start.hosts
        self.document.drain(host, self._start.incarnation if here else seen.incarnation, self.topology)
        if not here and not seen.heard:
            self.document.host(host, "gone", self.topology)
        self._begin()
        self._write(f"a supervisor that is started again will not know that {host} was drained")

    def end(self, exit_code: int, *, finished: bool) -> None:
        """All hosts are to end."""
        self._ending = exit_code, finished
        self._tell()

    # What it was before.

    def on_trial(self, role: str) -> bool:
        """Whether a role was swapped lately, and can be swapped back."""
        since, _ = self._before.get(role, (-float("inf"), None))
        return trio.current_time() - since < TRIAL_SECONDS

    def former(self, role: str) -> Undo | None:
        """What a role was before its last swap, if that was lately."""
        return (self._before[role][1], None) if self.on_trial(role) else None

    @property
    def spent(self) -> dict[str, str]:
        """The roles that are to be swapped back, since a process keeps dying, each with the reason."""
        told = [observed for host in self._telling if (observed := self.hosts[host].observed)]
        return {actor.rpartition(".")[0]: why for each in told for actor, why in each.spent.items()}

    # What is seen.

    def observed(self, host: str, observed: Observed, incarnation: int) -> None:
        """A host says what it has."""
        seen, told = self.hosts[host], replace(observed, actors=())
        seen.ended = seen.ended or observed.state in {"failed", "finished"}
        self.heard(host, incarnation)
        if host not in self._start.hosts:
            details = {each.status.actor: each.status.detail for each in observed.actors}
            for name in [name for name, each in self.document.processes.items() if each.host == host]:
                self.process(name, observed.states.get(name, "stopped"), details.get(name, ""))
        if seen.observed != told:
            seen.observed = told
            self.wake()

    def heard(self, host: str, incarnation: int = 0) -> None:
        """A host is heard: by this supervisor, or by the one that was heard last."""
        seen, wanted = self.hosts[host], self.document.hosts[host]
        self.replaced(host, incarnation)
        seen.heard = seen.up = True
        if not wanted.wanted and seen.incarnation <= wanted.left:
            return  # it is to leave
        if not wanted.wanted:
            self.document.host(host, "gone", self.topology)
        if self.document.host(host, "up", self.topology):
            self._news_of_processes()

    def replaced(self, host: str, incarnation: int) -> None:
        """The supervisor of a host has this process: what an earlier one said does not count."""
        seen = self.hosts[host]
        if incarnation > seen.incarnation:
            seen.incarnation, seen.observed = incarnation, None

    def lost(self, host: str, *, left: bool = False) -> None:
        """A host is not heard any more, or has stopped in order (``left``)."""
        seen = self.hosts[host]
        seen.heard = False
        seen.ended = seen.ended or left
        if self.document.host(host, "gone", self.topology):
            self._news_of_processes()

    def process(self, actor: str, word: str, detail: str = "") -> None:
        """A process starts, stops or has stopped; or an actor says what it does."""
        if self.document.process(actor, word, detail):
            self._news_of_processes()

    def _news_of_processes(self) -> None:
        self._ran |= {name for name, each in self.document.processes.items() if each.state == "up"}
        self._tell()

    # What follows.

    @property
    def away(self) -> set[str]:
        """Hosts that were drained and have not come back."""
        return {name for name, host in self.document.hosts.items() if not host.wanted}

    @property
    def absent(self) -> set[str]:
        """Hosts that nothing waits for."""
        return self.away | {name for name, host in self.hosts.items() if not host.heard}

    @property
    def waiting(self) -> list[str]:
        """The hosts that have not said what they have of this generation, though they are heard."""
        reached = {
            name for name in self._telling if (told := self.hosts[name].observed) and told.generation == self.generation
        }
        return [name for name in self._telling if name not in reached | self.absent]

    def words(self, hosts: Sequence[str]) -> str:
        """What is waited for on these hosts."""
        others = [f"{name} ({each.state})" for name, each in self.document.others.items() if each.host in hosts]
        return f"{', '.join(hosts)}: {', '.join(others) or 'its actors'}"

    def outcome(self) -> tuple[list[str], list[str]]:
        """What was done for this generation, and what it cannot be reached for, as lines."""
        done: list[str] = []
        faults: list[str] = []
        for name in self._telling:
            told = self.hosts[name].observed
            if told is not None and told.generation == self.generation:
                where = "" if name in self._start.hosts else f"{supervisor_node(name)}: "
                done += told.done
                faults += [f"{where}{line}" for line in told.faults]
        return done, faults

    @property
    def starting(self) -> list[str]:
        """The actors that are wanted and not ready, on hosts that are heard, in the order of the document."""
        processes, absent = self.document.processes.items(), self.absent
        return [name for name, each in processes if each.wanted and each.state != "up" and each.host not in absent]

    async def restarted(self) -> None:
        """Wait until all actors are ready that have been ready before, at most `RESTART_SECONDS`.

        Returns at once where another one starts for the first time.
        """
        with trio.move_on_after(RESTART_SECONDS):
            while (names := {*self.starting}) and names <= self._ran and self._ending is None:
                await self.changed.wait()

    @property
    def doubted(self) -> tuple[str, ...]:
        """The actors of hosts that are not heard, and replicas that are not to run, in the order of the topology.

        One that was never heard is among them if its host is optional: without that, calls of a new process would wait
        for hosts that the file allows and nobody has started.
        """
        hosts, used = self.document.hosts, self.topology.hosts
        lost = {
            name
            for name, host in hosts.items()
            if host.state == "gone" or (host.state == "wanted" and (used[name].optional or not host.wanted))
        }
        runs = {f"{name}.{number}" for name, role in self.document.roles.items() for number in role.runs}
        return tuple(
            name
            for host in self.topology.hosts_in_use
            for name, _ in actor_nodes(self.topology, host)
            if host in lost or name not in runs
        )

    # How the run ends.

    async def ended(self, seconds: float) -> list[str]:
        """Wait until the other hosts that were heard have stopped. Returns those that did not say so in time."""
        others = [name for name, host in self.hosts.items() if host.up and name not in self._start.hosts]
        with trio.move_on_after(seconds):
            while not all(self.hosts[name].ended for name in others):
                await self.changed.wait()
        return [name for name in others if not self.hosts[name].ended]

    # What is on disk.

    def answered(self, what: str, answer: Changed) -> None:
        """A change that somebody asked for was carried out, or refused."""
        self.document.edited(time.time(), what, answer.done, answer.refused)
        self._tell()

    def tick(self, incarnations: Mapping[str, int]) -> None:
        """Write what is new, once in `WRITE_SECONDS`."""
        if self._news and trio.current_time() >= self._next:
            self._next = trio.current_time() + WRITE_SECONDS
            for name, process in self.document.processes.items():
                process.incarnation = incarnations.get(name, process.incarnation)
            self._write("agent-rl status shows what was before")

    def close(self) -> None:
        """The run has ended, or is stopped: nothing is in force any more."""
        self.document.end()
        self._write("the next start takes changes of this one as in force")

    def _write(self, consequence: str) -> None:
        self._news = False
        try:
            self.document.write(self._start.topology.run.directory)
        except (DiskError, OSError) as error:
            self._say(f"{consequence}: {error}")
