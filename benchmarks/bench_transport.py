"""The links between processes: pushes and calls over ipc, beside bare pyzmq with the same bytes.

    agent-rl bench transport
    agent-rl bench transport --quick

Two processes on one machine. A push is encoded, sent, received, validated, handed to `handle`, credited and
acknowledged. Bare pyzmq PUSH/PULL carries the same bytes and does nothing else. The two alternate, round by round;
figures are medians. Messages are trajectories of random numbers and calls of random text, so that nothing is
compressible or constant. benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import string
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trio
import zmq

from agent_rl.messages import Problem, Tokens, ToolCall, ToolCallRecord, ToolResult, Trajectory, Transcript
from benchmarks.command import Hidden, helper
from benchmarks.reporting import percentile, print_figures, print_table
from transport import (
    Delivery,
    Limits,
    LinkEvent,
    Node,
    PeerBack,
    PeerLeft,
    Registry,
    ZmqNetwork,
    encode,
    keep_freed_memory,
)
from transport.codec import size_of
from transport.errors import log_event

LIMITS = Limits(silent_after=60.0)
LOAD = 0.1
"""Share of the throughput at which latency is measured: nothing queues, so latency shows what coalescing costs."""
CALLS_AT_ONCE = 64
REPLY_MS = 60_000


# The messages: everything in them is random

VARIANTS = 8
"""Different messages of each size, sent in turn."""


@dataclass(frozen=True, slots=True)
class Enquiry:
    """Asks the receiver what it has handled since the last enquiry."""


@dataclass(frozen=True, slots=True)
class Handled:
    """So many pushes; ``latencies`` [n], float64, in seconds from before `send` to the start of `handle`."""

    messages: int
    latencies: np.ndarray[tuple[int], np.dtype[np.float64]]


REGISTRY = Registry(Trajectory, ToolCall, ToolResult, Enquiry, Handled)


@dataclass(frozen=True)
class Size:
    """A message size, and how many messages may be under way: some hundreds, or what memory bears."""

    label: str
    bytes: int
    window: int
    bare_window: int


SIZES = {
    "1k": Size("1 KiB", 1 << 10, 256, 1000),
    "8k": Size("8 KiB", 8 << 10, 256, 1000),
    "1m": Size("1 MiB", 1 << 20, 64, 64),
}
COPY_BELOW = 64 << 10
"""Smaller messages are copied by pyzmq rather than shared with it: what is faster."""


def random_text(rng: random.Random, length: int) -> str:
    """Letters and digits."""
    return "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def trajectory(seed: int, tokens: int) -> Trajectory:
    """A finished rollout of ``tokens`` response tokens, everything in it random."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    code, shown = {"code": random_text(rng, tokens // 2)}, random_text(rng, tokens // 2)
    body = Tokens(
        prompt_tokens=numbers.integers(0, 1 << 31, max(8, tokens // 8), np.int32),
        tokens=numbers.integers(0, 1 << 31, tokens, np.int32),
        loss_mask=numbers.integers(0, 256, tokens, np.uint8),  # does not shrink, so that sizes are exact
        logprobs=-numbers.random(tokens, np.float32),
        policies=numbers.integers(0, 1 << 30, (tokens, 2), np.int32),
    )
    return Trajectory(
        rollout=f"stage2/{seed}/3/0",
        group=f"stage2/{seed}",
        stage=2,
        sample=3,
        attempt=0,
        purpose="train",
        transcript=Transcript(
            (random_text(rng, tokens), random_text(rng, tokens)),
            (ToolCallRecord(1, "python", "success", rng.random(), rng.random(), arguments=code, response=shown),),
        ),
        reason="",
        generator="rollout_generator.0",
        seconds=rng.random(),
        prompt_length=len(body.prompt_tokens),
        response_length=tokens,
        oldest=0,
        newest=1 << 30,
        body=body.pack(),
    )


def trajectories(size: Size) -> list[Trajectory]:
    """Different trajectories that are as near to the size as whole tokens allow, encoded."""
    empty, some = size_of(encode(trajectory(0, 0))), size_of(encode(trajectory(0, 1000)))
    guess = round((size.bytes - empty) / (some - empty) * 1000)  # small arrays take a little less than large ones
    tokens = min(
        range(max(1, guess - 4), guess + 5),
        key=lambda count: abs(size_of(encode(trajectory(0, count))) - size.bytes),
    )
    return [trajectory(seed, tokens) for seed in range(VARIANTS)]


def question(seed: int) -> ToolCall:
    """A tool call with a few lines of code."""
    rng = random.Random(seed)
    problem = Problem(f"p{seed}", random_text(rng, 200), "42")
    return ToolCall(f"{seed}/0", f"stage2/{seed}/3/0", "python", {"code": random_text(rng, 200)}, problem, seed)


# The receiving processes


class Receiver:
    """Counts pushes and answers calls."""

    def __init__(self) -> None:
        self._messages = 0
        self._latencies: list[float] = []
        rng = random.Random(0)
        self._answer = ToolResult("", "success", random_text(rng, 200), "", random_text(rng, 20), 0.001, 0.002)

    async def handle(self, delivery: Delivery) -> object:
        """Handle one message; a trajectory of negative duration says when it was sent."""
        message = delivery.message
        if type(message) is Trajectory:
            self._messages += 1
            if message.seconds < 0:
                self._latencies.append(time.monotonic() + message.seconds)
            return None
        if type(message) is ToolCall:
            return dataclasses.replace(self._answer, call=message.call)
        handled = Handled(self._messages, np.array(self._latencies))
        self._messages, self._latencies = 0, []
        return handled


def addresses(directory: Path) -> dict[str, str]:
    """Where the nodes listen."""
    return {name: f"ipc://{directory}/{name}" for name in ("sender", "receiver")}


def receive_pushes(directory: Path, _size: Size) -> None:
    """A node that handles until it is terminated."""
    node = Node("receiver", ZmqNetwork(addresses(directory)), REGISTRY, incarnation=0, limits=LIMITS, on_event=_report)
    trio.run(node.run, Receiver().handle)


def receive_bare(directory: Path, size: Size) -> None:
    """A PULL socket, read until this process is terminated; an empty message asks how many came before it."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as reply:
        pull.set_hwm(size.bare_window)
        pull.bind(f"ipc://{directory}/pull")
        reply.connect(f"ipc://{directory}/reply")
        copy = size.bytes < COPY_BELOW
        received = 0
        while True:
            frame = pull.recv(copy=copy)
            if len(frame):
                received += 1
            else:
                reply.send(b"%d" % received)
                received = 0


# The sending process


@contextmanager
def bare_sender(size: Size, directory: Path) -> Iterator[Callable[[float], float]]:
    """PUSH over ipc. What is yielded sends for so many seconds and returns messages a second, counted on arrival.

    Each message is one frame of the bytes that the encoded trajectory has. pyzmq copies or shares the frame, whichever
    is faster at its size.
    """
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as replies:
        push.set_hwm(size.bare_window)
        push.connect(f"ipc://{directory}/pull")
        replies.bind(f"ipc://{directory}/reply")
        replies.setsockopt(zmq.RCVTIMEO, REPLY_MS)  # zmq.Again is raised then
        messages = [b"".join(map(bytes, encode(message))) for message in trajectories(size)]
        copy = size.bytes < COPY_BELOW

        def arrived() -> int:
            push.send(b"")
            return int(replies.recv())

        def measure(seconds: float) -> float:
            turns = cycle(messages)
            sent, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                push.send(next(turns), 0, copy)
                sent += 1
            assert arrived() == sent
            return sent / (time.perf_counter() - start)

        arrived()  # connected
        yield measure


@asynccontextmanager
async def sending(directory: Path) -> AsyncIterator[Node]:
    """A node that runs; each is a new process to its peers."""
    network = ZmqNetwork(addresses(directory))
    node = Node("sender", network, REGISTRY, incarnation=time.monotonic_ns(), limits=LIMITS, on_event=_report)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, _ignore)
        yield node
        nursery.cancel_scope.cancel()


def _report(event: LinkEvent) -> None:
    if not isinstance(event, PeerLeft | PeerBack):  # senders come and go, one for each measurement
        log_event(event)


async def _ignore(_delivery: Delivery) -> None:
    raise AssertionError("nothing is sent to the sender")


async def push_rate(directory: Path, size: Size, seconds: float) -> float:
    """Messages a second, sent for so many seconds and waited for until the last is acknowledged."""
    turns = cycle(trajectories(size))
    async with sending(directory) as node:
        link = node.push("trajectories", ["receiver"], window=size.window)
        enquire = node.call("enquiries", ["receiver"], outstanding=1, timeout=60.0)
        await enquire(Enquiry())
        sent, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            await link.send(next(turns))
            sent += 1
        await link.drained()
        rate = sent / (time.perf_counter() - start)
        handled: Handled = await enquire(Enquiry())
        assert handled.messages == sent, f"{sent} sent, {handled.messages} handled"
        return rate


async def push_latencies(directory: Path, size: Size, per_second: float, seconds: float) -> Sequence[float]:
    """From before `send` to the start of `handle`, in seconds, at ``per_second`` messages a second, evenly spaced.

    Below a millisecond, the resolution at which trio sleeps, those that are due are sent together.
    """
    turns = cycle(trajectories(size))
    async with sending(directory) as node:
        link = node.push("trajectories", ["receiver"], window=size.window)
        enquire = node.call("enquiries", ["receiver"], outstanding=1, timeout=60.0)
        await enquire(Enquiry())
        start = time.monotonic()
        for number in range(int(per_second * seconds)):
            wait = start + number / per_second - time.monotonic()
            if wait > 0:
                await trio.sleep(wait)
            await link.send(dataclasses.replace(next(turns), seconds=-time.monotonic()))
        await link.drained()
        handled: Handled = await enquire(Enquiry())
        return handled.latencies.tolist()


async def calls_per_s(directory: Path, at_once: int, seconds: float) -> float:
    """Round trips a second with so many callers, each of which calls again once it is answered."""
    answered = 0
    async with sending(directory) as node:
        call = node.call("tools", ["receiver"], outstanding=at_once, timeout=60.0)
        await call(question(0))
        start = time.perf_counter()

        async def ask(caller: int) -> None:
            nonlocal answered
            request = question(caller)
            while time.perf_counter() - start < seconds:
                reply = await call(request)
                answered += 1
                assert reply.call == request.call

        async with trio.open_nursery() as nursery:
            for caller in range(at_once):
                nursery.start_soon(ask, caller)
        return answered / (time.perf_counter() - start)


class Rates(NamedTuple):
    """Messages a second, medians over rounds: bare pyzmq's, a push link's, and their ratio within a round."""

    bare: float
    ours: float
    ratio: float


def lowest(runs: Sequence[Rates]) -> Rates:
    """The run with the lowest ratio: bare pyzmq is sometimes slow for a whole run, which flatters the links."""
    return min(runs, key=lambda run: run.ratio)


def measure_pushes(size: Size, rounds: int, seconds: float) -> Rates:
    """Bare and ours in turn."""
    bare: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        directory = Path(folder)
        with (
            helper("transport", "--receive", "bare", directory, size.bytes),
            helper("transport", "--receive", "node", directory, size.bytes),
            bare_sender(size, directory) as bare_rate,
        ):
            bare_rate(seconds / 4)  # memory is allocated, caches are filled
            trio.run(push_rate, directory, size, seconds / 4)
            for _ in range(rounds):
                bare.append(bare_rate(seconds))
                ours.append(trio.run(push_rate, directory, size, seconds))
    ratios = [our / its for our, its in zip(ours, bare, strict=True)]
    return Rates(*map(statistics.median, (bare, ours, ratios)))


def measure_times(per_second: float, rounds: int, seconds: float) -> tuple[list[float], float]:
    """Latencies of pushes at ``per_second``, and calls a second with many at once."""
    latencies: list[float] = []
    calls: list[float] = []
    size = SIZES["1k"]
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        directory = Path(folder)
        with helper("transport", "--receive", "node", directory, size.bytes):
            for _ in range(rounds):
                latencies += trio.run(push_latencies, directory, size, per_second, seconds)
                calls.append(trio.run(calls_per_s, directory, CALLS_AT_ONCE, seconds))
    return latencies, statistics.median(calls)


def _ms(seconds: Sequence[float], share: float) -> float:
    return 1000 * percentile(seconds, share)


@dataclass(kw_only=True)
class Options:
    """The options."""

    seconds: float = 1.5
    """Of each measurement of a round."""
    rounds: int = 3
    """Of each run."""
    runs: int = 3
    """Of each size, with processes of its own; the figures of pushes are those of the run with the lowest ratio."""
    quick: bool = False
    """One run of one round of short measurements: shows that the benchmark runs, and measures little."""
    receive: Hidden = ()


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    keep_freed_memory()  # as actors do; bare pyzmq's processes as well
    if options.receive:
        role, directory, size_bytes = options.receive
        (size,) = (size for size in SIZES.values() if size.bytes == int(size_bytes))
        {"bare": receive_bare, "node": receive_pushes}[role](Path(directory), size)
        return 0
    runs, rounds, seconds = (1, 1, 0.2) if options.quick else (options.runs, options.rounds, options.seconds)

    measured = {name: [measure_pushes(size, rounds, seconds) for _ in range(runs)] for name, size in SIZES.items()}
    pushes = {name: lowest(of_runs) for name, of_runs in measured.items()}
    print_table(
        f"pushes, two processes over ipc; the run of {runs} with the lowest ratio",
        ["message", "bare pyzmq /s", "push /s", "push MB/s", "ratio", "ratios of all runs"],
        [
            [size.label, *rates[:2], rates.ours * size.bytes / 1e6, rates.ratio, ratios]
            for name, size in SIZES.items()
            for rates, ratios in [(pushes[name], ", ".join(f"{run.ratio:.3g}" for run in measured[name]))]
        ],
    )
    latencies, calls = measure_times(LOAD * pushes["1k"].ours, rounds, seconds)
    rows = [
        (f"push of 1 KiB at {LOAD:.0%} load", LOAD * pushes["1k"].ours, _ms(latencies, 0.5), _ms(latencies, 0.99)),
        (f"call, {CALLS_AT_ONCE} at once", calls, math.nan, math.nan),
    ]
    print_table("latency; of a push, before send to the start of handle", ["what", "/s", "median ms", "p99 ms"], rows)
    print_figures(
        {
            "push_ratio_1m": pushes["1m"].ratio,
            "push_ratio_8k": pushes["8k"].ratio,
            "push_per_s_1k": pushes["1k"].ours,
            "push_p99_ms": _ms(latencies, 0.99),
            "calls_per_s": calls,
        }
    )
    return 0
