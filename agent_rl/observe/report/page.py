"""The page: one HTML string without external resources.

::

    read_records, read_samples --> Records, Samples --> page --> templates/report.html
    (the run directory)            (pure from here on)

Templates show what this module computes. Jinja escapes every value, and `visible` shows hidden characters. A content
security policy names the hashes of this package's style and script, so that nothing else can act.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from agent_rl.observe.charts.lines import NARROW, SMALL, WIDE, Canvas, Plot, line_chart
from agent_rl.observe.charts.lines import style as chart_style
from agent_rl.observe.charts.markup import join
from agent_rl.observe.charts.pages import content_policy, source, templates
from agent_rl.observe.charts.scales import clock, percent, spread
from agent_rl.observe.report.activity import ROLES, Activity, activity, load, role_number, supervised_losses, totals
from agent_rl.observe.report.curves import (
    PLACES,
    fate_plot,
    fate_totals,
    learning_curve,
    panels,
    successes,
    supervised_plot,
)
from agent_rl.observe.report.headline import headline
from agent_rl.observe.report.lanes import WIDTHS, StageSpan, lane_chart
from agent_rl.observe.report.records import Records
from agent_rl.observe.report.samples import OUTCOMES, Samples
from agent_rl.rollout.parsing import cut_middle

LONGEST_PIECE = 6000
TRANSCRIPT_BYTES = 1_200_000
"""Limit of all transcripts: a page of more than a few megabytes is of no use on a phone."""
OUTCOME_COLOURS = {(True,): "gain", (False,): "loss", (False, True): "gain", (True, False): "loss"}
"""Colours of outcomes that speak for or against the training."""


class Room:
    """The bytes left for transcripts."""

    def __init__(self) -> None:
        self._left = TRANSCRIPT_BYTES
        self.left_out = 0

    def takes(self, transcript: str) -> bool:
        """Whether there is room for one more. Counts the transcripts that are left out."""
        self._left -= len(transcript.encode())
        self.left_out += self._left < 0
        return self._left >= 0


class Figure(NamedTuple):
    """A chart with its texts. ``legend`` is (label, colour, line, sign, area or waiting)."""

    title: str
    legend: Sequence[tuple[str, int, str]]
    drawing: Markup
    words: str
    """The text below the chart while no place is pointed at."""
    note: str


def page_style() -> str:
    """The style sheet of the report, which other pages about a run share."""
    return chart_style() + source(__package__, "report.css")


def page(records: Records, samples: Samples) -> str:
    """The whole report."""
    active = activity(records.timeline)
    style, script = page_style(), source(__package__, "report.js")
    return (
        _environment()
        .get_template("report.html")
        .render(
            records=records,
            samples=samples,
            headline=headline(records, active),
            notes=[*records.notes, *samples.notes],
            pooled=-(-len(records.steps) // PLACES),
            tiles=_tiles(records, active),
            curve=_curve(records),
            panels=_panels(records),
            timeline=_timeline(records, active),
            shares=[(name, totals(active.spans)[name]) for name in active.lanes()],
            fates=fate_totals(records.fates),
            fate_curves=_figure(plot, "area", (WIDE, NARROW)) if (plot := fate_plot(records)) else None,
            colours_of_roles=range(1, len(ROLES) + 2),
            room=Room(),
            style=style,
            script=script,
            policy=content_policy(style, script),
        )
    )


@cache
def _environment() -> Environment:
    environment = templates(__package__)
    environment.filters |= {
        "cut": _cut,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "milliseconds": lambda seconds: f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s",
    }
    environment.globals |= {"colours": OUTCOME_COLOURS, "nan": math.nan, "outcomes": OUTCOMES, "spread": spread}
    return environment


def _cut(words: str, longest: int = LONGEST_PIECE) -> str:
    return cut_middle(words, longest)


# The content of the templates


def _tiles(records: Records, active: Activity) -> list[tuple[str, str, str]]:
    tiles = []
    for last in records.evaluations[-1:]:
        for way, success in last.ways.items():
            interval = f'95\u202f%: {spread(success.low, success.high)}, in "{last.name}"'
            tiles.append((f"Held-out, {way}", percent(success.share), interval))
    if math.isfinite(records.seconds):
        unit = "minutes" if records.seconds < 3600 else "hours"
        tiles.append(("Running time", clock(records.seconds), f"{unit}, over all its starts"))
    if records.steps:
        rollouts = sum(successes(records, range(len(records.steps)))[1:])
        tiles.append(("RL steps", f"{len(records.steps):,}", f"on {rollouts:,} rollouts"))
    if records.audit is not None and records.audit.opened:
        share = percent(records.audit.trained / records.audit.opened)
        tiles.append(("Groups trained", f"{records.audit.trained:,}", f"{share} of {records.audit.opened:,} opened"))
    cores = load(active.spans)
    if math.isfinite(cores):
        of = f"of {active.cores}, on average" if active.cores else "on average"
        tiles.append(("Processor cores used", f"{cores:.2f}", of))
    return tiles


def _curve(records: Records) -> Figure | None:
    plot = learning_curve(records)
    signs = sorted({(mark.label, mark.colour) for mark in plot.marks}, key=lambda each: each[1])
    figure = _figure(plot, sizes=(WIDE, NARROW), more=[(label, colour, "sign") for label, colour in signs])
    return figure if plot.lines or plot.marks else None


def _panels(records: Records) -> list[Figure]:
    """The smaller charts."""
    plots = panels(records)
    for index, stage in enumerate(records.stages):
        losses = supervised_losses(records.timeline, index) if stage.kind == "sft" else ()
        if (plot := supervised_plot(losses, stage.name)) is not None:
            plots.append(plot)
    return [_figure(plot) for plot in plots]


def _figure(
    plot: Plot,
    kind: str = "line",
    sizes: Sequence[Canvas] = (SMALL,),
    more: Sequence[tuple[str, int, str]] = (),
) -> Figure:
    title = plot.name + (f" ({plot.unit})" if plot.unit else "")
    legend = [*((line.label, line.colour, kind) for line in plot.lines), *more]
    drawings = join(*(line_chart(plot, size) for size in sizes))
    return Figure(title, legend, drawings, plot.titles[-1] if plot.titles else "", plot.note)


def _timeline(records: Records, active: Activity) -> Figure | None:
    if not active.spans:
        return None
    shares = totals(active.spans)
    awaited = sorted({role for share in shares.values() for role in share.waiting}, key=lambda x: (role_number(x), x))
    busy = [role for role in ROLES if any(name.startswith(role) for name in shares)]
    gaps = f" Dashed lines: the run was started again, {len(active.gaps)} times." if active.gaps else ""
    return Figure(
        title="Timeline (minutes)",
        legend=[
            *((f"{role} busy", role_number(role), "area") for role in busy),
            *((f"waiting for {role}", role_number(role), "waiting") for role in awaited),
        ],
        drawing=join(*(lane_chart(active, _stage_spans(records, active), size) for size in WIDTHS)),
        words="Point at the timeline to read what happened when.",
        note="Filled: at work in its role. Striped: idle, in the colour of the role it waits for. The rest is neither. "
        f"Below, processor time of all actors with their children.{gaps}",
    )


def _stage_spans(records: Records, active: Activity) -> list[StageSpan]:
    spans = []
    start = 0.0
    for end in records.ends:
        at = active.place(end.wall)
        if at is None or not 0 <= end.stage < len(records.stages):
            continue
        spans.append(StageSpan(records.stages[end.stage].name, start, at))
        start = at
    if spans and not records.finished and records.stage is not None and records.stage < len(records.stages):
        spans.append(StageSpan(records.stages[records.stage].name, start, active.seconds))
    return spans
