"""Small multiples as plain SVG, so that a README can show them: a panel a quantity, a colour a condition.

Thin lines are single runs, thick ones the mean over runs, both as running means over ``WINDOW`` steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from agent_rl.observe.charts.scales import Scale, axis_labels, extent, ticks

PANEL, HEIGHT, GAP = 300, 300, 62
LEFT, TOP, BOTTOM = 56, 40, 70
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea")
WINDOW = 9

Series = Sequence[float]
"""A value a step, from step 1; NaN where there was nothing to measure."""


@dataclass(frozen=True)
class Panel:
    """One quantity: the runs of each condition; ``percent`` says that it is a share, drawn from 0 to its largest value."""

    title: str
    runs: Mapping[str, Sequence[Series]]
    percent: bool = False


def smooth(values: Series) -> list[float]:
    """A centred running mean over ``WINDOW`` steps, of what was measured in them."""
    half = WINDOW // 2
    return [_mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def mean_over(runs: Sequence[Series]) -> list[float]:
    """The mean at each step over the runs that reached it and measured there."""
    length = max(map(len, runs), default=0)
    return [_mean([run[i] for run in runs if i < len(run)]) for i in range(length)]


def draw(panels: Sequence[Panel], caption: str) -> str:
    """The SVG text. All panels have the same conditions."""
    width = LEFT + len(panels) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + BOTTOM}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT + BOTTOM}" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, LEFT + index * (PANEL + GAP))
    names = list(panels[0].runs) if panels else []
    for index, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        parts.append(f'<text x="{LEFT + 190 * index}" y="{HEIGHT + 40}" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT + 60}" fill="#374151">{escape(caption)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: int) -> list[str]:
    smoothed = {name: [smooth(run) for run in runs] for name, runs in panel.runs.items()}
    known = [value for runs in smoothed.values() for run in runs for value in run]
    bottom, top = extent(known)
    last = max((len(run) for runs in smoothed.values() for run in runs), default=1)
    x, y = Scale(0, last, left, left + PANEL), Scale(bottom, top, HEIGHT, TOP)

    def line(values: Series, colour: str, stroke: float, opacity: float) -> str:
        points = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(values) if not math.isnan(v))
        return (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}" opacity="{opacity}"/>'
        )

    parts = [f'<text x="{left}" y="{TOP - 16}" fill="#111827" font-weight="bold">{escape(panel.title)}</text>']
    marks = ticks(bottom, top, 5)
    for mark, label in zip(marks, axis_labels(marks, share=panel.percent), strict=True):
        parts.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end" fill="#374151">{label}</text>')
    parts += [
        f'<text x="{x(step):.1f}" y="{HEIGHT + 16}" text-anchor="middle" fill="#374151">{step:.0f}</text>'
        for step in ticks(0, last, 4)
        if step == int(step)
    ]
    for runs, colour in zip(smoothed.values(), COLOURS, strict=False):
        parts += [line(run, colour, 1, 0.25) for run in runs]
    for runs, colour in zip(smoothed.values(), COLOURS, strict=False):
        parts.append(line(mean_over(runs), colour, 2.5, 1))
    return parts


def _mean(values: Series) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
