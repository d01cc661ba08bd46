"""`agent-rl simulate` against runs that it has not seen: errors in makespan, tokens a second and mean staleness.

    agent-rl bench twin
    agent-rl bench twin --kinds paced --seeds 1
    .venv-vllm/bin/agent-rl bench twin --kinds vllm --seeds 2

For each kind and seed, the quickstart's reinforcement learning runs once from a model that was taught its format, and
`agent-rl calibrate` fits a profile and a trace to that run. These predict runs with fewer rollouts at once, with a
small KV cache, with tools that sleep 0.3 s, and with staleness 0 and 2; these run, too. No prediction sees the run that
it is compared with. Kinds are

    paced   engine and learner take the seconds of devices of their own, and leave cores idle (benchmarks/paced.py)
    shared  engine, learner and tools share the cores of this machine
    vllm    the same with vLLM on CPU, in an environment that has it

Makespan and tokens are counted from the end of the first step to the end of the last: the first step waits for engines
and interpreters that warm up, which nothing predicts. An error is the distance between prediction and run as a share of
the run's value; of the mean staleness, as a share of at least one version. All runs are printed, those that fail too;
then the exit code is 1. "fitted" is the run that was fitted to, "again" is another one with the same settings; they do
not count. The errors of "again" are what equal runs differ by: no prediction can be expected to be closer. The machine
must be quiet: a run beside other work is slower than its own calibration says.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import trio

from actors.cli.records import decode_stored
from agent_rl.config.load import load_topology
from agent_rl.records.journal import JournalError
from agent_rl.simulation.calibration import CalibrationError, fit, read_run, trace_of
from agent_rl.simulation.plan import Plan, plan_of
from agent_rl.simulation.prediction import predict
from agent_rl.simulation.profile import Profile
from agent_rl.simulation.trace import Trace, write
from benchmarks.bench_overlap import EXAMPLE, SLOW_TOOLS, teach
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import Run, RunFailed, running

SLEEP_S = 0.3
"""What `SLOW_TOOLS` sleep."""
RESPONSE_TOKENS = 64
"""Twice the usual response. A rare one of more tokens would decide how long a run of half a minute takes."""
RUN_SECONDS = 300.0
FITTED, AGAIN = "fitted", "again"
OTHERS: dict[str, tuple[str, ...]] = {
    "64 rollouts": ("actors.rollout_generator.settings.max_rollouts=64",),
    "KV cache of 9,000": ("actors.rollout_generator.settings.kv_tokens=9000",),
    "tools that sleep": SLOW_TOOLS,
    "staleness 0": ("algorithm.max_staleness=0",),
    "staleness 2": ("algorithm.max_staleness=2",),
}
"""The runs to predict, by what differs from the run that was fitted to."""
Name: TypeAlias = Literal["paced", "shared", "vllm"]


class Kind(NamedTuple):
    """A kind of runs: settings of all its runs, and their steps."""

    settings: tuple[str, ...]
    steps: int


KINDS: dict[Name, Kind] = {
    "paced": Kind(
        (
            "algorithm.groups_per_step=8",
            "actors.rollout_generator.settings.engine=benchmarks.paced:PacedEngine",
            "actors.learner.class=benchmarks.paced:PacedLearner",
        ),
        10,
    ),
    "shared": Kind((), 30),
    "vllm": Kind(("algorithm.groups_per_step=8", "actors.rollout_generator.settings.engine=vllm"), 30),
}


@dataclass(kw_only=True)
class Options:
    """The options."""

    seeds: int = 5
    """How many seeds."""
    first_seed: int = 0
    """The first of them."""
    kinds: tuple[Name, ...] = ("paced", "shared")
    """Which kinds of runs."""
    steps: int | None = None
    """Steps of each run; left out: as many as take about half a minute."""
    sft_steps: int = 900
    """Supervised steps before all runs."""
    model: Path | None = None
    """A model taught before, instead of teaching one."""
    keep: Path | None = None
    """Keep the run directories in this folder, which must not exist."""


class Figures(NamedTuple):
    """What is predicted of a run."""

    makespan_s: float
    tokens_per_s: float
    staleness: float


@dataclass(frozen=True)
class Compared:
    """A run, its prediction and its measurement; ``failed`` says why one is missing."""

    kind: str
    seed: int
    what: str
    predicted: Figures | None = None
    measured: Figures | None = None
    failed: str = ""


def errors(predicted: Figures, measured: Figures) -> Figures:
    """The error of each figure, as in the module's text."""
    return Figures(
        abs(predicted.makespan_s / measured.makespan_s - 1),
        abs(predicted.tokens_per_s / measured.tokens_per_s - 1),
        abs(predicted.staleness - measured.staleness) / max(1.0, measured.staleness),
    )


def settings_of(model: Path, kind: Kind, steps: int, seed: int, others: Sequence[str]) -> list[str]:
    """The settings of a run."""
    stage = f'kind="rl", steps={steps}, learning_rate=3e-4, warmup_steps=5, max_turns=4'
    return [
        f'model={{path="{model}"}}',
        f"stages=[{{{stage}, max_response_tokens={RESPONSE_TOKENS}}}]",
        f"run.seed={seed}",
        "run.keep_trajectories=all",
        *kind.settings,
        *others,
    ]


def measured(steps: Sequence[Mapping[str, Any]], timeline: Sequence[Mapping[str, Any]]) -> Figures:
    """The figures of a run, by its rows of steps and its timeline. Raises RunFailed when they say too little."""
    totals = [
        (row["wall"], row["actors"]["rollout_generator.0"]["figures"].get("generated_tokens", 0))
        for row in timeline
        if "rollout_generator.0" in row["actors"]
    ]
    if len(steps) < 2 or not totals:
        raise RunFailed(f"the run has {len(steps)} steps, and {len(totals)} rows of its engine; two steps are needed")
    began, ended = steps[0]["wall"], steps[-1]["wall"]
    written = np.interp([began, ended], [wall for wall, _ in totals], [total for _, total in totals])
    stale = [step["staleness_mean"] for step in steps if step.get("staleness_mean") is not None] or [0.0]
    return Figures(ended - began, float(written[1] - written[0]) / (ended - began), statistics.fmean(stale))


async def one(folder: Path, settings: Sequence[str]) -> Run:
    """A run that has ended. Raises RunFailed."""
    folder.mkdir()  # noqa: ASYNC240 - a benchmark has nothing else to do meanwhile
    async with running(EXAMPLE, folder, settings) as run:
        await run.wait(RUN_SECONDS)
        return run


def figures_of(run: Run) -> Figures:
    """What is compared of a run."""
    return measured(run.metrics("step"), run.rows())


def predicted(
    profile: Profile, settings: Sequence[str], steps: int, seed: int, *, sleeps: bool, traces: Path | None = None
) -> Figures:
    """The prediction of a run with these settings; ``traces``: with the lengths of rollouts there."""
    plan = plan_of(load_topology(EXAMPLE, settings), profile, where=str(EXAMPLE), steps=steps, seed=seed, traces=traces)
    outcome = predict(_sleeping(plan) if sleeps else plan).outcome
    first, last = outcome.trained[0], outcome.trained[-1]
    seconds = last.at - first.at
    return Figures(seconds, (last.written - first.written) / seconds, statistics.fmean(outcome.staleness or (0,)))


def _sleeping(plan: Plan) -> Plan:
    """The same run with tools that sleep before they do what they do."""
    groups = tuple(
        tuple(shape._replace(tool_s=tuple(s + SLEEP_S for s in shape.tool_s)) for shape in group)
        for group in plan.trace.groups
    )
    return replace(plan, trace=replace(plan.trace, groups=groups))


def fitted(run: Run, folder: Path) -> Profile:
    """The profile that is fitted to a run; its rollouts' lengths are in ``folder`` then."""
    recorded = read_run(run.directory, decode_stored)
    profile = fit(recorded)
    folder.mkdir()
    trace: Trace = trace_of(recorded, profile)
    write(trace, folder / "recorded.jsonl")
    return profile


async def compare(name: Name, seed: int, folder: Path, model: Path, options: Options) -> list[Compared]:
    """The run that is fitted to, and the others."""
    kind, found = KINDS[name], list[Compared]()
    steps = options.steps or kind.steps
    profile: Profile | None = None
    traces = folder / f"{name}-{seed}-traces"
    for number, (what, others) in enumerate([(FITTED, ()), (AGAIN, ()), *OTHERS.items()]):
        settings = settings_of(model, kind, steps, seed, others)
        made = Compared(name, seed, what)
        try:
            if what == FITTED:
                run = await one(folder / f"{name}-{seed}-{number}", settings)
                profile = fitted(run, traces)
            elif profile is None:
                raise RunFailed("there is no profile")  # noqa: TRY301 - reported as every failure is
            said = predicted(profile, settings, steps, seed, sleeps=others is SLOW_TOOLS, traces=traces)
            if what != FITTED:
                run = await one(folder / f"{name}-{seed}-{number}", settings)
            made = replace(made, predicted=said, measured=figures_of(run))
        except (RunFailed, CalibrationError, JournalError, ValueError) as error:
            made = replace(made, failed=str(error) or type(error).__name__)
        print(_line(made), flush=True)
        found.append(made)
    return found


def _line(made: Compared) -> str:
    start = f"{made.kind}, seed {made.seed}, {made.what}: "
    if made.predicted is None or made.measured is None:
        return f"{start}failed: {made.failed}"
    return f"{start}{made.predicted.makespan_s:.1f} s predicted, {made.measured.makespan_s:.1f} s"


async def measure(options: Options) -> list[Compared]:
    """All runs."""
    found: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder = Path(name) if options.keep is None else options.keep.absolute()
        (folder / "teach").mkdir(parents=True)
        model = options.model.absolute() if options.model else await teach(folder / "teach", options.sft_steps)
        for kind in options.kinds:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                found += await compare(kind, seed, folder, model, options)
    return found


def report(runs: Sequence[Compared]) -> None:
    """Print all runs, and the errors of those that were not fitted to."""
    rows: list[tuple[object, ...]] = []
    by_kind: dict[str, list[float]] = {}
    again: dict[str, list[float]] = {}
    for made in runs:
        start = (made.kind, made.seed, made.what)
        if made.predicted is None or made.measured is None:
            rows.append((*start, *["failed"] * 9))
            continue
        wrong = errors(made.predicted, made.measured)
        if made.what != FITTED:
            (again if made.what == AGAIN else by_kind).setdefault(made.kind, []).extend(wrong)
        pairs = zip(made.predicted, made.measured, wrong, strict=True)
        rows.append((*start, *(value for pair in pairs for value in pair)))
    header = [f"{name}{part}" for name in ("makespan s", "tokens/s", "staleness") for part in (" said", "", " error")]
    print_table("Predictions, and the runs", ["kind", "seed", "run", *header], rows)
    failed = [made for made in runs if made.failed]
    for made in failed:
        print(_line(made))
    figures = {f"twin.{name}.again_worst": max(some) for name, some in again.items()}
    everything = [error for of_kind in by_kind.values() for error in of_kind]
    for prefix, some in [*((f"twin.{name}", of_kind) for name, of_kind in by_kind.items()), ("twin", everything)]:
        if some:
            figures |= {f"{prefix}.error_median": statistics.median(some), f"{prefix}.error_worst": max(some)}
    print_figures(figures | {"twin.failed": float(len(failed))})


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    runs = trio.run(measure, options)
    report(runs)
    return 1 if any(made.failed for made in runs) else 0
