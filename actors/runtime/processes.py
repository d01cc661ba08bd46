"""The processes of a supervisor's actors. `actors.runtime.reconcile` decides, for each; here it is carried out.

::

    Target --become--> actors that lack come --> those of another plan are replaced, one after the other --> others go
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from actors.runtime.change_rules import in_place
from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import devices_for, drain_order
from actors.runtime.reconcile import ENDING, Action, Ending, Fail, Plan, ProcessLifecycle, Replaced, Say, Start, Word
from actors.runtime.target import Target
from agent_rl.config.full import resolved_text
from agent_rl.config.placement import gpus_of_actor
from agent_rl.config.standard import learner_of
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import ActorStatus
from agent_rl.messages.pipes import Go
from agent_rl.observe.logs import log_directory

if TYPE_CHECKING:
    from actors.runtime.start import Start as SupervisorStart
    from actors.runtime.supervise import Supervisor

FAILED_DRAIN_SECONDS = 10.0
"""After a failure, each role gets at most this long to stop, because the peers it waits for may be gone."""


class Process:
    """An actor of this host. ``incarnation`` is the number of the first process. ``added``: see `ProcessLifecycle`."""

    def __init__(self, name: str, plan: Plan, kept: Processes, *, incarnation: int, added: bool = False) -> None:
        self.name, self.role = name, name.rpartition(".")[0]
        self._kept, self._reports = kept, kept.reports
        self.gpus = gpus_of_actor(kept.topology, name)
        """The GPUs that its processes see alone, until the run ends; None: all that the host has."""
        self._stderr = log_directory(kept.topology.run.directory) / f"{name}.stderr"
        self.life = ProcessLifecycle(name, self.role, plan, incarnation, str(self._stderr), added=added)
        self.child: ActorChild | None = None
        self._successor: ActorChild | None = None
        """A process that gets ready, or is ready, to take the place of ``child``."""
        self.ended = trio.Event()
        """Set once no process follows any more."""
        self._changed = trio.Event()
        self._replaced = Replaced("")
        self._settled = trio.Event()
        if not added:
            self._settled.set()

    async def keep(self) -> None:
        """Start the actor and restart it when it dies, until the run ends or the restart budget is spent."""
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
                    self._kept.janitor.ended(dropped.pid)
        if self.life.state == "gone":
            self.ended.set()
        self._changed.set()
        self._changed = trio.Event()

    def _start(self, start: Start) -> None:
        given = self._kept.start
        arguments = ["--base", str(given.file.parent), "--actor", self.name]
        arguments += ["--started-at", repr(given.started_at), "--epoch", repr(given.epoch)]
        arguments += ["--incarnation", str(start.incarnation), *(["--restarted"] if start.restarted else [])]
        environment, cores = devices_for(self.gpus)
        child = start_child(
            given.entry_module,
            arguments,
            environment={**start.plan.environment, **environment},
            stderr=self._stderr,
            beside=start.beside,
            topology=self._kept.text_for(self.role, start.plan),
        )
        child.stay_on(cores)
        self._kept.janitor.started(child.pid)
        given.log.info("started", actor=self.name, pid=child.pid, incarnation=start.incarnation, beside=start.beside)
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
        self._kept.janitor.ended(child.pid)
        self._kept.start.log.info("ended", actor=self.name, pid=child.pid, status=status, stopping=self.life.stops)
        words, lacked = tuple(child.last_words()), child.lacked_memory
        ending = Ending(status, child.ending(status), words, child.message, child.blocked_at, lacked)
        if child is self._successor:
            self._successor = None
            self._do(self.life.successor_ended(ending))
            return
        if child.lacked_memory and not self.life.killed_for and self.life.state != "draining":
            self._reports.lacked_memory(self)
        self._do(self.life.ended(ending, trio.current_time(), swapped_lately=self.role in self._kept.trials))

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
        """Kill the process and its process group now. See `ProcessLifecycle.kill`."""
        self._do(self.life.kill(reason, last=last))

    def stop(self, seconds: float) -> None:
        """Ask the process to stop, and do not restart it."""
        self._do(self.life.stop(trio.current_time(), seconds))

    def given_up(self) -> None:
        """Its role is not swapped back: see `ProcessLifecycle.given_up`."""
        self._do(self.life.given_up())

    async def added(self) -> str:
        """Wait until the first process is ready, or does not run. Returns why it does not, or an empty text."""
        await self._settled.wait()
        return self._replaced.fault

    async def replaced(self, plan: Plan, *, beside: bool) -> Replaced:
        """Let a process by this plan take the place of the present one. See `ProcessLifecycle.replace`."""
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
    """The actors of this supervisor: those that are to run now, also while roles are changed.

    ``target``: what they are at first.
    """

    def __init__(self, start: SupervisorStart, target: Target, reports: Supervisor, ending: trio.Event) -> None:
        self.start, self.reports, self._ending = start, reports, ending
        self.trials: set[str] = set()
        """The roles that are swapped back where their processes keep dying: they were swapped lately."""
        self.topology = target.topology
        """What processes read that start now, apart from their own role's entry."""
        self.actors = {
            name: Process(name, plan, self, incarnation=start.incarnation) for name, plan in target.plans.items()
        }
        """By name. Actors that are wanted no more stay, and have ended."""

    def prepare(self, nursery: trio.Nursery, janitor: Janitor) -> None:
        """Processes are kept in this nursery."""
        self._nursery, self.janitor = nursery, janitor

    def begin(self) -> None:
        """Start all processes."""
        for actor in self.actors.values():
            self._nursery.start_soon(actor.keep)

    @property
    def states(self) -> dict[str, str]:
        """What the processes are, in words that `Document.process` knows, but for those that are gone."""
        words = {"starting": "starting", "up": "running", "draining": "stopping"}
        lives = {name: actor.life.state for name, actor in self.actors.items()}
        return {name: words[state] for name, state in lives.items() if state in words}

    @property
    def spent(self) -> dict[str, str]:
        """The actors that wait until their role is swapped back, each with the reason."""
        return {name: actor.life.spent for name, actor in self.actors.items() if actor.life.spent}

    def text_for(self, role: str, plan: Plan) -> str:
        """The topology that a process reads."""
        actors = {**self.topology.actors, role: plan.entry}
        return resolved_text(self.topology.model_copy(update={"actors": actors}))

    async def become(self, target: Target) -> tuple[list[str], list[str]]:
        """Have the actors run that the target names, by its plans. Returns what was done, and what failed, as lines.

        Where a process by another plan does not run, the former plan holds for it, and no further one is replaced.
        """
        if self._ending.is_set():
            return [], [ENDING]
        self.topology, plans = target.topology, target.plans
        for name, plan in plans.items():
            self._follows_its_learner(name, plan)
        done, faults = await self._come({name: plan for name, plan in plans.items() if not self._lives(name)})
        for name, plan in plans.items():
            if not faults and self.actors[name].life.plan.since != plan.since and not self._is_rank(name, plan):
                line, fault = await self._replace(self.actors[name], plan)
                (faults if fault else done).append(line)
        gone = [actor for name, actor in self.actors.items() if name not in plans and not actor.ended.is_set()]
        await stop_in_order(drain_order(self.topology), [actor for actor in gone if not actor.life.stops])
        for actor in gone:
            await actor.ended.wait()
        return done + [f"{actor.name} has left" for actor in sorted(gone, key=_number, reverse=True)], faults

    def _lives(self, name: str) -> bool:
        """Whether an actor runs, and is to go on."""
        return name in self.actors and not self.actors[name].life.stops

    async def _come(self, plans: Mapping[str, Plan]) -> tuple[list[str], list[str]]:
        """Start actors. One of the same name that is stopping has its time first."""
        faults: dict[str, str] = {}

        async def come(name: str, plan: Plan) -> None:
            former = self.actors.get(name)
            incarnation = self.start.incarnation
            if former is not None:
                await former.ended.wait()
                incarnation = former.life.incarnation + 1  # peers refuse a process that is not newer
            if self._ending.is_set():
                faults[name] = f"{name} does not start: {ENDING}"
                return
            actor = self.actors[name] = Process(name, plan, self, incarnation=incarnation, added=True)
            self._nursery.start_soon(actor.keep)
            faults[name] = await actor.added()

        async with trio.open_nursery() as nursery:
            for name, plan in plans.items():
                nursery.start_soon(come, name, plan)
        found = [faults[name] for name in plans if faults[name]]
        return [f"{name} runs" for name in plans if not faults[name]], found

    async def _replace(self, actor: Process, plan: Plan) -> tuple[str, bool]:
        """The line about it, and whether it failed."""
        needed = None if actor.child is None else group_bytes(actor.child.pid)
        why = in_place(actor.life.plan.entry, plan.entry, needed, available_bytes())
        fault, seconds = await actor.replaced(plan, beside=not why)
        if fault:
            line = f"{fault}; the former class and settings hold again"
        else:
            way = f"in place: {why}" if why else "beside"
            line = f"{actor.name} is now {plan.entry.class_path}; it was away for {seconds:.1f} s ({way})"
        self.reports.say(line)
        return line, bool(fault)

    def _is_rank(self, name: str, plan: Plan) -> bool:
        role = name.rpartition(".")[0]
        return learner_of(role, plan.entry.class_path) != role

    def _follows_its_learner(self, name: str, plan: Plan) -> None:
        """The ranks of a learner end with it, and start anew: by this plan. None stays that a refused one started."""
        actor = self.actors.get(name)
        if actor is not None and self._is_rank(name, plan) and actor.life.plan.since != plan.since:
            later = actor.life.plan.since > plan.since
            actor.life.adopt(plan)
            if later:
                actor.kill(f"{name} began with what its learner is not")


def _number(actor: Process) -> tuple[str, int]:
    role, _, number = actor.name.rpartition(".")
    return role, int(number)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """The bytes that new processes can have without swapping."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def group_bytes(leader: int, processes: Path = Path("/proc")) -> int | None:
    """The resident bytes of a session's processes; pages that several of them share count for each."""
    total = None
    for entry in processes.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == leader:
                total = (total or 0) + int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total
