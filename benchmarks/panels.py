"""Small multiples: a panel a quantity, a colour a condition.

Thin lines are single runs, thick ones the mean over runs, both as running means over ``WINDOW`` steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from agent_rl.observe.charts.lines import SMALL, Line, Plot, line_chart, style
from agent_rl.observe.charts.markup import tag

WINDOW = 9
GAP, TOP, LINE = 20.0, 34.0, 20.0
LETTER = 7.0
"""Width of a letter of the legend, and a little more."""

Series = Sequence[float]
"""A value a step, from step 1; NaN where there was nothing to measure."""


@dataclass(frozen=True)
class Panel:
    """One quantity: the runs of each condition. With ``percent``, it is a share, drawn from 0 to its largest value."""

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
    legend = [(name, colour) for colour, name in enumerate(panels[0].runs if panels else (), 1)]
    return standalone([_plot(panel) for panel in panels], legend, [caption])


def standalone(plots: Sequence[Plot], legend: Sequence[tuple[str, int]], notes: Sequence[str]) -> str:
    """Plots beside each other under their names; below them the legend, as (label, colour), and notes, a line each."""
    width = len(plots) * (SMALL.width + GAP) + GAP
    below = TOP + SMALL.height + LINE
    height = below + LINE * (len(notes) + 1)
    parts = [
        tag("style", Markup(style())),  # noqa: S704 - ours
        tag("rect", width=width, height=height, style="fill: var(--card)"),
    ]
    for index, plot in enumerate(plots):
        left = GAP + index * (SMALL.width + GAP)
        parts.append(tag("text", plot.name, x=left, y=TOP - LINE / 2, class_="strong"))
        parts.append(tag("svg", line_chart(plot), x=left, y=TOP, width=SMALL.width, height=SMALL.height))
    left = GAP
    for label, colour in legend:
        parts.append(tag("text", label, x=left, y=below, class_=f"label c{colour}"))
        left += LETTER * len(label) + GAP
    parts += [tag("text", note, x=GAP, y=below + LINE * index) for index, note in enumerate(notes, 1)]
    box = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "font_family": "sans-serif"}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", **box) + "\n"


def _plot(panel: Panel) -> Plot:
    smoothed = {name: [smooth(run) for run in runs] for name, runs in panel.runs.items()}
    last = max((len(run) for runs in smoothed.values() for run in runs), default=0)
    single, means = [], []
    for colour, (name, runs) in enumerate(smoothed.items(), 1):
        single += [Line(name, [*run, *[math.nan] * (last - len(run))], colour, faint=True) for run in runs]
        mean = mean_over(runs)
        means.append(Line(name, [*mean, *[math.nan] * (last - len(mean))], colour))
    steps = [float(step) for step in range(1, last + 1)]
    return Plot(panel.title, [*single, *means], steps, steps, (), share=panel.percent)


def _mean(values: Series) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
