"""Measures of a model with n answers to each problem: pass@k, maj@k, and a paired test of two models.

Symbols: n is the number of sampled answers to a problem, c the number of right ones. A value over problems is the mean
of the problems' values. Intervals and test take the problems as drawn at random, not the answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from agent_rl.groups.measures import Z


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of the n answers, drawn without replacement, hold a right one: 1 - C(n-c, k) / C(n, k).

    The unbiased estimate of pass@k (Chen et al. 2021, arXiv 2107.03374, section 2.1). Raises ValueError unless
    1 <= k <= n.
    """
    _check(n, k)
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


def maj_at_k(right: int, wrong: Sequence[int], unanswered: int, k: int) -> float:
    """The chance that the commonest of k answers, drawn without replacement, is the right one.

    ``right`` is the number of right answers, ``wrong`` the number of each other answer. ``unanswered`` rollouts have no
    vote. A tie is decided by lot. Exact, by counting. Raises ValueError unless 1 <= k <= all of them.
    """
    n = right + sum(wrong) + unanswered
    _check(n, k)
    total = Fraction(0)
    for votes in range(1, min(right, k) + 1):
        # ways[drawn, tied]: the ways to draw `drawn` other answers, none above `votes` times, `tied` of them so often
        ways = {(0, 0): 1}
        for count in wrong:
            further: dict[tuple[int, int], int] = {}
            for (drawn, tied), number in ways.items():
                for more in range(min(count, votes, k - votes - drawn) + 1):
                    key = (drawn + more, tied + (more == votes))
                    further[key] = further.get(key, 0) + number * math.comb(count, more)
            ways = further
        for (drawn, tied), number in ways.items():
            silent = k - votes - drawn
            total += Fraction(math.comb(right, votes) * number * math.comb(unanswered, silent), 1 + tied)
    return float(total / math.comb(n, k))


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n itself: the values of k that are reported."""
    return sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})


def difference_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences in [-1, 1], one for each problem.

    Agresti and Min's (2005): the normal interval after two more problems, half a problem of difference 1, half of -1
    and one of 0. So equal results do not make an interval of length 0.
    """
    problems = len(differences) + 2
    mean = math.fsum(differences) / problems
    variance = (math.fsum(difference * difference for difference in differences) + 1) / problems - mean * mean
    spread = Z * math.sqrt(variance / problems)
    return max(-1.0, mean - spread), min(1.0, mean + spread)


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Model A against model B on the same problems.

    ``a`` and ``b`` are mean pass@1, ``difference`` is b - a with its 95 % interval, ``p`` is of the paired test.
    """

    problems: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    better: int
    """Number of problems that B answers right more often."""
    worse: int


def compare(a: Sequence[Fraction], b: Sequence[Fraction]) -> PairedComparison:
    """Compare two models by their shares of right answers to the same problems, in the same order.

    Raises ValueError without problems, and for lists of different lengths.
    """
    if not a or len(a) != len(b):
        raise ValueError("a comparison needs the same problems of both, at least one")
    differences = [right - left for left, right in zip(a, b, strict=True)]
    low, high = difference_interval([float(difference) for difference in differences])
    return PairedComparison(
        problems=len(a),
        a=float(sum(a, Fraction(0)) / len(a)),
        b=float(sum(b, Fraction(0)) / len(b)),
        difference=float(sum(differences, Fraction(0)) / len(a)),
        low=low,
        high=high,
        p=sign_flip_p(differences),
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
    )


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """The two-sided p of the paired permutation test: the chance that random signs give a sum at least as far from 0.

    Under the null hypothesis the two results of a problem can be exchanged. All 2^problems exchanges are counted, not
    sampled: the differences are multiples of one share, so the distribution of the sum is a convolution. Exact except
    for float64 rounding.
    """
    scale = math.lcm(*(difference.denominator for difference in differences)) if differences else 1
    steps = [int(abs(difference) * scale) for difference in differences if difference]
    if not steps:
        return 1.0
    unit = math.gcd(*steps)
    steps = [step // unit for step in steps]
    observed = abs(int(sum(differences, Fraction(0)) * scale)) // unit
    # chance[i]: of the sum (total of the steps so far) - 2 i
    chance = np.ones(1)
    for step in steps:
        longer = np.zeros(len(chance) + step)
        longer[: len(chance)] = chance / 2
        longer[step:] += chance / 2
        chance = longer
    sums = sum(steps) - 2 * np.arange(len(chance))
    return min(1.0, float(chance[np.abs(sums) >= observed].sum()))


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}: of {n} answers it can be 1 to {n}")
