"""Draw a run's learning curve as one SVG file: ``python benchmarks/plot_learning_curve.py RUN [RUN...] -o curve.svg``.

Success of all sampled rollouts by RL step (thin: each step; thick: a running mean), one colour a run, and the held-out
results before and after, with circles for sampled and squares for greedy answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts

from agent_rl.observe.charts.lines import Line, Measurement, Plot
from benchmarks.panels import smooth, standalone


def read(run: Path) -> tuple[list[float], dict[str, float]]:
    """The success of every step, and the evaluations' figures."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    results: dict[str, float] = {}
    for row in rows:
        if row["kind"] == "evaluation":
            results.update({name: value for name, value in row.items() if name.startswith("success_")})
    return [row["success"] for row in rows if row["kind"] == "step"], results


def draw(runs: Sequence[Path]) -> str:
    """The SVG text."""
    data = [read(run) for run in runs]
    last = max(len(steps) for steps, _ in data)
    lines, marks = [], []
    for colour, (run, (steps, results)) in enumerate(zip(runs, data, strict=True), 1):
        missing = [math.nan] * (last - len(steps))
        lines += [
            Line(run.name, [*steps, *missing], colour, faint=True),
            Line(run.name, smooth(steps) + missing, colour),
        ]
        for name, at in (("before", 0), ("after", len(steps))):
            for way, shape in (("sampled", "circle"), ("greedy", "square")):
                share = results.get(f"success_{name}_{way}")
                if share is not None:
                    marks.append(
                        Measurement(way, at, share, share, share, colour, shape, f"{name}, {way}: {share:.1%}")
                    )
    places = [float(step) for step in range(1, last + 1)]
    plot = Plot("Success", lines, places, places, (), share=True, span=(0.0, 1.0), marks=marks)
    notes = ["line: sampled in training; circle: held out, sampled; square: held out, greedy"]
    return standalone([plot], [(run.name, colour) for colour, run in enumerate(runs, 1)], notes)


def main(*runs: Path, output: Annotated[Path, cyclopts.Parameter(name=("--output", "-o"))]) -> None:
    """Draw the runs in one file."""
    output.write_text(draw(runs))


if __name__ == "__main__":
    cyclopts.run(main)
