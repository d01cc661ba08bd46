"""The gateway: its rollouts beside the agent loop's, its own time, connections at once, and requests that are wrong.

    agent-rl bench gateway
    agent-rl bench gateway --only rollouts fuzz
    agent-rl bench gateway --quick

Gateway and generator are processes of their own. All agents are in this process, which also stands in for the other
actors. ``rollouts``: the quickstart's engine and settings, 64 rollouts at once, each of 2 turns of 48 tokens on average
with a tool call in each, whose result comes at once. The agent loop and the gateway get the same problems and seeds, so
that they write the same tokens, and take turns; ratios are taken within a round. The others have an engine without a
model, which answers after a time that the request says. ``latency``: conversations of 4 turns, at half of the rate of
requests that was reached before; what a reply takes beside the engine's time. ``connections``: so many streams at once,
all open until the last has begun. ``fuzz``: requests that are broken in some way, each of which must get an error of
its provider's shape or a right answer, beside an honest rollout. The exit code is 1 if a request was served wrongly.
"""

from __future__ import annotations

import json
import logging
import os
import random
import statistics
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import structlog
import trio

from actors.processor_time import seconds_of
from agent_rl.messages import RolloutRequest, Sampling, Trajectory
from benchmarks.command import Failure, Hidden
from benchmarks.gateway_fuzz import Shot, fault, shots
from benchmarks.gateway_stand import (
    AGENTS,
    GATEWAY,
    GENERATOR,
    LOOP,
    TOOL_ANSWER,
    Answer,
    Connection,
    Left,
    Stand,
    echo,
    resident,
    serve,
    stand,
)
from benchmarks.reporting import percentile, print_figures, print_table

CHAT = "/v1/chat/completions"
AT_ONCE = 64
TURNS = Sampling(temperature=1.0, max_response_tokens=400, max_turns=2)
LONG = Sampling(temperature=1.0, max_response_tokens=100_000, max_turns=10_000)
CLIENTS, ENGINE_MS = 128, 50
"""Requests at once where the most is measured, and the time of the engine for each."""
WAITING = 512
"""Rollouts whose next request may come."""
CONVERSATION = 4
"""Turns of a rollout in ``latency``."""
BRANCHES = 64
"""Streams of one rollout in ``connections``."""
FUZZERS, SHOTS_OF_A_ROLLOUT = 16, 20
HANG_SECONDS = 30.0

Part = Literal["rollouts", "latency", "connections", "fuzz"]
Figures = dict[str, float | str | None]


@dataclass(kw_only=True)
class Options:
    """The options."""

    only: tuple[Part, ...] = ("rollouts", "connections", "latency", "fuzz")
    rounds: int = 5
    """Of ``rollouts``."""
    rollouts: int = 384
    """Of each side of a round."""
    seconds: float = 15.0
    """Of each measurement of ``latency``."""
    connections: int = 4096
    requests: int = 10_000
    """Of ``fuzz``."""
    seed: int = 0
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""
    serve: Hidden = ()


def post(key: str, body: Mapping[str, Any], path: str = CHAT) -> bytes:
    """A request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def said(answer: Answer) -> dict[str, Any]:
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


class Processors:
    """Processor seconds of the processes since the last look."""

    def __init__(self, at: Stand) -> None:
        self._pids = {**at.pids, AGENTS: os.getpid()}
        self._before: dict[str, float] = {}
        self.look()

    def look(self) -> dict[str, float]:
        """By the name of the process."""
        now = {name: seconds_of([pid]) for name, pid in self._pids.items()}
        spent = {name: seconds - self._before.get(name, 0.0) for name, seconds in now.items()}
        self._before = now
        return spent


# Rollouts ------------------------------------------------------------------------------------------------------------


async def rollouts(at: Stand, options: Options, figures: Figures) -> None:
    """The agent loop beside agents at the gateway, whole replies and streamed ones."""

    def agent(*, streams: bool) -> Callable[[RolloutRequest, str], Any]:
        async def work(request: RolloutRequest, key: str) -> None:
            talk = at.prompt(request)
            for _ in range(TURNS.max_turns):
                message = said(await at.ask(post(key, {"model": "agent-rl", "messages": talk, "stream": streams})))
                talk.append(message)
                for call in message.get("tool_calls", ()):
                    talk.append({"role": "tool", "tool_call_id": call["id"], "content": TOOL_ANSWER})

        return work

    sides = {"agent loop": (LOOP, agent(streams=False)), "gateway": (AGENTS, agent(streams=False))}
    sides["gateway, streamed"] = (AGENTS, agent(streams=True))
    rates: dict[str, list[float]] = {side: [] for side in sides}
    spent: dict[str, Counter[str]] = {side: Counter() for side in sides}
    processors, wrote = Processors(at), 0
    for number in range(options.rounds + 1):
        tokens = []
        for side, (environment, work) in sides.items():
            wanted = list(islice(at.requests(TURNS, environment, number), options.rollouts if number else AT_ONCE))
            processors.look()
            began = time.perf_counter()
            made = await at.run(wanted, AT_ONCE, work)
            seconds = time.perf_counter() - began
            tokens.append(sum(each.written for each in made))
            if number:  # the round before warms up
                rates[side].append(len(made) / seconds)
                spent[side].update(processors.look())
                wrote += tokens[-1]
        if max(tokens) > 1.01 * min(tokens):
            raise Failure(f"the sides wrote {tokens} tokens; they must write the same")
    count = options.rounds * options.rollouts
    header = ["side", "rollouts/s", "of agent loop", "lowest", "highest"]
    header += [f"CPU ms a rollout, {name}" for name in (GENERATOR, GATEWAY, AGENTS)]
    rows = []
    for side, rate in rates.items():
        ratios = [one / other for one, other in zip(rate, rates["agent loop"], strict=True)]
        ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
        cost = [1000 * spent[side][name] / count for name in (GENERATOR, GATEWAY, AGENTS)]
        rows.append([side, statistics.median(rate), ratio, low, high, *cost])
        if side != "agent loop":
            name = "gateway_over_native" + ("_streamed" if side.endswith("streamed") else "")
            figures |= {name: ratio, f"{name}_low": low, f"{name}_high": high}
    figures["native_rollouts_per_s"] = statistics.median(rates["agent loop"])
    turn = wrote / (len(sides) * count * TURNS.max_turns)
    print_table(f"{AT_ONCE} rollouts at once, 2 turns of {turn:.0f} tokens; {options.rounds} rounds", header, rows)


# Latency -------------------------------------------------------------------------------------------------------------


class Conversations:
    """Rollouts whose agents wait for the moment of their next request."""

    def __init__(self, at: Stand, *, streams: bool) -> None:
        self._at, self._streams = at, streams
        self._idle: deque[tuple[str, list[Any], trio.Event]] = deque()
        self._came = trio.Semaphore(0)
        self.own: list[float] = []
        """Milliseconds of each reply beside the engine's time."""
        self.first: list[float] = []
        """The same, up to the first byte of the body."""

    def _waits(self, *conversation: Any) -> None:
        self._idle.append(conversation)
        self._came.release()

    async def agent(self, request: RolloutRequest, key: str) -> None:
        """Wait until the conversation is over."""
        del request
        over = trio.Event()
        self._waits(key, [], over)
        await over.wait()

    async def turn(self) -> None:
        """Go on with the conversation that has waited for the longest time."""
        await self._came.acquire()
        key, talk, over = self._idle.popleft()
        word = f"turn{len(talk) // 2}"
        talk.append({"role": "user", "content": echo(word, ENGINE_MS)})
        data = post(key, {"model": "agent-rl", "messages": talk, "stream": self._streams})
        began = time.perf_counter()
        answer = await self._at.ask(data)
        ended = time.perf_counter()
        self.own.append(1000 * (ended - began) - ENGINE_MS)
        self.first.append(1000 * (answer.first - began) - ENGINE_MS)
        talk.append(said(answer))
        if talk[-1]["content"] != word:
            raise Failure(f"a reply is {talk[-1]['content']!r}, not {word!r}")
        if len(talk) < 2 * CONVERSATION:
            self._waits(key, talk, over)
        else:
            over.set()

    async def most(self, seconds: float) -> float:
        """Requests a second by clients each of which asks again at once."""
        end = trio.current_time() + seconds

        async def client() -> None:
            while trio.current_time() < end:
                await self.turn()

        self.own.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(client)
        return len(self.own) / (trio.current_time() - end + seconds)

    async def at_rate(self, rate: float, seconds: float, rng: random.Random) -> None:
        """Requests at random moments, whether or not others are answered."""
        self.own.clear()
        self.first.clear()
        due = trio.current_time()
        end = due + seconds
        async with trio.open_nursery() as nursery:
            while (due := due + rng.expovariate(rate)) < end:
                await trio.sleep_until(due)
                nursery.start_soon(self.turn)


async def latency(at: Stand, options: Options, figures: Figures) -> None:
    """The gateway's own time at half load."""
    rows = []
    for name, streams in (("gateway", False), ("gateway_stream", True)):
        talks = Conversations(at, streams=streams)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.run, at.requests(LONG), WAITING, talks.agent)
            await talks.most(options.seconds / 5)
            processors = Processors(at)
            most = await talks.most(options.seconds)
            full = {each: seconds / options.seconds for each, seconds in processors.look().items()}
            await talks.at_rate(most / 2, options.seconds, random.Random(options.seed))
            nursery.cancel_scope.cancel()
        figures[f"{name}_requests_per_s"] = most
        for what, times in (("", talks.own), *((("_first_byte", talks.first),) if streams else ())):
            p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
            figures |= {f"{name}{what}_p50_ms": p50, f"{name}{what}_p99_ms": p99}
            kind = "first byte of a stream" if what else "whole stream" if streams else "whole reply"
            rows.append([kind, most, *(full[each] for each in (GENERATOR, GATEWAY, AGENTS)), p50, p99])
    header = ["what", "most requests/s", *(f"cores of {each}" for each in (GENERATOR, GATEWAY, AGENTS)), "p50 ms"]
    print_table(f"own time at half of the most requests, engine {ENGINE_MS} ms", [*header, "p99 ms"], rows)


# Connections ---------------------------------------------------------------------------------------------------------


async def connections(at: Stand, options: Options, figures: Figures) -> None:
    """So many streams at once."""
    total, right, under_way, most = options.connections, 0, 0, 0
    begins_ms, each_ms = 2000 + 8 * total, 500 + total
    before = {name: resident(pid) for name, pid in at.pids.items()}
    memory: dict[str, float] = {}
    opening = trio.Semaphore(BRANCHES)

    async def stream(key: str, number: int) -> None:
        nonlocal right, under_way, most
        word = f"number{number}"
        said_before = [{"role": "user", "content": echo(word, begins_ms, each_ms)}]
        async with opening:
            connection = await Connection.open(at.port)
            body = {"model": "agent-rl", "messages": said_before, "stream": True, "max_tokens": 16}
            await connection.stream.send_all(post(key, body))
        under_way += 1
        most = max(most, under_way)
        answer = await connection.answer()
        if not memory:
            memory.update({name: resident(pid) for name, pid in at.pids.items()})
        under_way -= 1
        right += said(answer)["content"] == word
        await connection.stream.aclose()

    async def agent(request: RolloutRequest, key: str) -> None:
        first = BRANCHES * (16 * int(request.group.rpartition("-g")[2]) + request.sample)
        async with trio.open_nursery() as nursery:
            for number in range(first, min(first + BRANCHES, total)):
                nursery.start_soon(stream, key, number)

    wanted = -(-total // BRANCHES)
    began = time.perf_counter()
    await at.run(islice(at.requests(LONG), wanted), wanted, agent)
    seconds = time.perf_counter() - began
    kib = {name: 1024 * (memory[name] - before[name]) / total for name in before}
    figures["gateway_connections"] = float(min(right, most))
    figures["gateway_connection_kib"] = kib[GATEWAY]
    header = ["connections", "at once", "right", "seconds", "gateway KiB each", "generator KiB each"]
    print_table("streams at once", header, [[total, most, right, seconds, kib[GATEWAY], kib[GENERATOR]]])


# Fuzz ----------------------------------------------------------------------------------------------------------------


async def fuzz(at: Stand, options: Options, figures: Figures) -> None:
    """Requests that are wrong, beside an honest rollout."""
    waiting = iter(shots(options.requests, options.seed))
    clean, faults = 0, Counter[str]()
    shown: list[str] = []
    honest = {"replies": 0, "right": 0}

    async def shoot(connection: Connection | None, shot: Shot, key: str) -> tuple[Connection | None, str]:
        connection = connection or await Connection.open(at.port)
        answer: Answer | None = None
        with trio.move_on_after(HANG_SECONDS) as scope:
            try:
                if shot.leaves:
                    await connection.stream.send_all(shot.data(key))
                    await connection.stream.send_eof()
                    answer = await connection.answer()
                else:
                    answer = await connection.ask(shot.data(key), bodiless=shot.method == "HEAD")
            except (Left, trio.BrokenResourceError):
                pass
        why = "no answer in time" if scope.cancelled_caught else fault(shot, answer)
        if answer is None or shot.leaves or answer.headers.get("connection") == "close":
            await trio.aclose_forcefully(connection.stream)
            connection = None
        return connection, why

    async def wrong(request: RolloutRequest, key: str) -> None:
        nonlocal clean
        del request
        connection = None
        for shot in islice(waiting, SHOTS_OF_A_ROLLOUT):
            connection, why = await shoot(connection, shot, key)
            clean += not why
            if why:
                faults[f"{shot.what}: {why[:40]}"] += 1
                shown.append(f"{shot.what}: {why}")
        if connection is not None:
            await connection.stream.aclose()

    async def right(request: RolloutRequest, key: str) -> None:
        del request
        talk: list[Any] = []
        while clean + sum(faults.values()) < options.requests and len(talk) < 400:
            talk.append({"role": "user", "content": echo(f"honest{len(talk)}", 5)})
            talk.append(said(await at.ask(post(key, {"model": "agent-rl", "messages": talk}))))
            honest["replies"] += 1
            honest["right"] += talk[-1]["content"] == f"honest{len(talk) - 2}"
            await trio.sleep(0.05)

    beside: list[Trajectory] = []
    wanted = at.requests(LONG)
    honest_one = next(wanted)
    rollouts = -(-options.requests // SHOTS_OF_A_ROLLOUT)

    async def agent(request: RolloutRequest, key: str) -> None:
        await (right if request.rollout == honest_one.rollout else wrong)(request, key)

    began = time.perf_counter()
    made = await at.run([honest_one, *islice(wanted, rollouts)], FUZZERS + 1, agent)
    seconds = time.perf_counter() - began
    beside = [each for each in made if each.rollout == honest_one.rollout]
    whole = [(len(each.transcript.texts), each.branches, each.status) for each in beside]
    undisturbed = whole == [(honest["replies"], (), "finished")] and honest["replies"] == honest["right"] > 0
    alive = (await at.ask(b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n")).status == 200
    figures |= {"gateway_fuzzed": float(clean), "gateway_fuzz_undisturbed": float(undisturbed and alive)}
    header = ["requests", "clean", "seconds", "honest replies", "undisturbed", "alive"]
    row = [options.requests, clean, seconds, honest["replies"], str(undisturbed), str(alive)]
    print_table("requests that are wrong", header, [row])
    for what, number in faults.most_common(20):
        print(f"{number} times {what}")
    print("\n".join(shown[:10]))


PARTS: Mapping[Part, Callable[[Stand, Options, Figures], Any]] = {
    "rollouts": rollouts,
    "connections": connections,
    "latency": latency,
    "fuzz": fuzz,
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
        engine, role, folder, *overrides = options.serve
        serve(engine, role, Path(folder), overrides)
        return 0
    if options.quick:
        options = replace(options, rounds=1, rollouts=32, seconds=0.5, connections=128, requests=300)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        figures = trio.run(measure, Path(folder), options)
    print_figures({name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()})
    wrong = figures.get("gateway_fuzzed", options.requests) != options.requests
    return int(wrong or not figures.get("gateway_fuzz_undisturbed", 1.0))
