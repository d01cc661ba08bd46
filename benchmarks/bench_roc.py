"""Resampling on correctness, on and off: tool errors in correct rollouts, success and length.

    agent-rl bench roc --seeds 5 --out runs/roc
    agent-rl bench roc --seeds 1 --modes paper none --steps 40

The quickstart's task family, with demonstrations in which calls often fail to run and are tried again, so that correct
rollouts hold tool errors which the outcome reward does not see. For each seed the model is taught once; reinforcement
learning runs from there with each resampling: ``paper``, ``release``, and ``none`` (as many rollouts kept, drawn
uniformly). Runs go one after the other into --out. A run that is there is not made again, so a stopped sweep continues.
`roc.json` in --out has the curves: by seed, resampling and quantity, a value a step.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.command import Overrides
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import made

TASK = (
    "environments.0.settings={right_share = 0.35, mistaken_share = 0.4, broken_share = 0.5, retried_share = 0.95, "
    "max_calls = 4}"
)
LENGTHS = "max_response_tokens=200, max_turns=5"
NAMES = {"paper": "RoC (paper)", "release": "RoC (release)", "none": "without RoC"}
FIGURES = {"paper": "roc", "release": "roc_release", "none": "no_roc"}
QUANTITIES = {"error_share": "tool_error_share_correct", "success": "success", "response_tokens": "response_tokens"}
"""Figures by the name of a step's own: shares of all sampled rollouts, kept or not."""
LATE = 0.2
"""The last share of the steps is what a run is said to have reached."""

Curves = dict[str, list[float]]


@dataclass(kw_only=True)
class Options:
    """The options."""

    seeds: int = 5
    first_seed: int = 0
    modes: tuple[Literal["paper", "release", "none"], ...] = ("paper", "release", "none")
    steps: int = 110
    """Steps of reinforcement learning in each run."""
    sft_steps: int = 900
    """Supervised steps of each seed."""
    problems: int = 500
    """Held-out problems at the end of each run."""
    out: Path = Path("runs/roc")
    """Where the runs and roc.json go."""
    overrides: Overrides = ()
    """As for agent-rl run."""


def curves(steps: Sequence[Mapping[str, Any]]) -> Curves:
    """A value a step of each quantity. The share of tool errors is not known where no rollout was correct."""
    columns = {name: [float(step[key]) for step in steps] for name, key in QUANTITIES.items()}
    columns["error_share"] = [
        share if success else math.nan
        for share, success in zip(columns["error_share"], columns["success"], strict=True)
    ]
    return columns


def reached(values: Sequence[float]) -> float:
    """The mean over the late steps; NaN where nothing was measured."""
    late = [value for value in values[-max(1, round(LATE * len(values))) :] if not math.isnan(value)]
    return statistics.fmean(late) if late else math.nan


def one_seed(options: Options, seed: int) -> dict[str, Curves]:
    """The curves of each resampling, from one taught model."""
    folder = options.out.absolute() / f"seed-{seed}"
    settings = [f"run.seed={seed}", TASK, *options.overrides]
    sft = f'stages=[{{kind="sft", steps={options.sft_steps}, batch=16, learning_rate=3e-3}}]'
    made(EXAMPLE, folder / "taught", [*settings, sft])
    model = max((folder / "taught" / "run" / "checkpoints").glob("version-*"))
    rl = f'{{kind="rl", steps={options.steps}, learning_rate=3e-4, warmup_steps=5, schedule="cosine", {LENGTHS}}}'
    evaluation = f'{{kind="evaluate", name="after", problems={options.problems}, {LENGTHS}}}'
    by_mode: dict[str, Curves] = {}
    for mode in options.modes:
        began = time.monotonic()
        stages = f"stages=[{rl}, {evaluation}]"
        own = [setting for setting in settings if not setting.startswith("model.")]
        made(EXAMPLE, folder / mode, [*own, f'model={{path="{model}"}}', stages, f"algorithm.resampling={mode}"])
        rows = [json.loads(line) for line in (folder / mode / "run" / "metrics.jsonl").read_text().splitlines()]
        by_mode[mode] = curves([row for row in rows if row["kind"] == "step"])
        share = 100 * reached(by_mode[mode]["error_share"])
        minutes = (time.monotonic() - began) / 60
        print(f"seed {seed}, {mode}: tool errors in correct rollouts {share:.1f} % ({minutes:.1f} min)", flush=True)
    return by_mode


def report(runs: Sequence[Mapping[str, Curves]], modes: Sequence[str]) -> None:
    """Print the table and the figures."""
    rows: list[list[object]] = []
    figures: dict[str, float] = {"seeds": float(len(runs))}
    for mode in modes:
        row: list[object] = [NAMES[mode]]
        for name in QUANTITIES:
            values = [reached(seed[mode][name]) for seed in runs]
            known = [value for value in values if not math.isnan(value)] or [math.nan]
            factor = 1 if name == "response_tokens" else 100
            figures[f"{FIGURES[mode]}.{name}"] = statistics.fmean(known)
            ends = f"{factor * min(known):.1f} to {factor * max(known):.1f}"
            row.append(f"{factor * statistics.fmean(known):.1f} ({ends})")
        rows.append(row)
    header = ("resampling", "tool errors in correct rollouts, %", "success, %", "response tokens")
    print_table(f"last {LATE:.0%} of the steps: mean over {len(runs)} seeds (lowest to highest)", header, rows)
    print_figures(figures)


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = [one_seed(options, seed) for seed in seeds]
    unknown_as_none = [
        {
            mode: {name: [None if math.isnan(value) else value for value in values] for name, values in found.items()}
            for mode, found in seed.items()
        }
        for seed in runs
    ]
    (options.out / "roc.json").write_text(json.dumps(unknown_as_none))
    report(runs, options.modes)
    return 0
