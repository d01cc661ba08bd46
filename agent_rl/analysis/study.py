"""The entropy study: rollouts drawn from the journal, the model that fits them, and the figures of their tokens."""

from __future__ import annotations

import contextlib
import math
import random
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent_rl.analysis.tokens import AFTER_TOOL, GIVEN, KINDS, Flags, Floats, Token
from agent_rl.messages import Trajectory
from agent_rl.observe.report.page import section, study_page, table
from agent_rl.records.checkpoint_files import read_position
from agent_rl.records.journal import JournalError, read_journal
from agent_rl.rollout.parsing import cut_middle

ENTIRE = {"finished", "truncated", "turn_limit"}
"""Statuses of rollouts that the model ended, or that a limit ended."""
NEAR = 5
"""Versions between rollouts and model that need no note: the figure ``gap`` shows how little the policy changed."""
DISTANCES = (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Edges of the tokens since a tool response that are counted together; the last group has no end."""
WORDS = 40
"""The longest list of words."""
SHOWN_ROLLOUTS, SHOWN_TOKENS, LONGEST_GIVEN = 4, 6000, 2000
"""Rollouts on the page, tokens of each, and characters of a tool response."""


class AnalysisError(Exception):
    """The study is not possible; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rollouts near an RL step, counted from 1, each with the text of its problem."""

    steps: tuple[int, int]
    rollouts: list[tuple[Trajectory, str]]
    notes: list[str] = field(default_factory=list)

    @property
    def versions(self) -> tuple[int, int]:
        """The oldest and the newest version of the policy that sampled a token of the rollouts."""
        oldest, newest = zip(*((each.oldest, each.newest) for each, _ in self.rollouts), strict=True)
        return min(oldest), max(newest)


def draw(directory: Path, decode: Callable[[bytes], Any], *, rollouts: int, step: int | None, seed: int) -> Drawn:
    """At most ``rollouts`` rollouts of the step, or of the last one, and then of the steps nearest to it.

    Of each step, equally many come from each stored group. ``decode`` decodes a message that the journal stores. Raises
    JournalError for a journal that cannot be read, and AnalysisError when no rollout of an RL step is stored.
    """
    rng = random.Random(seed)
    with contextlib.closing(read_journal(directory)) as journal:
        steps = [each for each in journal.steps() if each.trained]
        there = journal.stored_groups()
        stored = [index for index, each in enumerate(steps) if not there.isdisjoint(each.decided)]
        wanted = len(steps) if step is None else step
        chosen: list[tuple[int, Trajectory, str]] = []
        for index in sorted(stored, key=lambda index: (abs(index + 1 - wanted), index)):
            missing = rollouts - len(chosen)
            groups = sorted(there.intersection(steps[index].decided))
            for group in rng.sample(groups, min(len(groups), missing)) if missing > 0 else ():
                row = journal.group(group)
                trajectories = [each for each in journal.trajectories(group) if each.status in ENTIRE]
                rng.shuffle(trajectories)
                try:
                    problem = "" if row is None else str(decode(row.opened).problem.text)
                    decoded = [decode(each.payload) for each in trajectories[: -(-missing // len(groups))]]
                    for each in decoded:
                        each.unpack()  # raises BodyError, a ValueError
                except ValueError as error:
                    raise JournalError(f"{journal.path}: {group} cannot be read: {error}") from error
                chosen += [(index + 1, each, problem) for each in decoded if each.oldest is not None]
    if not chosen:
        raise AnalysisError(
            f"{journal.path} holds no trajectory of an RL step: none was trained, or the run kept none. Set "
            "run.keep_trajectories before the next run"
        )
    del chosen[rollouts:]
    used = [index for index, _, _ in chosen]
    drawn = Drawn((min(used), max(used)), [(trajectory, problem) for _, trajectory, problem in chosen])
    if drawn.steps != (wanted, wanted) or len(chosen) < rollouts:
        drawn.notes.append(
            f"{len(chosen)} rollouts of RL steps {drawn.steps[0]} to {drawn.steps[1]}, not {rollouts} of step "
            f"{wanted}: the journal holds no more near that step (see run.keep_trajectories)"
        )
    return drawn


def fitting_model(directory: Path, drawn: Drawn) -> tuple[Path, int]:
    """The run's checkpoint nearest to the versions that sampled the rollouts, and its version.

    Of two equally near the later is taken; a distant one is noted. Raises AnalysisError where none is left.
    """
    oldest, newest = drawn.versions
    found = [(0, path) for path in [directory / "model"] if (path / "config.json").is_file()]
    for pattern in ("version-*", "best-version-*"):
        for path in sorted((directory / "checkpoints").glob(pattern)):
            position = read_position(path)
            if position is not None and not position.step and (path / "config.json").is_file():
                found.append((position.version, path))
    if not found:
        raise AnalysisError(
            f"no checkpoint is left for the rollouts (versions {oldest} to {newest}): name a model with --model DIR"
        )
    version, path = min(found, key=lambda each: (abs(each[0] - (oldest + newest) / 2), -each[0]))
    if not oldest - NEAR <= version <= newest + NEAR:
        drawn.notes.append(
            f"the rollouts were sampled by versions {oldest} to {newest}, and the nearest model is version {version} "
            f"({path.name}). For a nearer one, set run.checkpoint_every and run.keep_checkpoints before the next run"
        )
    return path, version


def temperature_of(directory: Path) -> float:
    """The temperature in the topology that the actors of the run read; 1 where there is none."""
    for path in sorted(directory.glob("topology.*.toml")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            temperature = float(tomllib.loads(path.read_text(encoding="utf-8"))["algorithm"]["temperature"])
            if 0 < temperature < math.inf:
                return temperature
    return 1.0


class Scored(NamedTuple):
    """A rollout with a model's entropies in nats [n], NaN for tokens that the model did not write.

    ``gap`` [n] is the log-probability under the model less the one that the token was sampled with. ``high`` [n] flags
    the high-entropy tokens.
    """

    tokens: Sequence[Token]
    entropy: Floats
    gap: Floats
    high: Flags
    problem: str = ""


def study(rollouts: Sequence[Scored]) -> dict[str, Any]:
    """The figures: of all tokens, by kind, by the distance from a tool response, and by word."""
    written = [
        (token, entropy, high)
        for each in rollouts
        for token, entropy, high in zip(each.tokens, each.entropy.tolist(), each.high.tolist(), strict=True)
        if math.isfinite(entropy)
    ]
    gaps = np.concatenate([np.abs(each.gap[np.isfinite(each.gap)]) for each in rollouts] or [np.empty(0)])
    thresholds = [float(each.entropy[each.high].min()) for each in rollouts if each.high.any()]
    return {
        "rollouts": len(rollouts),
        **_mean(written),
        "threshold": float(np.mean(thresholds)) if thresholds else math.nan,
        "gap": float(gaps.mean()) if len(gaps) else math.nan,
        "kinds": {kind: _mean(each for each in written if each[0].kind == kind) for kind in KINDS},
        "since": {
            f"{low} to {high}" if high < math.inf else f"{low} or more": _mean(
                each for each in written if low <= each[0].since < high
            )
            for low, high in pairwise((*DISTANCES, math.inf))
        },
        "forking": _words(written, lambda token: token.kind != AFTER_TOOL),
        "reflection": _words(written, lambda token: token.kind == AFTER_TOOL),
    }


def _mean(tokens: Iterable[tuple[Token, float, bool]]) -> dict[str, float]:
    counted = [(entropy, high) for _, entropy, high in tokens]
    count = len(counted)
    sums = math.fsum(entropy for entropy, _ in counted), sum(high for _, high in counted)
    entropy, share = (each / count for each in sums) if count else (math.nan, math.nan)
    return {"tokens": count, "entropy": entropy, "high_share": share}


def _words(written: Sequence[tuple[Token, float, bool]], wanted: Callable[[Token], bool]) -> list[dict[str, Any]]:
    """The words with the most high-entropy tokens beyond those that as many tokens of all words have on average."""
    share = _mean(written)["high_share"]
    by_word: dict[str, list[tuple[Token, float, bool]]] = {}
    for each in written:
        if wanted(each[0]):
            by_word.setdefault(each[0].word, []).append(each)
    words: list[dict[str, Any]] = [{"word": word, **_mean(tokens)} for word, tokens in by_word.items()]
    for found in words:
        found["excess"] = found["tokens"] * (found["high_share"] - share)
    leading = sorted(words, key=lambda found: (-found["excess"], found["word"]))
    return [found for found in leading[:WORDS] if found["excess"] > 0]


def study_as_page(name: str, figures: dict[str, Any], drawn: Drawn, model: Path, rollouts: Sequence[Scored]) -> Any:
    """The study as a page's object: tables, and some rollouts with their high-entropy tokens marked."""
    oldest, newest = drawn.versions
    counted = [("all", figures), *figures["kinds"].items()]
    since = [(f"{group} tokens after a tool response", mean) for group, mean in figures["since"].items()]
    head = ["tokens", "number", "mean entropy (nats)", "high-entropy"]
    means = [
        [kind.replace("_", " "), f"{m['tokens']:,}", f"{m['entropy']:.3f}", f"{100 * m['high_share']:.1f} %"]
        for kind, m in [*counted, *since]
        if m["tokens"]
    ]
    words = [
        table(
            [kind, "high-entropy tokens", "of", "mean entropy (nats)"],
            [
                [w["word"], f"{w['tokens'] * w['high_share']:.0f}", f"{w['tokens']:,}", f"{w['entropy']:.3f}"]
                for w in figures[kind]
            ],
        )
        for kind in ("forking", "reflection")
    ]
    shown = [{"marked": [("problem: " + each.problem + "\n", "given", ""), *_marked(each)]} for each in rollouts]
    return study_page(
        f"Run {name}",
        f"Entropy of tokens in {len(rollouts)} rollouts",
        [section("kinds", "By place", [table(head, means)]), section("words", "Words", words),
         section("rollouts", "Rollouts", shown[:SHOWN_ROLLOUTS])],
        details=[
            f"RL steps {drawn.steps[0]} to {drawn.steps[1]}, sampled by versions {oldest} to {newest}.",
            f"Entropies by {model}; mean difference of log-probabilities from the sampling {figures['gap']:.3g}.",
            "Underlined: reflection tokens, soon after a tool response. Shaded: forking tokens, all other high ones.",
        ],
        notes=drawn.notes,
    )  # fmt: skip


def _marked(rollout: Scored) -> Iterator[tuple[str, str, str]]:
    """Consecutive text of one class; each high-entropy token is alone, with its entropy."""
    rows = list(zip(rollout.tokens, rollout.entropy.tolist(), rollout.high.tolist(), strict=True))[:SHOWN_TOKENS]

    def kind(row: tuple[int, tuple[Token, float, bool]]) -> tuple[str, int]:
        index, (token, _, high) = row
        if token.kind == GIVEN or not high:
            return ("given" if token.kind == GIVEN else "plain"), -1
        return ("reflection" if token.kind == AFTER_TOOL else "forking"), index

    for (name, index), members in groupby(enumerate(rows), kind):
        text = "".join(token.text for _, (token, _, _) in members)
        yield cut_middle(text, LONGEST_GIVEN), name, f"{rows[index][1]:.3f} nats" if index >= 0 else ""
