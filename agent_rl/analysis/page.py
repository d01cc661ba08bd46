"""The study as one self-contained HTML page: tables, charts, words, and rollouts with their high-entropy tokens marked.

::

    Result for each moment --> segments, plots --> templates/analysis.html

The texts come from a model and from tools: templates escape all of them, and the page has no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, pairwise
from typing import NamedTuple

from agent_rl.analysis.figures import DISTANCES, ENTROPIES, Scored
from agent_rl.analysis.results import Result
from agent_rl.analysis.tokens import AFTER_TOOL, GIVEN, KINDS
from agent_rl.observe.charts.lines import SMALL, Line, Plot, line_chart
from agent_rl.observe.charts.pages import content_policy, source, templates
from agent_rl.observe.report.page import page_style
from agent_rl.rollout.parsing import cut_middle

SHOWN_ROLLOUTS = 4
"""Rollouts of each moment on the page."""
SHOWN_TOKENS = 6000
"""Tokens of a rollout on the page."""
LONGEST_GIVEN = 2000
"""Characters of a tool response on the page."""
NAMES = {
    "text": "reasoning and answer",
    "after_tool": "just after a tool response",
    "call": "tool call",
    "comment": "comment in a tool call",
}
"""The kinds of tokens, for people."""


class Segment(NamedTuple):
    """Consecutive text of one class: ``given``, ``plain``, or one token that is ``forking`` or ``reflection``."""

    kind: str
    text: str
    entropy: float


def segments(rollout: Scored) -> Iterator[Segment]:
    """The first tokens of a rollout as segments; each high-entropy token is one of its own."""
    rows = zip(rollout.tokens, rollout.entropy.tolist(), rollout.high.tolist(), strict=True)

    def kind(row: tuple[int, tuple[object, float, bool]]) -> tuple[str, int]:
        index, (_, _, high) = row
        token = rollout.tokens[index]
        if token.kind == GIVEN:
            return "given", -1
        if not high:
            return "plain", -1
        return "reflection" if token.kind == AFTER_TOOL else "forking", index

    for (name, _), members in groupby(enumerate(islice(rows, SHOWN_TOKENS)), kind):
        rows_of = [row for _, row in members]
        text = "".join(token.text for token, _, _ in rows_of)
        if text:
            entropy = rows_of[0][1] if len(rows_of) == 1 else math.nan
            yield Segment(name, cut_middle(text, LONGEST_GIVEN) if name == "given" else text, entropy)


def analysis_page(name: str, results: Sequence[Result], notes: Sequence[str], *, share: float, window: int) -> str:
    """The page of a run."""
    style = page_style() + source(__package__, "analysis.css")
    return (
        templates(__package__)
        .get_template("analysis.html")
        .render(
            name=name,
            results=results,
            notes=notes,
            share=share,
            window=window,
            kinds=[(kind, NAMES[kind]) for kind in KINDS[1:]],
            plots=[(plot, line_chart(plot, SMALL)) for plot in (_by_distance(results), _by_entropy(results))],
            segments=segments,
            shown=SHOWN_ROLLOUTS,
            shown_tokens=SHOWN_TOKENS,
            style=style,
            policy=content_policy(style),
        )
    )


def _by_distance(results: Sequence[Result]) -> Plot:
    """Mean entropy by the tokens since a tool response, in groups of `DISTANCES`."""
    lines = [
        Line(result.moment.name, [mean.entropy for mean in result.study.since], colour)
        for colour, result in enumerate(results, 1)
    ]
    groups = _ranges([str(edge) for edge in DISTANCES])
    titles = []
    for index, group in enumerate(groups):
        parts = [f"{group} tokens after a tool response"]
        for result in results:
            mean = result.study.since[index]
            if mean.tokens:
                parts.append(
                    f"{result.moment.name}: {mean.entropy:.3f} nats, {100 * mean.high_share:.1f} % high, "
                    f"{mean.tokens:,} tokens"
                )
        titles.append("\n".join(parts))
    places = range(len(groups))
    note = "Each place is a group: " + ", ".join(f"{place} is {group}" for place, group in enumerate(groups)) + "."
    return Plot(
        "Entropy after a tool response",
        lines,
        [place - 0.5 for place in places],
        [place + 0.5 for place in places],
        titles,
        note=note,
        unit="nats",
        x_label="group of tokens since the response",
        x_high=len(groups) - 0.5,
    )


def _by_entropy(results: Sequence[Result]) -> Plot:
    """The share of the model's tokens in each group of `ENTROPIES`."""
    lines, shares = [], []
    for colour, result in enumerate(results, 1):
        total = max(1, result.study.all.tokens)
        shares.append([count / total for count in result.study.histogram])
        lines.append(Line(result.moment.name, shares[-1], colour))
    titles = [
        "\n".join(
            [f"{group} nats"]
            + [f"{result.moment.name}: {100 * of[index]:.2f} %" for result, of in zip(results, shares, strict=True)]
        )
        for index, group in enumerate(_ranges([f"{edge:g}" for edge in ENTROPIES]))
    ]
    width = ENTROPIES[1] - ENTROPIES[0]
    return Plot(
        "Tokens by entropy",
        lines,
        list(ENTROPIES),
        [edge + width for edge in ENTROPIES],
        titles,
        note="The last place holds all higher entropies.",
        share=True,
        x_label="entropy in nats",
        x_high=ENTROPIES[-1] + width,
    )


def _ranges(edges: Sequence[str]) -> list[str]:
    return [f"{low} to {high}" for low, high in pairwise(edges)] + [f"{edges[-1]} or more"]
