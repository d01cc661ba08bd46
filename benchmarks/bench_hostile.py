"""Hostile tool calls: what they break through, and what they take from honest neighbours.

    agent-rl bench hostile
    agent-rl bench hostile --only spin-32 sessions

Three parts. Every attack of ``benchmarks/hostile`` on what a call can reach runs once beside an honest call. Then, for
every attack on what calls share, 8 hostile calls at once run on 2 interpreters of 8 children, while 4 honest callers
run plain snippets: how long these take, beside how long they take alone. Then 4 callers have honest answers checked
while 32 answers that never end are checked too. The exit code is 1 if an attack succeeded, a neighbour timed out, or an
answer was wrong. ``bench harness`` has programs of rollouts that attack from their jails.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

import trio

from actors.sandbox.isolation.levels import Level
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from actors.sandbox.owner.functions import FunctionSandbox
from actors.tool_executor import ToolExecutorSettings
from agent_rl.environments.base import CheckError
from agent_rl.environments.maths.environment import CHECK
from benchmarks.hostile import REACH, SHARES, Attack, failure
from benchmarks.reporting import print_figures, print_table
from benchmarks.tool_processes import PLAIN

QUIET_SECONDS = 0.5
"""How long the neighbours run alone between two classes."""
SETTLING_SECONDS = 0.3
"""Until what hostile calls have left is gone."""
AHEAD_SECONDS = 0.3
"""How long hostile calls run before the neighbours begin."""
WORST_RATIO = 10.0
"""A class of attacks that makes neighbours wait longer than this counts as one that succeeded."""
QUICK = ("spin-32", "orphans")
QUICK_REACHING = 4
HOSTILE, CALLERS = 8, 4
"""Hostile calls at once, and honest callers."""
ENDLESS, ENDLESS_ANSWERS = r"\sum_{k=1}^{10^{10}} k^k", 32
"""An answer whose check ends at its limit alone, and how many of it are outstanding."""
INTERPRETERS, CHILDREN, MEMORY = 2, 8, 5 << 30
"""Of the sandbox: calls running at once are interpreters times children; memory is that of all calls together."""
LIMITS = ExecutionLimits(output_bytes=65536, processes=ToolExecutorSettings().processes)


@dataclass(kw_only=True)
class Options:
    """The options."""

    seconds: float = 3.0
    """How long neighbours run beside each class."""
    only: tuple[str, ...] = ()
    """These attacks alone, by name; ``checks`` is the last part."""
    quick: bool = False
    """A few attacks, briefly: shows that the benchmark runs."""


@dataclass
class Heard:
    """Calls of honest callers: seconds of each, and the ends of those that did not end as they do alone."""

    seconds: list[float] = field(default_factory=list)
    harmed: Counter[str] = field(default_factory=Counter)

    @property
    def p95(self) -> float:
        """Seconds."""
        return statistics.quantiles(self.seconds, n=20)[18] if len(self.seconds) > 1 else sum(self.seconds)


class Neighbours:
    """Honest callers. Each runs snippet after snippet and knows what each prints."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.expected: list[str] = []

    async def prepare(self) -> None:
        """Learn what the snippets print. Raises RuntimeError where one fails alone."""
        for code in PLAIN:
            result = await self.sandbox.execute(code)
            if result.outcome != "success":
                raise RuntimeError(f"a snippet ended as {result.outcome}: {result.stderr}\n{code}")
            self.expected.append(result.stdout)

    async def heard(self, seconds: float) -> Heard:
        """Let the callers call for so long; a call that has begun is waited for."""
        heard, until = Heard(), trio.current_time() + seconds

        async def caller(number: int) -> None:
            at = number
            while trio.current_time() < until:
                at = (at + 1) % len(PLAIN)
                asked = time.perf_counter()
                result = await self.sandbox.execute(PLAIN[at], name=f"honest-{number}")
                heard.seconds.append(time.perf_counter() - asked)
                if (result.outcome, result.stdout) != ("success", self.expected[at]):
                    heard.harmed[result.outcome if result.outcome != "success" else "wrong"] += 1

        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(caller, number)
        return heard


@asynccontextmanager
async def hostile_calls(sandbox: Sandbox, attack: Attack, ended: Counter[str]) -> AsyncIterator[None]:
    """So many calls of an attack at once, begun again when they end, until the block ends. Counts their outcomes."""

    async def go_on(number: int) -> None:
        name = f"hostile-{number}"
        for turn in count():
            if attack.in_session:  # a new rollout each time, whose notebook is lost
                result = await sandbox.run_cell(f"{name}.{turn}", turn, attack.code, [attack.accomplice])
                sandbox.end_session(f"{name}.{turn}")
            else:
                result = await sandbox.execute(attack.code, name=name)
            ended[result.outcome] += 1

    async with trio.open_nursery() as nursery:
        for number in range(3 * HOSTILE if attack.in_session else HOSTILE):
            nursery.start_soon(go_on, number)
        await trio.sleep(AHEAD_SECONDS)
        yield
        nursery.cancel_scope.cancel()
    await trio.sleep(SETTLING_SECONDS)


class Bench:
    """Both parts, on one sandbox."""

    def __init__(self, sandbox: Sandbox, options: Options) -> None:
        self.sandbox, self.options = sandbox, options
        self.neighbours = Neighbours(sandbox)
        self.quiet: list[Heard] = []
        self.broken: list[str] = []

    async def shares(self, attacks: Sequence[Attack]) -> dict[str, float | str | None]:
        """Neighbours beside each class of hostile calls."""
        classes: list[tuple[Attack, Heard, Counter[str]]] = []
        await self.neighbours.heard(QUIET_SECONDS)  # until the children that wait are there
        for attack in attacks:
            self.quiet.append(await self.neighbours.heard(min(QUIET_SECONDS, self.options.seconds)))
            ended: Counter[str] = Counter()
            async with hostile_calls(self.sandbox, attack, ended):
                heard = await self.neighbours.heard(self.options.seconds)
            classes.append((attack, heard, ended))
            print(f"{attack.name}: p95 {1e3 * heard.p95:.1f} ms, alone {1e3 * self.quiet[-1].p95:.1f}", file=sys.stderr)
        if not classes:
            return {}
        quiet = statistics.median(heard.p95 for heard in self.quiet)
        ratios = {attack.name: heard.p95 / quiet for attack, heard, _ in classes}
        rows = []
        for attack, heard, ended in classes:
            ends = ", ".join(f"{count} {outcome}" for outcome, count in ended.most_common())
            harm = ", ".join(f"{count} {outcome}" for outcome, count in heard.harmed.items())
            median = 1e3 * statistics.median(heard.seconds)
            row = (attack.name, len(heard.seconds), median, 1e3 * heard.p95, ratios[attack.name], harm, ends)
            rows.append(row)
            if harm or ratios[attack.name] > WORST_RATIO:
                self.broken.append(attack.name)
        header = ("class", "honest calls", "median ms", "p95 ms", "of quiet p95", "harmed", "hostile calls ended")
        print_table(f"{HOSTILE} hostile calls beside {CALLERS} callers", header, rows)
        worst = max(ratios, key=lambda name: ratios[name])
        return {
            "quiet_p95_ms": 1e3 * quiet,
            "neighbour_p95_ratio": ratios[worst],
            "replay_neighbour_p50_ratio": self._replays(classes),
            "worst_class": worst,
            "neighbour_timeouts": sum(heard.harmed["timeout"] for _, heard, _ in classes),
            "neighbours_harmed": sum(heard.harmed.total() for _, heard, _ in classes),
        }

    def _replays(self, classes: Sequence[tuple[Attack, Heard, Counter[str]]]) -> float | None:
        """Median seconds of honest calls while lost notebooks are rebuilt, over those of calls alone."""
        alone = statistics.median(seconds for heard in self.quiet for seconds in heard.seconds)
        found = [statistics.median(heard.seconds) for attack, heard, _ in classes if attack.in_session]
        return found[0] / alone if found else None


async def checks(seconds: float) -> dict[str, float]:
    """Checks of honest answers, alone and beside checks that do not end."""
    limit = ToolExecutorSettings().check_seconds
    sandbox = FunctionSandbox(
        [CHECK], limits=ExecutionLimits(wall_seconds=limit, cpu_seconds=limit, memory_bytes=2**30)
    )

    async def endless(number: int) -> None:
        while True:
            with suppress(CheckError):
                await sandbox.check(CHECK, "7", ENDLESS, name=f"hostile-{number}")

    async def heard(seconds: float) -> Heard:
        heard, until = Heard(), trio.current_time() + seconds

        async def caller(number: int) -> None:
            while trio.current_time() < until:
                asked = time.perf_counter()
                answer = await sandbox.check(CHECK, "\\frac{1}{2}", "0.5", name=f"honest-{number}")
                heard.seconds.append(time.perf_counter() - asked)
                heard.harmed["wrong"] += answer != "equal"

        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(caller, number)
        return heard

    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        await heard(QUIET_SECONDS)
        quiet = await heard(seconds)
        for number in range(ENDLESS_ANSWERS):
            nursery.start_soon(endless, number)
        await trio.sleep(AHEAD_SECONDS)
        beside = await heard(seconds)
        nursery.cancel_scope.cancel()
    return {
        "check_quiet_p95_ms": 1e3 * quiet.p95,
        "check_neighbour_p95_ms": 1e3 * beside.p95,
        "check_neighbour_p95_ratio": beside.p95 / quiet.p95,
        "checks_harmed": (quiet.harmed + beside.harmed).total(),
    }


async def reach(level: Level, attacks: Sequence[Attack]) -> list[str]:
    """Run each of the attacks that the level is to hold against; the names of those that got through."""
    sandbox = Sandbox(isolation=level)
    broken = []
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        for attack in attacks:
            if reason := await failure(sandbox, attack):
                broken.append(attack.name)
                print(f"{attack.name} got through: {attack.proof}\n{reason}", file=sys.stderr)
        nursery.cancel_scope.cancel()
    return broken


async def measure(options: Options) -> dict[str, float | str | None]:
    """All parts. Raises (in groups) ControlGroupsError, IsolationError."""
    taking, there = ([a for a in part if not options.only or a.name in options.only] for part in (SHARES, REACH))
    if options.quick:
        options.seconds, taking, there = 0.4, [a for a in taking if a.name in QUICK], there[:QUICK_REACHING]
    sandbox = Sandbox(interpreters=INTERPRETERS, children=CHILDREN, limits=LIMITS, sessions=64, memory_bytes=MEMORY)
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        bench = Bench(sandbox, options)
        await bench.neighbours.prepare()
        figures = await bench.shares(taking)
        restarts = sandbox.figures["restarts"]
        nursery.cancel_scope.cancel()
    assert sandbox.level is not None
    reaches = [attack for attack in there if sandbox.level in attack.levels]
    checked = await checks(options.seconds) if not options.only or "checks" in options.only else {}
    broken = [*await reach(sandbox.level, reaches), *bench.broken]
    broken += ["endless-checks"] if checked.get("check_neighbour_p95_ratio", 0.0) > WORST_RATIO else []
    broken += ["wrong-checks"] if checked.get("checks_harmed") else []
    return {
        "isolation": sandbox.level,
        "control_groups": ", ".join(sandbox.groups.limits.values()),
        "attacks_tried": len(taking) + len(reaches),
        "attacks_broke": len(broken),
        "broken_names": ", ".join(broken),
        **figures,
        **checked,
        "interpreters_restarted": restarts,
    }


def main(options: Options) -> int:
    """Measure and print."""
    figures = trio.run(measure, options)
    print_figures(figures)
    return 1 if figures["attacks_broke"] else 0
