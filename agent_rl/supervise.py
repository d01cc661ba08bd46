"""The supervisor of a host: starts its actors' processes, restarts the ones that die, and ends the run.

::

    starting --> running --(an actor says it is finished)--------------> draining --> exit 0
                    |-----(first SIGINT or SIGTERM)---------------------> draining --> exit 0
                    |-----(a restart budget is spent)-------------------> draining --> exit 1
                    |-----(an actor exits with USER_MISTAKE)------------> draining --> exit 2
                    `-----(second signal, also while draining)----------> all killed --> exit 130

Draining stops the roles one after the other, upstream first, each within a deadline. On several hosts, the learner's
host decides and tells the others (RunState); theirs tell it (as ActorStatus) when they had to give up.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from agent_rl import messages
from agent_rl.addresses import actor_nodes, addresses, runtime_directory, supervisor_node
from agent_rl.children import Child, start_child
from agent_rl.continuing import remember
from agent_rl.lifecycle import (
    RestartBudget,
    actor_environment,
    describe_exit,
    drain_order,
    drain_seconds,
    hosts_to_start,
)
from agent_rl.live import Display, LiveView, make_display
from agent_rl.logs import log_directory, open_log
from agent_rl.messages import ActorStatus, RunState
from agent_rl.run_directory import RunRefused, run_lock, socket_directory
from agent_rl.timeline import TimelineFile
from agent_rl.topology import ActorEntry, Topology

if TYPE_CHECKING:
    import structlog

    from transport import Delivery, Network, Node

USER_MISTAKE = 3
"""The exit status by which an actor says that starting it again would not help; its last line on stderr says why."""

KILLED = 130
"""The exit code after a second signal."""

REFRESH_SECONDS = 0.5
FAILED_DRAIN_SECONDS = 10.0
"""A run that has failed waits no longer than this for each role: what they wait for themselves may be gone."""
TELL_SECONDS = 10.0
"""How long the other hosts' supervisors are waited for when the run ends."""


async def run_topology(
    topology: Topology,
    path: Path,
    overrides: Sequence[str] = (),
    host: str | None = None,
    *,
    entry_module: str = "actors.run",
) -> int:
    """Run the actors of ``host``, or of all hosts when they are all this machine; return the exit code.

    ``entry_module`` is what an actor's process runs (``python -m``). Raises RunRefused when the run cannot start.
    """
    hosts = hosts_to_start(topology, host)
    directory = topology.run.directory
    runtime = runtime_directory(topology)
    table = addresses(topology, runtime)
    actors = [node for name in hosts for node, _ in actor_nodes(topology, name)]
    sockets = [table[node] for node in (*actors, *map(supervisor_node, hosts))]
    with ExitStack() as stack:
        stack.enter_context(run_lock(directory, hosts))
        remember(topology, directory)
        stack.enter_context(socket_directory(runtime, sockets))
        log = stack.enter_context(open_log(directory, supervisor_node(hosts[0])))
        stages = [stage.name for stage in topology.stages]
        timeline = TimelineFile(directory, trio.current_time(), time.time)
        view = LiveView(topology.run.name, actors, stages, trio.current_time())
        display = stack.enter_context(make_display(view, sys.stdout))
        supervisor = Supervisor(
            topology,
            path,
            overrides,
            hosts,
            view=view,
            timeline=timeline,
            display=display,
            log=log,
            entry_module=entry_module,
        )
        return await supervisor.run(_network(topology, path, table))


@dataclass
class _Actor:
    name: str
    role: str
    entry: ActorEntry
    environment: dict[str, str]
    drain_seconds: float
    budget: RestartBudget
    incarnation: int
    child: Child | None = None
    stopping: bool = False
    ended: trio.Event = field(default_factory=trio.Event)
    failure: str = ""
    """What it last said of its own failure."""


class Supervisor:
    """Start, watch, restart and stop the actors of ``hosts``; the file's header draws how a run ends."""

    def __init__(
        self,
        topology: Topology,
        path: Path,
        overrides: Sequence[str],
        hosts: Sequence[str],
        *,
        view: LiveView,
        timeline: TimelineFile,
        display: Display,
        log: structlog.typing.FilteringBoundLogger,
        entry_module: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._topology = topology
        self._path = path
        self._overrides = tuple(overrides)
        self._hosts = tuple(hosts)
        self._view = view
        self._timeline = timeline
        self._display = display
        self._log = log
        self._entry_module = entry_module
        self._started_at = wall()
        self._ending = trio.Event()
        self._exit_code = 0
        self._reason = ""
        self._signals = 0
        self._is_main = topology.main_host in hosts
        self._remote = [supervisor_node(name) for name in topology.hosts_in_use if name not in hosts]
        self._remote_ended: dict[str, trio.Event] = {name: trio.Event() for name in self._remote}
        self._tell: list[Callable[[object], None]] = []
        """Announces to the supervisors of other hosts."""
        self._lifeline = -1
        self._actors = [self._make(node, role) for name in hosts for node, role in actor_nodes(topology, name)]

    async def run(self, network: Network) -> int:
        """Run to the end, heard and spoken to over ``network``; return the exit code."""
        self._lifeline, held = os.pipe()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._obey_signals)
                await self._open_nodes(nursery, network)
                nursery.start_soon(self._show)
                for actor in self._actors:
                    nursery.start_soon(self._keep, actor)
                await self._ending.wait()
                await self._drain()
                await self._await_remote()
                if self._signals and not self._exit_code:
                    self._say(f"stopped; continue with: {self._command()}")
                nursery.cancel_scope.cancel()
        finally:
            for actor in self._actors:
                if actor.child is not None and not actor.child.ended:
                    actor.child.reap()
            os.close(held)
            os.close(self._lifeline)
        return self._exit_code

    # How the run is watched.

    async def _open_nodes(self, nursery: trio.Nursery, network: Network) -> None:
        """Listen as the supervisor of every host started here."""
        from transport import Node, Registry

        registry = Registry.of(messages)
        for host in self._hosts:
            name = supervisor_node(host)
            node = Node(
                name,
                network,
                registry,
                incarnation=int(self._started_at),
                on_event=lambda event: self._log.warning("link", link_event=str(event)),
            )
            await nursery.start(partial(node.run, self._hear, concurrency=1))
            self._link(node)

    def _link(self, node: Node) -> None:
        """Announce to the supervisors of the other hosts: the main one to all, the others to the main one."""
        if not self._remote:
            return
        main = supervisor_node(self._topology.main_host)
        if not self._is_main:
            self._tell.append(node.announce("status", [main]).set)
        elif node.name == main:
            self._tell.append(node.announce("run", self._remote).set)

    async def _hear(self, delivery: Delivery) -> None:
        """Take in what actors and other supervisors announce."""
        message = delivery.message
        if isinstance(message, RunState):
            if message.ending:
                self._end(message.exit_code, "the learner's host ends the run")
        elif isinstance(message, ActorStatus):
            if _is_supervisor(message.actor):
                self._hear_supervisor(message)
            else:
                self._hear_actor(message)

    def _hear_actor(self, status: ActorStatus) -> None:
        self._view.observe(status, trio.current_time())
        self._timeline.observe(status, trio.current_time())
        if status.state == "failed":
            self._log.warning("failed", actor=status.actor, reason=status.detail)
            for actor in self._actors:
                if actor.name == status.actor:
                    actor.failure = status.detail
        elif status.state == "finished":
            self._end(0, f"{status.actor} has finished")

    def _hear_supervisor(self, status: ActorStatus) -> None:
        if status.state == "failed" and self._is_main:
            self._end(1, f"{status.actor}: {status.detail}")
        if status.state in {"failed", "finished"} and status.actor in self._remote_ended:
            self._remote_ended[status.actor].set()

    async def _show(self) -> None:
        while True:
            self._display.refresh(trio.current_time())
            await trio.sleep(REFRESH_SECONDS)  # how often people want to see figures; nothing is waited for

    async def _obey_signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            await self._obey(received)

    async def _obey(self, received: AsyncIterator[int]) -> None:
        async for number in received:
            self._signals += 1
            if self._signals == 1:
                self._say(f"{signal.Signals(number).name}: stopping; once more kills all actors")
                self._end(0, "")
            else:
                self._exit_code = KILLED
                self._say("killing all actors")
                for actor in self._actors:
                    actor.stopping = True
                    if actor.child is not None:
                        actor.child.kill()

    # How actors live.

    def _make(self, name: str, role: str) -> _Actor:
        entry = self._topology.actors[role]
        return _Actor(
            name=name,
            role=role,
            entry=entry,
            environment=actor_environment(entry),
            drain_seconds=drain_seconds(role, entry),
            budget=RestartBudget(entry.restarts, entry.restart_window_seconds),
            # Counted from the time of day: higher also than in a supervisor this one replaces while others live on.
            incarnation=int(self._started_at),
        )

    async def _keep(self, actor: _Actor) -> None:
        """Start the actor, and start it again when it dies, until the run ends or its budget is spent."""
        self._view.process(actor.name, "starting")
        while not actor.stopping:
            child = self._start(actor)
            status = await child.wait()
            self._log.info("ended", actor=actor.name, pid=child.pid, status=status, stopping=actor.stopping)
            if actor.stopping:
                if status not in {0, -signal.SIGTERM, -signal.SIGKILL}:
                    self._say(
                        "\n  ".join([f"{actor.name} {describe_exit(status)} while stopping", *child.last_words()])
                    )
                break
            ended = f"{actor.name} {describe_exit(status)}"
            last_words = child.last_words()
            if status == USER_MISTAKE:
                self._fail(f"{actor.name}: {last_words[-1] if last_words else 'cannot run as it is configured'}", 2)
                break
            if not actor.budget.spend(trio.current_time()):
                budget = f"{actor.entry.restarts} restarts in {actor.entry.restart_window_seconds:g} s are spent"
                said = [f"it said: {actor.failure}"] if actor.failure else []
                log = f"more in {child.stderr}"
                self._fail("\n  ".join([f"{ended}, and its {budget}", *said, *last_words, log]), 1)
                break
            actor.incarnation += 1
            reason = actor.failure or (last_words[-1] if last_words else "")
            self._say(f"{ended}; starting it again" + (f" ({reason})" if reason else ""))
            self._view.process(actor.name, "restarting")
        self._view.process(actor.name, "stopped")
        actor.ended.set()

    def _start(self, actor: _Actor) -> Child:
        actor.failure = ""
        arguments = ["--topology", str(self._path), "--actor", actor.name]
        arguments += ["--incarnation", str(actor.incarnation), "--started-at", repr(self._started_at)]
        for override in self._overrides:
            arguments += ["--set", override]
        actor.child = start_child(
            self._entry_module,
            arguments,
            lifeline=self._lifeline,
            environment=actor.environment,
            stderr=log_directory(self._topology.run.directory) / f"{actor.name}.stderr",
        )
        self._log.info("started", actor=actor.name, pid=actor.child.pid, incarnation=actor.incarnation)
        return actor.child

    # How the run ends.

    def _end(self, exit_code: int, reason: str) -> None:
        """Begin to end the run; what comes after the first reason changes nothing."""
        if self._ending.is_set():
            return
        self._exit_code, self._reason = exit_code, reason
        if reason:
            self._say(reason)
        if self._is_main:
            self._announce(RunState(ending=True, exit_code=exit_code))
        else:
            self._announce_self("failed" if exit_code else "stopping")
        self._ending.set()

    def _fail(self, reason: str, exit_code: int) -> None:
        self._log.error("run stopped", reason=reason)
        self._end(exit_code, f"stopping the run: {reason}")

    async def _drain(self) -> None:
        """Stop the roles one after the other, in the order messages flow."""
        for role in drain_order(self._topology):
            members = [actor for actor in self._actors if actor.role == role and not actor.ended.is_set()]
            if not members:
                continue
            for actor in members:
                actor.stopping = True
                self._view.process(actor.name, "stopping")
                if actor.child is not None:
                    actor.child.terminate()
            seconds = max(actor.drain_seconds for actor in members)
            with trio.move_on_after(min(seconds, FAILED_DRAIN_SECONDS) if self._exit_code else seconds) as deadline:
                for actor in members:
                    await actor.ended.wait()
            if deadline.cancelled_caught:
                for actor in members:
                    if not actor.ended.is_set() and actor.child is not None:
                        self._say(f"{actor.name} did not stop in time and is killed")
                        actor.child.kill()
                for actor in members:
                    await actor.ended.wait()

    async def _await_remote(self) -> None:
        """The other hosts must have heard that the run ends before this supervisor falls silent."""
        if not self._is_main:
            self._announce_self("failed" if self._exit_code else "finished")
        with trio.move_on_after(TELL_SECONDS if self._exit_code != KILLED else 0):
            for ended in self._remote_ended.values() if self._is_main else ():
                await ended.wait()
        silent = [name for name, ended in self._remote_ended.items() if self._is_main and not ended.is_set()]
        if silent:
            self._say(f"not heard that {', '.join(silent)} stopped; look at these hosts")

    def _announce(self, message: object) -> None:
        for tell in self._tell:
            tell(message)

    def _announce_self(self, state: str) -> None:
        name = supervisor_node(self._hosts[0])
        self._announce(ActorStatus(name, "supervisor", state, self._reason, {}, "", 0.0, time.process_time()))

    def _command(self) -> str:
        """What starts this run again."""
        overrides = [part for override in self._overrides for part in ("--set", override)]
        host = ["--host", self._hosts[0]] if self._remote else []
        return shlex.join(["agent-rl", "run", str(self._path), *overrides, *host])

    def _say(self, text: str) -> None:
        self._log.info("notice", text=text)
        self._display.notice(text)


def _network(topology: Topology, path: Path, table: dict[str, str]) -> Network:
    from transport import CurveKeys, ZmqNetwork

    key_file = topology.security.key_file
    curve = None
    if key_file is not None and len(topology.hosts_in_use) > 1:
        try:
            curve = CurveKeys.load(path.parent / key_file.expanduser())
        except (OSError, ValueError) as error:
            raise RunRefused(f"security.key_file: {error}") from error
    return ZmqNetwork(table, curve=curve)


def _is_supervisor(node: str) -> bool:
    return node.startswith("supervisor.")
