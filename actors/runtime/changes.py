"""Changes of a run under way: who may ask for one, and how the supervisors carry it out.

::

    agent-rl swap --SwapWanted--> supervisor of the main host --(refused: nothing stops)------------------> Changed
        every supervisor: dry run of the new class and settings --(a fault: nothing stops)------------------> Changed
        every supervisor: each process is replaced (`in_place`) --(one does not run: the former come back)---> Changed
                          `--> the resolved topology file, for processes that start later

    a process spends its restarts soon after its role was swapped, and waits
        its supervisor --TakeBackWanted--> supervisor of the main host: once the change under way is done, a swap back

    agent-rl scale --ScaleWanted--> supervisor of the main host --(refused: nothing starts or stops)-----> Changed
        more:  all are told the number; the replicas start --(one does not run: the former number holds)-> Changed
        fewer: all are told the number; the last replicas stop in order ---------------------------------> Changed

    the main host's supervisor --ChangesInForce--> all others, also those that start later: numbers, and swaps, which a
        supervisor carries out that does not have them

    agent-rl drain --DrainWanted--> supervisor of the main host --(refused: nothing stops)---------------> Changed
        the supervisor of the host: its actors stop in order, and it ends if it has no other host

    agent-rl stop --StopWanted--> supervisor of the main host: the run ends in order, also while it starts -> Changed

`actors.runtime.change_rules` decides what is refused. The command that asks is the node `CONTROL`. Over Unix sockets
only the run's user reaches the supervisor, and over TCP only who has the run's key, as a host has. The main host's
supervisor alone knows `CONTROL`; the other supervisors obey the main host's alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from pydantic import ValidationError

from actors.runtime.change_rules import (
    ENDING,
    Wanted,
    changed_keys,
    differences,
    in_place,
    named,
    processes,
    why_not,
)
from actors.runtime.dry_run import faults_of
from actors.runtime.ledger import Ledger
from actors.runtime.lifecycle import drain_order
from actors.runtime.networks import with_whole_paths
from actors.runtime.processes import Process, Processes, plan_of, stop_in_order
from actors.runtime.reconcile import Plan
from actors.runtime.remote_changes import RemoteChanges
from agent_rl.config.addresses import CONTROL, actor_nodes, supervisor_node, wanted_nodes
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import PluginError
from agent_rl.config.processes import ActorEntry
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Topology
from agent_rl.files.disk import DiskError
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import (
    Changed,
    ChangesInForce,
    DrainWanted,
    ReplicasWanted,
    ScaleWanted,
    StopWanted,
    SwapWanted,
    TakeBackWanted,
)
from agent_rl.observe.logs import log_directory
from agent_rl.records.continuing import write_resolved

if TYPE_CHECKING:
    from actors.runtime.supervise import Supervisor
    from transport import AnnounceLink, Node

TRIAL_SECONDS = 600.0
"""For so long after a swap the former class comes back when a process of the role spends its restarts."""
UNREADABLE = (TopologyError, PluginError, ValidationError)
"""What is raised for a topology whose keys, classes or settings are wrong."""
CALLS = 4
"""Calls that a supervisor answers at once. Announcements are taken in one at a time beside them."""


class Changes:
    """The changes of the actors that one supervisor's process keeps."""

    def __init__(
        self,
        topology: Topology,
        path: Path,
        beside: Path,
        hosts: Sequence[str],
        kept: Processes,
        ledger: Ledger,
        *,
        again: str,
        reports: Supervisor,
        ending: trio.Event,
        leave: Callable[[int, str], None],
        numbered: Callable[[], None],
    ) -> None:
        """``path`` is the resolved topology, ``beside`` the file from whose folder relative paths start.

        ``leave`` ends this supervisor, by exit code and reason. ``numbered`` is called when other replicas are to run.
        """
        self.topology = with_whole_paths(topology, beside.parent)
        """The topology with the changes that were carried out."""
        self._path = path
        self._beside = beside
        self._host = hosts[0]
        self._hosts = tuple(hosts)
        self._is_main = topology.main_host in hosts
        self._main = supervisor_node(topology.main_host)
        self._others = RemoteChanges()
        self._processes = kept
        self._actors = kept.actors
        self._announced: AnnounceLink | None = None
        self._again = again
        self._reports = reports
        self._say = reports.say
        self._leave = leave
        self._numbered = numbered
        self._ledger = ledger
        self._ending = ending
        self._before: dict[str, tuple[float, ActorEntry]] = {}
        """When roles were swapped last, and what they were before; infinity while the swap is under way."""
        self._under_way: list[str] = []
        """The change that is carried out, and those that wait for their turn."""
        self._turn = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._janitor: Janitor | None = None

    def begin(self, nursery: trio.Nursery, janitor: Janitor) -> None:
        """Carry out changes in this nursery from now on."""
        self._nursery, self._janitor = nursery, janitor

    def link(self, node: Node) -> None:
        """Open the links to the other supervisors, from the main host's node; from others, the one to the main host."""
        if not self._is_main and node.name == supervisor_node(self._host):
            self._others.open(node, [self._main])
        if self._is_main and node.name == self._main:
            self._others.open(node, self._remote)
            if self._remote:
                self._announced = node.announce("changes", self._remote)
                self._tell()

    @property
    def _remote(self) -> list[str]:
        """The supervisors of the other processes."""
        return [supervisor_node(host) for host in self.topology.hosts_in_use if host not in self._hosts]

    def told(self, message: ChangesInForce) -> None:
        """The main host tells what is in force, also from before this host was started."""
        if not self._is_main:
            self._follow(message.numbers)
            for role, keys in message.swaps.items():
                if self._nursery is not None and role in self.topology.actors:
                    self._nursery.start_soon(self._take_up, role, keys)

    async def _take_up(self, role: str, keys: Sequence[str]) -> None:
        """Have the processes of a role swapped as on the main host, if they are not: this supervisor started since."""
        async with self._turn:
            if self._ending.is_set():
                return
            with suppress(*UNREADABLE):  # `_become` says it
                now, before = load_topology(self._path, keys).actors[role], self.topology.actors[role]
                if (now.class_path, now.settings) == (before.class_path, before.settings):
                    return
            wanted = SwapWanted(role, "", (), fresh=False, only_check=False)
            answer = await self._become(wanted, lambda: load_topology(self._path, keys), keys)
        for line in answer.refused:
            self._say(line)

    def _follow(self, numbers: Mapping[str, int]) -> None:
        """Roles have these numbers of processes from now on."""
        self.topology = self.topology.scaled({role: numbers[role] for role in numbers.keys() & self.topology.actors})
        self._ledger.follow(self.topology)
        self._numbered()
        self._processes.follow(self.topology)

    def _tell(self) -> None:
        """Tell all hosts what is in force, from the main host."""
        if self._announced is not None:
            self._announced.set(ChangesInForce(self._numbers, self._ledger.document.swaps))

    async def asked(self, sender: str, wanted: Wanted) -> Changed:
        """Carry out a change. Raises CallRefused for a sender that may not ask."""
        from transport import CallRefused

        not_here: tuple[type, ...] = (ReplicasWanted,) if self._is_main else (ScaleWanted, StopWanted)
        back = isinstance(wanted, TakeBackWanted)
        may_ask = [self._main] if not self._is_main else self._remote if back else [CONTROL]
        if sender not in may_ask or isinstance(wanted, not_here):
            raise CallRefused(f"{sender} may not change the run")
        if isinstance(wanted, StopWanted):  # waits for no actor and no other change, as Ctrl-C
            return self._answered(wanted, self._stop())
        if back:  # its role cannot be waited for
            return await self._in_turn(wanted)
        if not self._why_not(wanted, ()):
            await self._ledger.restarted(without=wanted.starts if isinstance(wanted, ReplicasWanted) else ())
        reason = self._why_not(wanted, self._ledger.starting)
        if reason or self._nursery is None:
            return self._answered(
                wanted, Changed((reason or "the run is starting; ask again when all actors run",), ())
            )
        return await self._in_turn(wanted)

    def _answered(self, wanted: Wanted, answer: Changed) -> Changed:
        self._ledger.answered(named(wanted), answer)
        return answer

    def _stop(self) -> Changed:
        if self._ending.is_set():
            return Changed((ENDING,), ())
        self._leave(0, f"stopping, as a command asks; continue with: {self._again}")
        return Changed((), (f"the run stops in order; continue with: {self._again}",))

    def _why_not(self, wanted: Wanted, starting: Iterable[str]) -> str:
        ending, busy = self._ending.is_set(), next(iter(self._under_way), "")
        left = self._ledger.absent | self._ledger.away
        return why_not(wanted, self.topology, [*starting], ending=ending, busy=busy, left=left)

    async def _in_turn(self, wanted: Wanted) -> Changed:
        """Carry out a change after those that are under way, also when who asked for it is gone."""
        assert self._nursery is not None
        self._under_way.append(named(wanted))
        answers: list[Changed] = []
        done = trio.Event()
        self._nursery.start_soon(self._carry_out, wanted, answers, done)
        await done.wait()
        return answers[0]

    async def _carry_out(self, wanted: Wanted, answers: list[Changed], done: trio.Event) -> None:
        try:
            async with self._turn:
                match wanted:
                    case SwapWanted():
                        answer = await self._swap(wanted)
                    case TakeBackWanted():
                        answer = await self._swap_back(wanted)
                    case DrainWanted():
                        answer = await self._drain(wanted)
                    case ScaleWanted():
                        answer = await self._scale(wanted)
                    case ReplicasWanted():
                        self._follow({wanted.role: wanted.number})  # the main host's announcement may come later
                        refused, done_here = await self._replicas_of_here(wanted.starts, wanted.stops)
                        answer = Changed(tuple(refused), tuple(done_here))
                answers.append(self._answered(wanted, answer))
        finally:
            self._under_way.remove(named(wanted))
            done.set()

    async def _drain(self, wanted: DrainWanted) -> Changed:
        host = wanted.host
        if self._is_main and self.topology.hosts[host].optional and not self._others.hears(host):
            self._ledger.drains(host)
            self._ledger.left(host)
            return Changed((), (f"host {host} is not heard: the run goes on without it, and it may come back",))
        if host not in self._hosts:
            refused, done = await self._ask_others(wanted, [host])
            if not refused:
                self._ledger.drains(host)
            return Changed(tuple(refused), tuple(done))
        if not self._is_main:
            self._leave(0, f"host {host} is drained")
            return Changed((), (f"host {host} leaves: its actors stop in order",))
        names = [*wanted_nodes(self.topology, host)]
        self._ledger.drains(host)
        self._say(f"host {host} leaves: its actors stop in order")
        actors = [self._actors[name] for name in names]
        await stop_in_order(drain_order(self.topology), actors)
        self._ledger.left(host)
        return Changed((), (f"host {host} has left: {', '.join(names)}",))

    async def _swap(self, wanted: SwapWanted) -> Changed:
        keys = changed_keys(wanted)
        refused = await self._dry_run(keys)
        if not refused:
            refused, _ = await self._ask_others(replace(wanted, only_check=True))
        if refused or wanted.only_check:
            return Changed(tuple(refused), ())
        return await self._become(wanted, lambda: load_topology(self._path, keys), keys)

    async def _swap_back(self, wanted: TakeBackWanted) -> Changed:
        """Swap a role for what it was before its last swap, if the swap is in force still."""
        role = wanted.role
        _, former = self._before.get(role, (0.0, None))
        if former is None or self._ending.is_set() or wanted != _take_back_of(role, self.topology.actors[role]):
            return Changed((), ())
        actors = {**self.topology.actors, role: former}
        answer = await self._become(wanted, lambda: self.topology.model_copy(update={"actors": actors}))
        del self._before[role]
        return answer

    async def _become(
        self, wanted: SwapWanted | TakeBackWanted, make: Callable[[], Topology], keys: Sequence[str] = ()
    ) -> Changed:
        """Replace the processes of a role by those of the topology that ``make`` makes, here and on the other hosts."""
        try:
            topology = self._with_numbers(make())
            plan = plan_of(wanted.role, topology)
        except UNREADABLE as error:  # the dry run read another version of the module
            remedy = "if its module has changed since the run began, give the class another module"
            return Changed((f"{wanted.role} cannot be swapped: {error}; {remedy}",), ())
        changes = differences(wanted.role, self.topology, topology) if self._is_main else []
        done, fault = await self._replace(wanted.role, topology, plan)
        if fault:
            return Changed((fault,), ())
        for line in changes:
            self._say(line)
        if isinstance(wanted, TakeBackWanted):
            self._ledger.taken_back(wanted.role, self.topology)
        else:
            self._ledger.changed(wanted.role, self.topology, keys)
        refused, done_there = await self._ask_others(wanted)
        self._tell()
        if refused:
            kept = f"{wanted.role} was swapped on {self._host}, and the hosts named keep the former one; swap it again"
            return Changed((*refused, kept), ())
        return Changed((), (*done, *done_there, *changes))

    @property
    def _numbers(self) -> dict[str, int]:
        """The numbers of processes of roles that do not run all of their replicas, or did not."""
        return {role: entry.start for role, entry in self.topology.actors.items() if entry.start is not None}

    def _with_numbers(self, topology: Topology) -> Topology:
        """A topology with the numbers of processes that are in force."""
        return topology.scaled(self._numbers)

    async def _scale(self, wanted: ScaleWanted) -> Changed:
        role, former = wanted.role, self.topology.wanted(wanted.role)
        now = self.topology.scaled({role: wanted.number}).wanted(role)
        starts = {f"{role}.{number}": host for number, host in now.items() if number not in former}
        stops = {f"{role}.{number}": former[number] for number in reversed(former) if number not in now}
        others = [host for host in self.topology.hosts_in_use if host not in self._hosts]
        away = {host for host in others if host in self._ledger.absent or not self._others.hears(host)}
        self._set_number(role, wanted.number)
        refused, done = await self._replicas_of_here(starts, stops)
        there = {host for host in (*starts.values(), *stops.values()) if host not in self._hosts} - away
        if not refused and there:
            asks = ReplicasWanted(role, wanted.number, (*starts,), (*stops,))
            refused, done_there = await self._ask_others(asks, there)
            done += done_there
        if refused and starts:
            self._set_number(role, len(former))
            return Changed((*refused, f"{role} keeps the processes that it had"), ())
        done += [f"{name} runs as soon as its host {host} does" for name, host in starts.items() if host in away]
        return Changed(tuple(refused), (*done, f"{role} has {processes(wanted.number)}"))

    def _set_number(self, role: str, number: int) -> None:
        """All hosts start or stop replicas of a role."""
        self._ledger.changed(role, self.topology.scaled({role: number}))
        self._follow({role: number})
        self._tell()

    async def _replicas_of_here(self, starts: Iterable[str], stops: Iterable[str]) -> tuple[list[str], list[str]]:
        """Wait for those of these replicas that are of the hosts of this process."""
        here = {node for host in self._hosts for node, _ in actor_nodes(self.topology, host)}
        starts, stops = ([name for name in names if name in here] for names in (starts, stops))
        return await self._processes.carry_out(starts, stops, self.topology)

    async def _dry_run(self, keys: Sequence[str]) -> list[str]:
        """Why a change is refused, as lines. Tried in a process of its own."""
        assert self._janitor is not None
        stderr = log_directory(self.topology.run.directory) / "dry_run.stderr"
        return await faults_of(self._path, self._beside, keys, stderr, self._janitor)

    async def _ask_others(self, wanted: Wanted, hosts: Collection[str] = ()) -> tuple[list[str], list[str]]:
        """Have the other supervisors check or carry out the change: all that are there, or those of ``hosts``."""
        if not self._is_main:
            return [], []
        asked = [host for host in self.topology.hosts_in_use if host not in (*self._hosts, *self._ledger.absent)]
        return await self._others.ask(wanted, [host for host in asked if not hosts or host in hosts])

    async def _replace(self, role: str, topology: Topology, plan: Plan) -> tuple[list[str], str]:
        """Replace the processes of a role one after the other; if one does not run, all are as before.

        Returns one line for each, and why the swap failed.
        """
        if fault := self._store(topology):
            return [], f"{role} was not swapped: {fault}"
        assert self._janitor is not None
        former = plan_of(role, self.topology)
        before = dict(self._before)
        self._before[role] = math.inf, self.topology.actors[role]
        swapped: list[Process] = []
        done = []
        for actor in [actor for actor in self._actors.values() if actor.role == role and not actor.ended.is_set()]:
            needed = None if actor.child is None else group_bytes(actor.child.pid)
            why = in_place(actor.life.plan.entry, plan.entry, needed, available_bytes())
            fault, seconds, died = await actor.replaced(plan, beside=not why)
            if fault:
                swapped += [actor] if died else []  # its next process read the file of the new ones
                self._say(f"{fault}; the former class and settings of {role} hold again")
                if fault_of_disk := self._store(self.topology):
                    self._say(f"processes of {role} that start later get the refused ones: {fault_of_disk}")
                for each in swapped:
                    await each.replaced(former, beside=False)
                self._before = before
                return [], f"{fault}; the former class and settings hold again"
            swapped.append(actor)
            way = f"in place: {why}" if why else "beside"
            done.append(f"{actor.name} is now {plan.entry.class_path}; it was away for {seconds:.1f} s ({way})")
            self._say(done[-1])
        self._before[role] = trio.current_time(), self.topology.actors[role]
        self.topology = self._with_numbers(topology)
        return done, ""

    def swapped_lately(self, role: str) -> bool:
        """Whether a role is swapped back where a process of it has spent its restarts: it was swapped just now."""
        since, _ = self._before.get(role, (-math.inf, None))
        return trio.current_time() - since < TRIAL_SECONDS and not self._ending.is_set()

    def take_back(self, actor: Process, why: str) -> None:
        """Swap the role of a process back that waits for it; the run fails where that does not come (``why``)."""
        if self._nursery is not None:
            wanted = _take_back_of(actor.role, actor.life.plan.entry)
            self._nursery.start_soon(self._take_back, actor, wanted, why)

    async def _take_back(self, actor: Process, wanted: TakeBackWanted, why: str) -> None:
        if self._is_main:
            refused = [*(await self._in_turn(wanted)).refused]
        else:
            refused, _ = await self._others.ask(wanted, [self.topology.main_host])
        if actor.life.state == "waiting" and not self._ending.is_set():
            self._reports.fail("\n  ".join([why, *refused]), 1)
        else:
            for line in refused:
                self._say(line)

    def _store(self, topology: Topology) -> str:
        """Write the topology for processes that start later. Returns why the disk did not take it."""
        try:
            write_resolved(topology, topology.run.directory, self._host, self._again)
        except DiskError as error:
            return str(error)
        return ""


def _take_back_of(role: str, entry: ActorEntry) -> TakeBackWanted:
    return TakeBackWanted(role, entry.class_path, json.dumps(entry.settings, sort_keys=True, default=str))


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
