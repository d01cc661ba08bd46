"""Charts as inline SVG: lines with bands, stacks, lanes. Colours are classes, so that the page's style decides them.

Every chart gives its figures three times: drawn; in words for readers who cannot see the drawing (``aria-label``); and
exactly, for one place at a time, in titles that pointers, fingers and arrow keys open (see page.SCRIPT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from markupsafe import Markup

from agent_rl.observe.charts.markup import join, number, tag
from agent_rl.observe.charts.scales import Scale, axis_labels, compact, extent, percent, ticks

FONT = 11.0
"""Height of labels in the units of the drawing."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """The size of a drawing in its own units. The page scales the drawing to its width."""

    width: float
    height: float
    name: str = ""


SMALL = Canvas(360, 200)
WIDE, NARROW = Canvas(920, 340, "wide"), Canvas(360, 300, "narrow")


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with a band around it: one figure for each place (NaN leaves a gap)."""

    label: str
    values: Sequence[float]
    colour: int
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """A single measurement with its interval; ``shape`` is circle or square."""

    label: str
    x: float
    value: float
    low: float
    high: float
    colour: int
    shape: str
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """The content of a line chart. ``starts`` and ``ends`` are the x of each place, ``titles`` its text."""

    name: str
    lines: Sequence[Line]
    starts: Sequence[float]
    ends: Sequence[float]
    titles: Sequence[str]
    note: str = ""
    share: bool = False
    unit: str = ""
    x_label: str = "RL step"
    x_high: float | None = None
    span: tuple[float, float] | None = None
    """The range of the y axis; None derives it from the figures."""
    marks: Sequence[Measurement] = ()
    boundaries: Sequence[tuple[float, str]] = ()
    stacked: bool = False


@dataclass(slots=True)
class _Frame:
    """The axes of a chart, drawn, and its scales."""

    x: Scale
    y: Scale
    parts: list[Markup] = field(default_factory=list)


def style() -> str:
    """The style sheet of charts: colours by class, light and dark."""
    return files(__package__).joinpath("charts.css").read_text(encoding="utf-8")


def line_chart(plot: Plot, size: Canvas = SMALL) -> Markup:
    """Curves over steps, or (``stacked``) areas that add up."""
    frame = _frame(plot, size)
    centres = [frame.x((start + end) / 2) for start, end in zip(plot.starts, plot.ends, strict=True)]
    parts = frame.parts
    if plot.stacked:
        parts += _stacks(plot, frame)
    else:
        parts += [_band(line, centres, frame.y) for line in plot.lines if line.low is not None]
        parts += [_curve(line, centres, frame.y) for line in plot.lines]
    columns = hits(plot.starts, plot.ends, plot.titles, frame.x, frame.y)
    marks = [_mark(mark, frame) for mark in plot.marks]  # above the columns, so that pointers reach the marks
    return svg(join(*parts, columns, *marks), size, describe(plot))


def describe(plot: Plot) -> str:
    """The chart in words."""
    sentences = []
    for line in plot.lines:
        known = [(end, value) for end, value in zip(plot.ends, line.values, strict=True) if math.isfinite(value)]
        if not known:
            sentences.append(f"{line.label}: no figures")
            continue
        values = [value for _, value in known]
        words = [_words(value, plot) for value in (values[0], values[-1], min(values), max(values))]
        sentences.append(f"{line.label}: from {words[0]} to {words[1]}, lowest {words[2]}, highest {words[3]}")
    sentences += [mark.title for mark in plot.marks]
    return f"{plot.name}, by {plot.x_label}. " + "; ".join(sentences) + "."


def svg(content: Markup, size: Canvas, label: str) -> Markup:
    """A drawing that fills the available width."""
    box = f"0 0 {number(size.width)} {number(size.height)}"
    class_ = f"drawing {size.name}".strip()
    return tag("svg", content, viewBox=box, class_=class_, role="img", aria_label=label)


def hits(starts: Sequence[float], ends: Sequence[float], titles: Sequence[str], x: Scale, y: Scale) -> Markup:
    """Invisible columns over the places of a chart, each with its figures as a title."""
    top, height = min(y.start, y.end), abs(y.start - y.end)
    columns = []
    for index, title in enumerate(titles):
        # Columns meet halfway between places, so that every point of the chart belongs to one.
        left = x.start if index == 0 else (x(ends[index - 1]) + x(starts[index])) / 2
        right = x.end if index == len(titles) - 1 else (x(ends[index]) + x(starts[index + 1])) / 2
        columns.append(tag("rect", tag("title", title), x=left, y=top, width=max(0.5, right - left), height=height))
    return tag("g", *columns, class_="hits")


def path(points: Sequence[tuple[float, float]]) -> str:
    """A polyline as path data."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def _words(value: float, plot: Plot) -> str:
    return percent(value) if plot.share else f"{compact(value)} {plot.unit}".strip()


def _frame(plot: Plot, size: Canvas) -> _Frame:
    low, high = plot.span or extent(_extremes(plot))
    big = size.name == "wide"
    y_marks = ticks(low, high, max(2, int(size.height / 60)))
    y_labels = axis_labels(y_marks, share=plot.share)
    left = 10 + 0.56 * FONT * max(map(len, y_labels))
    above = 10.0 + (14.0 if plot.boundaries else 0.0)
    y = Scale(low, high, size.height - 34, above)
    x_high = plot.x_high if plot.x_high is not None else max(plot.ends, default=1.0)
    room = 11.0 if plot.marks else 0.0  # for the mark at step 0, beside the labels of the axis
    x = Scale(min(0.0, *plot.starts, 0.0), max(x_high, 1e-9), left + room, size.width - (14 if big else 10))
    parts = []
    for mark, label in zip(y_marks, y_labels, strict=True):
        at = y(mark)
        parts.append(tag("line", x1=left, x2=x.end, y1=at, y2=at, class_="grid" if mark else "axis"))
        parts.append(tag("text", label, x=left - 6, y=at + 4, class_="end"))
    count = max(2, int((x.end - x.start) / 70))
    x_marks = [mark for mark in ticks(x.low, x.high, count) if mark == int(mark)]
    x_labels = axis_labels(x_marks, share=False)
    for mark, label in zip(x_marks, x_labels, strict=True):
        class_ = "end" if x(mark) > x.end - 8 else "middle"
        parts.append(tag("line", x1=x(mark), x2=x(mark), y1=y.start, y2=y.start + 4, class_="axis"))
        parts.append(tag("text", label, x=min(x(mark), size.width - 2), y=y.start + 17, class_=class_))
    parts.append(tag("text", plot.x_label, x=(x.start + x.end) / 2, y=size.height - 3, class_="middle quiet"))
    parts += _boundaries(plot, x, y)
    return _Frame(x, y, parts)


def _boundaries(plot: Plot, x: Scale, y: Scale) -> list[Markup]:
    parts = []
    taken = -math.inf
    for at, label in plot.boundaries:
        place = x(at)
        parts.append(tag("line", x1=place, x2=place, y1=y.start, y2=y.end, class_="boundary"))
        wide = 0.56 * FONT * len(label) + 6
        if place >= taken and place + wide <= x.end + 4:  # labels that would overlap appear in the titles only
            parts.append(tag("text", label, x=place + 3, y=y.end - 4, class_="quiet"))
            taken = place + wide
    return parts


def _extremes(plot: Plot) -> list[float]:
    if plot.stacked:
        return [
            sum(v for v in at if math.isfinite(v)) for at in zip(*(line.values for line in plot.lines), strict=True)
        ]
    values = [value for line in plot.lines for part in (line.values, line.low or (), line.high or ()) for value in part]
    return values + [value for mark in plot.marks for value in (mark.low, mark.high)]


def stretches(values: Sequence[float]) -> list[range]:
    """Runs of places without a gap."""
    found: list[range] = []
    start: int | None = None
    for index, value in enumerate([*values, math.nan]):
        if math.isfinite(value):
            start = index if start is None else start
        elif start is not None:
            found.append(range(start, index))
            start = None
    return found


def _band(line: Line, centres: Sequence[float], y: Scale) -> Markup:
    assert line.low is not None
    assert line.high is not None
    outlines = []
    for run in stretches(line.values):
        upper = [(centres[i], y(line.high[i])) for i in run]
        lower = [(centres[i], y(line.low[i])) for i in reversed(run)]
        if len(run) == 1:  # a single place has an interval too
            ((x, high),), ((_, low),) = upper, lower
            upper, lower = [(x - 2, high), (x + 2, high)], [(x + 2, low), (x - 2, low)]
        outlines.append(path([*upper, *lower]) + "Z")
    return tag("path", d="".join(outlines), class_=f"band c{line.colour}")


def _curve(line: Line, centres: Sequence[float], y: Scale) -> Markup:
    runs = stretches(line.values)
    curves = "".join(path([(centres[i], y(line.values[i])) for i in run]) for run in runs if len(run) > 1)
    alone = [
        tag("circle", cx=centres[run[0]], cy=y(line.values[run[0]]), r=2.5, class_=f"dot c{line.colour}")
        for run in runs
        if len(run) == 1
    ]
    class_ = f"curve c{line.colour}" + (" faint" if line.faint else "")
    return join(tag("path", d=curves, class_=class_), *alone)


def _mark(mark: Measurement, frame: _Frame) -> Markup:
    # Signs of the same step stand beside each other: circles a little left of it, squares a little right.
    x = frame.x(mark.x) + (5 if mark.shape == "square" else -5)
    low, high = frame.y(mark.low), frame.y(mark.high)
    at = frame.y(mark.value)
    whisker = tag("path", d=f"M{number(x)} {number(low)}V{number(high)}", class_=f"whisker c{mark.colour}")
    if mark.shape == "square":
        sign = tag("rect", x=x - 4.5, y=at - 4.5, width=9, height=9, class_=f"sign c{mark.colour}")
    else:
        sign = tag("circle", cx=x, cy=at, r=5, class_=f"sign c{mark.colour}")
    return tag("g", tag("title", mark.title), whisker, sign, class_="mark")


def _stacks(plot: Plot, frame: _Frame) -> list[Markup]:
    """Bars that lie on each other, one column a place."""
    below = [0.0] * len(plot.starts)
    parts = []
    for line in plot.lines:
        bars = []
        for index, value in enumerate(line.values):
            if not value > 0:
                continue
            left, right = frame.x(plot.starts[index]), frame.x(plot.ends[index])
            room = 0.6 if right - left > 3 else 0.0
            bottom, top = frame.y(below[index]), frame.y(below[index] + value)
            below[index] += value
            bars.append(f"M{number(left)} {number(bottom)}V{number(top)}H{number(right - room)}V{number(bottom)}Z")
        parts.append(tag("path", d="".join(bars), class_=f"bar c{line.colour}"))
    return parts
