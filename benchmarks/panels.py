"""Small multiples: a panel a quantity, a colour a condition.

Thin lines are single runs, thick ones the mean over runs, both as running means over ``WINDOW`` steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_rl.observe.charts.lines import Line, Plot
from agent_rl.observe.charts.standalone import standalone

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
    legend = [(name, colour) for colour, name in enumerate(panels[0].runs if panels else (), 1)]
    return standalone([_plot(panel) for panel in panels], legend, [caption])


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
