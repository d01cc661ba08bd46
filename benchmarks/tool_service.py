"""Tool calls over links: an executor actor, and a client that asks it, in a process of their own.

::

    client --> link over a Unix socket --> ToolExecutor with shipped settings --> its sandbox

The process runs this file. Its parent writes one JSON object a line to its standard input, and reads one a line of its
standard output.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from actors.tool_executor import ToolExecutor
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, addresses
from agent_rl.config.load import load_topology
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.messages import Problem, ToolCall, ToolResult
from agent_rl_contract.stage import SUPERVISOR, Peer, Stage, running
from benchmarks.command import Failure
from benchmarks.tool_processes import children_of, used_by
from transport import Limits, Registry, ZmqNetwork, keep_freed_memory

EXECUTOR = "tool_executor.0"
TOPOLOGY = """
[run]
name = "tools"
directory = "{directory}/run"
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
"""
LIMITS = Limits(silent_after=60.0, lost_after=600.0)
"""Machines that run this benchmark are busy."""
ANSWER_SECONDS = 1800.0
ENDING_SECONDS = 20.0


class ServiceFailed(Failure):
    """The executor or the client has ended."""


class Answered(NamedTuple):
    """Seconds of wall time for all calls of an order, and processor seconds of client and executor."""

    seconds: float
    cpu: float


# The parent's side ---------------------------------------------------------------------------------------------------


class Service:
    """The process with executor and client."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.tool_service"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    async def ask(self, codes: Sequence[str], callers: int) -> Answered:
        """Run all, each of the callers asking again as soon as it has its answer. Raises ServiceFailed."""
        order, answer = json.dumps({"codes": codes, "callers": callers}), ""
        with trio.move_on_after(ANSWER_SECONDS):
            answer = await trio.to_thread.run_sync(self._exchange, order, abandon_on_cancel=True)
        if not answer:
            raise ServiceFailed("the tool executor has ended, or did not answer in time; its error stands above")
        return Answered(**json.loads(answer))

    def _exchange(self, order: str) -> str:
        self._stdin.write(order + "\n")
        self._stdin.flush()
        return self._stdout.readline()

    def used(self) -> tuple[float, ...]:
        """Processor seconds of the executor's interpreters and of the children."""
        return tuple(sum(part) for part in zip(*map(used_by, children_of(self._process.pid)), strict=True))

    def end(self) -> None:
        """End the process."""
        self._stdin.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()


# The process ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def executor(folder: Path) -> AsyncIterator[Peer]:
    """A tool executor that has started, and the generator's stand-in that can ask it."""
    path = folder / "topology.toml"
    path.write_text(TOPOLOGY.format(directory=folder))
    topology = load_topology(path)
    network, registry = ZmqNetwork(addresses(topology, folder)), Registry.of(messages)
    names = [SUPERVISOR, *(name for name, _ in actor_nodes(topology) if name != EXECUTOR)]
    stage = Stage(network, registry, {name: Peer(name, network, registry, 1, LIMITS) for name in names})
    async with trio.open_nursery() as nursery:
        for peer in stage.peers.values():
            await nursery.start(peer.run)
        async with running(ToolExecutor, topology, "tool_executor", folder, stage, limits=LIMITS):
            await stage.started(EXECUTOR)
            yield stage["rollout_generator"]
        nursery.cancel_scope.cancel()


async def ask_all(client: Peer, codes: Sequence[str], callers: int) -> None:
    """Run all codes with so many callers. Raises ServiceFailed when a snippet ends as none should."""
    rest = iter(enumerate(codes))
    problem = Problem("0", "", environment="maths")
    link = client.call("tools", EXECUTOR, timeout=ANSWER_SECONDS)

    async def caller() -> None:
        for at, code in rest:
            request = ToolCall(f"r{at}/1", f"r{at}", PYTHON_TOOL, {"code": code}, problem, 0)
            result: ToolResult = await link(request)
            if result.outcome not in {"success", "error"}:
                raise ServiceFailed(f"a snippet ended as {result.outcome}: {result.stderr}")

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)


async def serve() -> None:
    """Do as standard input says until it ends."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        async with executor(Path(folder)) as client:
            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                began, used = time.monotonic(), time.process_time()
                await ask_all(client, **json.loads(line))
                seconds, used = time.monotonic() - began, time.process_time() - used
                print(json.dumps({"seconds": seconds, "cpu": used}), flush=True)


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    keep_freed_memory()  # as actors do
    trio.run(serve)
