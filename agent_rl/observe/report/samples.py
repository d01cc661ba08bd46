"""Trajectories for people to read: chosen by fixed rules, and for the page's JSON.

The rules: held-out problems in the order of asking, a few for each outcome (wrong before and right after, ...), with
the counts of all outcomes; and the groups of the first and last RL step that the journal kept. Shown are who wrote
what, tool calls and their results, verdict, kept or not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent_rl.learning.advantages import group_advantages
from agent_rl.messages import GroupOpened, Judgement, Problem, ToolCallRecord, Trajectory
from agent_rl.observe.report.catalogue import fate
from agent_rl.observe.report.charts import FATES
from agent_rl.observe.report.records import WAYS, Records
from agent_rl.observe.words import count_of
from agent_rl.records.journal import Decode, Journal
from agent_rl.records.reading import Rollout, rollouts_of
from agent_rl.rollout.parsing import ParsedCall, cut_middle, parts_of

Block = dict[str, Any]
"""A part of the page; see `page`."""
TokensToText = Callable[[Sequence[int]], str]

PAIRS_PER_OUTCOME = 2
SAMPLES_PER_GROUP = 32

OUTCOMES: dict[int, dict[tuple[bool, ...], str]] = {
    1: {(True,): "right", (False,): "wrong"},
    2: {
        (False, True): "wrong before, right after",
        (True, True): "right both times",
        (False, False): "wrong both times",
        (True, False): "right before, wrong after",
    },
}
"""The outcomes of a held-out problem, by whether it was right in each evaluation."""

LONG = 1500
"""Characters of a transcript. A longer one is closed until it is opened."""
LONGEST_PIECE = 6000
LONGEST_RAW = 60_000
LONGEST_CHARACTER = 4
"""Tokens of one character, at most."""
TRANSCRIPT_CHARACTERS = 1_200_000
"""Limit of all transcripts: a page of more than a few megabytes is of no use on a phone."""
COLOURS = {(True,): "gain", (False,): "loss", (False, True): "gain", (True, False): "loss"}
"""Colours of outcomes that speak for or against the training."""
NOTE = (
    "Blue: text of the model, and the version of its policy. Grey, indented: results of tools. The frame that the chat "
    "format puts around tool responses is left out, and long texts are cut where they say so."
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One or two evaluations of the same held-out problems. ``counts`` are of all problems, by outcome.

    ``pairs`` are the problems to show, each with its outcome and the rollout of each evaluation; None where no
    trajectory is stored.
    """

    names: tuple[str, ...]
    way: str
    counts: dict[tuple[bool, ...], int]
    pairs: list[tuple[Problem, tuple[bool, ...], tuple[Rollout | None, ...]]]


@dataclass(slots=True)
class Samples:
    """The trajectories to show."""

    comparison: Comparison | None = None
    ends: list[Rollout] = field(default_factory=list)
    """Those of the first and of the last RL step, as far as the journal keeps them as samples."""


def choose_samples(journal: Journal, records: Records, decode: Decode, *, ends: bool) -> Samples:
    """The samples. ``ends``: also groups of the first and last step. Raises JournalError and ValueError."""
    samples = Samples(_compare(journal, records, decode))
    if ends:
        samples.ends = list(_ends(journal, decode))
    return samples


def _compare(journal: Journal, records: Records, decode: Decode) -> Comparison | None:
    """The first and the last complete evaluation, greedy if both have it. A single one is shown alone."""
    done = sorted(stage for stage in journal.evaluations() if stage < len(records.stages))
    ends = sorted({done[0], done[-1]}) if done else []
    for way in reversed(WAYS):
        sides = [_asked(journal, stage, way, decode) for stage in ends]
        common = [asked for asked in sides[0] if all(asked in side for side in sides)] if sides else []
        if not common:
            continue
        verdicts = [journal.judged(stage) for stage in ends]
        found = Comparison(
            tuple(records.stages[stage].name for stage in ends), way, dict.fromkeys(OUTCOMES[len(ends)], 0), []
        )
        for asked in common:
            groups = [side[asked] for side in sides]
            outcome = tuple(verdict[group.group] > 0 for verdict, group in zip(verdicts, groups, strict=True))
            found.counts[outcome] += 1
            if found.counts[outcome] <= PAIRS_PER_OUTCOME:
                rollouts = (list(rollouts_of(journal, group.group, decode)) for group in groups)
                found.pairs.append((groups[0].problem, outcome, tuple(each[-1] if each else None for each in rollouts)))
        order = list(found.counts)
        found.pairs.sort(key=lambda pair: order.index(pair[1]))
        return found
    return None


def _asked(journal: Journal, stage: int, way: str, decode: Decode) -> dict[tuple[str, int], GroupOpened]:
    """The evaluation's groups by problem, in the order of asking. A problem may occur several times."""
    found: dict[tuple[str, int], GroupOpened] = {}
    times: Counter[str] = Counter()
    for row in journal.groups(stage=stage, states=("evaluated",)):
        if row.purpose == f"evaluate_{way}":
            group: GroupOpened = decode(row.opened)
            found[group.problem.id, times[group.problem.id]] = group
            times[group.problem.id] += 1
    return found


def _ends(journal: Journal, decode: Decode) -> Iterator[Rollout]:
    rows = [row for name in journal.samples() if (row := journal.group(name)) is not None and row.step is not None]
    steps = [row.step for row in rows if row.step is not None]
    for row in sorted(rows, key=lambda row: row.step or 0):
        if row.step in {min(steps), max(steps)}:
            yield from islice(rollouts_of(journal, row.id, decode), SAMPLES_PER_GROUP)


class Transcripts:
    """Makes the blocks of trajectories, within a limit of characters in all. Counts what is left out."""

    def __init__(self, to_text: TokensToText | None) -> None:
        self._to_text = to_text
        self._left = TRANSCRIPT_CHARACTERS
        self.left_out = 0

    def comparison(self, compared: Comparison | None) -> Iterator[Block]:
        """The same held-out problems in one or two evaluations."""
        if compared is None:
            return
        words = OUTCOMES[len(compared.names)]
        names = '" and "'.join(compared.names)
        yield {"heading": f'Held-out problems in "{names}"'}
        yield {"outcomes": [(f"{n:,}", words[of], COLOURS.get(of, "same")) for of, n in compared.counts.items()]}
        yield {
            "text": "Below, the first ones of each kind in the order they were asked: "
            f"{sum(compared.counts.values()):,} problems, {compared.way}."
        }
        for problem, outcome, rollouts in compared.pairs:
            named = [f'In evaluation "{name}"' for name in compared.names]
            sides = [self.rollout(each, name, opened=True) for name, each in zip(named, rollouts, strict=True)]
            yield _article(problem, words[outcome], COLOURS.get(outcome, "same"), sides)

    def bodies(self, rollouts: Sequence[Rollout]) -> dict[str, Block]:
        """Whole rollouts by key, as many as the limit permits."""
        whole = ((each.key, self.whole(each)) for each in rollouts)
        return {key: made for key, made in whole if self._fits(made)}

    def _fits(self, made: Any) -> bool:
        written = json.dumps(made)
        self._left -= len(written) + 5 * sum(written.count(sign) for sign in "<>&")  # which the page writes as numbers
        self.left_out += self._left < 0
        return self._left >= 0

    def whole(self, stored: Rollout) -> Block:
        """A rollout with all that the journal knows of it, also of each token of the model."""
        problem, group, trajectory, judgement = stored
        made = self._block(stored, self._pieces(trajectory), tokens=True)
        body = trajectory.unpack()
        raw = self._to_text([*body.prompt_tokens.tolist(), *body.tokens.tolist()]) if self._to_text else ""
        rewards = np.array(group.rewards, dtype=np.float32)
        place = next((i for i, key in enumerate(group.kept) if key == (trajectory.sample, trajectory.attempt)), None)
        return made | {
            "key": stored.key,
            "problem": cut_middle(problem.text, LONGEST_PIECE),
            "answer": cut_middle(problem.answer, 200),
            "why": _why(stored),
            "advantage": None if place is None else float(group_advantages(rewards)[place]),
            "verdict": list(_verdict(judgement)),
            "raw": cut_middle(raw, LONGEST_RAW),
        }

    def rollout(self, stored: Rollout | None, title: str = "", *, opened: bool = False) -> Block:
        """A rollout with its badges, sizes and turns."""
        if stored is None:
            return {"title": title, "note": "No trajectory is stored."}
        pieces = self._pieces(stored.trajectory)
        made = self._block(stored, pieces)
        fits = self._fits(made["turns"])
        made |= {"title": title, "open": opened and fits and sum(len(piece.text) for piece in pieces) <= LONG}
        return made if fits else made | {"turns": [], "note": "Left out: the report would grow too large."}

    def _block(self, stored: Rollout, pieces: Sequence[Piece], *, tokens: bool = False) -> Block:
        trajectory = stored.trajectory
        of = _tokens_of(trajectory, self._to_text) if tokens and self._to_text else None
        return {
            "badges": list(_badges(stored)),
            "sizes": " \u00b7 ".join([*_reward(stored.judgement), *_sizes(trajectory)]),
            "turns": _turns(pieces, trajectory, of),
            "note": _unread(pieces, trajectory.transcript.calls),
        }

    def _pieces(self, trajectory: Trajectory) -> list[Piece]:
        if self._to_text is not None:
            return split(trajectory, self._to_text)
        return [Piece("model", trajectory.transcript.text, _policies(trajectory.unpack().policies[:, 1]), slice(0))]


def _why(stored: Rollout) -> str:
    """Why a rollout was kept for training, or not."""
    group, kept = stored.group, stored.kept
    if group.purpose != "train":
        return "Not for training: it answers an evaluation or a selection of problems."
    words = FATES.get(fate(group), (group.reason.replace("_", " "), 0))[0]
    if kept is None:
        return "Its group is not decided yet." if group.state == "open" else f"Its group was {words}."
    count = len(group.kept)
    if kept:
        return f"Kept: one of the {count} rollouts that its group kept. The group is {words}."
    return f"Not kept: the resampling kept {count} others of its group. The group is {words}."


def _verdict(judgement: Judgement | None) -> Iterator[tuple[str, str]]:
    """The parts of a judgement."""
    if judgement is None:
        yield "verdict", "not judged"
        return
    yield "verdict", "right" if judgement.success else "wrong"
    yield "reward", f"{judgement.reward:g}"
    yield from ((f"part {name}", f"{value:g}") for name, value in judgement.parts.items())
    if judgement.format_penalty:
        yield "penalty of form", f"{judgement.format_penalty:g}"
    yield from ((name, cut_middle(words, LONGEST_PIECE)) for name, words in
                (("answer", judgement.answer), ("note", judgement.note)) if words)  # fmt: skip


TokenTexts = Callable[[slice], list[Any]]


def _tokens_of(trajectory: Trajectory, to_text: TokensToText) -> TokenTexts:
    """The texts, log-probabilities and versions of the tokens in a part of the response.

    Tokens that only together make a character are one text, with the sum of their log-probabilities.
    """
    body = trajectory.unpack()

    def texts(part: slice) -> list[Any]:
        words: list[str] = []
        logprobs: list[float] = []
        versions: list[int] = []
        start = part.start
        for at in range(part.start, part.stop):
            text = to_text(body.tokens[start : at + 1].tolist())
            if text.endswith("\ufffd") and at + 1 < part.stop and at - start < LONGEST_CHARACTER:
                continue
            words.append(text)
            logprobs.append(round(float(body.logprobs[start : at + 1].sum()), 3))
            versions.append(int(body.policies[at, 1]))
            start = at + 1
        return [words, logprobs, versions]

    return texts


def _article(problem: Problem, said: str, colour: str, rollouts: list[Block]) -> Block:
    texts = {"problem": cut_middle(problem.text, LONGEST_PIECE), "answer": cut_middle(problem.answer, 200)}
    return {"article": {**texts, "badge": (said, colour), "rollouts": rollouts}}


def _badges(stored: Rollout) -> Iterator[tuple[str, str]]:
    """Each badge's words and colour."""
    if stored.judgement is None:
        yield "not judged", "same"
    else:
        yield ("\u2713 right", "gain") if stored.judgement.success else ("\u2717 wrong", "loss")
    if stored.kept is not None:
        yield ("kept", "kept") if stored.kept else ("not kept", "same")
    if stored.trajectory.status != "finished":
        yield stored.trajectory.status.replace("_", " "), "loss"


def _reward(judgement: Judgement | None) -> Iterator[str]:
    """The reward and its parts in words."""
    if judgement is not None:
        parts = ", ".join(f"{name} {value:g}" for name, value in judgement.parts.items())
        yield f"reward {judgement.reward:g}" + (f" ({cut_middle(parts, 400)})" if parts else "")


def _sizes(trajectory: Trajectory) -> list[str]:
    calls = trajectory.transcript.calls
    failed = sum(call.outcome != "success" for call in calls)
    sizes = [count_of(trajectory.turns, "turn"), count_of(trajectory.response_length, "token")]
    return sizes + ([count_of(len(calls), "call") + (f", {failed} failed" if failed else "")] if calls else [])


def _turns(pieces: Sequence[Piece], trajectory: Trajectory, tokens: TokenTexts | None) -> list[Block]:
    """The pieces with who wrote them; the text of tools with how their calls ended."""
    turns: list[Block] = []
    order = iter(trajectory.turn_order)
    calls = trajectory.transcript.calls
    records: list[ToolCallRecord] = []
    for origin, text, policies, part in pieces:
        if origin == "branch":
            turns.append({"class": "branch", "who": text, "parts": []})
            continue
        if origin == "model":
            turn = next(order, 0)
            records = [record for record in calls if record.turn == turn]
            turns.append({"class": "model", "who": f"model \u00b7 {policies}", "parts": calls_in(text)})
            if tokens is not None:
                turns[-1]["tokens"] = tokens(part)
            continue
        found = responses(text)
        for response, record in zip_longest(found, records[: len(found)]):
            who, failed = "tool", ""
            if record is not None:
                seconds = record.run_seconds
                took = f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
                who = f"tool \u00b7 {record.outcome.replace('_', ' ')} \u00b7 {took}"
                failed = "" if record.outcome == "success" else " failed"
            turns.append({"class": f"tool{failed}", "who": who, "parts": [_cut(response)]})
        records = []
    return turns


def _unread(pieces: Sequence[Piece], calls: Sequence[ToolCallRecord]) -> str:
    """About calls of the last turn, whose results the model did not read."""
    turns = sum(piece.origin == "model" for piece in pieces)
    ended = bool(pieces) and pieces[-1][0] == "model"
    outcomes = ", ".join(record.outcome.replace("_", " ") for record in calls if record.turn == turns and ended)
    return f"Its calls ended ({outcomes}), but the model did not read what they returned." if outcomes else ""


def _policies(versions: Any) -> str:
    oldest, newest = (int(versions.min()), int(versions.max())) if len(versions) else (0, 0)
    return f"policy {newest}" if oldest == newest else f"policies {oldest} to {newest}"


class Piece(NamedTuple):
    """A run of tokens of one origin (model or tool; or the beginning of a branch, without tokens of its own).

    ``policies``: the versions of the policies, in words. ``part``: where it stands in the response.
    """

    origin: str
    text: str
    policies: str
    part: slice


def split(trajectory: Trajectory, to_text: TokensToText) -> list[Piece]:
    """The response as runs of tokens of one origin."""
    body = trajectory.unpack()
    mask = body.loss_mask > 0
    if not len(mask):
        return []
    begins = {int(start): number for number, start in enumerate(body.branches[:, 2], 1)}
    edges = sorted({0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), *begins, len(mask)})
    pieces = []
    for start, end in pairwise(edges):
        if start in begins:
            number = begins[start]
            parent, shared, _ = body.branches[number - 1].tolist()
            cause = trajectory.branches[number - 1].cause.replace("_", " ")
            words = f"branch {number} ({cause}), after {shared} tokens of sequence {parent}"
            pieces.append(Piece("branch", words, "", slice(start, start)))
        origin, text = "model" if mask[start] else "tool", to_text(body.tokens[start:end].tolist())
        pieces.append(Piece(origin, text, _policies(body.policies[start:end, 1]), slice(start, end)))
    return pieces


_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


def responses(text: str) -> list[str]:
    """The tool responses in a text between two turns; the whole text when it is not framed as expected."""
    return _RESPONSE.findall(text) or [text.strip()]


def calls_in(written: str) -> list[str | Block]:
    """The model's text as texts and calls (tool, arguments by name), as the run read them."""
    parts = (part for part in parts_of(written) if not isinstance(part, str) or part.strip())
    return [_cut(part.strip("\n")) if isinstance(part, str) else _call(part) for part in parts]


def _cut(words: str) -> str:
    return cut_middle(words, LONGEST_PIECE)


def _call(call: ParsedCall) -> Block:
    arguments = [
        (_cut(name), _cut(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)))
        for name, part in call.arguments.items()
    ]
    return {"tool": _cut(call.name), "arguments": arguments}


def tokens_to_text(directory: Path, records: Records) -> TokensToText | None:
    """The decoder of the run's tokenizer, from a checkpoint or the model it started from; None without one."""
    from tokenizers import Tokenizer

    places = [directory / "model", *sorted((directory / "checkpoints").glob("version-*"), reverse=True)]
    if isinstance(path := records.settings.get("model.path"), str):
        places.append(Path(path))
    for place in places:
        if (file := place / "tokenizer.json").is_file():
            try:
                tokenizer = Tokenizer.from_file(str(file))
            except Exception as error:  # the Rust side raises Exception itself
                if type(error) is not Exception:
                    raise
                continue
            return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))
    return None
