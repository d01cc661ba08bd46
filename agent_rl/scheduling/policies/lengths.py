"""Learns how long rollouts become, from those that have ended: quantiles that hold by construction.

A rollout's final context, in tokens, is predicted from three things: what all recent rollouts did, what the ended
rollouts of its problem did, and how long it is already. The logarithm of the length is the problem's center plus a
residual. The center shrinks the mean of the problem's ended rollouts towards the mean of all, as a normal prior with
the learnt variances between and within problems does. The newest ``KEPT`` residuals are kept as they are, so no shape
of the tail is assumed: the q-quantile of a rollout of x tokens is that of the residuals that exceed x.

Coverage (the share of ended rollouts below the quantile that was predicted at their start) is counted, so that the
calibration can be read: `Lengths.coverage`.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass

KEPT = 1024
"""Residuals that are remembered."""
PRIOR_SHARE = 0.3
"""Before anything has ended, rollouts are expected to take this share of their limit."""


@dataclass(slots=True)
class _Problem:
    count: int = 0
    total: float = 0.0


class Lengths:
    """Quantiles of final contexts. Each prediction is O(log KEPT)."""

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self._problems: dict[str, _Problem] = {}
        self._recent: deque[float] = deque()
        self._residuals: list[float] = []
        self._mean = 0.0
        self._seen = 0
        self._within = 0.16
        self._between = 0.2
        self._predicted: dict[str, float] = {}
        self._covered = 0
        self._checked = 0

    def ended(self, rollout: str, problem: str, context: int) -> None:
        """A rollout ended with so many tokens."""
        value = math.log(max(1, context))
        before = self._predicted.pop(rollout, None)
        if before is not None:
            self._checked += 1
            self._covered += context <= before
        known = self._problems.setdefault(problem, _Problem())
        residual = value - self._center(known)
        self._seen += 1
        rate = max(1 / self._seen, 0.002)
        if known.count:
            deviation = value - known.total / known.count
            scale = known.count / (known.count + 1)
            self._within += rate * (scale * deviation * deviation - self._within)
        spread = (value - self._mean) ** 2
        self._mean += rate * (value - self._mean)
        self._between += rate * (max(0.01, spread - self._within) - self._between)
        known.count += 1
        known.total += value
        self._recent.append(residual)
        insort(self._residuals, residual)
        if len(self._recent) > KEPT:
            del self._residuals[bisect_right(self._residuals, self._recent.popleft()) - 1]

    def started(self, rollout: str, problem: str, context: int, limit: int) -> None:
        """Remember the prediction at a rollout's start, to count whether it holds."""
        if self._seen >= KEPT // 8:
            self._predicted[rollout] = self.final(problem, context, limit)

    def forgotten(self, rollout: str) -> None:
        """The rollout will not be judged."""
        self._predicted.pop(rollout, None)

    def final(self, problem: str, context: int, limit: int) -> float:
        """The quantile of the final context of a rollout that has ``context`` tokens, at most ``limit``."""
        residuals = self._residuals
        if len(residuals) < KEPT // 64:
            return min(float(limit), max(PRIOR_SHARE * limit, 1.5 * context))
        known = self._problems.get(problem)
        center = self._mean if known is None else self._center(known)
        first = bisect_right(residuals, math.log(max(1, context)) - center)
        left = len(residuals) - first
        if not left:
            return min(float(limit), 1.2 * context)
        index = first + min(left - 1, int(self.quantile * left))
        return min(float(limit), max(float(context), math.exp(center + residuals[index])))

    def _center(self, known: _Problem) -> float:
        if not known.count:
            return self._mean
        weight = known.count / (known.count + self._within / max(1e-6, self._between))
        return self._mean + weight * (known.total / known.count - self._mean)

    @property
    def coverage(self) -> float:
        """Share of ended rollouts whose final context the quantile at their start covered; NaN when none has ended."""
        return self._covered / self._checked if self._checked else math.nan
