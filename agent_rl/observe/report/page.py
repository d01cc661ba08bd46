"""The page of a run: one HTML file without external resources, made of one JSON object and one template.

::

    run directory --> Records, Samples --> run_page (the JSON object) --> html --> templates/page.{html,css,js}, vendor/

The object has a title, a headline, and sections of blocks. A block is {"text"}, {"heading"}, {"table"}, {"charts"},
{"lanes"}, {"outcomes"}, {"article"} or {"marked"}; ``page.js`` draws each kind, the charts with uPlot. All words and
figures are computed here. The script only ever sets texts, never markup. A content security policy names the hashes of
this package's style and script, so that nothing else can act.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from agent_rl.observe.report.activity import Activity, TimeUse, activity, lanes, load, supervised_losses, totals
from agent_rl.observe.report.charts import (
    PLACES,
    fate_chart,
    fate_totals,
    learning_curve,
    panels,
    successes,
    supervised_chart,
)
from agent_rl.observe.report.headline import headline
from agent_rl.observe.report.records import Records, figure
from agent_rl.observe.report.samples import Block, Transcripts
from agent_rl.observe.report.stored import Samples
from agent_rl.observe.words import clock, compact, percent, spread, visible

FOOTER = (
    "Made by agent-rl report from the run directory: metrics.jsonl, timeline.jsonl, journal.sqlite, topology.json. "
    "This file is whole: it loads nothing and sends nothing. To read a chart's figures, point at the chart, or choose "
    "it and use the arrow keys."
)


def run_page(records: Records, samples: Samples, transcripts: Transcripts) -> dict[str, Any]:
    """The whole report as one object."""
    active = activity(records.timeline)
    said = headline(records)
    curve = learning_curve(records)
    sections = [
        section("learning", "Learning", [{"charts": [curve], "wide": True}, _evaluations(records)]),
        section("curves", "Curves", [{"charts": _panels(records)}]),
        section("who", "Who worked, who waited for whom", [{"lanes": lanes(records, active)}, _shares(active)]),
        section("groups", "Groups by fate", list(_fates(records))),
        section("trajectories", "Trajectories", list(transcripts.blocks(samples))),
        section("made", "What it was made with", [*_products(records), _settings(records)]),
    ]
    if not curve["lines"] and not curve["marks"]:
        sections[0]["blocks"] = sections[0]["blocks"][1:]
    return {
        "title": f"Run {records.name}",
        "badge": (said.state, "done" if said.finished else "loss"),
        "headline": said.sentence,
        "details": said.details,
        "tiles": list(_tiles(records, active)),
        "notes": [*records.notes, *_own_notes(records, transcripts)],
        "sections": [each for each in sections if each["blocks"]],
        "footer": FOOTER,
    }


def study_page(
    title: str,
    headline: str,
    sections: Sequence[dict[str, Any]],
    *,
    details: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """A page of another kind than a report, as one object."""
    return {
        "title": title,
        "headline": headline,
        "details": details,
        "tiles": (),
        "notes": notes,
        "sections": [each for each in sections if each["blocks"]],
        "footer": "This file is whole: it loads nothing and sends nothing.",
    }


def html(page: Mapping[str, Any]) -> str:
    """The file. Every string of the object is made visible; the JSON cannot end its element, nor begin another."""
    style = f"{_source('vendor', 'uPlot.min.css')}\n{_source('templates', 'page.css')}"
    script = f"{_source('vendor', 'uPlot.iife.min.js')}\n{_source('templates', 'page.js')}"
    data = json.dumps(_shown(page), allow_nan=False, separators=(",", ":"))
    for sign in "<>&":  # also "<!--", which would begin a comment within a script
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    parts = {
        "policy": content_policy(style, script),
        "title": escape(visible(f"{page['title']}: {page['headline']}")),
        "style": style,
        "script": script,
        "data": data,
    }
    template = _source("templates", "page.html")
    pieces = [piece.partition("}}") for piece in template.split("{{")]
    return pieces[0][0] + "".join(parts[name.strip()] + rest for name, _, rest in pieces[1:])


def content_policy(style: str, script: str = "") -> str:
    """A content security policy that names the hashes of the page's style and script, and permits nothing else."""
    scripts = f"script-src '{_hash(script)}'; require-trusted-types-for 'script'; " if script else ""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; {scripts}img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _source(folder: str, name: str) -> str:
    return files(__package__).joinpath(folder, name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """As JSON has it: strings made visible, six digits of a number, and None for one that is not finite."""
    match value:
        case str():
            return visible(value)
        case float() | np.floating():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Mapping():
            return {key: _shown(each) for key, each in value.items()}
        case list() | tuple():
            return [_shown(each) for each in value]
    return value


# The content of sections


def section(name: str, title: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """A section. Blocks without content are left out."""
    return {"id": name, "title": title, "blocks": [block for block in blocks if all(block.values())]}


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], *, optional: Sequence[int] = (), summary: str = ""
) -> Block:
    """A table. A cell is a text, a list of texts, or (text, colour). Narrow screens leave ``optional`` columns out.

    With a ``summary``, the table is closed until a reader opens it. Without rows, it is left out.
    """
    return {"table": {"head": head, "rows": rows, "optional": optional, "summary": summary} if rows else None}


def _evaluations(records: Records) -> Block:
    rows = []
    for evaluation in records.evaluations:
        for way, success, words in evaluation.rows():
            of_way = f"_{evaluation.name}_{way}"
            rows.append([
                f"{evaluation.name}, {words}",
                f"{evaluation.steps:,}",
                percent(success.share),
                spread(success.low, success.high),
                f"{success.trials:,}",
                compact(evaluation.figures.get(f"response_tokens{of_way}", math.nan)),
                percent(evaluation.figures.get(f"tool_error_share{of_way}", math.nan)),
            ])  # fmt: skip
    head = ["evaluation", "after RL steps", "success", "95\u202f% interval", "n", "mean tokens", "tool errors"]
    return table(head, rows, optional=[1, 5, 6])


def _panels(records: Records) -> list[Block]:
    losses = (
        supervised_chart(supervised_losses(records.timeline, index), stage.name)
        for index, stage in enumerate(records.stages)
        if stage.kind == "sft"
    )
    return [*panels(records), *filter(None, losses)]


def _shares(active: Activity) -> Block:
    shares: dict[str, TimeUse] = totals(active.spans)
    rows = [
        [
            name,
            percent(shares[name].busy),
            f"{shares[name].cpu:.2f}",
            [f"{percent(part)} {what}" for what, part in shares[name].reasons()] or "nobody",
        ]
        for name in active.lanes()
    ]
    return table(["actor", "busy", "cores", "waited for"], rows, optional=[2])


def _fates(records: Records) -> Iterator[Block]:
    fates = fate_totals(records.fates)
    total = sum(count for *_, count in fates)
    yield {"charts": list(filter(None, [fate_chart(records)])), "wide": True}
    rows = [[(words, colour), f"{count:,}", percent(count / total)] for _, words, colour, count in fates]
    yield table(["fate", "groups", "share"], rows)


def _products(records: Records) -> Iterator[Block]:
    """The types of matrix products, and what differs by them."""
    names, found = {32.0: "float32", 16.0: "bfloat16"}, dict[str, str]()
    for row in records.timeline:
        for actor, report in row["actors"].items():
            figures = report.get("figures") if isinstance(report, dict) else None
            if isinstance(figures, dict) and (kind := names.get(figure(figures, "compute_bits"))):
                found[actor] = kind
    if found:
        said = ", ".join(f"{actor} in {kind}" for actor, kind in sorted(found.items()))
        rounding = " The gap between engine and learner (see Curves) holds their rounding."
        yield {"text": f"Matrix products: {said}.{rounding if 'bfloat16' in found.values() else ''}"}


def _settings(records: Records) -> Block:
    rows = [[key, json.dumps(value, ensure_ascii=False)] for key, value in records.settings.items()]
    return table(["key", "value"], rows, summary="What of the topology may not change")


def _tiles(records: Records, active: Activity) -> Iterator[tuple[str, str, str]]:
    for last in records.evaluations[-1:]:
        for way, success in last.ways.items():
            interval = f'95\u202f%: {spread(success.low, success.high)}, in "{last.name}"'
            yield f"Held-out, {way}", percent(success.share), interval
    if math.isfinite(records.seconds):
        unit = "minutes" if records.seconds < 3600 else "hours"
        yield "Running time", clock(records.seconds), f"{unit}, over all its starts"
    if records.steps:
        rollouts = successes(records, range(len(records.steps)))[1]
        yield "RL steps", f"{len(records.steps):,}", f"on {rollouts:,} rollouts"
    if records.audit is not None and records.audit.opened:
        share = percent(records.audit.trained / records.audit.opened)
        yield "Groups trained", f"{records.audit.trained:,}", f"{share} of {records.audit.opened:,} opened"
    cores = load(active.spans)
    if math.isfinite(cores):
        of = f"of {active.cores}, on average" if active.cores else "on average"
        yield "Processor cores used", f"{cores:.2f}", of


def _own_notes(records: Records, transcripts: Transcripts) -> Iterator[str]:
    if transcripts.left_out:
        yield f"{transcripts.left_out} transcripts are left out: the report would grow too large."
    pooled = -(-len(records.steps) // PLACES)
    if pooled > 1:
        yield (
            f"Each point of the curves stands for {pooled} steps: their mean, and in pale their lowest and highest. "
            "The learning curve pools their rollouts."
        )
