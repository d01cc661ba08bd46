"""Draw a run's learning curve as one SVG file: ``python benchmarks/plot_learning_curve.py RUN [RUN...] -o curve.svg``.

Success of all sampled rollouts by RL step (thin: each step; thick: a running mean), one colour a run, and the held-out results
before and after as dots. Plain SVG, so that a README can show it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 24, 44
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626")
WINDOW = 9


def read(run: Path) -> tuple[list[tuple[int, float]], dict[str, float]]:
    """(step, success) of every step, and the evaluation's figures."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [(row["step"], row["success"]) for row in rows if row["kind"] == "step"]
    results: dict[str, float] = {}
    for row in rows:
        if row["kind"] == "evaluation":
            results.update({name: value for name, value in row.items() if name.startswith("success_")})
    return steps, results


def smooth(values: list[float]) -> list[float]:
    """A centred running mean over ``WINDOW`` steps."""
    half = WINDOW // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def draw(runs: list[Path]) -> str:
    """The SVG text."""
    data = [read(run) for run in runs]
    last = max(step for steps, _ in data for step, _ in steps)
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(step: float) -> float:
        return LEFT + plot_width * step / last

    def y(share: float) -> float:
        return TOP + plot_height * (1 - share)

    def line(points: list[tuple[float, float]], colour: str, width: float, opacity: float) -> str:
        path = " ".join(f"{x(step):.1f},{y(share):.1f}" for step, share in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4}" text-anchor="end" fill="#374151">{tick:.0%}</text>')
    parts += [
        f'<text x="{x(tick)}" y="{HEIGHT - 22}" text-anchor="middle" fill="#374151">{tick}</text>'
        for tick in range(0, last + 1, max(1, round(last / 5)))
    ]
    parts.append(
        f'<text x="{LEFT + plot_width / 2}" y="{HEIGHT - 6}" text-anchor="middle" fill="#374151">RL step</text>'
    )
    for (steps, results), colour in zip(data, COLOURS, strict=False):
        values = smooth([share for _, share in steps])
        parts.append(line([(step, share) for step, share in steps], colour, 1, 0.25))
        parts.append(line([(step, share) for (step, _), share in zip(steps, values, strict=True)], colour, 2.5, 1))
        for name, at in (("before", 0), ("after", last)):
            for way, fill in (("sampled", colour), ("greedy", "white")):
                share = results.get(f"success_{name}_{way}")
                if share is not None:
                    parts.append(
                        f'<circle cx="{x(at)}" cy="{y(share)}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
                    )
    for row, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 14 + 18 * row}" fill="{colour}">{run.name}</text>')
    notes = ("● held out, sampled", "○ held out, greedy", "— sampled in training")
    for row, note in enumerate(notes):
        place = HEIGHT - BOTTOM - 40 + 18 * row
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{place}" fill="#374151">{note}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.write_text(draw(options.runs))


if __name__ == "__main__":
    main()
