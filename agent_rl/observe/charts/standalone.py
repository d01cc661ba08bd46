"""Charts as a file of their own, which a document can show."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from markupsafe import Markup

from agent_rl.observe.charts.lines import SMALL, Plot, line_chart
from agent_rl.observe.charts.markup import tag

GAP, TOP, LINE = 20.0, 34.0, 20.0
LETTER = 7.0
"""Width of a letter of the legend, and a little more."""


def style() -> str:
    """The style sheet of charts: colours by class, light and dark."""
    return files(__package__).joinpath("charts.css").read_text(encoding="utf-8")


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
