"""What tool calls over links are measured for: latency by offered rate, 45,000 calls at once, where calls wait."""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from benchmarks.reporting import print_table
from benchmarks.tool_service import PLACES, Answered, Call, Client, Service, ServiceFailed, running_service
from benchmarks.tool_snippets import SNIPPETS

PERCENTILES = (0.5, 0.95, 0.99)
CONCURRENT_CALLS = 45_000
"""Concurrent calls of the paper's tool service."""
LATENCY_SECONDS = 1.0
"""The latency below which they are asked for."""
EXPECTED = ("success", "error")
"""How a snippet may end."""


@dataclass(frozen=True)
class Step:
    """The calls that came at one offered rate, in calls a second; ``percent`` of the rate at full load."""

    percent: int
    rate: float
    calls: list[Call]

    def latency(self, share: float) -> float:
        """Seconds that this share of the calls did not exceed."""
        return percentile([call.latency for call in self.calls], share)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


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
        if call.outcome not in EXPECTED:
            raise ServiceFailed(f"a snippet ended as {call.outcome}: {call.text}")


def report_steps(steps: Sequence[Step], executor_ms: float) -> dict[str, float | str | None]:
    """The table of the steps, and the arithmetic for 45,000 concurrent calls.

    By Little's law, calls that are outstanding are their rate times their latency: 45,000 calls that each take a second
    at most are answered at 45,000 a second at least.
    """
    cores = os.cpu_count() or 1
    header = [
        "% of full load",
        "calls/s a core",
        "offered calls/s",
        "calls",
        *(f"p{100 * share:.0f} ms" for share in PERCENTILES),
    ]
    rows = [
        [
            step.percent,
            step.rate / cores,
            step.rate,
            len(step.calls),
            *(1e3 * step.latency(share) for share in PERCENTILES),
        ]
        for step in steps
    ]
    print_table("Latency over links, calls that come at random times", header, rows)
    print_waits("Where these calls spent their time, mean ms", {f"at {step.percent} %": step.calls for step in steps})
    figures: dict[str, float | str | None] = {}
    for step in steps:
        figures[f"linked_rate_per_core_at_{step.percent}"] = step.rate / cores
        for share in PERCENTILES:
            figures[f"linked_p{100 * share:.0f}_ms_at_{step.percent}"] = 1e3 * step.latency(share)
    kept = [step.rate for step in steps if step.latency(PERCENTILES[-1]) < LATENCY_SECONDS]
    rate = max(kept, default=math.nan)
    needed = CONCURRENT_CALLS / LATENCY_SECONDS
    return figures | {
        "linked_rate_per_core_p99_below_1s": rate / cores,
        "linked_cores_for_45000": math.ceil(needed / rate * cores) if kept else None,
        "linked_executors_for_45000": math.ceil(needed / rate) if kept else None,
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
        answers: list[Answered | None] = [None] * clients

        async def ask(at: int, client: Client) -> None:
            answers[at] = await client.ask([f"print({number})" for number in shares[at]], callers=calls)

        async with trio.open_nursery() as nursery:
            for at, client in enumerate(service.clients):
                nursery.start_soon(ask, at, client)
        run = await service.run_by_executors(before + calls) - before
    answered = [answer for answer in answers if answer is not None]
    pairs = [
        (number, call)
        for share, answer in zip(shares, answered, strict=True)
        for number, call in zip(share, answer.calls, strict=True)
    ]
    lost = sum(call.text.strip() != str(number) for number, call in pairs)
    every = [call for _, call in pairs]
    seconds = max(answer.seconds for answer in answered)
    header = ["calls", "clients", "executors", "lost", "run again", "seconds", "calls/s"]
    title = "Outstanding at once over links"
    print_table(title, header, [[calls, clients, executors, lost, run - calls, seconds, calls / seconds]])
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
