"""Intervals of a share and of a mean over problems. They take the problems as drawn at random, not the answers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

Z = 1.959964
"""The normal distribution's 97.5 % quantile: all intervals are of 95 %."""


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share; (0, 1) without trials. Neither number need be whole."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    centre = share + Z * Z / (2 * trials)
    spread = Z * math.sqrt(max(0.0, share * (1 - share)) / trials + Z * Z / (4 * trials * trials))
    scale = 1 + Z * Z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mean_interval(values: Sequence[float], independent: int, problems: Sequence[Hashable] = ()) -> tuple[float, float]:
    """The 95 % interval of the mean of ``values`` in [0, 1], one for each problem; (0, 1) without problems.

    ``problems`` says which problem each value is of, where a data set repeats some: copies are more answers to one
    problem, and no further problems.

    Each value rests on at most ``independent`` answers that could be independent: n for pass@1 of n samples, 1 for
    pass@n. The interval is Wilson's, with the effective number of trials: n problems count for n m (1 - m) / v trials,
    where m is the mean and v the variance of the values over problems (the design effect of survey statistics, Korn and
    Graubard 1998). The number lies between n (answers to one problem are all alike) and n times ``independent``. A
    problem of value 0 and one of value 1 join the estimate of m and v: where no problem was solved the variance is not
    0, so the interval does not shrink to a point, as the percentiles of a bootstrap do.
    """
    if not values:
        return 0.0, 1.0
    copies: dict[Hashable, list[float]] = {}
    for problem, value in zip(problems or range(len(values)), values, strict=True):
        copies.setdefault(problem, []).append(value)
    joined = np.array([*(math.fsum(each) / len(each) for each in copies.values()), 0.0, 1.0])
    mean = float(joined.mean())
    effect = min(max(mean * (1 - mean) / float(joined.var()), 1.0), independent * len(values) / len(copies))
    trials = len(copies) * effect
    return wilson_interval(math.fsum(values) / len(values) * trials, trials)
