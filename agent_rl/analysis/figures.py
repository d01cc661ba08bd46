"""The figures of an entropy study: by kind of token, by the distance from a tool response, and by word. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from agent_rl.analysis.tokens import AFTER_TOOL, KINDS, Flags, Floats, Token, highest

DISTANCES = (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Edges of the tokens since a tool response that are counted together; the last group has no end."""
ENTROPIES = tuple(index / 4 for index in range(17))
"""Edges of the histogram, in nats; the last group has no end."""
WORDS = 40
"""The longest list of words."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A rollout with a model's entropies.

    ``tokens`` are its response's; ``entropy`` [n] is in nats, NaN for tokens that the model did not write; ``gap`` [n]
    is the log-probability under the model less the log-probability that the token was sampled with, NaN there too.
    ``high`` [n] flags the high-entropy tokens.
    """

    tokens: Sequence[Token]
    entropy: Floats
    gap: Floats
    high: Flags
    problem: str
    reward: float | None


def scored(
    tokens: Sequence[Token], entropy: Floats, gap: Floats, share: float, problem: str = "", reward: float | None = None
) -> Scored:
    """A rollout whose high-entropy tokens are this share of the model's tokens."""
    high = np.zeros(len(tokens), dtype=np.bool_)
    written = np.isfinite(entropy)
    high[written] = highest(entropy[written], share)
    return Scored(tokens, entropy, gap, high, problem, reward)


@dataclass(slots=True)
class Mean:
    """Tokens that are counted together: their number, their mean entropy in nats, and how many are high-entropy."""

    tokens: int = 0
    high: int = 0
    total: float = 0.0

    def add(self, entropy: float, high: bool) -> None:  # noqa: FBT001 - a flag of the token
        """Count a token."""
        self.tokens += 1
        self.high += high
        self.total += entropy

    @property
    def entropy(self) -> float:
        """NaN where there is no token."""
        return self.total / self.tokens if self.tokens else math.nan

    @property
    def high_share(self) -> float:
        """NaN where there is no token."""
        return self.high / self.tokens if self.tokens else math.nan

    def figures(self) -> dict[str, float]:
        """As JSON has them."""
        return {"tokens": self.tokens, "entropy": self.entropy, "high_share": self.high_share}


@dataclass(frozen=True, slots=True)
class Word:
    """A word in lower case, or a token that is in none. ``tokens`` and ``high`` count its tokens.

    ``excess`` is the number of high-entropy tokens less the number that as many tokens of all words have on average.
    """

    word: str
    tokens: int
    high: int
    entropy: float
    excess: float


@dataclass(slots=True)
class Study:
    """The figures of one moment."""

    rollouts: int = 0
    all: Mean = field(default_factory=Mean)
    kinds: dict[str, Mean] = field(default_factory=dict)
    since: list[Mean] = field(default_factory=list)
    """By the tokens since a tool response; see `DISTANCES`."""
    histogram: list[int] = field(default_factory=list)
    """The number of tokens by entropy; see `ENTROPIES`."""
    threshold: float = math.nan
    """The mean over rollouts of the lowest entropy of a high-entropy token."""
    gap: float = math.nan
    """The mean of the absolute gaps: near 0 where the model is the one that sampled the tokens."""
    forking: list[Word] = field(default_factory=list)
    reflection: list[Word] = field(default_factory=list)
    lowest: list[Word] = field(default_factory=list)
    """Words of all kinds whose tokens are high-entropy tokens least often."""


def study(rollouts: Sequence[Scored]) -> Study:
    """The figures of a moment's rollouts."""
    found = Study(len(rollouts))
    found.kinds = {name: Mean() for name in KINDS[1:]}
    found.since = [Mean() for _ in DISTANCES]
    found.histogram = [0] * len(ENTROPIES)
    thresholds, gaps = [], []
    for rollout in rollouts:
        for token, entropy, high in _written(rollout):
            found.all.add(entropy, high)
            found.kinds[KINDS[token.kind]].add(entropy, high)
            if token.since >= 0:
                found.since[_group(token.since, DISTANCES)].add(entropy, high)
            found.histogram[_group(entropy, ENTROPIES)] += 1
        if rollout.high.any():
            thresholds.append(float(rollout.entropy[rollout.high].min()))
        gaps.append(np.abs(rollout.gap[np.isfinite(rollout.gap)]))
    found.threshold = float(np.mean(thresholds)) if thresholds else math.nan
    every_gap = np.concatenate(gaps) if gaps else np.empty(0)
    found.gap = float(every_gap.mean()) if len(every_gap) else math.nan
    share = found.all.high_share
    found.forking = _words(rollouts, set(range(len(KINDS))) - {AFTER_TOOL}, share)
    found.reflection = _words(rollouts, {AFTER_TOOL}, share)
    found.lowest = _words(rollouts, set(range(len(KINDS))), share, lowest=True)
    return found


def _words(rollouts: Iterable[Scored], kinds: Container[int], share: float, *, lowest: bool = False) -> list[Word]:
    """The words of these kinds with the largest excess of high-entropy tokens, above 0; ``lowest``: below 0."""
    means: dict[str, Mean] = {}
    for rollout in rollouts:
        for token, entropy, high in _written(rollout):
            if token.kind in kinds:
                means.setdefault(token.word, Mean()).add(entropy, high)
    words = [
        Word(word, mean.tokens, mean.high, mean.entropy, mean.high - share * mean.tokens)
        for word, mean in means.items()
    ]
    sign = -1 if lowest else 1
    leading = sorted(words, key=lambda word: (-sign * word.excess, word.word))
    return [word for word in leading[:WORDS] if sign * word.excess > 0]


def _written(rollout: Scored) -> Iterator[tuple[Token, float, bool]]:
    """The model's tokens, with entropy and flag."""
    for token, entropy, high in zip(rollout.tokens, rollout.entropy.tolist(), rollout.high.tolist(), strict=True):
        if math.isfinite(entropy):
            yield token, entropy, high


def _group(value: float, edges: Sequence[float]) -> int:
    return bisect_right(edges, value) - 1
