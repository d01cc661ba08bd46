"""pass@k, maj@k, intervals and the paired test, each against counting everything by hand."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.groups.measures import (
    bootstrap_interval,
    bootstrap_intervals,
    compare,
    maj_at_k,
    pass_at_k,
    powers_of_two,
    sign_flip_p,
)

RIGHT, SILENT = "right", None


def ballots(right: int, wrong: list[int], unanswered: int) -> list[str | None]:
    votes: list[str | None] = [RIGHT] * right
    for index, count in enumerate(wrong):
        votes += [f"wrong {index}"] * count
    return votes + [SILENT] * unanswered


def elected(votes: tuple[str | None, ...]) -> float:
    """The chance that the right answer wins among these votes."""
    counts = Counter(vote for vote in votes if vote is not SILENT)
    if not counts:
        return 0.0
    most = max(counts.values())
    tied = [vote for vote, count in counts.items() if count == most]
    return (RIGHT in tied) / len(tied)


small = st.integers(0, 3)


@settings(max_examples=150, deadline=None)
@given(right=small, wrong=st.lists(st.integers(1, 3), max_size=3), unanswered=st.integers(0, 2), data=st.data())
def test_both_are_the_mean_over_all_choices_of_k(right: int, wrong: list[int], unanswered: int, data: st.DataObject):
    votes = ballots(right, wrong, unanswered)
    if not votes:
        return
    k = data.draw(st.integers(1, len(votes)))
    chosen = list(combinations(votes, k))
    assert maj_at_k(right, wrong, unanswered, k) == pytest.approx(math.fsum(map(elected, chosen)) / len(chosen))
    assert pass_at_k(len(votes), right, k) == pytest.approx(sum(RIGHT in each for each in chosen) / len(chosen))


@given(n=st.integers(1, 64), data=st.data())
def test_pass_at_one_is_the_share_and_it_grows_with_k(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values[0] == pytest.approx(c / n)
    assert values == sorted(values)
    assert values[-1] == (c > 0)
    assert maj_at_k(c, [n - c] if n > c else [], 0, 1) == pytest.approx(c / n)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_no_k_beyond_the_answers(k: int) -> None:
    with pytest.raises(ValueError, match="of 4 answers"):
        pass_at_k(4, 1, k)
    with pytest.raises(ValueError, match="of 4 answers"):
        maj_at_k(1, [2], 1, k)


def test_the_k_that_are_told() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(16) == [1, 2, 4, 8, 16]
    assert powers_of_two(6) == [1, 2, 4, 6]


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    skill = rng.beta(0.8, 1.2, size=(300, 60))  # problems differ: most are easy or hard
    truth = 0.8 / 2.0
    shares = rng.binomial(8, skill) / 8
    intervals = bootstrap_intervals(shares.T)  # each column an experiment of its own
    covered = sum(low <= truth <= high for low, high in intervals) / 300
    assert 0.90 <= covered <= 0.98


def test_an_interval_is_a_function_of_the_values_and_holds_the_mean() -> None:
    values = [0.0, 0.25, 1.0, 1.0, 0.5]
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert low < sum(values) / 5 < high
    assert bootstrap_interval([0.5] * 9) == (0.5, 0.5)
    assert all(math.isnan(end) for end in bootstrap_interval([]))


shares = st.integers(0, 4).map(lambda right: Fraction(right, 4))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=9))
def test_the_p_is_the_share_of_all_signs(pairs: list[tuple[Fraction, Fraction]]) -> None:
    differences = [b - a for a, b in pairs]
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    expected = sum(each >= observed for each in sums) / len(sums)
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_samples_of_different_number_compare_too() -> None:
    found = compare([Fraction(1, 3), Fraction(0)], [Fraction(1, 2), Fraction(1, 8)])
    assert found.difference == pytest.approx((1 / 6 + 1 / 8) / 2)
    assert (found.better, found.worse) == (2, 0)
    assert found.p == 0.5  # of the four signs, both of one sign
    assert found.low <= found.difference <= found.high


def test_many_problems_are_counted_exactly_too() -> None:
    assert sign_flip_p([Fraction(1, 16)] * 40) == pytest.approx(2 * 0.5**40)
    assert sign_flip_p([Fraction(0)] * 5) == 1.0
    many = [Fraction((i * 7) % 33 - 16, 16) for i in range(1500)]
    assert 0 <= sign_flip_p(many) <= 1


def test_without_problems_there_is_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="same problems"):
        compare([], [])
