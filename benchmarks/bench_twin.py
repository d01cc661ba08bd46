"""`agent-rl simulate` against runs that it has not seen: errors in makespan, tokens a second and mean staleness.

    agent-rl bench twin
    agent-rl bench twin --seeds 1 --steps 10

For each seed, the quickstart's reinforcement learning runs once from a model that was taught its format, and
`agent-rl calibrate` fits a profile to that run. The profile then predicts runs with another number of rollouts at once,
with a small KV cache, with tools that sleep 0.3 s, and with staleness 0 and 2; these run, too. An error is the distance
between prediction and run as a share of the run's value; of the mean staleness, as a share of at least one version. All
runs are printed. The machine must be quiet: a run beside other work is slower than its own calibration says.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from actors.cli.records import decode_stored
from agent_rl.config.load import load_topology
from agent_rl.simulation.calibration import fit, read_run
from agent_rl.simulation.plan import plan_of
from agent_rl.simulation.prediction import predict
from agent_rl.simulation.profile import Profile
from benchmarks.bench_overlap import EXAMPLE, SLOW_TOOLS, teach
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import running, stage_rows, window

SLEEP_S = 0.3
"""What `SLOW_TOOLS` sleep."""
OTHERS: dict[str, tuple[str, ...]] = {
    "48 rollouts": ("actors.rollout_generator.settings.max_rollouts=48",),
    "KV cache of 6,000": ("actors.rollout_generator.settings.kv_tokens=6000",),
    "tools that sleep": SLOW_TOOLS,
    "staleness 0": ("algorithm.max_staleness=0",),
    "staleness 2": ("algorithm.max_staleness=2",),
}
"""The runs to predict, by what differs from the run that was fitted to."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    seeds: int = 5
    """How many seeds."""
    steps: int = 20
    """Steps of each run."""
    sft_steps: int = 900
    """Supervised steps before all runs."""
    model: Path | None = None
    """A model taught before, instead of teaching one."""


class Figures(NamedTuple):
    """What is predicted of a run."""

    makespan_s: float
    tokens_per_s: float
    staleness: float


def errors(predicted: Figures, measured: Figures) -> Figures:
    """The error of each figure, as in the module's text."""
    return Figures(
        abs(predicted.makespan_s / measured.makespan_s - 1),
        abs(predicted.tokens_per_s / measured.tokens_per_s - 1),
        abs(predicted.staleness - measured.staleness) / max(1.0, measured.staleness),
    )


def settings_of(model: Path, steps: int, seed: int, others: Sequence[str]) -> list[str]:
    """The settings of a run."""
    stage = f'kind="rl", steps={steps}, learning_rate=3e-4, warmup_steps=5, max_response_tokens=176, max_turns=4'
    return [
        f'model={{path="{model}"}}',
        f"stages=[{{{stage}}}]",
        f"run.seed={seed}",
        "run.keep_trajectories=all",
        *others,
    ]


async def one(folder: Path, settings: Sequence[str], *, fitted: bool) -> tuple[Figures, Profile | None]:
    """A run, and the profile that is ``fitted`` to it."""
    async with running(EXAMPLE, folder, settings) as run:
        await run.wait()
        steps, (stage,) = run.metrics("step"), run.metrics("stage")
        shares = window(stage_rows(run.rows(), 0))
        stale = [step["staleness_mean"] for step in steps if step.get("staleness_mean") is not None] or [0.0]
        seconds = stage["stage_seconds"]
        measured = Figures(seconds, shares.generated_tokens_per_s * shares.seconds / seconds, statistics.fmean(stale))
        return measured, fit(read_run(run.directory, decode_stored)) if fitted else None


def predicted(profile: Profile, settings: Sequence[str], steps: int, seed: int, *, sleeps: bool) -> Figures:
    """The prediction of a run with these settings."""
    if sleeps:
        tools = profile.tools.model_copy(
            update={"median_s": profile.tools.median_s + SLEEP_S, "longest_s": profile.tools.longest_s + SLEEP_S}
        )
        profile = profile.model_copy(update={"tools": tools})
    topology = load_topology(EXAMPLE, settings)
    outcome = predict(plan_of(topology, profile, where=str(EXAMPLE), steps=steps, seed=seed)).outcome
    return Figures(outcome.makespan_s, outcome.tokens_per_s, statistics.fmean(outcome.staleness or (0,)))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def measure(options: Options) -> list[tuple[int, str, Figures, Figures]]:
    """Seed, what differs, prediction and measurement of all runs."""
    found = []
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder = Path(name)
        (folder / "teach").mkdir()
        model = options.model.absolute() if options.model else await teach(folder / "teach", options.sft_steps)
        for seed in range(options.seeds):
            settings = settings_of(model, options.steps, seed, ())
            _, profile = await one(_made(folder / f"{seed}"), settings, fitted=True)
            assert profile is not None
            for number, (what, others) in enumerate(OTHERS.items()):
                settings = settings_of(model, options.steps, seed, others)
                said = predicted(profile, settings, options.steps, seed, sleeps=others is SLOW_TOOLS)
                was, _ = await one(_made(folder / f"{seed}-{number}"), settings, fitted=False)
                found.append((seed, what, said, was))
                print(f"seed {seed}, {what}: {said.makespan_s:.1f} s predicted, {was.makespan_s:.1f} s", flush=True)
    return found


def report(runs: Sequence[tuple[int, str, Figures, Figures]]) -> None:
    """Print all runs, and the errors."""
    rows: list[tuple[object, ...]] = []
    all_errors: list[float] = []
    for seed, what, said, was in runs:
        wrong = errors(said, was)
        all_errors += wrong
        rows.append((seed, what, *(value for pair in zip(said, was, wrong, strict=True) for value in pair)))
    header = [f"{name}{part}" for name in Figures._fields for part in (", predicted", "", ", error")]
    print_table("Predictions of runs that were not fitted to", ["seed", "run", *header], rows)
    print_figures({"twin.error_median": statistics.median(all_errors), "twin.error_worst": max(all_errors)})


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    report(trio.run(measure, options))
    return 0
