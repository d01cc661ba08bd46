"""Loads of a sandbox: full load, calls that come at random times, and 45,000 calls outstanding."""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from actors.sandbox.isolation.levels import Level
from actors.sandbox.owner.client import Sandbox
from benchmarks.reporting import print_table
from benchmarks.tool_processes import children_of, processes_of, resident_mib

SAMPLE = 2000
"""Calls that tell the trivial rate, before and after."""

Figures = dict[str, float | str | None]


@asynccontextmanager
async def running(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """The sandbox, started and ended."""
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        yield sandbox
        nursery.cancel_scope.cancel()


async def ask_all(sandbox: Sandbox, codes: Sequence[str], callers: int) -> tuple[float, list[str]]:
    """Run all, ``callers`` outstanding at once: seconds, and what each printed, in the order of ``codes``."""
    texts = [""] * len(codes)
    rest = iter(enumerate(codes))

    async def caller() -> None:
        for at, code in rest:
            result = await sandbox.execute(code, name=str(at % 1000))
            texts[at] += result.stdout or f"[{result.outcome}]"

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return time.perf_counter() - started, texts


async def full_load(sandbox: Sandbox, codes: Sequence[str], callers: int) -> tuple[float, list[float]]:
    """Seconds for all, each of the callers asking again as soon as it has its answer; the time each call took."""
    rest = iter(codes)
    latencies: list[float] = []

    async def caller() -> None:
        for code in rest:
            asked = time.perf_counter()
            result = await sandbox.execute(code)
            latencies.append(time.perf_counter() - asked)
            if result.outcome not in ("success", "error"):
                raise RuntimeError(f"a snippet ended as {result.outcome}: {result.stderr}\n{code}")

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return time.perf_counter() - started, latencies


async def open_load(
    sandbox: Sandbox, codes: Sequence[str], rate: float, draw: random.Random
) -> list[tuple[str, float]]:
    """Calls that come at random times, ``rate`` a second whatever becomes of them: what each was and took."""
    took: list[tuple[str, float]] = []

    async def call(code: str, due: float) -> None:
        await sandbox.execute(code)
        took.append((code, trio.current_time() - due))

    async with trio.open_nursery() as nursery:
        due = trio.current_time()
        for code in codes:
            due += draw.expovariate(rate)
            await trio.sleep_until(due)
            nursery.start_soon(call, code, due)
    return took


def service_mib() -> float:
    """The most memory this process has had, and what the warm interpreters below it have."""
    interpreters = [one for interpreter in children_of(os.getpid()) for one in processes_of(interpreter)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 + sum(map(resident_mib, interpreters))


async def outstanding(calls: int, interpreters: int, children: int, level: Level) -> dict[str, float]:
    """So many trivial calls at once, each with an answer of its own. Callers and service share the measured process."""
    codes = [f"print({number})" for number in range(calls)]
    async with running(Sandbox(interpreters=interpreters, children=children, isolation=level)) as sandbox:
        sample = min(SAMPLE, calls)
        callers = 2 * interpreters * children
        await ask_all(sandbox, codes[:sample], callers)
        rates = [sample / (await ask_all(sandbox, codes[:sample], callers))[0]]
        counted = sandbox.figures["calls"]
        seconds, texts = await ask_all(sandbox, codes, calls)
        counted = sandbox.figures["calls"] - counted
        memory = service_mib()
        rates.append(sample / (await ask_all(sandbox, codes[:sample], callers))[0])
    rate = sum(rates) / 2
    lost = sum(f"{number}\n" not in text for number, text in enumerate(texts))
    twice = sum(len(text.split()) > 1 for text in texts) + max(0.0, counted - calls)
    row = [calls, lost, twice, seconds, *rates, seconds * rate / calls, memory]
    header = ["calls", "lost", "twice", "seconds", "calls/s before", "after", "time ratio", "memory MiB"]
    print_table("Outstanding at once", header, [row])
    return {
        "trivial_calls_per_s": rate,
        "outstanding_lost": lost,
        "outstanding_duplicated": twice,
        "outstanding_time_ratio": seconds * rate / calls,
        "outstanding_rss_mib": memory,
    }
