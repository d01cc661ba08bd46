"""The timeline as a drawing: a lane for each actor, filled by its busy share, and above by the roles it waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from agent_rl.observe.charts.lines import FONT, Canvas, hits, svg
from agent_rl.observe.charts.markup import join, number, tag
from agent_rl.observe.charts.scales import Scale, clock, percent, time_ticks
from agent_rl.observe.report.activity import Activity, Span, TimeUse, binned, load, role_number, totals

WIDTHS = (Canvas(920, 0, "wide"), Canvas(360, 0, "narrow"))
PLACES = {"wide": 230, "narrow": 110}
LANE, GAP = 30.0, 22.0
STRIP = 18.0


@dataclass(frozen=True, slots=True)
class StageSpan:
    """The time of a stage, in seconds of running time."""

    name: str
    start: float
    end: float


def lane_chart(activity: Activity, stages: Sequence[StageSpan], size: Canvas) -> Markup:
    """The lanes of all actors over one axis of running time, stages above, processor time below."""
    spans = binned(activity.spans, PLACES[size.name])
    lanes = activity.lanes()
    shares = totals(activity.spans)
    top = STRIP + 8
    height = top + (len(lanes) + 1) * (LANE + GAP) + 30
    size = Canvas(size.width, height, size.name)
    x = Scale(0.0, max(activity.seconds, 1e-9), 6, size.width - 6)
    parts = [_stage_strip(stages, x)]
    for index, lane in enumerate(lanes):
        base = top + (index + 1) * (LANE + GAP)
        parts.append(_lane(lane, shares[lane], spans, x, base))
    bottom = top + (len(lanes) + 1) * (LANE + GAP)
    parts.append(_processor(activity, spans, x, bottom))
    for mark in time_ticks(activity.seconds, 12 if size.name == "wide" else 5):
        class_ = "middle" if x.start + 20 < x(mark) < x.end - 20 else "end" if mark else "start"
        parts.append(tag("line", x1=x(mark), x2=x(mark), y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", clock(mark), x=x(mark), y=bottom + 17, class_=class_))
    parts += [tag("line", x1=x(gap), x2=x(gap), y1=top, y2=bottom, class_="boundary") for gap in activity.gaps]
    titles = [_title(span, lanes, stages) for span in spans]
    frame = Scale(0.0, 1.0, bottom, 0.0)
    columns = hits([span.start for span in spans], [span.end for span in spans], titles, x, frame)
    return svg(join(*parts, columns), size, _describe(activity, shares))


def _ground(name: str, words: str, x: Scale, base: float) -> Markup:
    """A lane's words and its empty ground."""
    label = tag("text", tag("tspan", name, class_="strong"), "  ", words, x=x.start, y=base - LANE - 5, class_="lane")
    return join(label, tag("rect", x=x.start, y=base - LANE, width=x.end - x.start, height=LANE, class_="lane-ground"))


def _lane(name: str, share: TimeUse, spans: Sequence[Span], x: Scale, base: float) -> Markup:
    ground = _ground(name, f"busy {percent(share.busy)}, waiting {percent(share.waiting_in_all)}", x, base)
    y = Scale(0.0, 1.0, base, base - LANE)
    busy = []
    waiting: dict[int, list[str]] = {}
    for span in spans:
        here = span.actors.get(name)
        if here is None:
            continue
        left, right = x(span.start), x(span.end)
        top = y(here.busy)
        if here.busy > 0.004:
            busy.append(_box(left, right, base, top))
        for role, part in sorted(here.waiting.items()):
            above = y(min(1.0, (base - top) / LANE + part))
            waiting.setdefault(role_number(role), []).append(_box(left, right, top, above))
            top = above
    areas = [tag("path", d="".join(boxes), class_=f"wait w{index}") for index, boxes in sorted(waiting.items())]
    return join(ground, *areas, tag("path", d="".join(busy), class_=f"bar c{role_number(name)}"))


def _processor(activity: Activity, spans: Sequence[Span], x: Scale, base: float) -> Markup:
    """Processor time of all actors, out of the cores there are."""
    spent = [sum(share.cpu for share in span.actors.values()) for span in spans]
    full = float(activity.cores or max([*spent, 1e-9]))
    y = Scale(0.0, full, base, base - LANE)
    mean = load(activity.spans)
    of = f" of {activity.cores}" if activity.cores else ""
    words = f"{mean:.2f}{of} cores on average" if math.isfinite(mean) else "not recorded"
    ground = _ground("all processors", words, x, base)
    boxes = [
        _box(x(span.start), x(span.end), base, y(value)) for span, value in zip(spans, spent, strict=True) if value > 0
    ]
    return join(ground, tag("path", d="".join(boxes), class_="bar load"))


def _stage_strip(stages: Sequence[StageSpan], x: Scale) -> Markup:
    parts = []
    for index, stage in enumerate(stages):
        left, right = x(stage.start), x(stage.end)
        parts.append(
            tag(
                "g",
                tag("title", f"stage {stage.name}: {clock(stage.start)} to {clock(stage.end)}"),
                tag("rect", x=left, y=0, width=max(0.5, right - left - 1), height=STRIP, class_=f"stage s{index % 2}"),
                tag("text", stage.name, x=left + 5, y=STRIP - 5, class_="start")
                if 0.58 * FONT * len(stage.name) + 8 < right - left
                else None,
            )
        )
    return join(*parts)


def _title(span: Span, lanes: Sequence[str], stages: Sequence[StageSpan]) -> str:
    words = []
    middle = (span.start + span.end) / 2
    within = next((f", stage {stage.name}" for stage in stages if stage.start <= middle < stage.end), "")
    for name in lanes:
        share = span.actors.get(name)
        if share is None:
            words.append(f"{name}: not heard")
            continue
        waits = ", ".join(f"waiting for {role} {percent(part)}" for role, part in sorted(share.waiting.items()))
        words.append(f"{name}: busy {percent(share.busy)}" + (f", {waits}" if waits else ""))
    cores = sum(share.cpu for share in span.actors.values())
    return "\n".join([f"{clock(span.start)} to {clock(span.end)}{within}, {cores:.2f} cores", *words])


def _describe(activity: Activity, shares: dict[str, TimeUse]) -> str:
    words = []
    for name, share in shares.items():
        waits = ", ".join(f"{percent(part)} for {role}" for role, part in sorted(share.waiting.items()))
        words.append(f"{name} busy {percent(share.busy)}, waiting {waits or 'for nobody'}")
    return f"Timeline of {clock(activity.seconds)} minutes. " + "; ".join(words) + "."


def _box(left: float, right: float, bottom: float, top: float) -> str:
    return f"M{number(left)} {number(bottom)}V{number(top)}H{number(right)}V{number(bottom)}Z"
