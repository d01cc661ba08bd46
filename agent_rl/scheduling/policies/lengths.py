"""Learns how long rollouts become, online, from those that have ended and from those that have not ended yet.

Symbols. y: the tokens of a rollout beyond its prompt. h(y): the hazard, the chance a token that a rollout of y tokens
ends. H(y): the integral of h from 0 to y. A rollout of y tokens is longer than y + d with the probability
exp(-f (H(y + d) - H(y))), where f is the *frailty* of its problem.

h is constant in each of some bins, and is the rollouts that ended there over the tokens that all rollouts spent there.
So a rollout under way counts with the tokens it has: what ends first, which is short, does not make the others look
short. No shape of the tail is assumed. The frailty has a gamma prior of mean 1: f = (A + ended samples of the problem)
/ (A + the sum of H over its samples). Before much has ended, the hazard is that of a Rayleigh distribution whose mean
is ``PRIOR_SHARE`` of the limit.

Coverage (the share of ended rollouts below the quantile that was predicted at their start) is counted, so that the
calibration can be read: `Lengths.coverage`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

PRIOR_SHARE = 0.3
"""Before anything has ended, rollouts are expected to take this share of their limit."""
PRIOR_ROLLOUTS = 16.0
"""The prior counts as much as so many rollouts."""
PRIOR_FRAILTY = 4.0
"""A above: how alike problems are; the larger, the more alike."""
FIRST, RATIO, BINS = 16.0, 1.05, 235
"""Bins begin at 0, FIRST, FIRST RATIO, FIRST RATIO^2 ...: the last ones at 1.5 million tokens."""
LEARNT_EVERY = 32
"""Rollouts that end until the hazard is computed anew, at least."""
LEARNT_SHARE = 1 / 64
"""Share of the rollouts that count which end until the hazard is computed anew, at least."""
FADES_AFTER = 8192
"""Once so many rollouts have ended, all counts are halved, so that a policy that changes is followed."""

_STEP = math.log(RATIO)
_EDGES = [0.0, *(FIRST * RATIO**number for number in range(BINS - 1))]
_WIDTHS = [after - before for before, after in pairwise(_EDGES)] + [math.inf]


@dataclass(slots=True)
class _Problem:
    ended: int = 0
    hazard: float = 0.0
    """H over its samples, as far as they are."""


@dataclass(slots=True)
class _Open:
    problem: _Problem
    prompt: int
    grown: float = 0.0
    bin: int = 0
    """The bin of ``grown``."""
    quantile: float = math.nan


def _bin(grown: float) -> int:
    return 0 if grown < FIRST else min(BINS - 1, 1 + int(math.log(grown / FIRST) / _STEP))


class Lengths:
    """Survival and quantiles of the lengths of rollouts, in tokens of context."""

    def __init__(self, quantile: float = 0.5, ahead: Sequence[float] = (0.0,)) -> None:
        """``ahead``: the further tokens that `survivals` predicts for."""
        self.quantile = quantile
        self._ahead = ahead
        self._problems: dict[str, _Problem] = {}
        self._open: dict[str, _Open] = {}
        self._ended = [0.0] * BINS
        self._spent = [0.0] * BINS
        self._hazards = [0.0] * BINS
        self._sums = [0.0] * BINS
        """H at the beginning of each bin."""
        self._further: dict[int, list[float]] = {}
        """H(y) - H(y + d) for each d of ``ahead``, y in the middle of a bin. Filled as bins are asked for."""
        self._prior_mean = 0.0
        self.mean = math.inf
        """Tokens of a rollout beyond its prompt, in the mean."""
        self._seen = 0
        self._news = 0
        """Rollouts that ended since the hazard was computed."""
        self._covered = 0
        self._checked = 0

    # Rollouts

    def started(self, rollout: str, problem: str, prompt: int, limit: int) -> None:
        """A rollout begins. The quantile of its length is remembered, to count whether it holds."""
        if PRIOR_SHARE * limit > self._prior_mean:
            self._prior_mean = PRIOR_SHARE * limit
            self._learn()
        known = self._open[rollout] = _Open(self._problems.setdefault(problem, _Problem()), prompt)
        if self._seen >= 4 * LEARNT_EVERY:
            known.quantile = self.final(rollout, prompt, limit)

    def grew(self, rollout: str, context: int) -> None:
        """The rollout has so many tokens now, known or estimated, and has not ended."""
        known = self._open.get(rollout)
        if known is None or context - known.prompt <= known.grown:
            return
        before, after = known.grown, float(context - known.prompt)
        first = last = known.bin
        if after >= _EDGES[first] + _WIDTHS[first]:
            last = known.bin = _bin(after)
            known.problem.hazard += self._hazard(after) - self._hazard(before)
            for number in range(first, last):
                self._spent[number] += _EDGES[number + 1] - max(before, _EDGES[number])
            before = max(before, _EDGES[last])
        else:
            known.problem.hazard += self._hazards[first] * (after - before)
        self._spent[last] += after - before
        known.grown = after

    def ended(self, rollout: str, context: int) -> None:
        """The rollout ended with so many tokens."""
        self.grew(rollout, context)
        known = self._open.pop(rollout, None)
        if known is None:
            return
        if not math.isnan(known.quantile):
            self._checked += 1
            self._covered += context <= known.quantile
        known.problem.ended += 1
        self._ended[known.bin] += 1
        self._seen += 1
        self._news += 1
        if self._news >= max(LEARNT_EVERY, LEARNT_SHARE * min(self._seen, FADES_AFTER)):
            self._learn()

    def forgotten(self, rollout: str) -> None:
        """The rollout was dropped: it is known only that it was longer than it is."""
        self._open.pop(rollout, None)

    # Predictions

    def survivals(self, rollout: str, context: float) -> list[float]:
        """For each d of ``ahead``, the chance that a rollout of ``context`` tokens has more than d further ones.

        Limits aside; as for the middle of the bin, which is 5 % wide.
        """
        known = self._open[rollout]
        number = _bin(context - known.prompt)
        further = self._further.get(number)
        if further is None:
            grown = _EDGES[number] + min(_WIDTHS[number], _EDGES[number]) / 2
            here = self._hazard(grown)
            further = self._further[number] = [here - self._hazard(grown + each) for each in self._ahead]
        frailty, exp = self._frailty(known), math.exp
        return [exp(frailty * each) for each in further]

    def final(self, rollout: str, context: float, limit: int) -> float:
        """The quantile of the final context of a rollout that has ``context`` tokens, at most ``limit``."""
        known = self._open[rollout]
        grown = max(0.0, context - known.prompt)
        wanted = self._hazard(grown) - math.log(max(1e-9, 1 - self.quantile)) / self._frailty(known)
        number = bisect_left(self._sums, wanted) - 1
        rate = self._hazards[number]
        if rate <= 0:
            return float(limit)
        return min(float(limit), known.prompt + _EDGES[number] + (wanted - self._sums[number]) / rate)

    @property
    def coverage(self) -> float:
        """Share of ended rollouts whose final context the quantile at their start covered; NaN when none has ended."""
        return self._covered / self._checked if self._checked else math.nan

    # Hazards

    def _frailty(self, known: _Open) -> float:
        problem = known.problem
        return (PRIOR_FRAILTY + problem.ended) / (PRIOR_FRAILTY + problem.hazard)

    def _hazard(self, grown: float) -> float:
        number = _bin(grown)
        return self._sums[number] + self._hazards[number] * (grown - _EDGES[number])

    def _learn(self) -> None:
        """The hazard of each bin, from what ended there, what was spent there, and the prior."""
        self._news = 0
        self._further.clear()
        if sum(self._ended) > FADES_AFTER:
            self._ended = [count / 2 for count in self._ended]
            self._spent = [tokens / 2 for tokens in self._spent]
        total, mean = 0.0, max(1.0, self._prior_mean)
        all_spent, all_ended = sum(self._spent) + PRIOR_ROLLOUTS * mean, sum(self._ended) + PRIOR_ROLLOUTS
        self.mean = all_spent / all_ended
        for number, edge in enumerate(_EDGES):
            width = min(_WIDTHS[number], max(edge, FIRST))
            middle = edge + width / 2
            alive = math.exp(-math.pi / 4 * min(30.0, (edge / mean) ** 2))
            spent = PRIOR_ROLLOUTS * alive * width
            ended = spent * math.pi / 2 * middle / mean**2
            self._hazards[number] = (self._ended[number] + ended) / (self._spent[number] + spent)
            self._sums[number] = total
            total += self._hazards[number] * _WIDTHS[number]
