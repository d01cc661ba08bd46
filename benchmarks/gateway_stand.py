"""A gateway and a generator in processes of their own; all agents, and stand-ins for other actors, are in this one.

::

    scheduler, filter, tools, agents (this process) <--ZeroMQ--> generator <--ZeroMQ--> gateway
           agents <---- keys of rollouts, Unix sockets ----------'                         |
           agents <------------------------------- HTTP ----------------------------------'

A rollout whose problem is of the environment ``agents`` has no program: its key goes to an agent in this process, and
the rollout ends when the agent says so. All else of a generator is as in a run.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import structlog
import trio

from actors.gateway import Gateway
from actors.processor_time import seconds_of
from actors.rollout_generator import RolloutGenerator
from actors.runtime.process import freeze_heap
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, addresses
from agent_rl.config.load import load_topology
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.load import mixed_tasks
from agent_rl.messages import PolicyPublished, PolicyVersion, RolloutRequest, Sampling, ToolCall, ToolResult, Trajectory
from agent_rl.topology_checks.hosts import raise_descriptor_limit
from agent_rl_contract.scripted import ScriptedEngine
from agent_rl_contract.stage import SUPERVISOR, Peer, Stage, running
from benchmarks.command import Failure
from benchmarks.quickstart import EXAMPLE, TASK
from transport import Limits, Registry, ZmqNetwork, keep_freed_memory

AGENTS, LOOP = "agents", "arithmetic"
"""The two environments: rollouts by agents at the gateway, and by the agent loop. Their problems are the same."""
GENERATOR, GATEWAY = "rollout_generator.0", "gateway.0"
ENDS = "ends"
"""The socket by which a generator hears of the ends of rollouts."""
LIMITS = Limits(silent_after=60.0, lost_after=600.0)
"""Machines that run this benchmark are busy."""
LETTERS = 38.0
"""What a turn of the model has on average before its tool call of 10 tokens."""
STARTING_SECONDS, LAST_WORDS_SECONDS = 120.0, 5.0
TOOL_ANSWER = "3"
TEXT = b'"delta": {"content"'
"""What a stream has with its first text."""
Engine = Literal["model", "echo"]
_ECHO = re.compile(r"echo (\w+) (\d+)")


def echo(word: str, milliseconds: int = 0) -> str:
    """What makes the scripted engine answer with the word after some milliseconds. All else it answers with ``ok``."""
    return f"echo {word} {milliseconds}"


# The processes of the generator and the gateway ----------------------------------------------------------------------


class AgentsGenerator(RolloutGenerator):
    """The generator, with agents that are no programs."""

    async def start(self) -> None:
        """Listen to the agents."""
        await super().start()
        self._agents = Mail(self.context.directory / ENDS, self.context.directory / AGENTS)
        await self._agents.open()
        self._done: dict[str, trio.Event] = {}
        self.context.nursery.start_soon(self._read_ends)

    async def _read_ends(self) -> None:
        while True:
            self._done.pop(await self._agents.receive()).set()

    async def _run(self, running: Any, episode: Any, started: float) -> bool:
        name = episode.request.rollout
        if episode.request.problem.environment != AGENTS:
            return await super()._run(running, episode, started)
        written = partial(self._turn_written, episode, started)
        async with self._served_rollouts.serving(self._loop, episode, written) as (key, rollout):
            done = self._done[name] = trio.Event()
            await self._agents.send(f"{name} {key}")
            await done.wait()
        if rollout.failure is not None:
            raise rollout.failure
        episode.finish()
        return True


class EchoGenerator(AgentsGenerator):
    """With an engine without a model."""

    def _make_engine(self, directory: Path, settings: Any) -> Any:
        del settings

        def asked(request: Any) -> tuple[str, str]:
            engine.requests.clear()  # what the engine remembers would make the collector slower
            engine.written.clear()
            found = _ECHO.findall(engine.decode(list(request.tokens[-200:])))
            return found[-1] if found else ("ok", "0")

        engine = ScriptedEngine(
            directory,
            initial_policy=PolicyVersion(0, 0),
            script=lambda _, request: asked(request)[0],
            pace=lambda request: int(asked(request)[1]) / 1000,
            longest=100_000,
        )
        return engine


class Mail:
    """Short texts from one process to another, by any task. ``own`` and ``other`` are sockets."""

    def __init__(self, own: Path, other: Path) -> None:
        self._own, self._other = str(own), str(other)
        self._socket = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM)
        self._sending = trio.Lock()

    async def open(self) -> None:
        """From now on the other process may send."""
        await self._socket.bind(self._own)

    async def send(self, text: str) -> None:
        """Send a text."""
        async with self._sending:
            await self._socket.sendto(text.encode(), self._other)

    def close(self) -> None:
        """Neither send nor receive any more."""
        self._socket.close()

    async def receive(self) -> str:
        """The next text."""
        return (await self._socket.recv(1024)).decode()


def serve(engine: Engine, actor: str, folder: Path, overrides: Sequence[str]) -> None:
    """Be one of the two actors until this process is terminated."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    raise_descriptor_limit()
    keep_freed_memory()
    role = actor.partition(".")[0]
    cls = Gateway if actor == GATEWAY else {"model": AgentsGenerator, "echo": EchoGenerator}[engine]
    if engine == "model" and actor == GENERATOR:
        from benchmarks.rollout_models import quickstart_model, save_writer

        save_writer(folder / "model", quickstart_model(), thinking=LETTERS, calling=1.0)
    topology = load_topology(EXAMPLE, overrides)
    stage = Stage(ZmqNetwork(addresses(topology, folder)), Registry.of(messages), {})

    async def run() -> None:
        async with running(cls, topology, role, folder, stage, limits=LIMITS, on_start=freeze_heap):
            await trio.sleep_forever()

    trio.run(run)


# The process of the benchmark ----------------------------------------------------------------------------------------

Agent = Callable[[RolloutRequest, str], Awaitable[None]]
"""Writes a rollout whose key it gets."""


class Stand:
    """The agents' side."""

    def __init__(self, port: int, stage: Stage, processes: Mapping[str, trio.Process]) -> None:
        self._port = port
        self._opened: list[trio.SocketStream] = []
        self.pids = {**{name: process.pid for name, process in processes.items()}, AGENTS: os.getpid()}
        self._stage = stage
        self._kept: list[Connection] = []
        self._expected: dict[str, tuple[RolloutRequest, Agent]] = {}
        self._series = count(1)

    def cpu(self) -> dict[str, float]:
        """Processor seconds so far, by process."""
        return {name: seconds_of([pid]) for name, pid in self.pids.items()}

    def requests(self, sampling: Sampling, environment: str = AGENTS, seed: int = 0) -> Iterator[RolloutRequest]:
        """Rollouts without end, 16 a group. The same ``seed`` makes the same problems and samples."""
        entry = EnvironmentEntry.model_validate({**TASK, "name": environment})
        tasks, series = mixed_tasks([entry], seed=seed, base=Path()), next(self._series)
        for index in count():
            number, sample = divmod(index, 16)
            group, problem = f"s{series}-g{number:06d}", tasks.problem(0, number)
            name, own = f"{group}/{sample}/0", 100_000 * seed + index
            yield RolloutRequest(name, group, series, sample, 0, "train", problem, sampling, own)

    async def run(self, requests: Iterable[RolloutRequest], at_once: int, agent: Agent) -> list[Trajectory]:
        """Have the generator run these rollouts, so many at once."""
        places, left = trio.Semaphore(at_once), set()
        made: list[Trajectory] = []
        push = self._stage["kv_scheduler"].push("requests", GENERATOR, window=1024)
        for request in requests:
            await places.acquire()
            left.add(request.rollout)
            self._expected[request.rollout] = request, agent
            await push.send(request, on_ack=places.release)
        while left:
            trajectory: Trajectory = await self._stage["roc_filter"].next(Trajectory)
            if trajectory.rollout in left:  # else it is of an earlier run, which did not wait for it
                left.remove(trajectory.rollout)
                made.append(trajectory)
        for peer in self._stage.peers.values():
            peer.forget()
        return made

    def close(self) -> None:
        """Close the connections."""
        for stream in self._opened:
            stream.socket.close()

    async def meet(self, generator: Mail) -> None:
        """Start the agent of each rollout whose key comes."""

        async def work(name: str, key: str) -> None:
            request, agent = self._expected.pop(name)
            try:
                await agent(request, key)
            except Failure:
                await trio.sleep(LAST_WORDS_SECONDS)  # a process that has failed says why, and ends the benchmark
                raise
            await generator.send(name)

        async with trio.open_nursery() as nursery:
            while True:
                name, key = (await generator.receive()).split(" ")
                nursery.start_soon(work, name, key)

    async def connect(self) -> Connection:
        """A connection, which is closed with the stand. Raises Failure."""
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        except OSError as error:
            raise Failure(f"the gateway takes no connections: {error}") from error
        self._opened.append(stream)
        return Connection(stream)

    async def ask(self, data: bytes) -> Answer:
        """Send a request over a connection that is kept, or a new one, and wait for the answer."""
        connection = self._kept.pop() if self._kept else await self.connect()
        answer = await connection.ask(data)
        self._kept.append(connection)
        return answer


class Answer(NamedTuple):
    """An answer; ``first`` is the moment (`time.perf_counter`) at which a stream's first text came, or 0."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    first: float


class Left(Failure):
    """The gateway closed the connection before the answer was whole."""

    def __init__(self) -> None:
        super().__init__("the gateway closed a connection before the answer was whole")


class Connection:
    """A connection of an agent."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = bytearray()

    async def ask(self, data: bytes, *, ends: bool = False, bodiless: bool = False) -> Answer:
        """Send a request and wait for the answer. ``ends``: no more is sent; ``bodiless``: to HEAD. Raises Left."""
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)
            if ends:
                await self.stream.send_eof()
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next answer that is no "continue". Raises Left."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            await self._more()
        first, *rest = self._data[:end].decode("latin-1").split("\r\n")
        del self._data[: end + 4]
        if (status := int(first.split(" ")[1])) < 200:
            return await self.answer(bodiless=bodiless)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        chunked = headers.get("transfer-encoding") == "chunked"
        length = 0 if bodiless or chunked else int(headers["content-length"])
        first_at = 0.0
        while not self._data.endswith(b"0\r\n\r\n") if chunked else len(self._data) < length:
            await self._more()
            if not first_at and TEXT in self._data:
                first_at = time.perf_counter()
        body = _joined(bytes(self._data)) if chunked else bytes(self._data[:length])
        del self._data[: len(self._data) if chunked else length]
        return Answer(status, headers, body, first_at)

    async def _more(self) -> None:
        data = b""
        with suppress(trio.BrokenResourceError):
            data = await self.stream.receive_some(65536)
        if not data:
            raise Left
        self._data += data


def _joined(chunks: bytes) -> bytes:
    parts, at = [], 0
    while (end := chunks.index(b"\r\n", at)) and (length := int(chunks[at:end], 16)):
        parts.append(chunks[end + 2 : end + 2 + length])
        at = end + length + 4
    return b"".join(parts)


@asynccontextmanager
async def stand(engine: Engine, folder: Path) -> AsyncIterator[Stand]:
    """The actors in processes of their own, started, with their files in an empty folder. They end with the block."""
    raise_descriptor_limit()
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    of_the_loop, of_agents = (f'class = "{TASK["class"]}", name = "{name}"' for name in (LOOP, AGENTS))
    overrides = [f'run.directory = "{folder}"', f"actors.gateway.settings.port = {port}"]
    overrides += [f'environments = [{{{of_the_loop}}}, {{{of_agents}, harness = {{command = ["none"]}}}}]']
    overrides += [f'model = {{path = "{folder / "model"}"}}'] if engine == "model" else []
    topology = load_topology(EXAMPLE, overrides)
    network, registry = ZmqNetwork(addresses(topology, folder)), Registry.of(messages)
    names = [SUPERVISOR, *(name for name, _ in actor_nodes(topology) if name not in {GENERATOR, GATEWAY})]
    stage = Stage(network, registry, {name: Peer(name, network, registry, 1, LIMITS) for name in names})
    stage["tool_executor"].concurrency = 4096
    stage["tool_executor"].reply = lambda message: (
        ToolResult(message.call, "success", TOOL_ANSWER, "", "", 0.0, 0.0) if isinstance(message, ToolCall) else None
    )
    weights = (folder / "model/model.safetensors").as_uri() if engine == "model" else "file:///weights/1"
    mail = Mail(folder / AGENTS, folder / ENDS)
    await mail.open()
    async with trio.open_nursery() as nursery:
        for peer in stage.peers.values():
            await nursery.start(peer.run)
        stage["learner"].announce("policy", GENERATOR).set(PolicyPublished(PolicyVersion(1, 0), weights, 0, 0))
        command = [sys.executable, "-m", "benchmarks.command", "gateway", "--serve", engine]
        processes: dict[str, trio.Process] = {}
        for name in (GENERATOR, GATEWAY):
            processes[name] = await nursery.start(trio.run_process, [*command, name, str(folder), *overrides])
        with trio.fail_after(STARTING_SECONDS):
            for name in processes:
                await stage.started(name)
        made = Stand(port, stage, processes)
        nursery.start_soon(made.meet, mail)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            mail.close()
            made.close()
