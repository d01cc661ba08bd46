"""The supervisor's record of one actor: starts its process, restarts it within a budget, stops it and kills it.

::

    start --> (ends) --> budget left: restarting --> start
                    |--> budget spent after a swap --> waits until its role is swapped back
                    `--> budget spent, or USER_MISTAKE --> Reports.fail
    stopping: SIGTERM --> (ends) | deadline --> SIGKILL
    replacing: stopping --> start by another plan --(ends before it is ready)--> start by the former plan
                                                 `--(not ready in start_seconds)--> SIGKILL, as above
    replacing, beside: the successor starts, and is prepared --> stopping --> the successor goes on --(as above)
                                            `-(ends before)--> all as before
    added to a run under way: start --(ends before it is ready)--> not started again
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import trio

from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import RestartBudget, actor_environment, devices_for, drain_seconds
from agent_rl.config.placement import gpus_of_actor
from agent_rl.config.processes import ActorEntry
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import Janitor
from agent_rl.groups.outages import FAULTS
from agent_rl.messages import ActorStatus
from agent_rl.messages.pipes import Go
from agent_rl.observe.logs import log_directory

USER_MISTAKE = 3
"""Exit status of an actor that a restart would not help. The actor leaves a message that says why."""

EARLY_SECONDS = 5.0
"""A process that ends by itself within this many seconds after its start has done no work."""

FAILED_DRAIN_SECONDS = 10.0
"""After a failure, each role gets at most this long to stop, because the peers it waits for may be gone."""


class Reports(Protocol):
    """What an `ActorProcess` reports to the supervisor."""

    def process(self, actor: ActorProcess, state: str) -> None:
        """The process is starting, restarting, stopping or stopped."""

    def known(self) -> Sequence[Any]:
        """The messages about other nodes that a new process gets first."""

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def lacked_memory(self, actor: ActorProcess) -> None:
        """The kernel killed the process for lack of memory."""

    def fail(self, reason: str, exit_code: int) -> None:
        """End the run: it cannot continue."""

    def take_back(self, actor: ActorProcess, why: str) -> bool:
        """The process keeps dying (``why``): whether its role is swapped back, for which the process waits."""


@dataclass(frozen=True)
class Plan:
    """What the processes of a role are started with, apart from the topology file."""

    entry: ActorEntry
    drain_seconds: float
    environment: Mapping[str, str]

    @classmethod
    def of(cls, role: str, topology: Topology) -> Plan:
        """The plan of a topology. Raises PluginError and ValidationError when class and settings do not fit."""
        entry = topology.actors[role]
        return cls(entry, drain_seconds(role, entry), actor_environment(entry, topology.run.directory))


@dataclass
class _Replacement:
    """A process that is to take the place of another one, or a further one."""

    plan: Plan
    former: Plan | None
    """None: there was no process before."""
    left: trio.Event = field(default_factory=trio.Event)
    """Set once the former process has ended."""
    settled: trio.Event = field(default_factory=trio.Event)
    """Set once the new process is ready, or does not run."""
    fault: str = ""
    """Why the new process does not run."""
    left_at: float = 0.0
    """When the former process had ended."""
    seconds: float = 0.0
    """From the end of the former process until the new one was ready."""

    def settle(self, fault: str = "") -> None:
        self.fault = fault
        self.seconds = trio.current_time() - self.left_at
        self.left.set()
        self.settled.set()


class Replaced(NamedTuple):
    """How a process was replaced."""

    fault: str
    """Why the new process does not run; empty: it runs."""
    seconds: float = 0.0
    """The time without a process that was ready."""
    died: bool = False
    """Whether the former process died before it was to stop, and another has taken its place."""


class ActorProcess:
    """An actor of this host. ``path`` is the topology file; relative paths in the file start from the folder ``base``.

    ``incarnation`` is the number of the first process; ``epoch`` makes the run's clock (`run_clock`).
    """

    def __init__(
        self,
        name: str,
        role: str,
        topology: Topology,
        *,
        path: Path,
        base: Path,
        incarnation: int,
        started_at: float,
        epoch: float,
        entry_module: str,
        reports: Reports,
    ) -> None:
        self.name = name
        self.role = role
        self.child: ActorChild | None = None
        self._successor: ActorChild | None = None
        """A process that gets ready to take the place of ``child``."""
        self.stopping = False
        self._asked: ActorChild | None = None
        """The process that was asked to stop."""
        self.ended = trio.Event()
        self.failure = ""
        """The last failure that the actor reported in its status."""
        self._killed_for = ""
        self._blocked = 0
        """How many processes in a row were killed because code of users blocked them."""
        self._died_at: float | None = None
        self._ready_at: float | None = None
        """When the present process first reported that it had started."""
        self.incarnation = incarnation
        self._reports = reports
        self._replacement: _Replacement | None = None
        self._addition: _Replacement | None = None
        self._wait: trio.Event | None = None
        """Where none of its processes is started until its role is swapped back: set once that is over."""
        self.gpus = gpus_of_actor(topology, name)
        """The GPUs that its processes see alone, until the run ends; None: all that the host has."""
        self._use(Plan.of(role, topology))
        self._entry_module = entry_module
        self._stderr = log_directory(topology.run.directory) / f"{name}.stderr"
        self._arguments = ["--topology", str(path), "--base", str(base), "--actor", name]
        self._arguments += ["--started-at", repr(started_at), "--epoch", repr(epoch)]

    def _use(self, plan: Plan) -> None:
        self._plan = plan
        self.entry, self.drain_seconds = plan.entry, plan.drain_seconds
        self._budget = RestartBudget(plan.entry.restarts, plan.entry.restart_window_seconds)

    async def keep(self, janitor: Janitor, log: Callable[..., object]) -> None:
        """Start the actor and restart it when it dies, until the run ends or the restart budget is spent."""
        state = "starting"
        while not self.stopping:
            self._reports.process(self, state)
            child = self._start()
            janitor.started(child.pid)
            log("started", actor=self.name, pid=child.pid, incarnation=self.incarnation)
            status = await child.wait()
            janitor.ended(child.pid)
            log("ended", actor=self.name, pid=child.pid, status=status, stopping=self.stopping)
            if self._replacement is None:
                self._drop_successor(janitor)  # its incarnation is that of the next process
            if self.stopping:
                if status == USER_MISTAKE:
                    self._reports.fail(f"{self.name}: {self._why(child)}", 2)
                else:
                    self._tell_stopped(child, status)
            elif self._replacement is not None:
                self._replace(self._replacement, child, status)
            elif not await self._goes_on(child, status):
                break
            state = "restarting"
        if self._replacement is not None:
            self._replacement.settle("the run ended meanwhile")
        self._reports.process(self, "stopped")
        self._drop_successor(janitor)
        self.ended.set()

    @property
    def waits(self) -> bool:
        """Whether none of its processes is started until its role is swapped back."""
        return self._wait is not None

    def _wait_no_longer(self) -> None:
        if self._wait is not None:
            self._wait.set()
            self._wait = None

    @property
    def children(self) -> list[ActorChild]:
        """The processes of this actor that have not ended."""
        return [child for child in (self.child, self._successor) if child is not None and not child.ended]

    def _drop_successor(self, janitor: Janitor) -> None:
        """End the process that gets ready, or is ready, to take the place of ``child``, if there is one."""
        if self._successor is not None:
            self._successor.reap()
            janitor.ended(self._successor.pid)
            self._successor = None

    def _tell_stopped(self, child: ActorChild, status: int) -> None:
        """Say how a process ended that was asked to, unless it did so in order."""
        if status not in {0, -signal.SIGTERM, -signal.SIGKILL}:
            ended = f"{self.name} {child.ending(status)} while stopping"
            self._reports.say("\n  ".join([ended, *child.last_words()]))

    def adds(self) -> None:
        """Say before `keep` that the actor is added to a run that goes on without it, if it cannot start."""
        self._addition = self._replacement = _Replacement(self._plan, None)
        self._addition.left.set()

    async def added(self) -> str:
        """Wait until the first process is ready. Returns why it does not run, or an empty text."""
        if self._addition is None:
            return ""
        await self._settled(self._addition)
        return self._addition.fault

    async def _settled(self, replacement: _Replacement) -> None:
        """Wait until the new process is ready or does not run. One that takes too long is killed."""
        with trio.move_on_after(replacement.plan.entry.start_seconds):
            await replacement.settled.wait()
            return
        self.kill(self._too_late(replacement.plan))
        await replacement.settled.wait()

    def _too_late(self, plan: Plan) -> str:
        limit = f"{plan.entry.start_seconds:g} s (actors.{self.role}.start_seconds)"
        where = f"see `prepare` and `start` of {plan.entry.class_path}, and {self._stderr}"
        return f"{self.name} was not ready after {limit} and is killed: {where}"

    async def _prepare_successor(self, plan: Plan, janitor: Janitor) -> Replaced | None:
        """Start a process by this plan beside the present one, and wait until it is prepared; None: it is."""
        incarnation = self.incarnation + 1
        self._successor = child = self._child(plan, incarnation, beside=True)
        janitor.started(child.pid)
        prepared = None
        with trio.move_on_after(plan.entry.start_seconds):
            prepared = await child.prepared()
        if self._successor is not child:  # dropped
            return Replaced(f"{self.name} ended while its successor was getting ready; ask again", died=True)
        if prepared:
            return None
        if prepared is None:
            child.kill()
        status = await child.wait()
        self._successor = None
        janitor.ended(child.pid)
        if prepared is None:
            return Replaced("\n  ".join([self._too_late(plan), *child.last_words()]))
        why = child.message or self._why(child)
        return Replaced(f"the new {self.name} {child.ending(status)} before it was ready: {why}")

    async def replaced(self, plan: Plan, janitor: Janitor, *, beside: bool) -> Replaced:
        """Stop the process in order, and let one by this plan take its place.

        ``beside``: the new one gets ready first; if it cannot, the former one never stops. Unless the run ends, a
        process of the former plan is started again where the former one has stopped, and the new one does not run.
        """
        if self.stopping or self.child is None:
            return Replaced("the run is ending")
        if beside and (failed := await self._prepare_successor(plan, janitor)):
            return failed
        self._replacement = replacement = _Replacement(plan, self._plan)
        self._reports.process(self, "stopping")
        self.child.terminate()
        self._wait_no_longer()
        with trio.move_on_after(self.drain_seconds):
            await replacement.left.wait()
        if not replacement.left.is_set():
            self._reports.say(f"{self.name} did not stop in time and is killed")
            self.kill()
        await self._settled(replacement)
        return Replaced(replacement.fault, replacement.seconds)

    def _replace(self, replacement: _Replacement, child: ActorChild, status: int) -> None:
        """The former process has ended, or the new one before it was ready: the other plan has its turn."""
        self.incarnation += 1
        self._blocked, self._died_at = 0, None
        if not replacement.left.is_set():
            self._tell_stopped(child, status)
            self._use(replacement.plan)
            replacement.left_at = trio.current_time()
            replacement.left.set()
            return
        if replacement.former is None:
            self.stopping = True
        else:
            self._use(replacement.former)
        self._replacement = None
        why = self._why(child) if status == USER_MISTAKE else self.failure or child.message or self._why(child)
        replacement.settle(self._killed_for or f"{self.name} {child.ending(status)} before it was ready: {why}")

    async def _goes_on(self, child: ActorChild, status: int) -> bool:
        """Whether to restart a process that died. If not, report why the run fails."""
        ended, last_words = self._killed_for or f"{self.name} {child.ending(status)}", child.last_words()
        if child.lacked_memory and not self._killed_for:
            self._reports.lacked_memory(self)
        if status == USER_MISTAKE:
            self._reports.fail(f"{self.name}: {self._why(child)}", 2)
            return False
        self._blocked = self._blocked + 1 if child.blocked_at else 0
        blocked = f"its event loop stood still in {child.blocked_at}" if child.blocked_at else ""
        if self._blocked >= FAULTS:
            times = f"{self.name} was killed {FAULTS} times in a row, since {blocked}"
            self._reports.fail(f"{times}; mend that code and run again: the run goes on", 2)
            return False
        if not self._budget.spend(trio.current_time(), early=self._died_early(status)):
            budget = f"{self.entry.restarts} restarts {self._budget.within} are spent"
            failure = [f"it said: {self.failure}"] if self.failure else []
            lines = [f"{ended}, and its {budget}", *failure, *last_words, f"more in {child.stderr}"]
            if not self._reports.take_back(self, "\n  ".join(lines)):
                self._reports.fail("\n  ".join(lines), 1)
                return False
            again = f"the class and settings that {self.role} had before it was swapped come back"
            self._reports.say("\n  ".join([*lines, again]))
            self._reports.process(self, "stopped")
            self._wait = trio.Event()
            await self._wait.wait()
            if self._replacement is not None:
                self._replace(self._replacement, child, 0)  # how it ended has been said
                return True
            if self.stopping:
                return True
        self.incarnation += 1
        self._died_at = trio.current_time()
        # SIGKILL leaves no word: what stands last on stderr is about something else.
        said = last_words[-1] if last_words and status != -signal.SIGKILL else ""
        reason = blocked or self.failure or child.message or said
        self._reports.say(f"{ended}; starting it again" + (f" ({reason})" if reason else ""))
        return True

    def _died_early(self, status: int) -> bool:
        """Whether the process ended by itself (no SIGKILL) before it was ready, or soon after."""
        if status == -signal.SIGKILL:
            return False
        return self._ready_at is None or trio.current_time() - self._ready_at < EARLY_SECONDS

    @staticmethod
    def _why(child: ActorChild) -> str:
        """Why a process ended with USER_MISTAKE."""
        return child.message or next(iter(child.last_words(1)), "cannot run as it is configured")

    def _start(self) -> ActorChild:
        self.failure = self._killed_for = ""
        self._ready_at = None
        if self._successor is None:
            self.child = self._child(self._plan, self.incarnation, restarted=self._died_at is not None)
            self.tell(*self._reports.known())
        else:
            self.child, self._successor = self._successor, None
            self.tell(*self._reports.known(), Go())
        return self.child

    def _child(self, plan: Plan, incarnation: int, *, beside: bool = False, restarted: bool = False) -> ActorChild:
        arguments = [*self._arguments, "--incarnation", str(incarnation), *(["--restarted"] if restarted else [])]
        environment, cores = devices_for(self.gpus)
        child = start_child(
            self._entry_module,
            arguments,
            environment={**plan.environment, **environment},
            stderr=self._stderr,
            beside=beside,
        )
        child.stay_on(cores)
        return child

    def tell(self, *messages: Any) -> None:
        """Send messages about other nodes to the process, which needs them to find and recognise its peers."""
        if self.child is not None and not self.child.tell(*messages):
            self.kill(f"{self.name} did not read the messages of its supervisor")

    def heard(self, status: ActorStatus, incarnation: int) -> None:
        """Take in a status from the process with this incarnation."""
        if incarnation != self.incarnation:  # a status of an earlier process
            return
        if status.state == "failed":
            self.failure = status.detail
        elif status.state != "starting" and self._ready_at is None:
            self._ready_at = trio.current_time()
            if self._replacement is not None and self._replacement.left.is_set():
                self._replacement.settle()
                self._replacement = None
        if self._ready_at is not None and self._died_at is not None:
            seconds = trio.current_time() - self._died_at
            self._died_at = None
            self._reports.say(f"{self.name} runs again, {seconds:.1f} s after it ended")

    def terminate(self) -> None:
        """Ask the process to stop, once, and do not restart it. A second SIGTERM would end it before it has drained."""
        self.stopping = True
        self._reports.process(self, "stopping")
        if self.child is not None and self.child is not self._asked:
            self._asked = self.child
            self.child.terminate()
        self._wait_no_longer()

    def kill(self, reason: str = "") -> None:
        """Kill the process and its process group now. ``reason`` appears in the notice of the restart."""
        self._killed_for = reason
        if self.child is not None:
            self.child.kill()
        self._wait_no_longer()


async def stop_in_order(
    roles: Sequence[str], actors: Sequence[ActorProcess], reports: Reports, *, failed: bool
) -> None:
    """Stop the roles one after the other, each within its deadline. Kill actors that exceed the deadline."""
    for role in roles:
        async with trio.open_nursery() as nursery:
            for actor in actors:
                if actor.role == role and not actor.ended.is_set():
                    actor.terminate()
                    seconds = actor.drain_seconds
                    nursery.start_soon(
                        _stop_within, actor, min(seconds, FAILED_DRAIN_SECONDS) if failed else seconds, reports
                    )


async def _stop_within(actor: ActorProcess, seconds: float, reports: Reports) -> None:
    with trio.move_on_after(seconds):
        await actor.ended.wait()
        return
    reports.say(f"{actor.name} did not stop in time and is killed")
    actor.kill()
    await actor.ended.wait()
