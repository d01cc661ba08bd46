"""The processes of a supervisor's actors. `actors.runtime.reconcile` decides, for each; here it is carried out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import actor_environment, devices_for, drain_order, drain_seconds
from actors.runtime.reconcile import (
    ENDING,
    Action,
    Ending,
    Fail,
    Life,
    Plan,
    Replaced,
    Say,
    Start,
    TakeBack,
    Word,
)
from agent_rl.config.addresses import wanted_nodes
from agent_rl.config.placement import gpus_of_actor
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import ActorStatus
from agent_rl.messages.pipes import Go
from agent_rl.observe.logs import log_directory

if TYPE_CHECKING:
    from actors.runtime.supervise import Supervisor

FAILED_DRAIN_SECONDS = 10.0
"""After a failure, each role gets at most this long to stop, because the peers it waits for may be gone."""


def plan_of(role: str, topology: Topology) -> Plan:
    """The plan of a topology. Raises PluginError and ValidationError when class and settings do not fit."""
    entry = topology.actors[role]
    return Plan(entry, drain_seconds(role, entry), actor_environment(entry, topology.run.directory))


class Process:
    """An actor of this host. ``arguments`` are those that all of its processes get; the topology's file is in them.

    ``incarnation`` is the number of the first process. ``added``: see `Life`.
    """

    def __init__(
        self,
        name: str,
        role: str,
        topology: Topology,
        *,
        entry_module: str,
        arguments: Sequence[str],
        incarnation: int,
        reports: Supervisor,
        added: bool = False,
    ) -> None:
        self.name, self.role = name, role
        self.gpus = gpus_of_actor(topology, name)
        """The GPUs that its processes see alone, until the run ends; None: all that the host has."""
        self._entry_module = entry_module
        self._arguments = [*arguments, "--actor", name]
        self._stderr = log_directory(topology.run.directory) / f"{name}.stderr"
        self.life = Life(name, role, plan_of(role, topology), incarnation, str(self._stderr), added=added)
        self.child: ActorChild | None = None
        self._successor: ActorChild | None = None
        """A process that gets ready, or is ready, to take the place of ``child``."""
        self.ended = trio.Event()
        """Set once no process follows any more."""
        self._reports = reports
        self._changed = trio.Event()
        self._replaced = Replaced("")
        self._settled = trio.Event()
        if not added:
            self._settled.set()

    async def keep(self, janitor: Janitor, log: Callable[..., object]) -> None:
        """Start the actor and restart it when it dies, until the run ends or the restart budget is spent."""
        self._janitor, self._log = janitor, log
        async with trio.open_nursery() as self._nursery:
            self._do(self.life.start(trio.current_time()))
            while not self.ended.is_set():
                changed = self._changed
                with trio.move_on_at(self.life.deadline):
                    await changed.wait()
                self._do(self.life.elapsed(trio.current_time()))

    @property
    def children(self) -> list[ActorChild]:
        """The processes of this actor that have not ended."""
        return [child for child in (self.child, self._successor) if child is not None and not child.ended]

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start():
                    self._start(action)
                case Word():
                    self._reports.process(self, action.word)
                case Say():
                    self._reports.say(action.text)
                case Fail():
                    self._reports.fail(action.reason, action.exit_code)
                case TakeBack():
                    self._reports.take_back(self, action.why)
                case Replaced():
                    self._replaced = action
                    self._settled.set()
                case "promote":
                    self.child, self._successor = self._successor, None
                    self.tell(*self._reports.known(), Go())
                case "terminate" if self.child is not None:
                    self.child.terminate()
                case "kill" if self.child is not None:
                    self.child.kill()
                case "kill successor" if self._successor is not None:
                    self._successor.kill()
                case "drop successor" if self._successor is not None:
                    dropped, self._successor = self._successor, None
                    dropped.reap()
                    self._janitor.ended(dropped.pid)
        if self.life.state == "gone":
            self.ended.set()
        self._changed.set()
        self._changed = trio.Event()

    def _start(self, start: Start) -> None:
        arguments = [*self._arguments, "--incarnation", str(start.incarnation)]
        environment, cores = devices_for(self.gpus)
        child = start_child(
            self._entry_module,
            [*arguments, "--restarted"] if start.restarted else arguments,
            environment={**start.plan.environment, **environment},
            stderr=self._stderr,
            beside=start.beside,
        )
        child.stay_on(cores)
        self._janitor.started(child.pid)
        self._log("started", actor=self.name, pid=child.pid, incarnation=start.incarnation, beside=start.beside)
        if start.beside:
            self._successor = child
            self._nursery.start_soon(self._prepare, child)
        else:
            self.child = child
            self.tell(*self._reports.known())
        self._nursery.start_soon(self._wait, child)

    async def _prepare(self, child: ActorChild) -> None:
        if await child.prepared() and child is self._successor:
            self._do(self.life.prepared(trio.current_time()))

    async def _wait(self, child: ActorChild) -> None:
        status = await child.wait()
        if child not in (self.child, self._successor):  # dropped
            return
        self._janitor.ended(child.pid)
        self._log("ended", actor=self.name, pid=child.pid, status=status, stopping=self.life.stops)
        ending = Ending(status, child.ending(status), tuple(child.last_words()), child.message, child.blocked_at)
        if child is self._successor:
            self._successor = None
            self._do(self.life.successor_ended(ending))
            return
        if child.lacked_memory and not self.life.killed_for and self.life.state != "draining":
            self._reports.lacked_memory(self)
        lately = self._reports.swapped_lately(self.role)
        self._do(self.life.ended(ending, trio.current_time(), swapped_lately=lately))

    def tell(self, *messages: Any) -> None:
        """Send messages about other nodes to the process, which needs them to find and recognise its peers."""
        if self.child is not None and not self.child.tell(*messages):
            self.kill(f"{self.name} did not read the messages of its supervisor")

    def heard(self, status: ActorStatus, incarnation: int) -> None:
        """Take in a status from the process with this incarnation."""
        if incarnation != self.life.incarnation:  # a status of an earlier process
            return
        if status.state == "failed":
            self.life.failure = status.detail
        elif status.state != "starting":
            self._do(self.life.ready(trio.current_time()))

    def kill(self, reason: str = "", *, last: bool = False) -> None:
        """Kill the process and its process group now. See `Life.kill`."""
        self._do(self.life.kill(reason, last=last))

    def stop(self, seconds: float) -> None:
        """Ask the process to stop, and do not restart it."""
        self._do(self.life.stop(trio.current_time(), seconds))

    async def added(self) -> str:
        """Wait until the first process is ready, or does not run. Returns why it does not, or an empty text."""
        await self._settled.wait()
        return self._replaced.fault

    async def replaced(self, plan: Plan, *, beside: bool) -> Replaced:
        """Let a process by this plan take the place of the present one. See `Life.replace`."""
        self._settled = trio.Event()
        self._do(self.life.replace(plan, trio.current_time(), beside=beside))
        await self._settled.wait()
        return self._replaced


async def stop_in_order(roles: Sequence[str], actors: Sequence[Process], *, failed: bool = False) -> None:
    """Stop the roles one after the other, each within its deadline. Actors that exceed the deadline are killed."""
    for role in roles:
        stopping = [actor for actor in actors if actor.role == role and not actor.ended.is_set()]
        for actor in stopping:
            seconds = actor.life.plan.drain_seconds
            actor.stop(min(seconds, FAILED_DRAIN_SECONDS) if failed else seconds)
        for actor in stopping:
            await actor.ended.wait()


class Processes:
    """The actors of ``hosts``: those that are to run now, also while roles are scaled.

    ``make`` makes the record of an actor by name, role and topology.
    """

    def __init__(
        self, topology: Topology, hosts: Sequence[str], make: Callable[..., Process], ending: trio.Event
    ) -> None:
        self._hosts = tuple(hosts)
        self._make = make
        self._ending = ending
        self._start: Callable[..., object] | None = None
        self._keep: Callable[[Process], object] = lambda _: None
        self.actors = {name: make(name, role, topology) for name, role in self._wanted(topology).items()}
        """By name. Actors that are wanted no more stay, and have ended."""

    def _wanted(self, topology: Topology) -> dict[str, str]:
        """The role of each actor that is to run on these hosts."""
        return {name: role for host in self._hosts for name, role in wanted_nodes(topology, host).items()}

    def begin(self, nursery: trio.Nursery, janitor: Janitor, log: Callable[..., Any]) -> None:
        """Start all processes, in this nursery."""
        self._start = nursery.start_soon
        self._keep = lambda actor: nursery.start_soon(actor.keep, janitor, log)
        for actor in self.actors.values():
            self._keep(actor)

    def follow(self, topology: Topology) -> None:
        """Start the replicas that are wanted now, and stop those that are wanted no more."""
        if self._ending.is_set():
            return
        wanted = self._wanted(topology)
        for name, role in wanted.items():
            former = self.actors.get(name)
            if former is None or former.ended.is_set():
                # Peers refuse a process that is not newer.
                newer = {} if former is None else {"incarnation": former.life.incarnation + 1}
                actor = self.actors[name] = self._make(name, role, topology, added=self._start is not None, **newer)
                self._keep(actor)
        gone = [actor for name, actor in self.actors.items() if name not in wanted and not actor.life.stops]
        if self._start is None:
            for actor in gone:
                del self.actors[actor.name]
        elif gone:
            self._start(stop_in_order, drain_order(topology), gone)

    async def carry_out(
        self, starts: Collection[str], stops: Collection[str], topology: Topology
    ) -> tuple[list[str], list[str]]:
        """Wait until those replicas that come are ready, and stop others. Returns what failed, and what was done."""
        faults, done = [], []
        for name in starts:
            actor = self.actors.get(name)  # none is made any more once the run ends
            if fault := f"{name} does not start: {ENDING}" if actor is None else await actor.added():
                faults.append(fault)
            else:
                done.append(f"{name} runs")
        leaving = [self.actors[name] for name in stops if name in self.actors]
        await stop_in_order(drain_order(topology), leaving)
        return faults, done + [has_left(name) for name in stops]


def has_left(replica: str) -> str:
    """The line about a replica that has stopped, in what was done (`Changed.done`)."""
    return f"{replica} has left"
