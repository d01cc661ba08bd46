"""Loads of tool executors: full load, rates offered over links, 45,000 calls outstanding, a thousand children alive."""

from __future__ import annotations

import math
import os
import random
import resource
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from actors.sandbox.isolation.levels import Level
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from benchmarks.reporting import percentile, print_table
from benchmarks.tool_processes import SNIPPETS, children_of, processes_of, resident_mib
from benchmarks.tool_service import PLACES, Answered, Call, Client, Service, ServiceFailed, running_service

PERCENTILES = (0.5, 0.95, 0.99)
CONCURRENT_CALLS = 45_000
"""Concurrent calls of the paper's tool service."""
LATENCY_SECONDS = 1.0
"""The latency below which they are asked for."""
SAMPLE = 2000
"""Calls that tell the trivial rate, before and after."""
PATIENT = ExecutionLimits(wall_seconds=120.0)
"""For calls that wait for each other."""

Figures = dict[str, float | str | None]


# Over links ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The calls that came at one offered rate, in calls a second; ``percent`` of the rate at full load."""

    percent: int
    rate: float
    calls: list[Call]

    def latency(self, share: float) -> float:
        """Seconds that this share of the calls did not exceed."""
        return percentile([call.latency for call in self.calls], share)


async def closed_load(service: Service, codes: Sequence[str], callers: int) -> Answered:
    """The first client asks all, with so many callers. Raises ServiceFailed when a snippet ends as none should."""
    answered = await service.clients[0].ask(codes, callers=callers)
    _check(answered.calls)
    return answered


async def load_steps(service: Service, full: float, shares: Sequence[float], seconds: float, seed: int) -> list[Step]:
    """Calls at random times (exponential gaps), at shares of the rate ``full``, for so many seconds each.

    A call's latency counts from the time at which it was due, so a client or an executor that is late hides nothing.
    """
    draw = random.Random(seed)
    steps = []
    for share in shares:
        rate = share * full
        dues, due = [], 0.0
        while (due := due + draw.expovariate(rate)) < seconds:
            dues.append(due)
        answered = await service.clients[0].ask(draw.choices(SNIPPETS, k=len(dues)), dues=dues)
        _check(answered.calls)
        steps.append(Step(round(100 * share), rate, answered.calls))
    return steps


def _check(calls: Sequence[Call]) -> None:
    for call in calls:
        if call.outcome not in {"success", "error"}:
            raise ServiceFailed(f"a snippet ended as {call.outcome}: {call.text}")


def report_steps(steps: Sequence[Step], executor_ms: float) -> Figures:
    """The table of the steps, and the arithmetic for 45,000 concurrent calls.

    By Little's law, calls that are outstanding are their rate times their latency: 45,000 calls that each take a second
    at most are answered at 45,000 a second at least.
    """
    cores = os.cpu_count() or 1
    names = [f"p{100 * share:.0f}" for share in PERCENTILES]
    rows = []
    figures: Figures = {}
    for step in steps:
        latencies = [1e3 * step.latency(share) for share in PERCENTILES]
        rows.append([step.percent, step.rate / cores, step.rate, len(step.calls), *latencies])
        figures[f"linked_rate_per_core_at_{step.percent}"] = step.rate / cores
        figures |= {f"linked_{name}_ms_at_{step.percent}": ms for name, ms in zip(names, latencies, strict=True)}
    header = ["% of full load", "calls/s a core", "offered calls/s", "calls", *(f"{name} ms" for name in names)]
    print_table("Latency over links, calls that come at random times", header, rows)
    print_waits("Where these calls spent their time, mean ms", {f"at {step.percent} %": step.calls for step in steps})
    rate = max((step.rate for step in steps if step.latency(PERCENTILES[-1]) < LATENCY_SECONDS), default=math.nan)
    known = not math.isnan(rate)
    needed = CONCURRENT_CALLS / LATENCY_SECONDS
    return figures | {
        "linked_rate_per_core_p99_below_1s": rate / cores,
        "linked_cores_for_45000": math.ceil(needed / rate * cores) if known else None,
        "linked_executors_for_45000": math.ceil(needed / rate) if known else None,
        "linked_executor_processes_at_least": math.ceil(needed * executor_ms / 1e3),
    }


def print_waits(title: str, groups: Mapping[str, Sequence[Call]]) -> None:
    """Where calls spent their time: means in ms, by place."""
    rows = [
        [name, *(1e3 * statistics.mean(call.seconds[place] for call in calls) for place in range(len(PLACES)))]
        for name, calls in groups.items()
    ]
    print_table(title, ["calls", *PLACES], rows)


async def linked_outstanding(calls: int, clients: int, executors: int) -> dict[str, float]:
    """So many trivial calls at once, shared among clients. Each prints its number, so that each has its own answer."""
    async with running_service(clients, executors) as service:
        for client in service.clients:  # links and interpreters are ready
            await client.ask(["print(0)"] * executors * 8, callers=executors * 8)
        before = await service.run_by_executors(clients * executors * 8)
        shares = [range(first, calls, clients) for first in range(clients)]
        answers: dict[int, Answered] = {}

        async def ask(at: int, client: Client) -> None:
            answers[at] = await client.ask([f"print({number})" for number in shares[at]], callers=calls)

        async with trio.open_nursery() as nursery:
            for at, client in enumerate(service.clients):
                nursery.start_soon(ask, at, client)
        run = await service.run_by_executors(before + calls) - before
    pairs = [pair for at, share in enumerate(shares) for pair in zip(share, answers[at].calls, strict=True)]
    lost = sum(call.text.strip() != str(number) for number, call in pairs)
    every = [call for _, call in pairs]
    seconds = max(answer.seconds for answer in answers.values())
    header = ["calls", "clients", "executors", "lost", "run again", "seconds", "calls/s"]
    row = [calls, clients, executors, lost, run - calls, seconds, calls / seconds]
    print_table("Outstanding at once over links", header, [row])
    print_waits("Where they spent their time, mean ms", {"all": every})
    waits = {
        f"linked_outstanding_{place}_s": statistics.mean(call.seconds[at] for call in every)
        for at, place in enumerate(PLACES)
    }
    return {
        "outstanding_lost": lost,
        "outstanding_duplicated": run - calls,
        "linked_outstanding_calls_per_s": calls / seconds,
        "linked_outstanding_p99_s": percentile([call.latency for call in every], PERCENTILES[-1]),
        **waits,
    }


# In one process ------------------------------------------------------------------------------------------------------


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


async def all_alive(children: int, interpreters: int, level: Level) -> Figures:
    """So many children alive at once, by their own clocks; each sleeps 0.3 s from when all should have been started."""
    code = (
        "import time\nbegun = time.monotonic()\ntime.sleep(max(0, {due} - begun) + 0.3)\nprint(begun, time.monotonic())"
    )
    share = -(-children // interpreters)
    sandbox = Sandbox(interpreters=interpreters, children=share, isolation=level, limits=PATIENT)
    async with running(sandbox):
        first, _ = await ask_all(sandbox, [code.format(due=0)] * children, children)  # makes the places for them
        due = time.monotonic() + first
        seconds, texts = await ask_all(sandbox, [code.format(due=due)] * children, children)
    spans = [(float(begin), float(end)) for begin, end in (text.split() for text in texts if "[" not in text)]
    alive = most = 0
    for _, change in sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]):
        alive += change
        most = max(most, alive)
    header = ["children", "answered", "alive at once", "seconds, places to be made", "seconds"]
    print_table("Alive at once, each sleeping 0.3 s", header, [[children, len(spans), most, first, seconds]])
    return {"alive_answered": len(spans), "alive_at_once": most}
