"""Commands that change a run under way, at the main host: each is an edit of what is wanted, and a wait.

::

    agent-rl swap --SwapWanted--> all hosts try it out --(a fault: nothing stops)----------------------> Changed
        all hosts replace the processes of the role --(one does not run: what was before is wanted)----> Changed

    agent-rl scale --ScaleWanted--> replicas come, or the last ones go --(one does not run: the former)-> Changed
    agent-rl drain --DrainWanted--> the actors of a host stop in order, and its supervisor ends --------> Changed
    agent-rl stop --StopWanted--> the run ends in order, also while it starts or another command waits -> Changed

    a process spends its restarts soon after its role was swapped, and waits: what the role was before is wanted

`actors.runtime.change_rules` decides what is refused. A command is one of the nodes `CONTROLS`. Over Unix sockets only
the run's user reaches the supervisor, and over TCP only who has the run's key, as a host has. An answer that does not
come within a second says what is waited for, and `Progress` asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import trio

from actors.runtime.change_rules import ENDING, Command, changed_keys, differences, named, processes, why_not
from agent_rl.config.addresses import CONTROLS
from agent_rl.config.source import TopologyError
from agent_rl.messages import Changed, DrainWanted, Progress, ScaleWanted, StopWanted, SwapWanted

if TYPE_CHECKING:
    from actors.runtime.run_state import RunState
    from actors.runtime.start import Start

ANSWER_SECONDS = 0.9
"""After so long a command hears what it waits for."""
CHANGE_SECONDS = 3600.0
"""How long a change may take: the former processes drain, and the new ones start, with their models."""
KEPT = 64
"""Commands whose answers are kept."""


@dataclass(eq=False)
class _Job:
    """A command that is carried out."""

    number: int
    waits: str = "its turn"
    answer: Changed | None = None
    done: trio.Event = field(default_factory=trio.Event)

    async def told(self) -> Changed:
        """The answer, or what it waits for."""
        with trio.move_on_after(ANSWER_SECONDS):
            await self.done.wait()
        return self.answer or Changed((), (), self.number, self.waits)


class Changes:
    """``end`` ends the run, by exit code and reason; ``say`` tells the user."""

    def __init__(
        self,
        start: Start,
        state: RunState,
        ending: trio.Event,
        end: Callable[[int, str], object],
        say: Callable[[str], object],
    ) -> None:
        self._start, self._state, self._ending, self._end, self._say = start, state, ending, end, say
        self._jobs: dict[int, _Job] = {}
        self._numbers = count(1)
        self._under_way: list[str] = []
        """The change that is carried out, and those that wait for their turn."""
        self._turn = trio.Lock()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out commands, and swap back roles whose processes keep dying, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                changed = self._state.changed
                for role, why in self._state.spent.items():
                    await self._take_back(role, why)
                await changed.wait()

    async def asked(self, sender: str, asked: Command | Progress) -> Changed:
        """Begin a command, or say how far one is. Raises CallRefused for a sender that may not ask."""
        from transport import CallRefused

        if sender not in CONTROLS:
            raise CallRefused(f"{sender} may not change the run")
        match asked:
            case Progress() if asked.number in self._jobs:
                return await self._jobs[asked.number].told()
            case Progress():
                return Changed(("the run was started again, and does not know this command any more",), ())
            case StopWanted():  # waits for no actor and no other change, as Ctrl-C
                return self._kept(asked, self._stop())
        reason = self._why_not(asked)
        if reason or self._nursery is None:
            return self._kept(asked, Changed((reason or "the run is starting; ask again when all actors run",), ()))
        job = _Job(next(self._numbers))
        self._jobs[job.number] = job
        for number in list(self._jobs)[:-KEPT]:
            del self._jobs[number]
        self._under_way.append(named(asked))
        self._nursery.start_soon(self._carry_out, asked, job)
        return await job.told()

    def _kept(self, command: Command, answer: Changed) -> Changed:
        self._state.answered(named(command), answer)
        return answer

    def _stop(self) -> Changed:
        if self._ending.is_set():
            return Changed((ENDING,), ())
        self._end(0, f"stopping, as a command asks; continue with: {self._start.again}")
        return Changed((), (f"the run stops in order; continue with: {self._start.again}",))

    def _why_not(self, command: Command) -> str:
        state, busy = self._state, next(iter(self._under_way), "")
        runs = {name: role.runs for name, role in state.document.roles.items()}
        ending, away, absent = self._ending.is_set(), state.away, state.absent
        return why_not(command, state.topology, runs, ending=ending, busy=busy, away=away, absent=absent)

    async def _carry_out(self, command: Command, job: _Job) -> None:
        """Also when who asked for it is gone."""
        answer = Changed((ENDING,), ())
        try:
            async with self._turn:
                if not isinstance(command, DrainWanted):
                    job.waits = "actors that are started again"
                    await self._state.restarted()
                late = [] if isinstance(command, DrainWanted) else self._state.starting
                if late:
                    why = f"{', '.join(late)} has not started yet; ask again when all actors run"
                    answer = Changed((why,), ())
                elif not self._ending.is_set():
                    match command:
                        case SwapWanted():
                            answer = await self._swap(command, job)
                        case ScaleWanted():
                            answer = await self._scale(command, job)
                        case DrainWanted():
                            answer = await self._drain(command, job)
        finally:
            self._under_way.remove(named(command))
            job.answer = self._kept(command, answer)
            job.done.set()

    async def _reached(self, job: _Job | None = None) -> tuple[list[str], list[str]]:
        """Wait until all hosts that are heard have reached what is wanted. Returns what was done, and what failed."""
        with trio.move_on_after(CHANGE_SECONDS) as scope:
            while (waiting := self._state.waiting) and not self._ending.is_set():
                if job is not None:
                    job.waits = self._state.words(waiting)
                await self._state.changed.wait()
        if self._ending.is_set():
            return [], [ENDING]
        done, faults = self._state.outcome()
        late = [f"no word of {', '.join(self._state.waiting)} within {CHANGE_SECONDS:g} s"]
        return done, faults + (late if scope.cancelled_caught else [])

    async def _swap(self, wanted: SwapWanted, job: _Job) -> Changed:
        role, keys, state = wanted.role, changed_keys(wanted), self._state
        before = state.topology
        state.try_out(keys)
        _, faults = await self._reached(job)
        if faults:
            state.try_out(())
            return Changed(tuple(faults), ())
        try:
            undo = state.swap(role, keys)
        except TopologyError as error:
            state.try_out(())
            return Changed((f"{role} cannot be swapped: {error}",), ())
        done, faults = await self._reached(job)
        if faults:
            state.restore(role, undo)
            _, more = await self._reached(job)
            return Changed(tuple(dict.fromkeys([*faults, *more])), ())
        changes = differences(role, before, state.topology)
        for line in changes:
            self._say(line)
        return Changed((), (*done, *changes))

    async def _take_back(self, role: str, why: str) -> None:
        """Swap a role for what it was before its last swap, if that is in force still."""
        async with self._turn:
            undo = self._state.former(role)
            if undo is None or self._ending.is_set() or role not in self._state.spent:
                return
            self._state.restore(role, undo)
            done, faults = await self._reached()
            what = f"return of {role} to its former class"
            self._state.answered(what, Changed(tuple(faults), (why.partition("\n")[0], *done)))
            for line in faults:
                self._say(line)

    async def _scale(self, wanted: ScaleWanted, job: _Job) -> Changed:
        role, state = wanted.role, self._state
        homes, former = state.topology.homes(role), state.document.roles[role].runs
        absent = state.absent
        undo = state.scale(role, wanted.number)
        away = [
            number for number in state.document.roles[role].runs if number not in former and homes[number] in absent
        ]
        done, faults = await self._reached(job)
        if faults and wanted.number > len(former):
            state.restore(role, undo)
            await self._reached(job)
            return Changed((*faults, f"{role} keeps the processes that it had"), ())
        done += [f"{role}.{number} runs as soon as its host {homes[number]} does" for number in away]
        return Changed(tuple(faults), (*done, f"{role} has {processes(wanted.number)}"))

    async def _drain(self, wanted: DrainWanted, job: _Job) -> Changed:
        host, state = wanted.host, self._state
        processes, heard = state.document.processes.items(), state.hosts[host].heard
        names = [name for name, each in processes if each.wanted and each.host == host]
        state.drain(host)
        if host in self._start.hosts:
            self._say(f"host {host} leaves: its actors stop in order")
            await self._reached(job)
            state.lost(host, left=True)
            return Changed((), (f"host {host} has left: {', '.join(names)}",))
        if heard:
            return Changed((), (f"host {host} leaves: its actors stop in order",))
        return Changed((), (f"host {host} is not heard: the run goes on without it, and it may come back",))
