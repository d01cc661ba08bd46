"""The page: sections in the order people ask for them, one HTML string that needs nothing else.

::

    read_records, read_samples --> Records, Samples --> page --> HTML
    (the run directory)            (pure from here on)

Everything that comes from a file or a model goes through `markup.text`; nothing but the style and the script of this package
may act, by a content security policy that names their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence

from agent_rl.observe.report.activity import ROLES, Activity, activity, load, role_number, supervised_losses, totals
from agent_rl.observe.report.charts import NARROW, SMALL, WIDE, Plot, line_chart
from agent_rl.observe.report.curves import (
    PLACES,
    Panel,
    fate_plot,
    fate_totals,
    learning_curve,
    panels,
    successes,
    supervised_plot,
)
from agent_rl.observe.report.headline import Headline, headline
from agent_rl.observe.report.lanes import WIDTHS, StageSpan, hatching, lane_chart
from agent_rl.observe.report.markup import Markup, join, tag
from agent_rl.observe.report.records import Evaluation, Records
from agent_rl.observe.report.samples import Samples
from agent_rl.observe.report.scales import clock, compact, percent, spread
from agent_rl.observe.report.style import SCRIPT, STYLE
from agent_rl.observe.report.transcripts import Transcripts


def page(records: Records, samples: Samples) -> str:
    """The whole report."""
    active = activity(records.timeline)
    told = headline(records, active)
    notes = [*records.notes, *samples.notes]
    transcripts = Transcripts()
    sections = [
        ("learning", "Learning", _learning(records)),
        ("curves", "Curves", _curves(records)),
        ("who", "Who worked, who waited for whom", _who(records, active)),
        ("groups", "Groups by fate", _groups(records)),
        ("trajectories", "Trajectories", _trajectories(samples, transcripts)),
        ("made", "What it was made with", _settings(records)),
    ]
    sections = [section for section in sections if section[2]]
    if transcripts.left_out:
        notes.append(f"{transcripts.left_out} transcripts are left out: the report would grow too large.")
    if len(records.steps) > PLACES:
        together = -(-len(records.steps) // PLACES)
        notes.append(
            f"Each point of the curves stands for {together} steps: their mean, and in pale their lowest and highest. "
            "The learning curve pools their rollouts."
        )
    body = join(
        tag("a", "Skip to the curves", href="#learning", class_="skip"),
        hatching(),
        _header(records, active, told, notes, [(name, title) for name, title, _ in sections]),
        tag("main", *(tag("section", tag("h2", title), content, id=name) for name, title, content in sections)),
        _footer(),
    )
    return _document(f"{records.name}: {told.sentence}", body)


def _document(title: str, body: Markup) -> str:
    policy = (
        f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Markup('<link rel="icon" href="data:,">'),
        tag("style", Markup(STYLE)),
    )
    whole = tag("html", head, tag("body", body, tag("script", Markup(SCRIPT))), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


# The top ---------------------------------------------------------------------------------------------------------------


def _header(
    records: Records, active: Activity, told: Headline, notes: Sequence[str], sections: Sequence[tuple[str, str]]
) -> Markup:
    state = tag("span", told.state, class_="badge done" if told.finished else "badge loss")
    return tag(
        "header",
        tag("div", tag("h1", f"Run {records.name}"), state, class_="top"),
        tag("p", told.sentence, class_="headline"),
        tag("ul", *(tag("li", detail) for detail in told.details), class_="details"),
        tag("nav", *(tag("a", title, href=f"#{name}") for name, title in sections), aria_label="Sections"),
        _tiles(records, active),
        tag("ul", *(tag("li", note) for note in notes), class_="notes", aria_label="Notes") if notes else None,
    )


def _tiles(records: Records, active: Activity) -> Markup | None:
    tiles = []
    last = next((evaluation for evaluation in reversed(records.evaluations) if evaluation.rates), None)
    if last is not None:
        for way, rate in last.rates.items():
            tiles.append(
                (f"Held-out, {way}", percent(rate.share), f'95\u202f%: {spread(rate.low, rate.high)}, in "{last.name}"')
            )
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
    if not tiles:
        return None
    made = [
        tag("div", tag("dt", name), tag("dd", value), tag("dd", more) if more else None, class_="tile")
        for name, value, more in tiles
    ]
    return tag("dl", *made, class_="tiles")


# Sections --------------------------------------------------------------------------------------------------------------


def _learning(records: Records) -> Markup | None:
    plot = learning_curve(records)
    parts = []
    if plot.lines or plot.marks:
        note = (
            "Band and whiskers: Wilson 95\u202f% intervals. A step's rollouts come in groups of one problem, which resemble each "
            "other: the step's true interval is wider than the band. Held-out problems are asked once each way."
        )
        seen = {(mark.label, mark.colour) for mark in plot.marks}
        legend = [(line.label, line.colour, "line") for line in plot.lines]
        legend += [(label, number, "sign") for label, number in sorted(seen, key=lambda each: each[1])]
        drawings = join(line_chart(plot, WIDE), line_chart(plot, NARROW))
        parts.append(_figure(plot, drawings, legend, note))
    table = _evaluations(records.evaluations)
    return join(*parts, table) if parts or table else None


def _evaluations(evaluations: Sequence[Evaluation]) -> Markup | None:
    rows = []
    for evaluation in evaluations:
        for way, rate in evaluation.rates.items():
            key = f"{evaluation.name}_{way}"
            more = [
                evaluation.figures.get(f"{name}_{key}", math.nan) for name in ("response_tokens", "tool_error_share")
            ]
            rows.append(
                tag(
                    "tr",
                    tag("th", f"{evaluation.name}, {way}", scope="row"),
                    tag("td", f"{evaluation.steps:,}", class_="figure optional"),
                    tag("td", tag("b", percent(rate.share)), class_="figure"),
                    tag("td", spread(rate.low, rate.high)),
                    tag("td", "unknown" if rate.trials is None else f"{rate.trials:,}", class_="figure"),
                    tag("td", compact(more[0]), class_="figure optional"),
                    tag("td", percent(more[1]), class_="figure optional"),
                )
            )
    if not rows:
        return None
    names = (
        ("evaluation", ""),
        ("after RL steps", "optional"),
        ("success", ""),
        ("95\u202f% interval", ""),
        ("n", ""),
        ("mean tokens", "optional"),
        ("tool errors", "optional"),
    )
    head = tag("tr", *(tag("th", name, scope="col", class_=class_ or None) for name, class_ in names))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="card")


def _curves(records: Records) -> Markup | None:
    found = [_panel(panel) for panel in panels(records)]
    for index, stage in enumerate(records.stages):
        losses = (
            supervised_plot(supervised_losses(records.timeline, index), stage.name) if stage.kind == "sft" else None
        )
        if losses is not None:
            found.append(_panel(Panel(losses, "As the learner reported it, about once a second.")))
    return tag("div", *found, class_="charts") if found else None


def _panel(panel: Panel) -> Markup:
    legend = [(line.label, line.colour, "line") for line in panel.plot.lines]
    return _figure(panel.plot, line_chart(panel.plot, SMALL), legend, panel.note)


def _figure(plot: Plot, drawings: Markup, legend: Sequence[tuple[str, int, str]], note: str) -> Markup:
    unit = f" ({plot.unit})" if plot.unit else ""
    return tag(
        "figure",
        tag("h3", plot.name + unit),
        _legend(legend),
        drawings,
        tag("output", plot.titles[-1] if plot.titles else ""),
        tag("p", note),
    )


def _legend(entries: Sequence[tuple[str, int, str]]) -> Markup:
    return tag("ul", *(tag("li", _swatch(number, kind), label) for label, number, kind in entries), class_="legend")


def _swatch(number: int, kind: str) -> Markup:
    if kind == "line":
        sign = tag("path", d="M0 5H18", class_=f"curve c{number}")
    elif kind == "sign" and number == 2:
        sign = tag("circle", cx=9, cy=5, r=4.5, class_=f"swatch c{number}")
    elif kind == "sign":
        sign = tag("rect", x=5, y=1, width=8, height=8, class_=f"swatch c{number}")
    elif kind == "waiting":
        sign = tag("rect", width=18, height=10, class_=f"w{number}")
    else:
        sign = tag("rect", width=18, height=10, class_=f"swatch c{number}")
    return tag("svg", sign, viewBox="0 0 18 10", class_="swatch-box", aria_hidden="true")


def _who(records: Records, active: Activity) -> Markup | None:
    if not active.spans:
        return None
    stages = _stage_spans(records, active)
    shares = totals(active.spans)
    awaited = sorted(
        {role for share in shares.values() for role in share.waiting}, key=lambda role: (role_number(role), role)
    )
    lanes = [
        (f"{role} busy", role_number(role), "area") for role in ROLES if any(name.startswith(role) for name in shares)
    ]
    legend = [*lanes, *((f"waiting for {role}", role_number(role), "waiting") for role in awaited)]
    drawings = join(*(lane_chart(active, stages, size) for size in WIDTHS))
    gaps = f" Dashed lines: the run was started again, {len(active.gaps)} times." if active.gaps else ""
    figure = tag(
        "figure",
        tag("h3", "Timeline (minutes)"),
        _legend(legend),
        drawings,
        tag("output", "Point at the timeline to read what happened when."),
        tag(
            "p",
            "Filled: doing what the actor is for. Striped: idle, and in the colour of whom it waits for. The rest is neither. "
            f"Below, processor time of all actors with their children.{gaps}",
        ),
    )
    rows = []
    for name in active.lanes():
        share = shares[name]
        words = sorted(share.words.items(), key=lambda item: -item[1])[:4]
        reasons = [tag("li", f"{percent(part)} {what}") for what, part in words if part >= 0.001]
        rows.append(
            tag(
                "tr",
                tag("th", name, scope="row"),
                tag("td", percent(share.busy), class_="figure"),
                tag("td", f"{share.cpu:.2f}", class_="figure optional"),
                tag("td", tag("ul", *reasons, class_="details") if reasons else "nobody"),
            )
        )
    columns = (("actor", None), ("busy", None), ("cores", "optional"), ("waited for", None))
    head = tag("tr", *(tag("th", column, scope="col", class_=class_) for column, class_ in columns))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="stacking")
    return join(figure, tag("div", table, class_="card"))


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


def _groups(records: Records) -> Markup | None:
    found = fate_totals(records.fates)
    if not found:
        return None
    total = sum(count for _, _, _, count in found)
    plot = fate_plot(records)
    rows = [
        tag(
            "tr",
            tag("th", _swatch(number, "area"), " ", words, scope="row"),
            tag("td", f"{count:,}", class_="figure"),
            tag("td", percent(count / total), class_="figure"),
        )
        for _, words, number, count in found
    ]
    head = tag("tr", *(tag("th", name, scope="col") for name in ("fate", "groups", "share")))
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *rows), class_="fates"), class_="card")
    if plot is None:
        return table
    legend = [(line.label, line.colour, "area") for line in plot.lines]
    drawings = join(line_chart(plot, WIDE), line_chart(plot, NARROW))
    note = "Groups that each step decided. A group whose rollouts are all right, or all wrong, teaches nothing and is dropped."
    return join(_figure(plot, drawings, legend, note), table)


def _trajectories(samples: Samples, transcripts: Transcripts) -> Markup | None:
    parts = []
    if samples.comparison is not None:
        compared = samples.comparison
        parts.append(tag("h3", "Held-out problems in " + " and ".join(f'"{name}"' for name in compared.names)))
        parts.append(transcripts.comparison(compared))
    for when, groups in (("first", samples.first), ("last", samples.last)):
        if groups:
            heading = f"Groups of the {when} RL step ({groups[0].stage}, step {groups[0].step} of the run)"
            parts.append(transcripts.groups(groups, heading))
    if not parts:
        return None
    key = tag(
        "p",
        "Blue: what the model wrote, and the version of the policy that wrote it. Grey, indented: what tools returned. "
        "The frame that the chat format puts around tool responses is left out, and long texts are cut where they say so.",
        class_="note",
    )
    return join(key, *parts)


def _settings(records: Records) -> Markup | None:
    if not records.settings:
        return None
    rows = [
        tag("tr", tag("th", key, scope="row"), tag("td", tag("code", json.dumps(value, ensure_ascii=False))))
        for key, value in records.settings.items()
    ]
    return tag(
        "details",
        tag("summary", "What of the topology may not change"),
        tag("table", tag("tbody", *rows)),
        class_="card",
    )


def _footer() -> Markup:
    return tag(
        "footer",
        "Made by agent-rl report from the run directory: metrics.jsonl, timeline.jsonl, journal.sqlite and topology.json. "
        "This file is whole: it loads nothing and sends nothing. Point at a chart, or choose it and use the arrow keys, to "
        "read its figures.",
    )
