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

from agent_rl.evaluation.measures import compare, difference_interval, maj_at_k, pass_at_k, powers_of_two, sign_flip_p
from agent_rl.groups.measures import mean_interval

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
def test_both_are_the_mean_over_all_choices_of_k(right, wrong, unanswered, data):
    votes = ballots(right, wrong, unanswered)
    if not votes:
        return
    k = data.draw(st.integers(1, len(votes)))
    chosen = list(combinations(votes, k))
    assert maj_at_k(right, wrong, unanswered, k) == pytest.approx(math.fsum(map(elected, chosen)) / len(chosen))
    assert pass_at_k(len(votes), right, k) == pytest.approx(sum(RIGHT in each for each in chosen) / len(chosen))


@pytest.mark.parametrize("k", [0, -1, 5])
def test_no_k_beyond_the_answers(k):
    with pytest.raises(ValueError, match="of 4 answers"):
        pass_at_k(4, 1, k)
    with pytest.raises(ValueError, match="of 4 answers"):
        maj_at_k(1, [2], 1, k)


def test_the_k_that_are_told():
    assert powers_of_two(1) == [1]
    assert powers_of_two(16) == [1, 2, 4, 8, 16]
    assert powers_of_two(6) == [1, 2, 4, 6]


@pytest.mark.parametrize(("a", "b"), [(0.8, 1.2), (5.0, 5.0), (0.05, 0.95), (0.95, 0.05)])  # easy or hard, alike, ...
@pytest.mark.parametrize(("problems", "samples"), [(30, 4), (30, 16), (100, 1), (100, 8)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(a, b, problems, samples):
    """400 simulated evaluations: problems are drawn anew, each with a skill of its own, then its answers."""
    rng = np.random.default_rng(1)
    shares = rng.binomial(samples, rng.beta(a, b, size=(400, problems))) / samples
    intervals = [mean_interval(each, samples) for each in shares.tolist()]
    covered = sum(low <= a / (a + b) <= high for low, high in intervals) / len(intervals)
    assert 0.92 <= covered <= 0.998, covered


def test_an_interval_over_many_problems_is_as_wide_as_the_normal_one():
    rng = np.random.default_rng(2)
    shares = rng.binomial(8, rng.beta(0.8, 1.2, size=2000)) / 8
    low, high = mean_interval(shares.tolist(), 8)
    assert high - low == pytest.approx(2 * 1.96 * shares.std() / math.sqrt(2000), rel=0.02)


def test_intervals_hold_at_the_edges():
    assert mean_interval([0.0] * 30, 1) == pytest.approx((0.0, 0.1135), abs=1e-4)  # Wilson's
    for samples in (1, 4, 16):
        low, high = mean_interval([0.0] * 30, samples)
        assert low == 0.0
        assert 0.08 < high <= 0.1136
        assert mean_interval([1.0] * 30, samples) == pytest.approx((1 - high, 1.0))
    assert mean_interval([], 4) == (0.0, 1.0)
    assert mean_interval([1.0], 1)[0] < 0.25


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_an_interval_holds_the_mean_and_more_samples_never_widen_it(right):
    values = [count / 4 for count in right]
    low, high = mean_interval(values, 4)
    one_low, one_high = mean_interval(values, 1)
    mean = sum(values) / len(values)
    assert 0.0 <= one_low <= low + 1e-12 <= mean + 2e-12
    assert mean <= high + 1e-12 <= one_high + 2e-12 <= 1.0 + 2e-12
    assert high - low > 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 9), st.randoms())
def test_copies_of_a_problem_are_more_answers_to_it(right, copies, order):
    asked = [(number, count / 4) for number, count in enumerate(right)] * copies
    order.shuffle(asked)
    repeated = mean_interval([value for _, value in asked], 4, [problem for problem, _ in asked])
    assert repeated == pytest.approx(mean_interval([count / 4 for count in right], 4 * copies))


@pytest.mark.parametrize("samples", [1, 8])
def test_the_interval_of_a_difference_covers_it_also_where_hardly_any_problem_differs(samples):
    rng = np.random.default_rng(3)
    for a, b, gain in ((0.8, 1.2, 0.1), (0.05, 0.95, 0.0), (0.05, 0.95, 0.02)):
        skill = rng.beta(a, b, size=(400, 60))
        better = skill + gain * (1 - skill)
        differences = (rng.binomial(samples, better) - rng.binomial(samples, skill)) / samples
        truth = gain * (1 - a / (a + b))
        intervals = [difference_interval(each) for each in differences.tolist()]
        assert sum(low <= truth <= high for low, high in intervals) / 400 >= 0.93
    low, high = difference_interval([0.0] * 30)
    assert (low, high) == pytest.approx((-0.0613, 0.0613), abs=1e-4)


shares = st.integers(0, 4).map(lambda right: Fraction(right, 4))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=9))
def test_the_p_is_the_share_of_all_signs(pairs):
    differences = [b - a for a, b in pairs]
    observed = abs(sum(differences))
    sums = [abs(sum(signed)) for signed in product(*((-each, each) for each in differences))]
    expected = sum(each >= observed for each in sums) / len(sums)
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_samples_of_different_number_compare_too():
    found = compare([Fraction(1, 3), Fraction(0)], [Fraction(1, 2), Fraction(1, 8)])
    assert (found.a, found.b) == (1 / 6, 5 / 16)
    assert found.difference == pytest.approx((1 / 6 + 1 / 8) / 2)
    assert (found.better, found.worse) == (2, 0)
    assert found.p == 0.5  # of the four signs, both of one sign
    assert found.low <= found.difference <= found.high
    with pytest.raises(ValueError, match="same problems"):
        compare([], [])


def test_many_problems_are_counted_exactly_too():
    assert sign_flip_p([Fraction(1, 16)] * 40) == pytest.approx(2 * 0.5**40)
    assert sign_flip_p([Fraction(0)] * 5) == 1.0
    many = [Fraction((i * 7) % 33 - 16, 16) for i in range(1500)]
    assert 0 <= sign_flip_p(many) <= 1
