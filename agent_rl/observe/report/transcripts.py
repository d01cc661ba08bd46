"""Sample trajectories as HTML: who wrote what, tool calls and what came back, verdict, kept or not. All of it as text."""

from __future__ import annotations

from collections.abc import Sequence

from agent_rl.messages import ToolCallRecord
from agent_rl.observe.report.markup import Markup, join, tag
from agent_rl.observe.report.samples import (
    OUTCOMES,
    Call,
    Comparison,
    Pair,
    Piece,
    Rollout,
    SampleGroup,
    calls_in,
    responses,
)
from agent_rl.rollout.parsing import cut_middle

LONG = 1500
"""A transcript of more characters is closed until it is asked for."""
LONGEST_PIECE = 6000
BYTES = 1_200_000
"""Transcripts stop here: a page of more than a few megabytes is no use on a phone."""

COLOURS = {(True,): "gain", (False,): "loss", (False, True): "gain", (True, False): "loss"}
"""Of outcomes that say something for or against the training."""


class Transcripts:
    """Renders rollouts until the page would grow too large; says where it stopped."""

    def __init__(self, room: int = BYTES) -> None:
        self._room = room
        self.left_out = 0

    def comparison(self, comparison: Comparison) -> Markup:
        """Evaluations of the same problems: how many of each outcome, and some of each to read."""
        total = sum(comparison.counts.values())
        words = OUTCOMES[len(comparison.names)]
        counts = [
            tag("li", tag("b", f"{count:,}"), f" {words[outcome]}", class_=COLOURS.get(outcome, "same"))
            for outcome, count in comparison.counts.items()
        ]
        rule = f"Below, the first ones of each kind in the order they were asked: {total:,} problems, {comparison.way}."
        pairs = [self._pair(pair, comparison.names) for pair in comparison.pairs]
        return join(tag("ul", *counts, class_="outcomes"), tag("p", rule, class_="note"), *pairs)

    def groups(self, groups: Sequence[SampleGroup], heading: str) -> Markup:
        """Training groups with all their rollouts."""
        return join(tag("h3", heading), *(self._group(group) for group in groups))

    def _pair(self, pair: Pair, names: Sequence[str]) -> Markup:
        sides = [
            tag("div", tag("h4", f'In evaluation "{name}"'), self._rollout(rollout, opened=True), class_="side")
            for name, rollout in zip(names, pair.rollouts, strict=True)
        ]
        words, class_ = OUTCOMES[len(names)][pair.outcome], COLOURS.get(pair.outcome, "same")
        badge = tag("span", words, class_=f"badge {class_}")
        return tag(
            "article", _problem(pair.problem.text, pair.problem.answer, badge), tag("div", *sides, class_="sides")
        )

    def _group(self, group: SampleGroup) -> Markup:
        right = sum((rollout.reward or 0.0) > 0 for rollout in group.rollouts)
        fate = group.fate.replace("_", " ")
        said = f"{right} of {len(group.rollouts)} right, {fate}"
        rollouts = [tag("li", self._rollout(rollout, opened=False)) for rollout in group.rollouts]
        badge = tag("span", said, class_="badge same")
        return tag(
            "article",
            _problem(group.problem.text, group.problem.answer, badge),
            tag("ol", *rollouts, class_="rollouts"),
        )

    def _rollout(self, rollout: Rollout | None, *, opened: bool) -> Markup:
        if rollout is None:
            return tag("p", "No trajectory is stored.", class_="note")
        body = join(*_turns(rollout))
        self._room -= len(body.encode("utf-8", errors="replace"))
        if self._room < 0:
            self.left_out += 1
            body = tag("p", "Left out: the report would grow too large.", class_="note")
        length = sum(len(piece.text) for piece in rollout.pieces)
        is_open = "" if opened and length <= LONG else None
        return tag("details", tag("summary", *_badges(rollout)), tag("div", body, class_="transcript"), open=is_open)


def _problem(words: str, answer: str, badge: Markup) -> Markup:
    return tag(
        "header",
        tag("pre", cut_middle(words, LONGEST_PIECE), class_="problem"),
        tag("p", "right answer: ", tag("code", cut_middle(answer, 200)), " ", badge),
    )


def _badges(rollout: Rollout) -> list[Markup]:
    if rollout.reward is None:
        verdict = tag("span", "not judged", class_="badge same")
    elif rollout.reward > 0:
        verdict = tag("span", "\u2713 right", class_="badge gain")
    else:
        verdict = tag("span", "\u2717 wrong", class_="badge loss")
    badges = [verdict]
    if rollout.kept is not None:
        badges.append(
            tag("span", "kept" if rollout.kept else "not kept", class_="badge kept" if rollout.kept else "badge same")
        )
    if rollout.status != "finished":
        badges.append(tag("span", rollout.status.replace("_", " "), class_="badge loss"))
    failed = sum(call.outcome != "success" for call in rollout.calls)
    said = [_count(rollout.turns, "turn"), _count(rollout.tokens, "token")]
    if rollout.calls:
        said.append(_count(len(rollout.calls), "call") + (f", {failed} failed" if failed else ""))
    return [*badges, tag("span", " \u00b7 ".join(said), class_="sizes")]


def _turns(rollout: Rollout) -> list[Markup]:
    """The pieces in order; each turn's call records go to the tool responses that follow it."""
    parts = []
    turn = 0
    unread: list[ToolCallRecord] = []
    for piece in rollout.pieces:
        if piece.origin == "model":
            turn += 1
            unread = [record for record in rollout.calls if record.turn == turn]
            parts.append(_written(piece))
        else:
            parts.append(_told(piece, unread))
            unread = []
    if unread:
        outcomes = ", ".join(record.outcome.replace("_", " ") for record in unread)
        parts.append(
            tag("p", f"Its calls ended ({outcomes}), but the model did not read what they returned.", class_="note")
        )
    return parts


def _written(piece: Piece) -> Markup:
    policies = (
        f"policy {piece.oldest}" if piece.oldest == piece.newest else f"policies {piece.oldest} to {piece.newest}"
    )
    parts = []
    for part in calls_in(piece.text):
        if isinstance(part, Call):
            arguments = [_argument(name, value) for name, value in part.arguments.items()]
            parts.append(tag("div", tag("p", "calls ", tag("b", part.tool), class_="who"), *arguments, class_="call"))
        else:
            parts.append(tag("pre", cut_middle(part.strip("\n"), LONGEST_PIECE)))
    return tag("section", tag("p", f"model \u00b7 {policies}", class_="who"), *parts, class_="model")


def _argument(name: str, value: str) -> Markup:
    if not value:
        return tag("p", f"{name}: empty", class_="argument")
    return tag("div", tag("p", name, class_="argument"), tag("pre", cut_middle(value, LONGEST_PIECE)))


def _told(piece: Piece, records: Sequence[ToolCallRecord]) -> Markup:
    parts = []
    for index, response in enumerate(responses(piece.text)):
        record = records[index] if index < len(records) else None
        outcome = (
            "tool"
            if record is None
            else f"tool \u00b7 {record.outcome.replace('_', ' ')} \u00b7 {_milliseconds(record.run_seconds)}"
        )
        class_ = "tool" if record is None or record.outcome == "success" else "tool failed"
        parts.append(
            tag(
                "section",
                tag("p", outcome, class_="who"),
                tag("pre", cut_middle(response, LONGEST_PIECE)),
                class_=class_,
            )
        )
    return join(*parts)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
