"""The page of a run: one HTML file without external resources, made of one JSON object and one template.

::

    run directory --> Records, Samples --> run_page (the JSON object) --> html --> web/, vendor/

The object has a title, a headline, and sections of blocks. A block is {"text"}, {"heading"}, {"table"}, {"charts"},
{"lanes"}, {"outcomes"} or {"article"}; ``page.js`` draws each kind, the charts with uPlot. All words and
figures are computed here. The script only ever sets texts, never markup. A content security policy names the hashes of
this package's style and script, so that nothing else can act.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Any

import numpy as np

from agent_rl.observe.report.activity import Activity, TimeUse, activity, lanes, load, supervised_losses, totals
from agent_rl.observe.report.charts import (
    PLACES,
    caches,
    fate_chart,
    fate_totals,
    learning_curve,
    panels,
    successes,
    supervised_chart,
)
from agent_rl.observe.report.graph import advice
from agent_rl.observe.report.headline import headline
from agent_rl.observe.report.records import Records, answers_to_all
from agent_rl.observe.report.samples import NOTE, Block, Samples, Transcripts
from agent_rl.observe.words import clock, compact, percent, spread, visible
from agent_rl.records.health import RAISED_WHEN
from agent_rl.records.timeline import Moments

ALARM_DOCUMENT = "What raises each alarm (docs/training.md, section Alarms)"
STEPS_TIMED = 50
"""The last steps, whose median time the advice goes by."""
MOST_CACHES = 16
"""Engines whose KV cache is drawn."""
MODULES = ("base", "charts", "graph", "blocks", "explorer", "main")
"""The scripts of the page. Each imports only from those before it: they become one script of the page."""
_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
FOOTER = (
    "Made by agent-rl from the run directory: metrics.jsonl, timeline.jsonl, journal.sqlite, topology.json. "
    "This file is whole: it loads nothing and sends nothing. To read a chart's figures, point at the chart, or choose "
    "it and use the arrow keys."
)


def run_page(
    records: Records,
    samples: Samples,
    transcripts: Transcripts,
    now: dict[str, Any],
    listed: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole page as one object. ``listed``: all trajectories in short rows, where the page is to hold them."""
    active = activity(records.timeline)
    said, curve, figures = headline(records), learning_curve(records), panels(records)
    shares = totals(active.spans)
    learning = {"charts": [curve] if curve["lines"] or curve["marks"] else [], "wide": True}
    health = {"charts": [*figures["health"], *_supervised(records)]}
    limit, uses = {"advice": advice(shares, seconds_of_step(records))}, {"lanes": lanes(records, active)}
    explorer = {"explorer": _listed(listed, transcripts, samples)}
    compared = transcripts.comparison(samples.comparison)
    sections = [
        section("learning", "Is it learning", learning, _evaluations(records), {"charts": figures["learning"]}),
        section("health", "Is it healthy", *_alarms(records), health),
        section("time", "Where time goes", limit, uses, _shares(active), {"charts": figures["time"]}),
        section("topology", "Topology", {"graph": now}),
        section("cache", "KV cache", {"charts": _caches(records, active)}),
        section("staleness", "Staleness and fates", {"charts": figures["staleness"]}, *_fates(records)),
        section("trajectories", "Trajectories", {"text": NOTE}, explorer, *compared),
        section("made", "What it was made with", *_products(records), _settings(records)),
    ]
    return {
        "title": f"Run {records.name}",
        "badge": (said.state, "done" if said.finished else "loss"),
        "headline": said.sentence,
        "details": said.details,
        "tiles": list(_tiles(records, active)),
        "notes": [*records.notes, *_own_notes(records, transcripts)],
        "sections": [each for each in sections if each["blocks"]],
        "settings": records.settings,
        "footer": FOOTER,
    }


def _listed(listed: dict[str, Any] | None, transcripts: Transcripts, samples: Samples) -> dict[str, Any]:
    """The list of trajectories, with the bodies of those of the first and last step; without rows: to be fetched."""
    if listed is None:
        return {"live": True}
    return {**listed, "bodies": transcripts.bodies(samples.ends)}


def html(page: Mapping[str, Any]) -> str:
    """The file. Every string of the object is made visible; the JSON cannot end its element, nor begin another."""
    data = page_json(page)
    for sign in "<>&":  # also "<!--", which would begin a comment within a script
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    return _document(f"{page['title']}: {page['headline']}", data)


def live_html() -> str:
    """The same page without data: its script fetches them from where the page came from."""
    return _document("agent-rl view", "null", "connect-src 'self'; ")


def page_json(value: Any) -> str:
    """A value as JSON for the page's script: strings made visible, and numbers short."""
    return json.dumps(_shown(value), allow_nan=False, separators=(",", ":"))


def _document(title: str, data: str, connect: str = "") -> str:
    style = f"{_source('vendor', 'uPlot.min.css')}\n{_source('web', 'page.css')}"
    modules = (_IMPORT.sub("", _source("web", f"{name}.js")).replace("\nexport ", "\n") for name in MODULES)
    script = "\n".join([_source("vendor", "uPlot.iife.min.js"), '"use strict";', *modules])
    parts = {
        "policy": f"{connect}default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "require-trusted-types-for 'script'; img-src data:; base-uri 'none'; form-action 'none'",
        "title": escape(visible(title)),
        "style": style,
        "script": script,
        "data": data,
    }
    pieces = [piece.partition("}}") for piece in _source("web", "page.html").split("{{")]
    return pieces[0][0] + "".join(parts[name.strip()] + rest for name, _, rest in pieces[1:])


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
            return {visible(str(key)): _shown(each) for key, each in value.items()}
        case list() | tuple():
            return [_shown(each) for each in value]
    return value


# The content of sections


def section(name: str, title: str, *blocks: Block) -> dict[str, Any]:
    """A section. Blocks without content are left out."""
    return {"id": name, "title": title, "blocks": [block for block in blocks if all(block.values())]}


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    optional: Sequence[int] = (),
    summary: str = "",
    name: str = "",
) -> Block:
    """A table, left out without rows. A cell is a text, a list of texts, or (text, colour).

    Narrow screens leave ``optional`` columns out. With a ``summary``, the table is closed until a reader opens it.
    """
    made = {"head": head, "rows": rows, "optional": optional, "summary": summary, "id": name}
    return {"table": made if rows else None}


def _evaluations(records: Records) -> Block:
    rows = [
        [
            f"{evaluation.figures.name}, {way.replace('sampled_', 'sampled, ')}",
            f"{records.steps_before(evaluation):,}",
            percent(answers.success),
            spread(answers.low, answers.high),
            f"{answers.problems:,}",
            compact(answers.answered.response_tokens),
            percent(answers.answered.tool_error_share),
        ]
        for evaluation in records.evaluations
        for way, answers in evaluation.figures.ways().items()
    ]
    head = ["evaluation", "after RL steps", "success", "95\u202f% interval", "n", "mean tokens", "tool errors"]
    return table(head, rows, optional=[1, 5, 6])


def _supervised(records: Records) -> Iterator[Block]:
    for index, stage in enumerate(records.stages):
        if stage.kind == "sft" and (found := supervised_chart(supervised_losses(records.timeline, index), stage.name)):
            yield found


def _alarms(records: Records) -> Iterator[Block]:
    """The alarms with their steps and remedies, those that hold now first; and what raises each.

    The page's links lead to the latter: the file is to need no other.
    """
    now = {name for name, _ in records.alarms_now} if not records.finished else set()
    held = sorted(records.alarms, key=lambda each: (each.name not in now, each.stage, each.first))
    made: list[Any] = [
        {
            "name": each.name,
            "now": each.name in now,
            "steps": f"stage {each.stage}, steps {each.first:,} to {each.last:,}",
            "text": each.text,
        }
        for each in held
    ]
    none = ["No alarm: none of the last steps' figures is out of its bounds."] if records.steps else []
    yield {"alarms": made or none}
    rows = list(RAISED_WHEN.items()) if held else []
    yield table(["alarm", "raised when"], rows, summary=ALARM_DOCUMENT, name="alarms")


def seconds_of_step(records: Records) -> float:
    """The median time from step to step over the last steps; NaN with fewer than two."""
    last = records.steps[-STEPS_TIMED:]
    gaps = sorted(later.seconds - earlier.seconds for earlier, later in pairwise(last))
    gaps = [gap for gap in gaps if gap > 0]
    return gaps[len(gaps) // 2] if gaps else math.nan


def _caches(records: Records, active: Activity) -> list[dict[str, Any]]:
    """The use of each engine's KV cache over the places of the timeline."""
    rows = records.timeline
    every = max(1, -(-len(rows) // PLACES))
    engines = sorted({name for row in rows[::every] for name in row.actors if _cache(row, name) is not None})
    spans: list[tuple[float, float]] = []
    uses: dict[str, list[tuple[float, float]]] = {name: [] for name in engines[:MOST_CACHES]}
    for place in range(0, len(rows), every):
        spans.append((active.spans[place].start, active.spans[min(len(rows), place + every) - 1].end))
        for name, values in uses.items():
            found = [use for row in rows[place : place + every] if (use := _cache(row, name)) is not None]
            values.append((_average([used for used, _ in found]), _average([waiting for _, waiting in found])))
    return caches(spans, uses)


def _cache(row: Moments, name: str) -> tuple[float, float] | None:
    """The share of an engine's KV cache that is in use, and the turns that wait; None where an actor has no cache."""
    if (moment := row.actors.get(name)) is None:
        return None
    used, total = moment.figure("kv_used"), moment.figure("kv_total")
    return (used / total, moment.figure("waiting")) if total > 0 and math.isfinite(used) else None


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


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
    for actor, moment in (each for row in records.timeline for each in row.actors.items()):
        if kind := names.get(moment.figure("compute_bits")):
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
        for way, answers in answers_to_all(last).items():
            interval = f'95\u202f%: {spread(answers.low, answers.high)}, in "{last.figures.name}"'
            yield f"Held-out, {way}", percent(answers.success), interval
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
