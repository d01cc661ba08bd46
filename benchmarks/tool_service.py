"""Tool calls as a run makes them: client processes, executor actors as processes, and links between them.

::

    Client (process) --> ToolCaller --> link over a Unix socket --> ToolExecutor (process) --> its sandbox

Executors are started as the supervisor starts them, with shipped settings, and send their status to this process.
A client process runs this file: it asks executors as a rollout generator does, with the generator's own `ToolCaller`
and link. Its parent writes one JSON object a line to its standard input, and reads one a line of its standard output.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import structlog
import trio

from actors.base import ActorContext
from actors.rollout_generator import RolloutGenerator
from actors.rollout_generator.tool_calls import ToolCaller
from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import actor_environment
from actors.runtime.links import make_links
from actors.runtime.networks import run_network
from actors.runtime.process import received
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory, supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.environments.load import Environments
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.messages import ActorStatus, Problem, RolloutRequest, Sampling, ToolCall, ToolResult
from agent_rl.messages.pipes import Expect
from agent_rl.records.run_directory import read_epoch, socket_directory
from agent_rl.rollout.episode import RolloutTally
from agent_rl.rollout.parsing import ParsedCall
from benchmarks.command import Failure
from benchmarks.tool_processes import children_of, used_by
from transport import Delivery, LinkEvent, Node, PeerLeft, Registry, keep_freed_memory
from transport.errors import log_event

GENERATOR, EXECUTOR = "rollout_generator", "tool_executor"
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
class = "maths"
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
SAMPLING = Sampling(temperature=1.0, max_response_tokens=1, max_turns=1)
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
    """One call: the seconds it spent in each of `PLACES`, its outcome, and the text that a model would read."""

    seconds: tuple[float, ...]
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


# The parent's side ---------------------------------------------------------------------------------------------------


class Client:
    """A client process."""

    def __init__(self, path: Path, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.tool_service", str(path), name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    async def ask(self, codes: Sequence[str], *, callers: int = 0, dues: Sequence[float] = ()) -> Answered:
        """Run all with so many callers, or each at its time. Raises ServiceFailed when the client has ended."""
        order = {"codes": codes, **({"dues": dues} if dues else {"callers": callers})}
        answer = ""
        with trio.move_on_after(ANSWER_SECONDS):
            answer = await trio.to_thread.run_sync(self._exchange, json.dumps(order), abandon_on_cancel=True)
        if not answer:
            raise ServiceFailed("a client has ended, or did not answer in time; its error stands above")
        read = json.loads(answer)
        return Answered([Call(tuple(row[:4]), row[4], row[5]) for row in read["calls"]], read["seconds"], read["cpu"])

    def _exchange(self, order: str) -> str:
        self._stdin.write(order + "\n")
        self._stdin.flush()
        return self._stdout.readline()

    def end(self) -> None:
        """End the process."""
        self._stdin.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()


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
        statuses = self.statuses.values()
        retried = [
            each.values[0]
            for status in statuses
            for each in status.metrics
            if each.name.endswith("tool_calls_retried_total")
        ]
        return sum(each.figures.executor.calls for each in statuses if each.figures.executor) + int(sum(retried))

    def used(self) -> tuple[float, ...]:
        """Processor seconds of the executors, their interpreters and the children."""
        interpreters = [pid for child in self.executors for pid in children_of(child.pid)]
        parts = [sum(part) for part in zip(*map(used_by, interpreters), strict=True)]
        return (sum(own_seconds(child.pid) for child in self.executors), *parts)


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
                    service.clients = [Client(path, name) for name in names if name.startswith(f"{GENERATOR}.")]
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
    child.tell(Expect(dict.fromkeys(nodes, INCARNATION)))
    return child


# The client's process ------------------------------------------------------------------------------------------------


class OnlyTools(RolloutGenerator):
    """The generator's link to executors, with its options, and no other link."""

    links: ClassVar = {"tools": RolloutGenerator.links["tools"]}


@dataclass
class TimedLink:
    """The link ``tools`` and, by call, when a call was given to it, when its reply came, and the reply."""

    link: Any
    calls: dict[str, tuple[float, float, ToolResult]] = field(default_factory=dict)

    async def __call__(self, request: ToolCall, *, timeout: float, key: str | None = None) -> ToolResult:
        """Call, and note the times."""
        begun = time.monotonic()
        result: ToolResult = await self.link(request, timeout=timeout, key=key)
        self.calls[request.call] = (begun, time.monotonic(), result)
        return result

    async def until_reachable(self) -> None:
        """Wait for an executor."""
        await self.link.until_reachable()


class Asking:
    """One generator's tool calls. A row a call: the seconds of `Call`, its outcome, its text."""

    def __init__(self, name: str, caller: ToolCaller, link: TimedLink, environment: str) -> None:
        self._name, self._caller, self._link = name, caller, link
        self._environment = environment
        self._rollouts = 0

    async def closed(self, codes: Sequence[str], callers: int) -> list[tuple[Any, ...]]:
        """Run all, each of the callers asking again as soon as it has its answer."""
        rows: list[tuple[Any, ...]] = [()] * len(codes)
        rest = iter(enumerate(codes))

        async def caller() -> None:
            for at, code in rest:
                rows[at] = await self._call(code, time.monotonic())

        async with trio.open_nursery() as nursery:
            for _ in range(min(callers, len(codes))):
                nursery.start_soon(caller)
        return rows

    async def open(self, codes: Sequence[str], dues: Sequence[float]) -> list[tuple[Any, ...]]:
        """Run each at its time, in seconds from now, whatever becomes of the others; its wait counts from that time."""
        rows: list[tuple[Any, ...]] = [()] * len(codes)

        async def call(at: int, due: float) -> None:
            rows[at] = await self._call(codes[at], due)

        async with trio.open_nursery() as nursery:
            start = time.monotonic()
            for at, due in enumerate(dues):
                await trio.sleep(max(0.0, start + due - time.monotonic()))
                nursery.start_soon(call, at, start + due)
        return rows

    async def _call(self, code: str, due: float) -> tuple[Any, ...]:
        self._rollouts += 1
        rollout = f"{self._name}/{self._rollouts}"
        problem = Problem("0", "", environment=self._environment)
        request = RolloutRequest(rollout, rollout, 0, 0, 0, "train", problem, SAMPLING, 0)
        response = await self._caller.call(request, "1", ParsedCall(PYTHON_TOOL, {"code": code}), {})
        begun, ended, result = self._link.calls.pop(f"{rollout}/1")
        over_link = ended - begun - result.queue_seconds - result.run_seconds
        return begun - due, over_link, result.queue_seconds, result.run_seconds, result.outcome, response.text


async def serve(path: Path, name: str) -> None:
    """Do as standard input says until it ends."""
    topology = load_topology(path)
    settings = RolloutGenerator.Settings.model_validate(topology.actors[GENERATOR].settings)
    node = Node(name, run_network(topology, path.parent), Registry.of(messages), incarnation=INCARNATION)
    link = TimedLink(make_links(node, topology, GENERATOR, OnlyTools, settings)["tools"])
    async with trio.open_nursery() as nursery:
        context = ActorContext(
            name=name,
            role=GENERATOR,
            replica=int(name.rpartition(".")[2]),
            incarnation=INCARNATION,
            topology=topology,
            settings=settings,
            directory=path.parent,
            base=path.parent,
            node=node,
            nursery=nursery,
            rng=random.Random(name),
            log=structlog.get_logger(),
            links={"tools": link},
            open_journal=_no_journal,
            started_at=time.time(),
        )
        toolboxes = Environments(topology, path.parent).toolboxes
        asking = Asking(name, ToolCaller(context, RolloutTally(), toolboxes), link, next(iter(toolboxes)))
        await nursery.start(
            partial(node.run, _ignore, concurrency=RolloutGenerator.concurrency, receives=received(RolloutGenerator))
        )
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            began, used = time.monotonic(), time.process_time()
            if "dues" in order:
                rows = await asking.open(order["codes"], order["dues"])
            else:
                rows = await asking.closed(order["codes"], order["callers"])
            seconds, used = time.monotonic() - began, time.process_time() - used
            print(json.dumps({"calls": rows, "seconds": seconds, "cpu": used}), flush=True)
        nursery.cancel_scope.cancel()


async def _ignore(_delivery: Delivery) -> None:
    """Nothing is sent to a client."""


def _no_journal() -> Any:
    raise AssertionError("a client keeps no journal")


if __name__ == "__main__":
    keep_freed_memory()  # as actors do
    trio.run(serve, Path(sys.argv[1]), sys.argv[2])
