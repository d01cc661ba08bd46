"""Changes of a run under way: who may ask for one, when it is refused, and how the supervisors carry it out.

::

    agent-rl swap --SwapWanted--> supervisor of the main host --(refused: nothing stops)------------------> Changed
        every supervisor: trial of the new class and settings --(a fault: nothing stops)------------------> Changed
        every supervisor: each process of the role is replaced --(one does not run: the former come back)--> Changed
                          `--> the resolved topology file, for processes that start later

    agent-rl drain --DrainWanted--> supervisor of the main host --(refused: nothing stops)---------------> Changed
        the supervisor of the host: its actors stop in order, and it ends if it has no other host

The command that asks is the node `CONTROL`. Over Unix sockets only the run's user reaches the supervisor, and over TCP
only who has the run's key, as a host has. The main host's supervisor alone knows `CONTROL`; the other supervisors obey
the main host's alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from pydantic import ValidationError

from actors.runtime.actor_process import USER_MISTAKE, ActorProcess, Plan, Reports, stop_in_order
from actors.runtime.children import start_child
from actors.runtime.lifecycle import describe_exit, drain_order
from agent_rl.config.addresses import CONTROL, actor_nodes, supervisor_node
from agent_rl.config.joining import joined_hosts, may_have_more, with_joined
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import PluginError
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Topology
from agent_rl.files.disk import DiskError
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import ActorStatus, Changed, DrainWanted, SwapWanted
from agent_rl.observe.logs import log_directory
from agent_rl.records.continuing import write_resolved
from agent_rl.records.swaps import record_swap

if TYPE_CHECKING:
    from transport import CallLink, Node

CHANGE_SECONDS = 3600.0
"""How long a change may take: the former processes drain, and the new ones start, with their models."""
CALLS = 4
"""Calls that a supervisor answers at once. Announcements are taken in one at a time beside them."""
TRIAL = "actors.runtime.trial"
ENDING = "the run is ending; start it again, and then ask again"


def changed_keys(wanted: SwapWanted) -> list[str]:
    """The change as ``KEY=VALUE`` of the topology, as ``--set`` takes it."""
    entry = f"actors.{wanted.role}"
    keys = [f'{entry}.class="{wanted.class_path}"'] if wanted.class_path else []
    keys += [f"{entry}.settings={{}}"] if wanted.fresh else []
    return keys + [f"{entry}.settings.{setting}" for setting in wanted.settings]


def why_not(
    wanted: SwapWanted | DrainWanted,
    topology: Topology,
    starting: Sequence[str],
    *,
    ending: bool,
    busy: str,
    left: Collection[str] = (),
) -> str:
    """Why a change cannot begin now, and the remedy; empty: it can.

    ``starting`` are the actors that are not ready, ``busy`` is the change under way, ``left`` are hosts that left.
    """
    if ending:
        return ENDING
    about = _about_swap(wanted, topology) if isinstance(wanted, SwapWanted) else _about_drain(wanted, topology, left)
    if about:
        return about
    return _not_now(starting, busy)


def _not_now(starting: Sequence[str], busy: str) -> str:
    if starting:
        return f"{', '.join(starting)} has not started yet; ask again when all actors run"
    if busy:
        return f"another change is under way ({busy}); ask again when it is done"
    return ""


def _about_drain(wanted: DrainWanted, topology: Topology, left: Collection[str]) -> str:
    name = wanted.host
    if name not in topology.hosts_in_use:
        return f"the run has no host {name!r}; there are {', '.join(topology.hosts_in_use)}"
    if name in left:
        return f"host {name} has left already"
    if name == topology.main_host:
        return f"host {name} runs the learner and ends the run; stop the run instead (Ctrl-C)"
    for role in topology.actors:
        homes = set(topology.homes(role).values())
        if name in homes and not homes - {name, *left}:
            return f"no other host runs {role}, without which the run stands still; stop the run instead (Ctrl-C)"
    return ""


def _about_swap(wanted: SwapWanted, topology: Topology) -> str:
    if wanted.role not in topology.actors:
        known = ", ".join(topology.actors)
        role = wanted.role.rpartition(".")[0]
        whole = f"; a swap is of all replicas: name {role}" if role in topology.actors else ""
        return f"the run has no actor {wanted.role!r}; there are {known}{whole}"
    if not wanted.class_path and not wanted.settings and not wanted.fresh:
        return "nothing would change; name a class (--class module:Class) or a setting (--set key=value)"
    return ""


def _several_by_joining(topology: Topology, role: str) -> str:
    """Why the class of a role does not fit the hosts that joined; empty: it does. The trial knows the file alone."""
    hosts = [name for name, host in joined_hosts(topology).items() if role in host.joined]
    if not hosts or may_have_more(topology, role):
        return ""
    what = f"{topology.actors[role].class_path} keeps state of the whole run, so there is exactly one"
    return f"{what}, and {', '.join(hosts)} joined with {role}; drain what joined first"


def _link(supervisor: str) -> str:
    return f"changes of {supervisor}"


class Changes:
    """The changes of the actors that one supervisor's process keeps."""

    def __init__(
        self,
        topology: Topology,
        path: Path,
        beside: Path,
        hosts: Sequence[str],
        actors: Mapping[str, ActorProcess],
        *,
        again: str,
        reports: Reports,
        ending: trio.Event,
        leave: Callable[[int, str], None],
    ) -> None:
        """``path`` is the resolved topology, ``beside`` the file from whose folder relative paths start.

        ``leave`` ends this supervisor, by exit code and reason.
        """
        self.topology = topology
        """The topology with the changes that were carried out."""
        self._path = path
        self._beside = beside
        self._host = hosts[0]
        self._hosts = tuple(hosts)
        self._is_main = topology.main_host in hosts
        self._main = supervisor_node(topology.main_host)
        self._node: Node | None = None
        self._links: dict[str, CallLink] = {}
        """By supervisor. A supervisor that joined and left keeps a link, which leads nowhere until it joins again."""
        self._actors = actors
        self._again = again
        self._reports = reports
        self._say = reports.say
        self._leave = leave
        self._left: set[str] = set()
        """Hosts whose actors have stopped in order."""
        self._ending = ending
        self._starting = dict.fromkeys(self._watched)
        self._busy = ""
        self.keys: list[str] = []
        """The swaps that were carried out, as ``KEY=VALUE`` of the topology."""
        self._nursery: trio.Nursery | None = None
        self._janitor: Janitor | None = None

    def begin(self, nursery: trio.Nursery, janitor: Janitor) -> None:
        """Carry out changes in this nursery from now on."""
        self._nursery, self._janitor = nursery, janitor

    def link(self, node: Node) -> None:
        """Open the links to the other supervisors, from the main host's node."""
        if self._is_main and node.name == self._main:
            self._node = node
            self._lead_links()

    @property
    def _remote(self) -> list[str]:
        """The supervisors of the other processes."""
        return [supervisor_node(host) for host in self.topology.hosts_in_use if host not in self._hosts]

    @property
    def _watched(self) -> list[str]:
        """The actors whose starts count: those of all hosts at the main host, else those of this process."""
        hosts = self.topology.hosts_in_use if self._is_main else self._hosts
        return [name for host in hosts for name, _ in actor_nodes(self.topology, host)]

    def _lead_links(self) -> None:
        assert self._node is not None
        for name in self._remote:
            if name not in self._links:
                self._links[name] = self._node.call(
                    _link(name), [name], outstanding=1, timeout=CHANGE_SECONDS, reply=Changed
                )
        self._node.set_targets({_link(name): [name] if name in self._remote else [] for name in self._links})

    def follow(self, topology: Topology) -> None:
        """Hosts have joined or left."""
        before = self._watched
        self.topology = with_joined(self.topology, joined_hosts(topology))
        self._starting |= dict.fromkeys(name for name in self._watched if name not in before)
        for name in set(before) - set(self._watched):
            self._starting.pop(name, None)
        if self._node is not None:
            self._lead_links()

    def left(self, node: str) -> None:
        """A node has stopped in order: no change waits for the supervisor of another host that did."""
        if node in self._remote:
            self._left.add(node.removeprefix(supervisor_node("")))

    def back(self, node: str) -> None:
        """The supervisor of another host is heard."""
        self._left.discard(node.removeprefix(supervisor_node("")))

    def obstacle(self) -> str:
        """Why no host can join now, and the remedy; empty: one can. Other hosts may come up later."""
        if self._ending.is_set():
            return ENDING
        return _not_now([name for name in self._starting if name in self._actors], self._busy)

    def starts(self, actor: str) -> None:
        """A process of this actor starts."""
        self._starting[actor] = None

    def heard(self, status: ActorStatus) -> None:
        """Take in whether an actor is ready."""
        if status.state in {"starting", "failed"}:
            self._starting[status.actor] = None
        else:
            self._starting.pop(status.actor, None)

    async def asked(self, sender: str, wanted: SwapWanted | DrainWanted) -> Changed:
        """Carry out a change. Raises CallRefused for a sender that may not ask."""
        from transport import CallRefused

        if sender != (CONTROL if self._is_main else self._main):
            raise CallRefused(f"{sender} may not change the run")
        starting, ending = list(self._starting), self._ending.is_set()
        reason = why_not(wanted, self.topology, starting, ending=ending, busy=self._busy, left=self._left)
        if reason or self._nursery is None:
            return Changed((reason or "the run is starting; ask again when all actors run",), ())
        self._busy = f"swap of {wanted.role}" if isinstance(wanted, SwapWanted) else f"drain of {wanted.host}"
        answers: list[Changed] = []
        done = trio.Event()
        self._nursery.start_soon(self._carry_out, wanted, answers, done)  # goes on when the command that asks is gone
        await done.wait()
        return answers[0]

    async def _carry_out(self, wanted: SwapWanted | DrainWanted, answers: list[Changed], done: trio.Event) -> None:
        try:
            act = self._swap(wanted) if isinstance(wanted, SwapWanted) else self._drain(wanted)
            answers.append(await act)
        finally:
            self._busy = ""
            done.set()

    async def _drain(self, wanted: DrainWanted) -> Changed:
        host = wanted.host
        if host not in self._hosts:
            refused, done = await self._ask_others(wanted, [host])
            return Changed(tuple(refused), tuple(done))
        if not self._is_main:
            self._leave(0, f"host {host} is drained")
            return Changed((), (f"host {host} leaves: its actors stop in order",))
        names = [name for name, _ in actor_nodes(self.topology, host)]
        self._say(f"host {host} leaves: its actors stop in order")
        actors = [self._actors[name] for name in names]
        await stop_in_order(drain_order(self.topology), actors, self._reports, failed=False)
        self._left.add(host)
        return Changed((), (f"host {host} has left: {', '.join(names)}",))

    async def _swap(self, wanted: SwapWanted) -> Changed:
        keys = changed_keys(wanted)
        refused = await self._trial(keys)
        if not refused:
            refused, _ = await self._ask_others(replace(wanted, only_check=True))
        if refused or wanted.only_check:
            return Changed(tuple(refused), ())
        try:
            topology = with_joined(load_topology(self._path, keys), joined_hosts(self.topology))
            plan = Plan.of(wanted.role, topology)
        except (TopologyError, PluginError, ValidationError) as error:  # the trial read another version of the module
            remedy = "if its module has changed since the run began, give the class another module"
            return Changed((f"{wanted.role} cannot be swapped: {error}; {remedy}",), ())
        if joined := _several_by_joining(topology, wanted.role):
            return Changed((joined,), ())
        done, fault = await self._replace(wanted.role, topology, plan)
        if fault:
            return Changed((fault,), ())
        self.keys += keys
        refused, done_there = await self._ask_others(wanted)
        if refused:
            kept = f"{wanted.role} was swapped on {self._host}, and the hosts named keep the former one; swap it again"
            return Changed((*refused, kept), ())
        return Changed((), (*done, *done_there))

    async def _trial(self, keys: Sequence[str]) -> list[str]:
        """Why the new class and settings are refused, as lines. Tried in a process of its own."""
        assert self._janitor is not None
        arguments = ["--topology", str(self._path), "--beside", str(self._beside)]
        arguments += [f"--set={key}" for key in keys]
        stderr = log_directory(self.topology.run.directory) / "trial.stderr"
        child = start_child(TRIAL, arguments, environment=os.environ, stderr=stderr)
        self._janitor.started(child.pid)
        try:
            status = await child.wait()
        finally:
            if not child.ended:
                child.reap()
            self._janitor.ended(child.pid)
        if status == USER_MISTAKE:
            return child.message.splitlines() or ["the trial gave no reason"]
        if status:
            return [f"the trial {describe_exit(status)}", *child.last_words(), f"more in {stderr}"]
        return []

    async def _ask_others(
        self, wanted: SwapWanted | DrainWanted, hosts: Collection[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Have the other supervisors check or carry out the change, one after the other, until one refuses.

        ``hosts``: ask the supervisors of these alone. Returns the lines of the refusal, and what was done.
        """
        from transport import CallFailed, CallTimeout, PeerLost

        done: list[str] = []
        for name in list(self._links):
            host = name.removeprefix(supervisor_node(""))
            if name not in self._remote or host in self._left or (hosts and host not in hosts):
                continue
            if not self._links[name].reachable:  # the call would wait for it; a host that is lost later fails the call
                return [f"{name} is not heard; ask again when it is back, or start its host again"], done
            try:
                answer: Changed = await self._links[name](wanted)
            except (CallFailed, CallTimeout, PeerLost) as error:
                return [f"{name} did not answer: {error}"], done
            if answer.refused:
                return [f"{name}: {line}" for line in answer.refused], done
            done += answer.done
        return [], done

    async def _replace(self, role: str, topology: Topology, plan: Plan) -> tuple[list[str], str]:
        """Replace the processes of a role one after the other; if one does not run, all are as before.

        Returns one line for each, and why the swap failed.
        """
        if fault := self._store(topology):
            return [], f"{role} was not swapped: {fault}"
        former = Plan.of(role, self.topology)
        swapped: list[ActorProcess] = []
        done = []
        for actor in [actor for actor in self._actors.values() if actor.role == role and not actor.ended.is_set()]:
            began = trio.current_time()
            fault = await actor.replaced(plan)
            if fault:
                self._say(f"{fault}; the former class and settings of {role} hold again")
                if fault_of_disk := self._store(self.topology):
                    self._say(f"processes of {role} that start later get the refused ones: {fault_of_disk}")
                for each in swapped:
                    await each.replaced(former)
                return [], f"{fault}; the former class and settings hold again"
            swapped.append(actor)
            seconds = trio.current_time() - began
            done.append(f"{actor.name} is now {plan.entry.class_path}; it was away for {seconds:.1f} s")
            self._say(done[-1])
        self.topology = topology
        if self._is_main:
            try:
                record_swap(topology.run.directory, role, topology)
            except DiskError as error:
                self._say(f"the next start will not tell that {role} was swapped: {error}")
        return done, ""

    def _store(self, topology: Topology) -> str:
        """Write the topology for processes that start later. Returns why the disk did not take it."""
        try:
            write_resolved(topology, topology.run.directory, self._host, self._again)
        except DiskError as error:
            return str(error)
        return ""
