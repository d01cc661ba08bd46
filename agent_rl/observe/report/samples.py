"""Trajectories for people to read, chosen by fixed rules, and split into the model's text and the text it was given.

The rules: held-out problems in the order of asking, a few for each outcome (wrong before and right after, ...), with
the counts of all outcomes; and the groups of the first and last RL step that the journal kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.messages import GroupOpened, Problem, ToolCallRecord, Trajectory
from agent_rl.observe.report.records import WAYS, Records
from agent_rl.records.journal import JOURNAL, GroupRow, Journal, JournalError, read_journal
from agent_rl.rollout.parsing import CLOSING, OPENING

Decode = Callable[[bytes], Any]
"""Decodes a message as the journal stores it. Raises ValueError for an invalid one."""
TokensToText = Callable[[Sequence[int]], str]

PAIRS_PER_OUTCOME = 2
SAMPLES_PER_GROUP = 32
LONG = 1500
"""Characters of a transcript."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one origin: ``model`` or ``tool``. The versions are those of the sampling policies."""

    origin: str
    text: str
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One trajectory with its result. ``kept`` is None where nothing was selected (evaluations)."""

    reward: float | None
    status: str
    kept: bool | None
    tokens: int
    turns: int
    calls: tuple[ToolCallRecord, ...]
    pieces: tuple[Piece, ...]

    @property
    def right(self) -> bool:
        """Whether it was judged right."""
        return (self.reward or 0.0) > 0

    @property
    def short(self) -> bool:
        """Whether the rollout is short. The transcript of a longer one is closed until it is opened."""
        return sum(len(piece.text) for piece in self.pieces) <= LONG

    @property
    def unread(self) -> list[ToolCallRecord]:
        """Calls of the last turn, whose results the model did not read."""
        turns = sum(piece.origin == "model" for piece in self.pieces)
        ended = self.pieces and self.pieces[-1].origin == "model"
        return [record for record in self.calls if record.turn == turns] if ended else []

    def parts(self) -> Iterator[tuple[Piece, Sequence[Any]]]:
        """Every piece with its parts: text and `WrittenCall`s of the model, else (response, record of its call)."""
        turn = 0
        records: list[ToolCallRecord] = []
        for piece in self.pieces:
            if piece.origin == "model":
                turn += 1
                records = [record for record in self.calls if record.turn == turn]
                yield piece, calls_in(piece.text)
            else:
                texts = responses(piece.text)
                yield piece, list(zip_longest(texts, records[: len(texts)]))
                records = []


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


@dataclass(frozen=True, slots=True)
class ProblemPair:
    """A held-out problem with the rollout of each evaluation; None where no trajectory is stored."""

    problem: Problem
    outcome: tuple[bool, ...]
    rollouts: tuple[Rollout | None, ...]


@dataclass(frozen=True, slots=True)
class BeforeAndAfter:
    """One or two evaluations of the same held-out problems; ``counts`` by outcome."""

    names: tuple[str, ...]
    way: str
    counts: dict[tuple[bool, ...], int]
    pairs: tuple[ProblemPair, ...]


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """A training group with its rollouts."""

    stage: str
    step: int
    problem: Problem
    fate: str
    rollouts: tuple[Rollout, ...]


@dataclass(slots=True)
class Samples:
    """The trajectories to show."""

    comparison: BeforeAndAfter | None = None
    first: list[SampleGroup] = field(default_factory=list)
    last: list[SampleGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_samples(directory: Path, records: Records, decode: Decode) -> Samples:
    """The samples of a run directory. Unreadable content is noted."""
    samples = Samples()
    if not (directory / JOURNAL).is_file():
        return samples
    to_text = tokens_to_text(directory, records)
    if to_text is None:
        samples.notes.append("The run's tokenizer was not found: trajectories show only what the model wrote.")
    try:
        journal = read_journal(directory)
        try:
            samples.comparison = _compare(journal, records, decode, to_text)
            samples.first, samples.last = _ends(journal, records, decode, to_text)
        finally:
            journal.close()
    except (JournalError, ValueError) as error:
        if isinstance(error, JournalError):
            records.journal_fault = records.journal_fault or str(error)
        samples.notes.append(f"Trajectories cannot be read from the journal: {error}")
    return samples


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


# Before and after


def _compare(journal: Journal, records: Records, decode: Decode, to_text: TokensToText | None) -> BeforeAndAfter | None:
    """The first and the last complete evaluation, greedy if both have it. A single one is shown alone."""
    done = sorted(stage for stage in journal.evaluations() if stage < len(records.stages))
    ends = sorted({done[0], done[-1]}) if done else []
    for way in reversed(WAYS):
        sides = [_asked(journal, stage, way, decode) for stage in ends]
        common = [asked for asked in sides[0] if all(asked in side for side in sides)] if sides else []
        if not common:
            continue
        verdicts = [journal.judged(stage) for stage in ends]
        counts = dict.fromkeys(OUTCOMES[len(ends)], 0)
        pairs: list[ProblemPair] = []
        for asked in common:
            groups = [side[asked] for side in sides]
            outcome = tuple(verdict[group.group] > 0 for verdict, group in zip(verdicts, groups, strict=True))
            counts[outcome] += 1
            if counts[outcome] <= PAIRS_PER_OUTCOME:
                rollouts = tuple(_only_rollout(journal, group.group, decode, to_text) for group in groups)
                pairs.append(ProblemPair(groups[0].problem, outcome, rollouts))
        order = list(counts)
        pairs.sort(key=lambda pair: order.index(pair.outcome))
        names = tuple(records.stages[stage].name for stage in ends)
        return BeforeAndAfter(names, way, counts, tuple(pairs))
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


def _only_rollout(journal: Journal, group: str, decode: Decode, to_text: TokensToText | None) -> Rollout | None:
    stored = journal.trajectories(group)
    if not stored:
        return None
    return rollout_of(decode(stored[-1].payload), stored[-1].reward, to_text)


# The first and the last RL step


def _ends(
    journal: Journal, records: Records, decode: Decode, to_text: TokensToText | None
) -> tuple[list[SampleGroup], list[SampleGroup]]:
    rows = [row for name in journal.samples() if (row := journal.group(name)) is not None and row.step is not None]
    steps = [row.step for row in rows if row.step is not None]
    trained = [step.version for step in journal.steps() if step.trained]
    ends: dict[int, list[SampleGroup]] = {}
    for row in sorted(rows, key=lambda row: row.step or 0):
        if row.step in {min(steps), max(steps)}:
            group = _sample_group(journal, row, trained.index(row.step) + 1, records, decode, to_text)
            ends.setdefault(row.step, []).extend([group] if group is not None else [])
    first, *later = ends.values() or [[]]
    return first, later[-1] if later else []


def _sample_group(
    journal: Journal, row: GroupRow, step: int, records: Records, decode: Decode, to_text: TokensToText | None
) -> SampleGroup | None:
    stored = journal.trajectories(row.id)
    if not stored:
        return None
    opened: GroupOpened = decode(row.opened)
    rollouts = tuple(
        rollout_of(decode(s.payload), s.reward, to_text, kept=(s.sample, s.attempt) in row.kept if row.kept else None)
        for s in stored[:SAMPLES_PER_GROUP]
    )
    stage = records.stages[row.stage].name if row.stage < len(records.stages) else ""
    return SampleGroup(stage, step, opened.problem, row.reason or row.state, rollouts)


# Trajectories


def rollout_of(
    trajectory: Trajectory, reward: float | None, to_text: TokensToText | None, *, kept: bool | None = None
) -> Rollout:
    """A trajectory as text. Without a tokenizer, only the model's text."""
    if to_text is None:
        ends = trajectory.oldest or 0, trajectory.newest or 0
        pieces: tuple[Piece, ...] = (Piece("model", trajectory.transcript.text, *ends),)
    else:
        pieces = split(trajectory, to_text)
    return Rollout(
        reward,
        trajectory.status,
        kept,
        trajectory.response_length,
        trajectory.turns,
        trajectory.transcript.calls,
        pieces,
    )


def split(trajectory: Trajectory, to_text: TokensToText) -> tuple[Piece, ...]:
    """Split the response by the loss mask into runs of tokens: written by the model, or given to it."""
    body = trajectory.unpack()
    mask = body.loss_mask > 0
    if not len(mask):
        return ()
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    pieces = []
    for start, end in pairwise(edges):
        versions = body.policies[start:end, 1]
        origin = "model" if mask[start] else "tool"
        words = to_text(body.tokens[start:end].tolist())
        pieces.append(Piece(origin, words, int(versions.min()), int(versions.max())))
    return tuple(pieces)


_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


def responses(text: str) -> list[str]:
    """The tool responses in a text between two turns; the whole text when it is not framed as expected."""
    return _RESPONSE.findall(text) or [text.strip()]


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call the model wrote, with its arguments by name."""

    tool: str
    arguments: dict[str, str]


def calls_in(written: str) -> list[str | WrittenCall]:
    """Split the model's text into calls and text. Incomplete calls stay text, unchanged."""
    parts: list[str | WrittenCall] = []
    done = 0
    start = written.find(OPENING)
    while start >= 0:
        end = written.find(CLOSING, start)
        call = _call(written[start + len(OPENING) : end]) if end >= 0 else None
        if call is None:
            start = written.find(OPENING, start + 1)
            continue
        parts += [written[done:start], call]
        done = end + len(CLOSING)
        start = written.find(OPENING, done)
    parts.append(written[done:])
    return [part for part in parts if isinstance(part, WrittenCall) or part.strip()]


def _call(content: str) -> WrittenCall | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"} or not isinstance(value["name"], str):
        return None
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        return None
    by_name = {
        name: part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
        for name, part in arguments.items()
    }
    return WrittenCall(value["name"], by_name)
