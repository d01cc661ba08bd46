"""A process that asks executors over links as a rollout generator does: the generator's own `ToolCaller` and link.

Its parent (``tool_service.py``) writes one JSON object a line to its standard input, and reads one a line of its
standard output. A call is reported as [seconds before it had a place at the client, over the link and back, in the
executor's queue, in the child, the outcome, the text that a model would read].
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import structlog
import trio

from actors.base import ActorContext
from actors.rollout_generator import RolloutGenerator
from actors.rollout_generator.tool_calls import ToolCaller
from actors.runtime.links import make_links
from actors.runtime.networks import run_network
from actors.runtime.process import received
from agent_rl import messages
from agent_rl.config.load import load_topology
from agent_rl.environments.load import Environments
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.messages import Problem, RolloutRequest, Sampling, ToolCall, ToolResult
from agent_rl.rollout.episode import RolloutTally
from agent_rl.rollout.parsing import ParsedCall
from transport import Delivery, Node, Registry, keep_freed_memory

ROLE = "rollout_generator"
SAMPLING = Sampling(temperature=1.0, max_response_tokens=1, max_turns=1)


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


class Client:
    """One generator's tool calls."""

    def __init__(self, name: str, caller: ToolCaller, link: TimedLink, environment: str) -> None:
        self._name, self._caller, self._link = name, caller, link
        self._environment = environment
        self._rollouts = 0

    async def ask(self, codes: Sequence[str], callers: int) -> list[tuple[Any, ...]]:
        """Run all, each of the callers asking again as soon as it has its answer; a row a call."""
        rows: list[tuple[Any, ...]] = [()] * len(codes)
        rest = iter(enumerate(codes))

        async def caller() -> None:
            for at, code in rest:
                rows[at] = await self._call(code, time.monotonic())

        async with trio.open_nursery() as nursery:
            for _ in range(min(callers, len(codes))):
                nursery.start_soon(caller)
        return rows

    async def ask_at(self, codes: Sequence[str], dues: Sequence[float]) -> list[tuple[Any, ...]]:
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
    settings = RolloutGenerator.Settings.model_validate(topology.actors[ROLE].settings)
    node = Node(name, run_network(topology, path.parent), Registry.of(messages), incarnation=1)
    link = TimedLink(make_links(node, topology, ROLE, OnlyTools, settings)["tools"])
    async with trio.open_nursery() as nursery:
        context = ActorContext(
            name=name,
            role=ROLE,
            replica=int(name.rpartition(".")[2]),
            incarnation=1,
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
        client = Client(name, ToolCaller(context, RolloutTally(), toolboxes), link, next(iter(toolboxes)))
        await nursery.start(
            partial(node.run, _ignore, concurrency=RolloutGenerator.concurrency, receives=received(RolloutGenerator))
        )
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            began, used = time.monotonic(), time.process_time()
            if "dues" in order:
                rows = await client.ask_at(order["codes"], order["dues"])
            else:
                rows = await client.ask(order["codes"], order["callers"])
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
