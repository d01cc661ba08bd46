"""The gateway: its rollouts beside the agent loop's, its own time, and connections at once.

    agent-rl bench gateway
    agent-rl bench gateway --only rollouts
    agent-rl bench gateway --quick

Gateway and generator are processes of their own. All agents are in this process, which also stands in for the other
actors. ``rollouts``: the quickstart's engine and settings, 64 rollouts at once, each of 2 turns of 48 tokens on average
with a tool call in each, whose result comes at once. The agent loop and agents at the gateway get the same problems and
seeds, so that they write the same tokens. They take turns; ratios are taken within a round, and one is that of the
generator's processor time, which does not depend on who else uses the machine. The other parts have a scripted engine.
``connections``: so many streams at once, all open until the last has begun. ``latency``: conversations of 4 turns, at
half of the rate of requests that was reached before; the time that a reply takes beside the engine's.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import structlog
import trio

from agent_rl.messages import RolloutRequest, Sampling
from benchmarks.command import Failure, Hidden
from benchmarks.gateway_stand import (
    AGENTS,
    GATEWAY,
    GENERATOR,
    LOOP,
    TOOL_ANSWER,
    Agent,
    Answer,
    Stand,
    echo,
    serve,
    stand,
)
from benchmarks.reporting import percentile, print_figures, print_table
from benchmarks.tool_processes import resident_mib

AT_ONCE = 64
TURNS = Sampling(temperature=1.0, max_response_tokens=400, max_turns=2)
LONG = Sampling(temperature=1.0, max_response_tokens=100_000, max_turns=10_000)
CLIENTS, ENGINE_MS, CONVERSATION = 128, 50, 4
"""Of ``latency``: requests at once where the most is measured, the engine's time, and turns of a rollout."""
BRANCHES = 64
"""Streams of one rollout in ``connections``."""
PROCESSES = (GENERATOR, GATEWAY, AGENTS)

Part = Literal["rollouts", "connections", "latency"]
Figures = dict[str, float]


@dataclass(kw_only=True)
class Options:
    """The options."""

    only: tuple[Part, ...] = ("rollouts", "connections", "latency")
    rounds: int = 9
    """Of ``rollouts``."""
    rollouts: int = 192
    """Of each side of a round."""
    connections: int = 4096
    seconds: float = 15.0
    """Of each measurement of ``latency``."""
    seed: int = 0
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""
    serve: Hidden = ()


def post(key: str, said: list[Any], **more: Any) -> bytes:
    """A request for the next turn of a conversation."""
    body = json.dumps({"model": "agent-rl", "messages": said, **more})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def turn(answer: Answer) -> dict[str, Any]:
    """The message of the model. Raises Failure for any other answer."""
    if answer.status != 200:
        raise Failure(f"the gateway answered with {answer.status}: {answer.body[:300].decode()}")
    if answer.headers["content-type"] == "application/json":
        message: dict[str, Any] = json.loads(answer.body)["choices"][0]["message"]
        return message
    *events, last = answer.body.decode().split("\n\n")[:-1]
    if last != "data: [DONE]":
        raise Failure(f"a stream ended with {last[:300]}")
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event.startswith("data: ")]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    content = "".join(delta.get("content", "") for delta in deltas)
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def user(text: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": text}


# Rollouts ------------------------------------------------------------------------------------------------------------


async def rollouts(at: Stand, options: Options, figures: Figures) -> None:
    """The agent loop beside agents at the gateway, with whole replies and with streams."""

    def agent(*, stream: bool) -> Agent:
        async def work(request: RolloutRequest, key: str) -> None:
            said: list[Any] = [user(request.problem.text)]
            for _ in range(TURNS.max_turns):
                said.append(turn(await at.ask(post(key, said, stream=stream))))
                calls = said[-1].get("tool_calls", ())
                said += [{"role": "tool", "tool_call_id": call["id"], "content": TOOL_ANSWER} for call in calls]

        return work

    sides = {"agent loop": (LOOP, agent(stream=False)), "gateway": (AGENTS, agent(stream=False))}
    sides["gateway, streamed"] = (AGENTS, agent(stream=True))
    rates: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[Mapping[str, float]]] = {side: [] for side in sides}
    for number in range(options.rounds + 1):
        work = set()
        for side, (environment, does) in sides.items():
            wanted = list(islice(at.requests(TURNS, environment, number), options.rollouts if number else AT_ONCE))
            before, began = at.cpu(), time.perf_counter()
            made = await at.run(wanted, AT_ONCE, does)
            if number:  # the round before warms up
                rates[side].append(len(made) / (time.perf_counter() - began))
                cpu[side].append({name: 1000 * (now - before[name]) / len(made) for name, now in at.cpu().items()})
            work.add((sum(each.written for each in made), sum(each.response_length for each in made)))
        if len(work) > 1 and max(work)[0] > 1.01 * min(work)[0]:
            raise Failure(f"the sides wrote different numbers of tokens: {work}")
    rows = []
    for side, name in (("agent loop", ""), ("gateway", ""), ("gateway, streamed", "_streamed")):
        ratios = [one / other for one, other in zip(rates[side], rates["agent loop"], strict=True)]
        both = zip(cpu["agent loop"], cpu[side], strict=True)
        cpu_ratio = statistics.median(one[GENERATOR] / other[GENERATOR] for one, other in both)
        found = statistics.median(ratios), min(ratios), max(ratios), cpu_ratio
        costs = [statistics.median(each[process] for each in cpu[side]) for process in PROCESSES]
        rows.append([side, statistics.median(rates[side]), *found, *costs])
        if side != "agent loop":
            ends = ("", "_low", "_high", "_generator_cpu")
            figures |= {f"gateway_over_native{name}{end}": value for end, value in zip(ends, found, strict=True)}
    header = ["side", "rollouts/s", "by agent loop's", "lowest", "highest", "by CPU of generator"]
    header += [f"CPU ms of {name}" for name in PROCESSES]
    print_table(f"{AT_ONCE} rollouts at once, {options.rounds} rounds, CPU of a rollout", header, rows)


# Connections ---------------------------------------------------------------------------------------------------------


async def connections(at: Stand, options: Options, figures: Figures) -> None:
    """So many streams at once, of 64 agents of each rollout."""
    total, right, open_now, most = options.connections, 0, 0, 0
    before = {name: resident_mib(pid) for name, pid in at.pids.items()}
    memory: dict[str, float] = {}
    opening = trio.Semaphore(BRANCHES)

    async def stream(key: str, word: str) -> None:
        nonlocal right, open_now, most
        async with opening:
            connection = await at.connect()
            said = [user(echo(word, 2000 + 15 * total))]
            await connection.stream.send_all(post(key, said, stream=True, max_tokens=16))
        open_now += 1
        most = max(most, open_now)
        answer = await connection.answer()
        if not memory:
            memory.update({name: resident_mib(pid) for name, pid in at.pids.items()})
        open_now -= 1
        right += turn(answer)["content"] == word
        await connection.stream.aclose()

    async def agent(request: RolloutRequest, key: str) -> None:
        first = BRANCHES * (16 * int(request.group.rpartition("-g")[2]) + request.sample)
        async with trio.open_nursery() as nursery:
            for number in range(first, min(first + BRANCHES, total)):
                nursery.start_soon(stream, key, f"word{number}")

    count, began = -(-total // BRANCHES), time.perf_counter()
    await at.run(islice(at.requests(LONG), count), count, agent)
    seconds = time.perf_counter() - began
    kib = {name: 1024 * (memory[name] - before[name]) / total for name in before}
    figures |= {"gateway_connections": min(right, most), "gateway_connection_kib": kib[GATEWAY]}
    header = ["connections", "at once", "right", "seconds", *(f"KiB each, {name}" for name in PROCESSES)]
    print_table("streams at once", header, [[total, most, right, seconds, *(kib[name] for name in PROCESSES)]])


# Latency -------------------------------------------------------------------------------------------------------------


class Conversations:
    """Rollouts whose agents wait for the moment of their next request."""

    def __init__(self, at: Stand, *, stream: bool) -> None:
        self._at, self._stream = at, stream
        self._idle: deque[tuple[str, list[Any], trio.Event]] = deque()
        self._came = trio.Semaphore(0)
        self.times: list[tuple[float, float]] = []
        """Of each reply, milliseconds beside the engine's time: to a stream's first text, and to the end."""

    def _waits(self, key: str, said: list[Any], over: trio.Event) -> None:
        self._idle.append((key, said, over))
        self._came.release()

    async def agent(self, _: RolloutRequest, key: str) -> None:
        """Wait until the conversation is over."""
        over = trio.Event()
        self._waits(key, [], over)
        await over.wait()

    async def ask(self) -> None:
        """Go on with the conversation that has waited for the longest time."""
        await self._came.acquire()
        key, said, over = self._idle.popleft()
        word = f"turn{len(said) // 2}"
        data = post(key, [*said, user(echo(word, ENGINE_MS))], stream=self._stream)
        began = time.perf_counter()
        answer = await self._at.ask(data)
        first, whole = (1000 * (moment - began) - ENGINE_MS for moment in (answer.first, time.perf_counter()))
        self.times.append((first, whole))
        said += [user(echo(word, ENGINE_MS)), turn(answer)]
        if said[-1]["content"] != word:
            raise Failure(f"a reply is {said[-1]['content']!r}, not {word!r}")
        if len(said) < 2 * CONVERSATION:
            self._waits(key, said, over)
        else:
            over.set()

    async def most(self, seconds: float) -> float:
        """Requests a second by clients each of which asks again at once."""
        began = trio.current_time()

        async def client() -> None:
            while trio.current_time() < began + seconds:
                await self.ask()

        self.times.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(client)
        return len(self.times) / (trio.current_time() - began)

    async def at_rate(self, rate: float, seconds: float, rng: random.Random) -> None:
        """Requests at random moments, whether or not others are answered."""
        self.times.clear()
        due = trio.current_time()
        end = due + seconds
        async with trio.open_nursery() as nursery:
            while (due := due + rng.expovariate(rate)) < end:
                await trio.sleep_until(due)
                nursery.start_soon(self.ask)


async def latency(at: Stand, options: Options, figures: Figures) -> None:
    """The gateway's own time at half load."""
    rows = []
    for name, stream in (("gateway", False), ("gateway_stream", True)):
        talks = Conversations(at, stream=stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.run, at.requests(LONG), 4 * CLIENTS, talks.agent)
            await talks.most(options.seconds / 5)
            before = at.cpu()
            most = figures[f"{name}_requests_per_s"] = await talks.most(options.seconds)
            cores = [(now - before[each]) / options.seconds for each, now in at.cpu().items()]
            await talks.at_rate(most / 2, options.seconds, random.Random(options.seed))
            nursery.cancel_scope.cancel()
        firsts, wholes = zip(*talks.times, strict=True)
        for what, of, times in (("whole", "", wholes), ("first text", "_first_text", firsts)):
            if stream or not of:
                p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
                figures |= {f"{name}{of}_p50_ms": p50, f"{name}{of}_p99_ms": p99}
                rows.append(["stream" if stream else "reply", what, most, *cores, len(times), p50, p99])
    header = ["answer", "to", "most/s", *(f"cores of {each}" for each in at.pids), "requests", "p50 ms", "p99 ms"]
    print_table(f"time beside the engine's {ENGINE_MS} ms, at half of the most requests", header, rows)


PARTS: Mapping[Part, Callable[[Stand, Options, Figures], Awaitable[None]]] = {
    "rollouts": rollouts,
    "connections": connections,
    "latency": latency,
}
"""In the order in which they run: memory of connections is measured in a fresh gateway."""


async def measure(folder: Path, options: Options) -> Figures:
    """All parts that are wanted."""
    figures: Figures = {}
    for engine in ("model", "echo"):
        parts = [part for part in PARTS if part in options.only and (part == "rollouts") == (engine == "model")]
        if parts:
            (folder / engine).mkdir()
            async with stand(engine, folder / engine) as at:
                for part in parts:
                    await PARTS[part](at, options, figures)
    return figures


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    if options.serve:
        engine, actor, folder, *overrides = options.serve
        serve("model" if engine == "model" else "echo", actor, Path(folder), overrides)
        return 0
    if options.quick:
        options = replace(options, rounds=1, rollouts=32, connections=128, seconds=0.5)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.disable()  # a pause of the agents would count as one of the gateway
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = trio.run(measure, Path(folder), options)
        except ExceptionGroup as group:
            found: BaseException | None = group.subgroup((Failure, subprocess.CalledProcessError))
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            if found is None:
                raise
            raise Failure(f"{found} (what its processes wrote is above)") from None
        finally:
            gc.enable()
    print_figures({name: round(value, 4) for name, value in figures.items()})
    return 0
