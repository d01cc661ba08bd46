"""Swaps and scalings: actors of a run are replaced one after the other, beside a twin that is left alone.

    agent-rl bench swap --swaps 20 --seeds 5              # the shortened quickstart
    agent-rl bench swap --swaps 20 --seeds 5 --scripted   # without a model, with scripted turns

A seed decides the plan: random swaps of scheduler, filter, learner, generators and executors for another class and
back, and random numbers of generators and executors. The next change comes once the run has trained another step. After
the last one the run is stopped in order, and then finished; the twin has as many steps.
benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from actors.tool_executor import ToolExecutor
from agent_rl.config.load import load_topology
from benchmarks.bench_chaos import SCRIPTED, SHORTENED, settings_in
from benchmarks.chaos.accounting import Finished, Verdict, accounts_of, summary_in
from benchmarks.chaos.actors import written
from benchmarks.chaos.host import Cluster, one_host
from benchmarks.chaos.plan import CLASSES, MOST_REPLICAS, SCALED, WITHOUT_MODEL, Change, make_changes
from benchmarks.chaos.sight import Lines
from benchmarks.command import Overrides
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import percentile, print_figures, print_table
from benchmarks.runs import RUN_SECONDS, RunFailed

AFTER_SECONDS = 2.0
"""A change may keep rollouts from generators for so long after it is done."""
UNTIL_STOPPED = 1_000_000
"""Steps of a run that is stopped in order once all changes are made, and then has `LAST_STEPS` more."""
LAST_STEPS = 2
LOOK_SECONDS = 0.1
STEP_SECONDS = 600.0
"""A run that trains no step for so long stands still."""
AWAY = re.compile(r"it was away for ([\d.]+) s \((beside|in place)")


class OtherExecutor(ToolExecutor):
    """Another class."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    swaps: int = 20
    """Changes in each run."""
    seeds: int = 5
    """Runs, with seeds from ``seed`` on."""
    seed: int = 0
    """The first seed, of the run and of its plan."""
    scripted: bool = False
    """No model: scripted turns, and a learner that notes down what it is trained on."""
    twin: bool = True
    """Whether each run has a twin that is left alone."""
    overrides: Overrides = ()
    """As for agent-rl run."""


# A run ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A change that was made, between two times in monotonic seconds."""

    change: Change
    began: float
    ended: float
    way: str
    """``beside``, ``in place`` or ``scale``."""
    away: tuple[float, ...]
    """The seconds for which each process was away."""


@dataclass(frozen=True, kw_only=True)
class Ended(Finished):
    """A run that ended, and its changes."""

    made: Sequence[Made]
    times: Sequence[float]
    """When turns were written, until the run was stopped."""
    steps: int


class Steps:
    """The steps that a run has trained."""

    def __init__(self, cluster: Cluster) -> None:
        self._host = next(iter(cluster.hosts.values()))
        self._rows = Lines(cluster.directory / "metrics.jsonl")
        self.count = 0

    async def another(self) -> None:
        """Wait until another step is trained. Raises RunFailed when the run ends before, or stands still."""
        self.look()
        before = self.count
        with trio.move_on_after(STEP_SECONDS):
            while self.count == before:
                if self._host.exit_code is not None:
                    raise RunFailed(f"the run ended before all changes were made\n{self._host.output[-3000:]}")
                await trio.sleep(LOOK_SECONDS)
                self.look()
            return
        raise RunFailed(f"no step in {STEP_SECONDS:.0f} s\n{self._host.output[-3000:]}")

    def look(self) -> None:
        """Count the steps since the last time."""
        self.count += sum(row["kind"] == "step" for row in self._rows.new())


async def make(change: Change, cluster: Cluster) -> Made:
    """Make a change as a user does. Raises RunFailed when it is refused."""
    began, output = await next(iter(cluster.hosts.values())).change(change.words(str(cluster.directory)))
    found = AWAY.findall(output)
    way = "scale" if change.number else "beside" if {way for _, way in found} == {"beside"} else "in place"
    return Made(change, began, time.monotonic(), way, tuple(float(seconds) for seconds, _ in found))


async def run_once(options: Options, folder: Path, seed: int, plan: Sequence[Change], steps: int = 0) -> Ended:
    """One run with these changes; or, with ``steps``, one that is left alone for so many steps."""
    began = time.monotonic()
    classes = WITHOUT_MODEL if options.scripted else CLASSES
    settings = [*(SCRIPTED if options.scripted else SHORTENED), f"run.seed={seed}"]
    settings += [f"actors.{role}.class={names[0]}" for role, names in classes.items()]
    for role in SCALED:  # the file is the ceiling
        settings += [f"actors.{role}.replicas={MOST_REPLICAS}", f"actors.{role}.start=1"]
    settings += [*settings_in(folder, scripted=options.scripted), *options.overrides]
    made: list[Made] = []
    with one_host(EXAMPLE, folder, settings) as cluster:
        host, trained = next(iter(cluster.hosts.values())), Steps(cluster)
        try:
            if plan:
                await host.start(f"stages.2.steps={UNTIL_STOPPED}")
            for change in plan:
                await trained.another()
                made.append(await make(change, cluster))
                print(f"{change}: {made[-1].ended - made[-1].began:.1f} s, {made[-1].way}", flush=True)
            stopped = math.inf
            if plan:
                await trio.sleep(AFTER_SECONDS)
                await trained.another()
                stopped = time.monotonic()
                host.stop()
                await host.ended()
                trained.look()
                steps = trained.count + LAST_STEPS
            await (trio.Path(folder) / "hurry").touch()
            await host.start(f"stages.2.steps={steps}")
            await trained.another()
            host.everyone()
            if code := await host.ended(RUN_SECONDS):
                raise RunFailed(f"the run ended with {code}\n{host.output[-3000:]}")
        finally:
            host.end()
        topology = load_topology(EXAMPLE, settings)
        lines = (folder / "record").read_text().splitlines()
        return Ended(
            made=made,
            times=[at for at in written(lines) if at <= stopped],
            steps=steps,
            accounts=accounts_of(cluster.directory, topology, EXAMPLE.parent, scripted=options.scripted),
            left=host.left_behind(),
            summary=summary_in(cluster.directory),
            seconds=time.monotonic() - began,
        )


async def measure(options: Options, plans: Sequence[Sequence[Change]]) -> list[Ended]:
    """A run for each plan, with its twin."""
    ended = []
    for seed, plan in enumerate(plans, options.seed):
        with tempfile.TemporaryDirectory(prefix="swap-", dir="/tmp") as one:
            run = await run_once(options, Path(one), seed, plan)
        if options.twin:
            with tempfile.TemporaryDirectory(prefix="swap-", dir="/tmp") as other:
                run = replace(run, twin=(await run_once(options, Path(other), seed, (), run.steps)).summary)
        ended.append(run)
    return ended


# Figures -------------------------------------------------------------------------------------------------------------


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time between two of the sorted ``times`` that has a part between ``begin`` and ``end``; else NaN."""
    pairs = itertools.pairwise(times)
    return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=math.nan)


def pauses(run: Ended) -> list[tuple[Made, float]]:
    """For each change, the longest time around it in which no generator wrote a turn."""
    return [(made, longest_gap(run.times, made.began, made.ended + AFTER_SECONDS)) for made in run.made]


def between(run: Ended) -> list[float]:
    """The longest time without a turn between each change and the next one."""
    windows = [(made.ended + AFTER_SECONDS, later.began) for made, later in itertools.pairwise(run.made)]
    gaps = [longest_gap(run.times, begin, end) for begin, end in windows if begin < end]
    return [gap for gap in gaps if not math.isnan(gap)]


def figures_of(runs: Sequence[Ended]) -> dict[str, float | None]:
    """The figures by name, besides those of a `Verdict`."""
    paused = [(made, seconds) for run in runs for made, seconds in pauses(run) if not math.isnan(seconds)]
    figures: dict[str, float | None] = {
        "steps": sum(run.steps for run in runs),
        "changes": sum(len(run.made) for run in runs),
        "pause_p95_s": percentile([seconds for _, seconds in paused], 0.95),
        "pause_p95_s_between": percentile([seconds for run in runs for seconds in between(run)], 0.95),
        "away_p95_s": percentile([seconds for made, _ in paused for seconds in made.away], 0.95),
    }
    for way in ("beside", "in place", "scale"):
        found = [seconds for made, seconds in paused if made.way == way]
        figures[f"pause_p95_s_{way.replace(' ', '_')}"] = percentile(found, 0.95)
    return figures


def rows_of(runs: Sequence[Ended]) -> list[tuple[str, int, float, float, float]]:
    """By role and way: changes; median and most seconds without a turn; median seconds that a process was away."""
    found: dict[str, list[tuple[Made, float]]] = {}
    for run in runs:
        for made, seconds in pauses(run):
            found.setdefault(f"{made.change.role}, {made.way}", []).append((made, seconds))
    rows = []
    for name, each in sorted(found.items()):
        paused = [seconds for _, seconds in each if not math.isnan(seconds)] or [math.nan]
        away = [seconds for made, _ in each for seconds in made.away] or [math.nan]
        rows.append((name, len(each), statistics.median(paused), max(paused), statistics.median(away)))
    return rows


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    classes = WITHOUT_MODEL if options.scripted else CLASSES
    plans = [make_changes(seed, options.swaps, classes) for seed in range(options.seed, options.seed + options.seeds)]
    try:
        runs = trio.run(measure, options, plans)
    except RunFailed as error:
        words = ["agent-rl", "bench", "swap", "--swaps", str(options.swaps), "--seeds", str(options.seeds)]
        words += ["--seed", str(options.seed), *(["--scripted"] if options.scripted else [])]
        raise RunFailed(f"{shlex.join(words)}: {error}") from error
    header = ("change", "times", "median s without a turn", "most", "median s away")
    print_table("pauses of generation", header, rows_of(runs))
    verdict = Verdict(runs)
    verdict.print_faults()
    print_figures({f"swap.{name}": value for name, value in {**figures_of(runs), **verdict.figures}.items()})
    return verdict.exit_code
