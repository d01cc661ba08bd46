"""Tool calls: how many a second, beside a fresh interpreter for each and beside the least that a fork server can be.

    agent-rl bench tools
    agent-rl bench tools --bare               # without the part over links

The mix is the 40 snippets of `tool_snippets.toml`. Rounds go through all sides in turn: ``python3 -c`` for each call;
the floor (the same warm interpreters, fork and ``exec()``, nothing else); the sandbox at full load, as isolated as the
host allows; and the sandbox at half of that load, where calls come at random times. Beside these, a client asks an
executor actor over links, as a run does. Then 45,000 calls are outstanding at once in one sandbox.
benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from actors.sandbox.isolation.levels import Level
from actors.sandbox.owner.client import Sandbox, Weights
from benchmarks.reporting import print_figures, print_table
from benchmarks.tool_loads import Figures, full_load, open_load, outstanding, running
from benchmarks.tool_processes import SNIPPETS, Floor, children_of, run_fresh, used_by
from benchmarks.tool_service import Service

MODULES = ("numpy", "sympy")
WEIGHTS = Weights(MODULES)
CORES = 2
"""Fresh interpreters, and the floor's children of each of its interpreters, at once."""
FAILING = 6 / 40
FRESH, FLOOR, SANDBOX, LINKED = "python3 -c", "floor", "sandbox", "over links"
NOTHING = (0.0,) * 3


@dataclass(kw_only=True)
class Options:
    """The options."""

    rounds: int = 5
    """Rounds through all sides."""
    passes: int = 12
    """Passes over the 40 snippets a round."""
    fresh_passes: int = 1
    """The same with fresh interpreters."""
    interpreters: int = 2
    """Warm interpreters of each weight."""
    children: int = 4
    """Calls running at once, times interpreters."""
    callers: int = 8
    """Calls outstanding at full load."""
    outstanding: int = 45_000
    """Trivial calls outstanding at once; 0 leaves this part out."""
    bare: bool = False
    """Leave out the executor that is asked over links."""
    seed: int = 0


@dataclass
class Side:
    """Costs of one side: calls a second of each round; of all calls, processor seconds of caller, interpreters and
    children.
    """

    rates: list[float] = field(default_factory=list)
    calls: int = 0
    used: tuple[float, ...] = NOTHING
    latencies: list[float] = field(default_factory=list)

    def count(self, calls: int, seconds: float, before: tuple[float, ...], after: tuple[float, ...]) -> None:
        """Add a round."""
        self.calls += calls
        self.rates.append(calls / seconds)
        self.used = tuple(used + late - early for used, late, early in zip(self.used, after, before, strict=True))

    def cpu_ms(self) -> list[float]:
        """Processor time a call, in ms, by part."""
        return [1e3 * seconds / self.calls for seconds in self.used]


def mix(passes: int, draw: random.Random) -> list[str]:
    """All snippets so many times, in random order."""
    codes = list(SNIPPETS) * passes
    draw.shuffle(codes)
    return codes


def loaded(code: str) -> tuple[str, ...]:
    """The modules that the interpreter has which the sandbox gives the code to."""
    return WEIGHTS.sets[WEIGHTS.lightest(code)]


def spent(pids: Sequence[int]) -> tuple[float, ...]:
    """Processor seconds of this process, the interpreters and the children they reaped."""
    return time.process_time(), *(sum(part) for part in zip(*map(used_by, pids), strict=True))


def reaped_seconds() -> float:
    """Processor seconds of the children that this process itself has reaped."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Bench:
    """The rounds that go through all sides in turn."""

    def __init__(self, options: Options, floor: Floor, sandbox: Sandbox, service: Service | None) -> None:
        self.options, self.floor, self.sandbox, self.service = options, floor, sandbox, service
        self.draw = random.Random(options.seed)
        self.sides: dict[str, Side] = {}
        self.overheads: list[float] = []
        self.own: dict[str, float] = {}

    async def warm_up(self, pids: list[int]) -> list[int]:
        """Start what is started when it is needed; the processes of all the sandbox's interpreters."""
        calls = [(code, loaded(code)) for code in SNIPPETS]
        self.own = self.floor.own_seconds(calls)
        self.floor.run(calls)
        weights = len({loaded(code) for code in SNIPPETS})
        others = {*children_of(os.getpid())} - {*pids}
        while self.sandbox.figures["interpreters"] < self.options.interpreters * weights:
            await full_load(self.sandbox, mix(1, self.draw), self.options.callers)
        pids = [pid for pid in children_of(os.getpid()) if pid not in others]
        if self.service is not None:
            for _ in range(3):  # until interpreters of all weights have started
                await self.service.ask(mix(1, self.draw), self.options.callers)
        return pids

    async def rounds(self, pids: list[int]) -> None:
        """Measure; ``pids`` are the sandbox's interpreters so far."""
        options, pids = self.options, await self.warm_up(pids)
        for _ in range(options.rounds):
            codes = mix(options.fresh_passes, self.draw)
            before: tuple[float, ...] = (0.0, 0.0, reaped_seconds())
            seconds = run_fresh(codes, CORES)
            self._side(FRESH).count(len(codes), seconds, before, (0.0, 0.0, reaped_seconds()))
            codes = mix(options.passes, self.draw)
            before = spent(self.floor.pids)
            seconds, failed = self.floor.run([(code, loaded(code)) for code in codes])
            if failed != round(len(codes) * FAILING):
                raise RuntimeError(f"{failed} of the floor's {len(codes)} calls failed, which is not the mix' share")
            self._side(FLOOR).count(len(codes), seconds, before, spent(self.floor.pids))
            codes = mix(options.passes, self.draw)
            before = spent(pids)
            seconds, latencies = await full_load(self.sandbox, codes, options.callers)
            self._side(SANDBOX).count(len(codes), seconds, before, spent(pids))
            self.sides[SANDBOX].latencies += latencies
            if self.service is not None:
                await self._linked_round(self.service)
            half = self.sides[SANDBOX].rates[-1] / 2
            took = await open_load(self.sandbox, mix(options.passes, self.draw), half, self.draw)
            self.overheads += [seconds - self.own[code] for code, seconds in took]

    async def _linked_round(self, service: Service) -> None:
        codes = mix(self.options.passes, self.draw)
        before = service.used()
        answered = await service.ask(codes, self.options.callers)
        own = (answered.cpu, *service.used())
        self._side(LINKED).count(len(codes), answered.seconds, (0.0, *before), own)

    def linked_figures(self) -> Figures:
        """The figures of all rounds over links."""
        side = self.sides[LINKED]
        return {
            "linked_speedup_over_fresh": self._ratio(LINKED, FRESH),
            "linked_share_of_floor": self._ratio(LINKED, FLOOR),
            "linked_speedup_over_fresh_cpu": sum(self.sides[FRESH].cpu_ms()) / sum(side.cpu_ms()),
            "linked_share_of_floor_cpu": sum(self.sides[FLOOR].cpu_ms()) / sum(side.cpu_ms()),
            "linked_over_bare_cpu": sum(side.cpu_ms()) / sum(self.sides[SANDBOX].cpu_ms()),
            "linked_calls_per_s": statistics.median(side.rates),
        }

    def _ratio(self, name: str, other: str) -> float:
        """Calls a second of a side by those of another, the median over rounds."""
        pairs = zip(self.sides[name].rates, self.sides[other].rates, strict=True)
        return statistics.median(rate / its for rate, its in pairs)

    def _side(self, name: str) -> Side:
        return self.sides.setdefault(name, Side())

    def report(self) -> Figures:
        """Print the tables; the figures."""
        rows, costs = [], []
        for name, side in self.sides.items():
            shares = [rate / floor for rate, floor in zip(side.rates, self.sides[FLOOR].rates, strict=True)]
            low, high = min(side.rates), max(side.rates)
            parts = side.cpu_ms()
            rows.append([name, statistics.median(side.rates), low, high, statistics.median(shares)])
            costs.append([name, *parts, sum(parts)])
        print_table("The mix at full load", ["side", "calls/s", "slowest", "fastest", "of the floor"], rows)
        header = ["side", "caller", "interpreters", "children", "in all"]
        print_table("Processor time a call in ms, by part", header, costs)
        strong = self.sides[SANDBOX]
        return {
            "speedup_over_fresh": self._ratio(SANDBOX, FRESH),
            "share_of_floor": self._ratio(SANDBOX, FLOOR),
            "speedup_over_fresh_cpu": sum(self.sides[FRESH].cpu_ms()) / sum(strong.cpu_ms()),
            "share_of_floor_cpu": sum(self.sides[FLOOR].cpu_ms()) / sum(strong.cpu_ms()),
            "calls_per_s": statistics.median(strong.rates),
            "fresh_calls_per_s": statistics.median(self.sides[FRESH].rates),
            "floor_calls_per_s": statistics.median(self.sides[FLOOR].rates),
            "median_overhead_ms": 1e3 * statistics.median(self.overheads),
            "p99_half_load_overhead_ms": 1e3 * statistics.quantiles(self.overheads, n=100)[98],
            "median_full_load_ms": 1e3 * statistics.median(strong.latencies),
            "p99_full_load_ms": 1e3 * statistics.quantiles(strong.latencies, n=100)[98],
        }


async def measure_mix(options: Options, level: Level) -> Figures:
    """The part that alternates."""
    sandbox = Sandbox(
        interpreters=options.interpreters, children=options.children, warm_modules=MODULES, isolation=level
    )
    with Floor(sorted({loaded(code) for code in SNIPPETS}), CORES) as floor:
        async with trio.open_nursery() as nursery:
            known = set(children_of(os.getpid()))
            await nursery.start(sandbox.run)
            pids = [pid for pid in children_of(os.getpid()) if pid not in known]
            service = None if options.bare else Service()
            try:
                bench = Bench(options, floor, sandbox, service)
                await bench.rounds(pids)
            finally:
                if service is not None:
                    service.end()
            figures = {"isolation": level, **bench.report(), **({} if options.bare else bench.linked_figures())}
            nursery.cancel_scope.cancel()
    return figures


async def strongest_level() -> Level:
    """The strongest isolation that the host allows."""
    async with running(Sandbox()) as sandbox:
        assert sandbox.level is not None
        return sandbox.level


async def measure(options: Options) -> Figures:
    """All parts that are wanted."""
    level = await strongest_level()
    figures = await measure_mix(options, level) if options.rounds else {}
    if options.outstanding:
        figures |= await outstanding(options.outstanding, options.interpreters, options.children, level)
    return figures


def main(options: Options) -> int:
    """Measure and print. The exit code is 1 if a call was lost or answered twice."""
    figures = trio.run(measure, options)
    print_figures(figures)
    return int(any(figures.get(name) for name in ("outstanding_lost", "outstanding_duplicated")))
