"""A gateway and a generator in processes of their own, and in this process all agents and stand-ins for other actors.

::

    scheduler, filter, tools, agents (this process) <--ZeroMQ--> generator <--ZeroMQ--> gateway
           agents <---- keys of rollouts, a Unix socket ---------'                         |
           agents <------------------------------- HTTP ----------------------------------'

A rollout whose problem is of the environment ``agents`` has no program: its key goes to an agent in this process, and
the rollout ends when the agent says so. All else of a generator is as in a run.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import structlog
import trio

from actors.engines.base import TurnRequest, TurnResult
from actors.engines.scripted import LOGPROB, ScriptedEngine
from actors.gateway import Gateway
from actors.rollout_generator import RolloutGenerator
from actors.testing import SUPERVISOR, Peer, Stage, running
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, addresses
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.config.topology import EnvironmentEntry, Topology
from agent_rl.environments.load import Environments, mixed_tasks, sound_prompt
from agent_rl.messages import (
    ActorStatus,
    PolicyPublished,
    PolicyVersion,
    RolloutRequest,
    Sampling,
    ToolCall,
    ToolResult,
    Trajectory,
)
from agent_rl.topology_checks.hosts import raise_descriptor_limit
from benchmarks.command import Failure
from transport import Limits, Registry, ZmqNetwork, keep_freed_memory

AGENTS, LOOP = "agents", "arithmetic"
"""The two environments: rollouts by agents at the gateway, and by the agent loop. Their problems are the same."""
GATEWAY, GENERATOR = "gateway.0", "rollout_generator.0"
Engine = Literal["model", "echo"]
LIMITS = Limits(silent_after=60.0, lost_after=600.0)
"""Machines that run this benchmark are busy."""
LETTERS = 38.0
"""What a turn of the model has on average before its tool call of 10 tokens."""
STARTING_SECONDS = 120.0
LAST_WORDS_SECONDS = 5.0
"""What a process that fails has to say why; the benchmark ends then."""
TOOL_ANSWER = "3"
_ECHO = re.compile(r"echo (\w+) (\d+) (\d+)")


def echo(word: str, milliseconds: int = 0, each: int = 0) -> str:
    """What makes the engine answer with the word: its first token after some milliseconds, the others ``each``."""
    return f"echo {word} {milliseconds} {each}"


class EchoEngine(ScriptedEngine):
    """Answers the last `echo` in its tokens. Anything else is answered with ``ok`` at once."""

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write the word, token by token."""
        found = _ECHO.findall(self.decode(list(request.tokens[-200:])))
        word, first, each = found[-1] if found else ("ok", "0", "0")
        encoded = self._tokenizer.encode(word, add_special_tokens=False)
        tokens = np.array([*encoded, min(request.stop_tokens)][: request.max_tokens], dtype=np.int32)
        logprobs = np.full(len(tokens), LOGPROB, dtype=np.float32)
        policies = np.tile(np.array([[self.policy.epoch, self.policy.version]], dtype=np.int32), (len(tokens), 1))
        due = trio.current_time() + int(first) / 1000
        await trio.sleep_until(due)
        if int(each):
            for number in range(len(tokens)):
                await trio.sleep_until(due + number * int(each) / 1000)
                here = slice(number, number + 1)
                if request.wrote is not None:
                    request.wrote(tokens[here], logprobs[here], policies[here])
        finish: Literal["stop", "length"] = "stop" if len(tokens) > len(encoded) else "length"
        return TurnResult(tokens=tokens, logprobs=logprobs, policies=policies, finish=finish)


# The processes of the generator and the gateway ----------------------------------------------------------------------


class AgentsGenerator(RolloutGenerator):
    """The generator, with agents that are no programs."""

    async def start(self) -> None:
        """Connect to the agents."""
        await super().start()
        self._agents = Lines(await trio.open_unix_socket(str(self.context.directory / AGENTS)))
        self._done: dict[str, trio.Event] = {}
        self.context.nursery.start_soon(self._read_ends)

    async def _read_ends(self) -> None:
        async for line in self._agents:
            self._done.pop(line).set()

    async def _run(self, running: Any, episode: Any, started: float) -> None:
        environment = self._environments[episode.request.problem.environment]
        if environment.harness is None:
            await super()._run(running, episode, started)
            return
        written = partial(self._turn_written, episode, started)
        async with self._served_rollouts.serving(self._loop, episode, written) as (key, rollout):
            done = self._done[episode.request.rollout] = trio.Event()
            await self._agents.send(f"{episode.request.rollout} {key}")
            await done.wait()
        if rollout.failure is not None:
            raise rollout.failure
        episode.finish()


class EchoGenerator(AgentsGenerator):
    """With an engine without a model."""

    def _make_engine(self, directory: Path, settings: Any) -> Any:
        del settings
        return EchoEngine(directory, initial_policy=PolicyVersion(0, 0), script=lambda *_: "", longest=100_000)


class Lines:
    """Lines of text, sent by any task and read by one."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._sending = trio.Lock()

    async def send(self, line: str) -> None:
        """Send a line."""
        async with self._sending:
            await self._stream.send_all(f"{line}\n".encode())

    async def __aiter__(self) -> AsyncIterator[str]:
        left = ""
        async for data in self._stream:
            *whole, left = (left + data.decode()).split("\n")
            for line in whole:
                yield line


def serve(engine: Engine, role: str, folder: Path, overrides: Iterable[str]) -> None:
    """Be one of the two actors until this process is terminated."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    raise_descriptor_limit()
    keep_freed_memory()
    generator = {"model": AgentsGenerator, "echo": EchoGenerator}[engine]
    if engine == "model" and role == "rollout_generator":
        from benchmarks.rollout_models import quickstart_model, save_writer

        save_writer(folder / "model", quickstart_model(), thinking=LETTERS, calling=1.0)
    topology = load_topology(EXAMPLES / "quickstart.toml", overrides)
    stage = Stage(ZmqNetwork(addresses(topology, folder)), Registry.of(messages), {})

    async def run() -> None:
        cls = Gateway if role == "gateway" else generator
        async with running(cls, topology, role, folder, stage, limits=LIMITS):
            await trio.sleep_forever()

    trio.run(run)


# The process of the benchmark ----------------------------------------------------------------------------------------

Agent = Callable[[RolloutRequest, str], Awaitable[None]]
"""Writes a rollout whose key it gets."""


class Stand:
    """The agents' side."""

    def __init__(self, port: int, topology: Topology, stage: Stage, processes: Mapping[str, trio.Process]) -> None:
        self.port, self.stage = port, stage
        self.pids = {name: process.pid for name, process in processes.items()}
        self.gateway_figures: Mapping[str, float] = {}
        self._environments = Environments(topology, Path())
        self._idle: list[Connection] = []
        self._expected: dict[str, tuple[RolloutRequest, Agent]] = {}
        self._rounds = count(1)
        stage[SUPERVISOR].reply = self._heard

    def _heard(self, message: Any) -> None:
        if isinstance(message, ActorStatus) and message.actor == GATEWAY:
            self.gateway_figures = message.figures.extra

    def prompt(self, request: RolloutRequest) -> list[dict[str, Any]]:
        """The messages by which the agent loop puts the problem."""
        return [dict(each) for each in sound_prompt(self._environments[LOOP], request.problem)]

    def requests(self, sampling: Sampling, environment: str = AGENTS, number: int = 0) -> Iterator[RolloutRequest]:
        """Rollouts without end, 16 a group. Those of a ``number`` have the same problems and seeds."""
        entry = EnvironmentEntry.model_validate({"class": "arithmetic", "name": environment})
        tasks, own = mixed_tasks([entry], seed=number, base=Path()), next(self._rounds)
        for index in count():
            group, sample = divmod(index, 16)
            name, seed = f"s{own}-g{group:06d}", 100_000 * number + index
            problem = tasks.problem(0, group)
            yield RolloutRequest(f"{name}/{sample}/0", name, own, sample, 0, "train", problem, sampling, seed)

    async def run(self, requests: Iterable[RolloutRequest], at_once: int, agent: Agent) -> list[Trajectory]:
        """Have the generator run these rollouts, so many at once."""
        places, made = trio.Semaphore(at_once), []
        push = self.stage["kv_scheduler"].push("requests", GENERATOR, window=1024)
        asked = 0
        for request in requests:
            await places.acquire()
            self._expected[request.rollout] = request, agent
            await push.send(request, on_ack=places.release)
            asked += 1
        while len(made) < asked:
            made.append(await self.stage["roc_filter"].next(Trajectory))
        for peer in self.stage.peers.values():
            peer.forget()
        return made

    async def meet(self, generator: Lines) -> None:
        """Start the agent of each rollout whose key comes."""

        async def work(name: str, key: str) -> None:
            request, agent = self._expected.pop(name)
            await agent(request, key)
            await generator.send(name)

        async with trio.open_nursery() as nursery:
            async for line in generator:
                nursery.start_soon(work, *line.split(" "))

    async def ask(self, data: bytes) -> Answer:
        """Send a request over a connection that is kept, or a new one, and wait for the answer."""
        connection = self._idle.pop() if self._idle else await Connection.open(self.port)
        answer = await connection.ask(data)
        self._idle.append(connection)
        return answer


class Answer(NamedTuple):
    """An answer; ``first`` is the moment (`time.perf_counter`) at which its body began."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    first: float


class Left(Exception):  # noqa: N818 - no error here
    """The gateway closed the connection before the answer was whole."""


class Connection:
    """A connection of an agent."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = bytearray()

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to the gateway. Raises Failure."""
        try:
            return cls(await trio.open_tcp_stream("127.0.0.1", port))
        except OSError as error:
            await trio.sleep(LAST_WORDS_SECONDS)
            raise Failure(f"the gateway takes no connections: {error}") from error

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        """Send a request, and wait for the answer. Raises Left."""
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next answer; ``bodiless``: to HEAD. Raises Left."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            await self._more()
        first, *rest = self._data[:end].decode("latin-1").split("\r\n")
        del self._data[: end + 4]
        status = int(first.split(" ")[1])
        if status < 200:
            return await self.answer(bodiless=bodiless)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        if bodiless or status == 204:
            return Answer(status, headers, b"", time.perf_counter())
        if not self._data and headers.get("content-length") != "0":
            await self._more()
        began = time.perf_counter()
        if headers.get("transfer-encoding") == "chunked":
            while not self._data.endswith(b"0\r\n\r\n"):
                await self._more()
            body = _joined(bytes(self._data))
            self._data.clear()
        else:
            length = int(headers["content-length"])
            while len(self._data) < length:
                await self._more()
            body = bytes(self._data[:length])
            del self._data[:length]
        return Answer(status, headers, body, began)

    async def _more(self) -> None:
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
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
    environments = ", ".join(
        f'{{class = "arithmetic", name = "{name}"{more}}}'
        for name, more in ((LOOP, ""), (AGENTS, ', harness = {command = ["none"]}'))
    )
    model = [f'model = {{path = "{folder / "model"}"}}'] if engine == "model" else []
    overrides = [
        f'run.directory = "{folder}"',
        f"environments = [{environments}]",
        f"actors.gateway.settings.port = {port}",
        *model,
    ]
    topology = load_topology(EXAMPLES / "quickstart.toml", overrides)
    network, registry = ZmqNetwork(addresses(topology, folder)), Registry.of(messages)
    names = [name for name, _ in actor_nodes(topology) if name not in {GATEWAY, GENERATOR}]
    stage = Stage(network, registry, {name: Peer(name, network, registry, 1, LIMITS) for name in [*names, SUPERVISOR]})
    stage["tool_executor"].concurrency = 4096
    stage["tool_executor"].reply = lambda message: (
        ToolResult(message.call, "success", TOOL_ANSWER, "", "", 0.0, 0.0) if isinstance(message, ToolCall) else None
    )
    policy = (folder / "model/model.safetensors").as_uri() if engine == "model" else "file:///weights/1"
    met = trio.socket.socket(trio.socket.AF_UNIX)
    await met.bind(str(folder / AGENTS))
    met.listen()
    async with trio.open_nursery() as nursery:
        for peer in stage.peers.values():
            await nursery.start(peer.run)
        stage["learner"].announce("policy", GENERATOR).set(PolicyPublished(PolicyVersion(1, 0), policy, 0, 0))
        command = [sys.executable, "-m", "benchmarks.command", "gateway", "--serve", engine]
        processes = {}
        for name in (GENERATOR, GATEWAY):
            words = [*command, name.partition(".")[0], str(folder), *overrides]
            processes[name] = await nursery.start(partial(trio.run_process, words))
        with trio.fail_after(STARTING_SECONDS):
            waiting = set(processes)
            while waiting:
                status: ActorStatus = await stage[SUPERVISOR].next(ActorStatus)
                waiting -= {status.actor} if status.state == "running" else set()
            stream, _ = await met.accept()
        made = Stand(port, topology, stage, processes)
        nursery.start_soon(made.meet, Lines(trio.SocketStream(stream)))
        yield made
        nursery.cancel_scope.cancel()


def resident(pid: int) -> float:
    """MiB of memory that a process has."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else math.nan
