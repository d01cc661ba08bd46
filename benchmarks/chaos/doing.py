"""Carries out one fault after the other on a run, and waits after each until the run goes on."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from benchmarks.chaos.actors import FAULT, Record
from benchmarks.chaos.host import READY_SECONDS, Cluster, fill, network_fault
from benchmarks.chaos.plan import BROKEN, CHANGES, ENDS_RUN, SCALED, WITHOUT_MODEL, Change, Fault
from benchmarks.chaos.sight import Sight, work_seen
from benchmarks.runs import RunFailed

LOOK_SECONDS = 0.05
CLOSE_LOOK_SECONDS = 0.002
"""Writing a small checkpoint takes some milliseconds."""
RECOVERY_SECONDS = 240.0
DISK_FULL_EXIT = 2
SECOND_SECONDS = 0.4
"""After so long another command comes while one is carried out."""
SAYS_SECONDS = 20.0
"""How long processes have to be what a command has answered: they may be killed meanwhile."""
REFUSED = (
    "nothing would change",
    "the run is ending",
    "hold again",
    "keeps the processes that it had",
    "ended while its successor was getting ready",
)
"""What a command may be refused for: then what was before holds."""
BUSY = "another change is under way"
GONE = "no run is under way"
ENDED = "was lost before it answered"
"""What a command says that waits while the run ends."""
IN_FORCE = "takes changes of this one as in force"


class NotRecovered(RunFailed):
    """A fault after which the run did not go on."""


@dataclass(frozen=True)
class Done:
    """A fault that was carried out."""

    fault: Fault
    hit: str
    """The kind of stage in which it came, or ``start``."""
    lost: float
    """Seconds from the fault, or from its end where it lasts, until the victims' work goes on."""
    starting: float | None = None
    """Seconds from the end of a victim's process until the next one ran, the longest of the victims."""


class Chaos:
    """One run and its faults. The hosts were started."""

    def __init__(self, cluster: Cluster, sight: Sight, record: Record) -> None:
        self._cluster = cluster
        self._hosts = cluster.hosts
        self._main = next(iter(cluster.hosts.values()))
        self._sight = sight
        self._record = record
        self._classes: dict[str, str] = {}
        """By role, the class that a command has given it."""
        self._numbers: dict[str, int] = {}
        """Likewise the number of its processes."""
        self.wrong: list[str] = []
        """Answers that were not what ran then."""
        self.done: list[Done] = []

    async def go(self, faults: Sequence[Fault]) -> Sequence[Fault]:
        """Carry out the faults. Returns those for which the run was not long enough. Raises NotRecovered.

        Changes of stage during reinforcement learning are left for `go_late`: the next one is at the stage's end.
        """
        late: list[Fault] = []
        for index, fault in enumerate(faults):
            self._look()
            if fault.moment == "stage_change" and self._sight.phase == "rl":
                late.append(fault)
            elif await self._moment(fault):
                await self._do(fault)
            else:
                return [*late, *faults[index:]]
        return late

    async def go_late(self, faults: Sequence[Fault]) -> Sequence[Fault]:
        """Carry out what `go` has left, as far as the end of the run allows. Returns what is left still."""
        for index, fault in enumerate(faults):
            if not await self._moment(fault):
                return faults[index:]
            await self._do(fault)
        return ()

    async def _do(self, fault: Fault) -> None:
        done = await self._carry_out(fault)
        self.done.append(done)
        print(f"{fault} (in {done.hit}): {done.lost:.1f} s", flush=True)

    async def finish(self, seconds: float) -> None:
        """Wait for the run's orderly end. Raises RunFailed."""
        for host in self._hosts.values():
            if code := await host.ended(seconds):
                raise RunFailed(f"the run ended with {code}\n{host.output[-3000:]}")
        self._look()

    def _look(self) -> None:
        self._sight.look(time.monotonic())

    @property
    def _over(self) -> bool:
        """Whether the run has ended in order. Raises NotRecovered when a host ended otherwise."""
        for name, host in self._hosts.items():
            if host.exit_code:
                after = f"after {self.done[-1].fault}, " if self.done else ""
                raise NotRecovered(f"{after}{name} ended with {host.exit_code}\n{host.output[-3000:]}")
        return self._main.exit_code == 0

    async def _moment(self, fault: Fault) -> bool:
        """Wait for the fault's moment; False when the run ends before it."""
        self._look()
        since = copy.copy(self._sight)
        while not self._sight.shows(fault.moment, since):
            if self._over:
                return False
            close = fault.moment == "checkpoint" and self._sight.phase == "rl"
            await trio.sleep(CLOSE_LOOK_SECONDS if close else LOOK_SECONDS)
            if not close:
                self._look()
                since = copy.copy(self._sight) if fault.moment == "checkpoint" else since
        await trio.sleep(fault.delay)
        self._look()
        while not all(victim in self._sight.processes for victim in fault.victims if supervised(victim) is None):
            if self._over:
                return False
            await trio.sleep(LOOK_SECONDS)
            self._look()
        return not self._over and self._sight.phase != "end"

    async def _carry_out(self, fault: Fault) -> Done:
        for host in self._hosts.values():
            host.everyone()
        self._record.add(FAULT, fault.kind)
        hit, starts, began = self._sight.phase, len(self._sight.starts), time.monotonic()
        first = fault.victims[0]
        host = self._hosts[supervised(first) or next(iter(self._hosts))]
        match fault.kind:
            case "stop":
                pid = self._process(first)
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep(fault.seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            case "kill":
                self._kill(first)
            case "double_kill":
                self._kill(first)
                await trio.sleep(fault.seconds)
                self._look()
                self._kill(fault.victims[1])
            case "clock_jump":
                host.jump(fault.seconds)
            case "supervisor":
                os.kill(host.pid, signal.SIGKILL)
            case "host":
                host.kill_all()
            case "full_disk":
                await self._full_disk(fault)
            case _ if fault.kind in CHANGES:
                await self._change(fault)
            case "link_down" | "slow_link" | "partition":
                await self._network(fault)
        over = time.monotonic()
        if fault.kind in ENDS_RUN:
            await host.ended()
            self._sight.started(time.monotonic(), fault.victims)
            for each in self._hosts.values() if fault.kind == "full_disk" else (host,):
                await each.start()
        lost = await self._recovered(fault, began, over)
        starting = [seconds for actor, seconds in self._sight.starts[starts:] if actor in fault.victims]
        return Done(fault, hit, lost, max(starting, default=None))

    async def _full_disk(self, fault: Fault) -> None:
        """Fill the disk until the run has ended, which must say why; then make room."""
        assert self._cluster.disk is not None
        filler = fill(self._cluster.disk)
        try:
            codes = [await host.ended() for host in self._hosts.values()]
        finally:
            filler.unlink()
        if not {0, DISK_FULL_EXIT}.issuperset(codes):
            raise NotRecovered(f"{fault}: the run ended with {codes}\n{self._main.output[-3000:]}")
        if IN_FORCE not in self._main.output[-1000:]:  # a run that has ended goes by its file from then on
            self._classes.clear()
            self._numbers.clear()

    async def _change(self, fault: Fault) -> None:
        """Change the run by commands, and see whether what runs is what they answered."""
        role, _, _ = fault.victims[0].rpartition(".")
        if fault.kind == "drain":
            name = supervised(fault.victims[0]) or ""
            for scaled in SCALED:  # else the host may have the last process of a role, and is rightly not drained
                if self._numbers.get(scaled) == 1:
                    await self._ask(Change(scaled, number=2))
            if (await self._ask(Change("", host=name)))[0] == 0:
                if code := await self._hosts[name].ended():
                    raise NotRecovered(f"{fault}: {name} ended with {code}\n{self._hosts[name].output[-3000:]}")
                self._sight.started(time.monotonic(), fault.victims)
                await self._hosts[name].start()
            return
        former = self._classes.get(role, WITHOUT_MODEL[role][0])
        other = next(path for path in WITHOUT_MODEL[role] if path != former)
        match fault.kind:
            case "scale":
                await self._ask(Change(role, number=int(fault.seconds)))
            case "swap":
                await self._ask(Change(role, other))
            case "swap_back":
                await self._ask(Change(role, other))
                await self._ask(Change(role, former))
            case "refused":
                code, said = await self._ask(Change(role, BROKEN[role]))
                if not code:
                    self.wrong.append(f"{fault}: a class that does not start was taken: {said}")
            case "second":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lambda: self._ask(Change(role, other), second=True))  # it may come second
                    await trio.sleep(SECOND_SECONDS)
                    await self._ask(Change(SCALED[1], number=1 + self._numbers.get(SCALED[1], 1) % 3), second=True)
            case "kill_within":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._ask, Change(role, other))
                    await trio.sleep(fault.seconds)
                    self._look()
                    self._kill(fault.victims[0])
        await self._compare(fault)

    async def _ask(self, change: Change, *, second: bool = False) -> tuple[int, str]:
        """Exit code and output of a command, once all actors run; what it answers is what is to run from then on.

        Raises NotRecovered where it is refused for no reason that there may be.
        """
        words = change.words(str(self._cluster.inside or self._cluster.directory))
        until = time.monotonic() + READY_SECONDS
        while True:
            code, said = await self._main.ask(words)
            if code == 0 and change.class_path:
                self._classes[change.role] = change.class_path
            elif code == 0 and change.number:
                self._numbers[change.role] = change.number
            self._look()
            if GONE in said or ENDED in said:  # it ended as it was asked; otherwise it has to end now
                await self._main.ended()
            over = self._over or self._sight.phase == "end"
            if code == 0 or over or any(each in said for each in (*REFUSED, *[BUSY] * second)):
                return code, said
            if "has not started yet" not in said or time.monotonic() > until:
                raise NotRecovered(f"{change}: {said}\n{self._main.output[-3000:]}")

    async def _compare(self, fault: Fault) -> None:
        """Note what processes say that they are, where that is not what was answered: in their own logs."""
        until = time.monotonic() + SAYS_SECONDS
        while time.monotonic() < until:
            self._look()
            if self._over or self._sight.phase == "end":
                return
            if not (wrong := self._differences()):
                return
            await trio.sleep(LOOK_SECONDS)
        self.wrong += [f"{fault}: {line}" for line in wrong]

    def _differences(self) -> list[str]:
        found = []
        for role, (first, _) in WITHOUT_MODEL.items():
            alive = [actor for actor in self._sight.processes if actor.rpartition(".")[0] == role]
            wanted = self._classes.get(role, first)
            found += [
                f"{actor} is {path}, not {wanted}" for actor in alive if (path := self._class_of(actor)) != wanted
            ]
            number = self._numbers.get(role)
            if number is not None and len(alive) != number:
                found.append(f"{role} has {len(alive)} processes, not {number}")
        return found

    def _class_of(self, actor: str) -> str:
        """The class of an actor's newest process that has started, by its log."""
        found = ""
        for log in {path.parent for path in self._cluster.logs.values()}:
            with contextlib.suppress(FileNotFoundError):
                for line in (log / f"{actor}.jsonl").read_text(errors="replace").splitlines():
                    if '"event": "started"' in line or '"event":"started"' in line:
                        found = json.loads(line).get("actor_class", found)
        return found

    async def _network(self, fault: Fault) -> None:
        hit = [self._cluster.machines[host] for victim in fault.victims if (host := supervised(victim))]
        commands = network_fault(fault.kind, hit)
        for machine, begin, _ in commands:
            machine.run(*begin)
        await trio.sleep(fault.seconds)
        for machine, _, end in commands:
            machine.run(*end)

    def _process(self, victim: str) -> int:
        name = supervised(victim)
        return self._sight.processes[victim] if name is None else self._hosts[name].pid

    def _kill(self, victim: str) -> None:
        if victim in self._sight.processes:  # of a double kill's second, nothing may be there between two processes
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._sight.processes[victim], signal.SIGKILL)

    async def _recovered(self, fault: Fault, began: float, over: float) -> float:
        """Wait until the work of all victims has gone on since; the seconds that it took."""
        back: dict[str, float] = {}
        hit = over if fault.kind == "double_kill" else began  # the second signal came after some more work
        while time.monotonic() < over + RECOVERY_SECONDS:
            self._look()
            for victim in set(fault.victims) - back.keys():
                at = work_seen(self._sight.rows, victim, hit, over, self._sight.blur)
                if at is not None:
                    back[victim] = at
            if len(back) == len(set(fault.victims)):
                return max(back.values()) - over
            if self._over:
                return time.monotonic() - over
            await trio.sleep(LOOK_SECONDS)
        raise NotRecovered(
            f"{fault}: no progress in {RECOVERY_SECONDS:.0f} s; it came in {self._sight.phase}, and the run was at "
            f"{self._sight.frontier}\n{self._main.output[-3000:]}"
        )


def supervised(victim: str) -> str | None:
    """The host of a supervisor; None for an actor."""
    name, _, host = victim.partition(".")
    return host if name == "supervisor" else None
