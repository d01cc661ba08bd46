"""Our own socket glue, `transport/zeromq.py`, beside the zmq-anyio library: frames over ipc, and cancellation.

    pip install zmq-anyio        # to compare; nothing else needs it
    agent-rl bench glue

Two processes on one machine, each with one socket under trio: a DEALER sends, a ROUTER receives and gives credit back,
a quarter of a window at a time. No codec, no links. The two take turns, round by round. Then the wait for messages is
cancelled again and again while messages come, and those that are lost are counted.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

import trio
import zmq

from benchmarks.command import Hidden, helper
from benchmarks.reporting import print_figures, print_table
from transport import keep_freed_memory
from transport.zeromq import Channel

SIZES = {"1k": 1 << 10, "8k": 8 << 10, "1m": 1 << 20}
WINDOW = 64
CREDIT_SECONDS = 60.0
COPY_BELOW = 64 << 10

Arrived: TypeAlias = Callable[[Sequence[Any]], None]
Send: TypeAlias = Callable[[list[bytes]], Awaitable[None]]
Glue: TypeAlias = Callable[[Any, Arrived], AbstractAsyncContextManager[Send]]


@asynccontextmanager
async def ours(socket: Any, arrived: Arrived) -> AsyncIterator[Send]:
    """The channel that every link uses."""
    channel = Channel(socket, arrived)

    async def send(frames: list[bytes]) -> None:
        channel.send(frames)
        await trio.lowlevel.checkpoint_if_cancelled()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.read)
        yield send
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def theirs(socket: Any, arrived: Arrived) -> AsyncIterator[Send]:
    """zmq-anyio's socket around the same one."""
    library = importlib.import_module("zmq_anyio")
    async with library.Socket(socket) as wrapped, trio.open_nursery() as nursery:

        async def send(frames: list[bytes]) -> None:
            await wrapped.asend_multipart(frames, copy=len(frames[-1]) < COPY_BELOW)

        async def read() -> None:
            while True:
                arrived(await wrapped.arecv_multipart(copy=False))

        nursery.start_soon(read)
        yield send
        nursery.cancel_scope.cancel()


GLUES: dict[str, Glue] = {"ours": ours, "zmq_anyio": theirs}


class Count:
    """So many messages came; whoever waits for more is woken."""

    def __init__(self) -> None:
        self.count = 0
        self.last: Sequence[Any] = ()
        self._more = trio.Event()

    def __call__(self, frames: Sequence[Any]) -> None:
        """One more."""
        self.count += 1
        self.last = frames
        self._more.set()

    async def reach(self, count: int) -> None:
        """Wait until that many came in all."""
        while self.count < count:
            self._more = trio.Event()
            await self._more.wait()


def made(context: zmq.Context[Any], kind: int) -> zmq.Socket[Any]:
    """A socket without high-water marks."""
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


async def receive(glue: str, address: str) -> None:
    """Give credit for a quarter of a window at a time, until terminated."""
    socket = made(zmq.Context.instance(), zmq.ROUTER)
    socket.bind(address)
    arrived = Count()
    async with GLUES[glue](socket, arrived) as send:
        given = 0
        while True:
            await arrived.reach(given + WINDOW // 4)
            while arrived.count >= given + WINDOW // 4:
                given += WINDOW // 4
                await send([bytes(memoryview(arrived.last[0])), b"credit"])


async def rate(glue: str, address: str, size: int, seconds: float) -> float:
    """Messages a second, counted as they are credited."""
    socket = made(zmq.Context.instance(), zmq.DEALER)
    socket.connect(address)
    messages = [os.urandom(size) for _ in range(8)]
    credited = Count()
    async with GLUES[glue](socket, credited) as send:
        sent = 0

        async def until(end: float) -> None:
            nonlocal sent
            while time.perf_counter() < end or sent % WINDOW:
                await credited.reach((sent - WINDOW) // (WINDOW // 4) + 1)
                await send([messages[sent % 8]])
                sent += 1
            with trio.fail_after(CREDIT_SECONDS):
                await credited.reach(sent // (WINDOW // 4))

        await until(time.perf_counter() + seconds / 4)
        start, before = time.perf_counter(), sent
        await until(start + seconds)
        result = (sent - before) / (time.perf_counter() - start)
    socket.close()
    return result


async def cancelled(glue: str, address: str, messages: int) -> tuple[int, int]:
    """Messages lost and out of order, where the reader is cancelled and started again about every half millisecond."""
    context = zmq.Context()
    socket = made(context, zmq.PULL)
    socket.bind(address)

    def feed() -> None:
        with made(context, zmq.PUSH) as push:
            push.setsockopt(zmq.LINGER, -1)
            push.connect(address)
            for number in range(messages):
                push.send(b"%d" % number)
                if number % 7 == 0:
                    time.sleep(0.0002)

    numbers: list[int] = []
    read = {"ours": _read_ours, "zmq_anyio": _read_theirs}[glue]
    feeder = threading.Thread(target=feed)
    feeder.start()
    rng = random.Random(0)
    async with read(socket, numbers) as reader:
        quiet = trio.current_time()
        while len(numbers) < messages and trio.current_time() - quiet < 2:
            before = len(numbers)
            with trio.move_on_after(rng.random() / 1000):
                await reader()
            if len(numbers) > before:
                quiet = trio.current_time()
    feeder.join(CREDIT_SECONDS)
    socket.close()
    context.term()
    return messages - len(set(numbers)), sum(later < sooner for sooner, later in itertools.pairwise(numbers))


Reader: TypeAlias = Callable[[], Awaitable[None]]


@asynccontextmanager
async def _read_ours(socket: Any, numbers: list[int]) -> AsyncIterator[Reader]:
    await trio.lowlevel.checkpoint()
    yield Channel(socket, lambda frames: numbers.append(int(bytes(frames[0])))).read


@asynccontextmanager
async def _read_theirs(socket: Any, numbers: list[int]) -> AsyncIterator[Reader]:
    library = importlib.import_module("zmq_anyio")
    async with library.Socket(socket) as wrapped:

        async def read() -> None:
            while True:
                numbers.append(int((await wrapped.arecv_multipart())[0]))

        yield read


@dataclass(kw_only=True)
class Options:
    """The options."""

    seconds: float = 1.0
    """Of each measurement of a round."""
    rounds: int = 5
    messages: int = 10_000
    """Sent while the reader is cancelled again and again."""
    receive: Hidden = ()


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    keep_freed_memory()
    if options.receive:
        glue, address = options.receive
        trio.run(receive, glue, address)
        return 0
    glues = ["ours"]
    if importlib.util.find_spec("zmq_anyio") is None:
        print("zmq-anyio is not installed: only our own glue is measured; pip install zmq-anyio to compare\n")
    else:
        glues.append("zmq_anyio")

    rates: dict[tuple[str, str], list[float]] = {}
    lost: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        for size_name, size in SIZES.items():
            for _ in range(options.rounds):
                for glue in glues:
                    address = f"ipc://{folder}/{glue}"
                    with helper("glue", "--receive", glue, address):
                        measured = trio.run(rate, glue, address, size, options.seconds)
                    rates.setdefault((glue, size_name), []).append(measured)
        for glue in glues:
            lost[glue] = trio.run(cancelled, glue, f"ipc://{folder}/cancelled", options.messages)
    print_table(
        "messages a second, two processes over ipc, medians",
        ["glue", *SIZES],
        [[glue, *(median(rates[glue, size]) for size in SIZES)] for glue in glues],
    )
    print_table(
        f"{options.messages} messages while the reader is cancelled again and again",
        ["glue", "lost", "out of order"],
        [[glue, *lost[glue]] for glue in glues],
    )
    figures = {f"{glue}_per_s_{size}": median(found) for (glue, size), found in rates.items()}
    print_figures(figures | {f"{glue}_lost": float(count) for glue, (count, _) in lost.items()})
    return 0
