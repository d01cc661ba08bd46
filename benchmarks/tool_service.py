"""Tool calls as a run makes them: clients and executor actors as processes, and links between them.

::

    Client (process) --> ToolCaller --> link over a Unix socket --> ToolExecutor (process) --> its sandbox

Executors are started as the supervisor starts them, with shipped settings, and send their status to this process.
Clients are ``tool_client.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import actor_environment
from actors.runtime.networks import run_network
from actors.runtime.roster import written
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory, supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.messages import ActorStatus
from agent_rl.records.incarnations import read_epoch
from agent_rl.records.run_directory import socket_directory
from benchmarks.command import Failure
from benchmarks.tool_processes import children_of, used_by
from transport import Delivery, LinkEvent, Node, PeerLeft, Registry
from transport.errors import log_event

EXECUTOR = "tool_executor"
TOPOLOGY = """
[run]
name = "tools"
directory = "{directory}/run"
metrics_port = 65535  # nobody listens there; with it executors report their metrics
[model.initialise]
hidden_size = 8
layers = 1
heads = 1
kv_heads = 1
head_dim = 8
mlp_size = 8
max_length = 64
[[environments]]
class = "arithmetic"
[[stages]]
kind = "rl"
name = "rl"
steps = 1
learning_rate = 1e-4
max_response_tokens = 8
max_turns = 1
[actors.rollout_generator]
replicas = {clients}
[actors.tool_executor]
replicas = {executors}
"""
INCARNATION = 1
STARTING_SECONDS = 120.0
ANSWER_SECONDS = 1800.0
ENDING_SECONDS = 20.0
PLACES = ("client", "link", "executor", "child")
"""Where a call spends its time: in the client's queue, on the link and back, in the executor's queue, in its child."""


class ServiceFailed(Failure):
    """An executor or a client did not start or has ended."""


@dataclass
class Call:
    """One call: the seconds it spent in each of `PLACES`, its outcome and its text."""

    seconds: tuple[float, float, float, float]
    outcome: str
    text: str

    @property
    def latency(self) -> float:
        """From when it was due to its answer."""
        return sum(self.seconds)


@dataclass
class Answered:
    """The calls of one order, in their order, its wall time, and the client's processor seconds."""

    calls: list[Call]
    seconds: float
    cpu: float


class Client:
    """A client process; see ``tool_client.py``."""

    def __init__(self, path: Path, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.tool_client", str(path), name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def ask(self, codes: Sequence[str], *, callers: int = 0, dues: Sequence[float] = ()) -> Answered:
        """Run all with so many callers, or each at its time. Raises ServiceFailed when the client has ended."""
        order = {"codes": codes, **({"dues": dues} if dues else {"callers": callers})}
        answer = ""
        with trio.move_on_after(ANSWER_SECONDS):
            answer = await trio.to_thread.run_sync(self._exchange, json.dumps(order), abandon_on_cancel=True)
        if not answer:
            raise ServiceFailed("a client has ended, or did not answer in time; its error stands above")
        read = json.loads(answer)
        calls = [Call(tuple(row[:4]), row[4], row[5]) for row in read["calls"]]
        return Answered(calls, read["seconds"], read["cpu"])

    def _exchange(self, order: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass
class Service:
    """Executors and clients that run."""

    executors: list[ActorChild] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    statuses: dict[str, ActorStatus] = field(default_factory=dict)
    """The latest of each executor."""
    heard: trio.Event = field(default_factory=trio.Event)

    async def hear(self, delivery: Delivery) -> None:
        """A status of an executor."""
        if isinstance(delivery.message, ActorStatus):
            self.statuses[delivery.message.actor] = delivery.message
            self.heard.set()
            self.heard = trio.Event()

    async def started(self) -> None:
        """Wait until all executors have started. Raises ServiceFailed."""
        with trio.move_on_after(STARTING_SECONDS):
            while sum(status.state == "running" for status in self.statuses.values()) < len(self.executors):
                await self.heard.wait()
            return
        words = [line for child in self.executors for line in child.last_words(3)]
        raise ServiceFailed("\n  ".join(["the tool executors did not start", *words]))

    async def run_by_executors(self, least: int) -> int:
        """Calls that the executors have run since they started: the status that says at least so many, or the next."""
        with trio.move_on_after(ENDING_SECONDS):
            while self._calls() < least:
                await self.heard.wait()
            for _ in range(2 * len(self.executors)):  # one that is run again would come after the last answer
                await self.heard.wait()
        return self._calls()

    def _calls(self) -> int:
        figures = [status.figures.executor for status in self.statuses.values()]
        retried = [
            each.values[0]
            for status in self.statuses.values()
            for each in status.metrics
            if each.name.endswith("tool_calls_retried_total")
        ]
        return sum(each.calls for each in figures if each is not None) + int(sum(retried))

    def used(self) -> tuple[float, ...]:
        """Processor seconds of the executors, their interpreters and the children; page faults of the last two."""
        interpreters = [pid for child in self.executors for pid in children_of(child.pid)]
        parts = [sum(part) for part in zip(*map(used_by, interpreters), strict=True)]
        return (sum(map(own_seconds, (child.pid for child in self.executors))), *parts)


def own_seconds(pid: int) -> float:
    """Processor seconds of a process, without those of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running_service(clients: int, executors: int) -> AsyncIterator[Service]:
    """Executors with shipped settings, and clients. None of their processes outlives the block."""
    service = Service()
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        path = Path(folder) / "topology.toml"
        path.write_text(TOPOLOGY.format(directory=folder, clients=clients, executors=executors))
        topology = load_topology(path)
        supervisor = supervisor_node(topology.main_host)
        network, registry = run_network(topology, path.parent), Registry.of(messages)
        node = Node(supervisor, network, registry, incarnation=INCARNATION, on_event=_report)
        names = [name for name, _ in actor_nodes(topology)]
        runtime = runtime_directory(topology)
        table = addresses(topology, runtime)
        with socket_directory(runtime, [table[name] for name in (supervisor, *names)]):
            async with trio.open_nursery() as nursery:
                await nursery.start(node.run, service.hear)
                try:
                    for name in names:
                        if name.startswith(f"{EXECUTOR}."):
                            service.executors.append(_executor(topology, path, name, [supervisor, *names]))
                    await service.started()
                    service.clients = [Client(path, name) for name in names if name.startswith("rollout_generator.")]
                    yield service
                finally:
                    for client in service.clients:
                        client.end()
                    for child in service.executors:
                        child.terminate()
                    with trio.CancelScope(deadline=trio.current_time() + ENDING_SECONDS, shield=True):
                        for child in service.executors:
                            await child.wait()
                    for child in service.executors:
                        if not child.ended:
                            child.reap()
                nursery.cancel_scope.cancel()


def _report(event: LinkEvent) -> None:
    if not isinstance(event, PeerLeft):  # executors leave at the end
        log_event(event)


def _executor(topology: Topology, path: Path, name: str, nodes: Sequence[str]) -> ActorChild:
    environment = actor_environment(topology.actors[EXECUTOR], topology.run.directory)
    arguments = ["--topology", str(path), "--base", str(path.parent), "--actor", name]
    arguments += ["--incarnation", str(INCARNATION), "--started-at", repr(time.time()), "--epoch", repr(read_epoch())]
    stderr = path.with_name(f"{name}.stderr")
    child = start_child("actors.runtime.process", arguments, environment=environment, stderr=stderr)
    child.tell(written(dict.fromkeys(nodes, INCARNATION)))
    return child
