"""Swaps and scalings: actors of a run are replaced one after the other, beside a twin that is left alone.

    agent-rl bench swap --swaps 20 --seeds 5              # the shortened quickstart
    agent-rl bench swap --swaps 20 --seeds 5 --scripted   # without a model, with scripted turns

A seed decides the plan: random swaps of scheduler, filter, learner, generators and executors for another class and
back, and random numbers of generators and executors. The next change comes once the run has trained another step. After
the last one the run is stopped in order, and then finished; the twin has as many steps.
benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from actors.roc_filter.stored import decode_stored
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.records.journal import read_journal
from benchmarks.bench_chaos import SCRIPTED, SHORTENED
from benchmarks.chaos.accounting import (
    SHARES,
    Accounts,
    percentile,
    read_accounts,
    within_noise,
    wrong_prompts,
    wrongly_trained,
)
from benchmarks.chaos.cluster import Cluster, one_host
from benchmarks.chaos.scripted import read_trained, write_model
from benchmarks.chaos.sight import Lines
from benchmarks.command import Overrides
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import RUN_SECONDS, RunFailed
from benchmarks.swapping.classes import written
from benchmarks.swapping.plan import AFTER_SECONDS, Change, longest_gap, make_plan

EXAMPLE = EXAMPLES / "quickstart.toml"
OWN = "benchmarks.swapping.classes"
CLASSES = {
    "kv_scheduler": ("actors.kv_scheduler:KVScheduler", "group_affinity_scheduler:GroupAffinityScheduler"),
    "roc_filter": ("actors.roc_filter:RoCFilter", "shortest_correct_filter:ShortestCorrectFilter"),
    "learner": ("actors.learner:Learner", f"{OWN}:OtherLearner"),
    "rollout_generator": (f"{OWN}:TimedGenerator", f"{OWN}:OtherGenerator"),
    "tool_executor": ("actors.tool_executor:ToolExecutor", f"{OWN}:OtherExecutor"),
}
WITHOUT_MODEL = CLASSES | {
    "learner": ("benchmarks.chaos.scripted:ScriptedLearner", f"{OWN}:OtherScriptedLearner"),
    "rollout_generator": (f"{OWN}:ScriptedGenerator", f"{OWN}:OtherScriptedGenerator"),
}
UNTIL_STOPPED = 1_000_000
"""Steps of a run that is stopped in order once all changes are made, and then has `LAST_STEPS` more."""
LAST_STEPS = 2
LOOK_SECONDS = 0.1
STEP_SECONDS = 600.0
"""A run that trains no step for so long stands still."""
AWAY = re.compile(r"it was away for ([\d.]+) s \((beside|in place)")
MUST_BE_0 = ("swap.lost", "swap.repeated", "swap.left_behind")
MUST_NOT_BE_0 = ("swap.balanced", "swap.success_within_noise")
"""Otherwise the exit code is 1. Success is None without twins."""


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
    plan: bool = False
    """Print the plans alone."""
    overrides: Overrides = ()
    """As for agent-rl run."""


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


@dataclass(frozen=True)
class Ended:
    """A run that ended."""

    made: Sequence[Made]
    times: Sequence[float]
    """When turns were written, until the run was stopped."""
    steps: int
    accounts: Accounts
    left: Sequence[str]
    summary: Mapping[str, Any]
    seconds: float
    twin: Mapping[str, Any] | None = None


def settings_of(options: Options, folder: Path, seed: int) -> list[str]:
    """The settings of one run."""
    classes = WITHOUT_MODEL if options.scripted else CLASSES
    settings = [*(SCRIPTED if options.scripted else SHORTENED), f"run.seed={seed}"]
    settings += [f"actors.{role}.class={names[0]}" for role, names in classes.items()]
    settings.append(f"actors.rollout_generator.settings.record={folder / 'record'}")
    if options.scripted:
        settings.append(f'model={{path="{write_model(folder / "model")}"}}')
        settings.append(f"actors.learner.settings.hurry={folder / 'hurry'}")
    return [*settings, *options.overrides]


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


async def make(change: Change, cluster: Cluster, temporary: Path) -> Made:
    """Make a change as a user does. Raises RunFailed when it is refused."""
    command = [sys.executable, "-P", "-m", "actors.cli", *change.words(str(cluster.directory))]
    while True:
        began = time.monotonic()
        done = await trio.run_process(
            command,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        ended, output = time.monotonic(), done.stdout.decode(errors="replace")
        if done.returncode == 0:
            break
        if "has not started yet" not in output:
            raise RunFailed(f"{change}: {output}")
    found = AWAY.findall(output)
    ways = {way for _, way in found}
    way = "scale" if change.number else "beside" if ways == {"beside"} else "in place"
    return Made(change, began, ended, way, tuple(float(seconds) for seconds, _ in found))


async def run_once(options: Options, folder: Path, seed: int, plan: Sequence[Change], steps: int = 0) -> Ended:
    """One run with these changes; or, with ``steps``, one that is left alone for so many steps."""
    began = time.monotonic()
    settings = settings_of(options, folder, seed)
    topology = load_topology(EXAMPLE, settings)
    made = []
    with one_host(EXAMPLE, "local", folder, settings, small=False) as cluster:
        host, trained = next(iter(cluster.hosts.values())), Steps(cluster)
        try:
            if plan:
                await host.start(f"stages.2.steps={UNTIL_STOPPED}")
            for change in plan:
                await trained.another()
                made.append(await make(change, cluster, folder / "t"))
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
        journal = read_journal(cluster.directory)
        try:
            accounts = read_accounts(journal, len(topology.stages))
            wrong = wrong_prompts(journal, topology, EXAMPLE.parent, decode_stored)
            lost, again = wrongly_trained(journal, read_trained(cluster.directory)) if options.scripted else ((), ())
        finally:
            journal.close()
        accounts = replace(accounts, lost=(*accounts.lost, *wrong, *lost), repeated=(*accounts.repeated, *again))
        summary = json.loads((cluster.directory / "summary.json").read_text())
        times = [at for at in written((folder / "record").read_text().splitlines()) if at <= stopped]
        return Ended(made, times, steps, accounts, host.left_behind(), summary, time.monotonic() - began)


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


def pauses(run: Ended) -> list[tuple[Made, float]]:
    """For each change, the longest time around it in which no generator wrote a turn."""
    return [(made, longest_gap(run.times, made.began, made.ended + AFTER_SECONDS)) for made in run.made]


def between(run: Ended) -> list[float]:
    """The longest time without a turn between each change and the next one."""
    windows = [(made.ended + AFTER_SECONDS, later.began) for made, later in zip(run.made, run.made[1:], strict=False)]
    return [longest_gap(run.times, begin, end) for begin, end in windows if begin < end]


def figures_of(runs: Sequence[Ended]) -> dict[str, float | None]:
    """All figures by name."""
    paused = [(made, seconds) for run in runs for made, seconds in pauses(run) if not math.isnan(seconds)]
    agree = within_noise([(run.summary, run.twin) for run in runs if run.twin is not None])
    figures: dict[str, float | None] = {
        "swap.runs": len(runs),
        "swap.steps": sum(run.steps for run in runs),
        "swap.changes": sum(len(run.made) for run in runs),
        "swap.lost": sum(len(run.accounts.lost) for run in runs),
        "swap.repeated": sum(len(run.accounts.repeated) for run in runs),
        "swap.balanced": int(all(run.accounts.balanced for run in runs)),
        "swap.left_behind": sum(len(run.left) for run in runs),
        "swap.pause_p95_s": percentile([seconds for _, seconds in paused], 0.95),
        "swap.pause_p95_s_between": percentile([s for run in runs for s in between(run) if not math.isnan(s)], 0.95),
        "swap.away_p95_s": percentile([seconds for made, _ in paused for seconds in made.away], 0.95),
        "swap.seconds": sum(run.seconds for run in runs),
        "swap.success_within_noise": None if agree is None else int(agree),
    }
    for way in ("beside", "in place", "scale"):
        found = [seconds for made, seconds in paused if made.way == way]
        figures[f"swap.pause_p95_s_{way.replace(' ', '_')}"] = percentile(found, 0.95)
    for share in SHARES:
        figures[f"swap.{share}"] = statistics.fmean(run.summary[share] for run in runs)
        twins = [run.twin[share] for run in runs if run.twin is not None]
        figures[f"swap.{share}_twin"] = statistics.fmean(twins) if twins else None
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
    plans = [make_plan(seed, options.swaps, classes) for seed in range(options.seed, options.seed + options.seeds)]
    if options.plan:
        print(*(change for plan in plans for change in plan), sep="\n")
        return 0
    try:
        runs = trio.run(measure, options, plans)
    except RunFailed as error:
        words = ["agent-rl", "bench", "swap", "--swaps", str(options.swaps), "--seeds", str(options.seeds)]
        words += ["--seed", str(options.seed), *(["--scripted"] if options.scripted else [])]
        raise RunFailed(f"{shlex.join(words)}: {error}") from error
    header = ("change", "times", "median s without a turn", "most", "median s away")
    print_table("pauses of generation", header, rows_of(runs))
    for run in runs:
        for line in (*run.accounts.lost, *run.accounts.repeated, *run.left):
            print(f"FAULT {line}")
    figures = figures_of(runs)
    print_figures(figures)
    return 1 if any(figures[name] for name in MUST_BE_0) or any(figures[name] == 0 for name in MUST_NOT_BE_0) else 0
