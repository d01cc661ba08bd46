"""Resample on correct: quotas, penalties, both named modes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.plugins import ALIASES
from agent_rl.groups.resampling import (
    Candidate,
    has_signal,
    named_selection,
    penalty,
    quotas,
    select_paper,
)


def rollout(sample: int, reward: float, *, calls: int = 1, failed: int = 0, tags: int = 1, turns: int = 2) -> Candidate:
    penalty = 1.0 if tags == 0 else min(1.0, (tags - 1) / turns)
    return Candidate(sample, reward, turns, calls, failed, penalty, 50, reward > 0)


def test_penalty_follows_the_paper() -> None:
    assert penalty(rollout(0, 1)) == 0.0
    assert penalty(rollout(0, 1, calls=0)) == 0.5  # no tool call
    assert penalty(rollout(0, 1, calls=4, failed=1)) == 0.25
    assert penalty(rollout(0, 1, tags=0)) == 1.0  # no answer tag
    assert penalty(rollout(0, 1, tags=2, turns=4)) == 0.25  # one tag too many in four turns
    assert penalty(rollout(0, 1, tags=9, turns=2)) == 1.0  # capped
    assert penalty(rollout(0, 1, calls=2, failed=2, tags=0)) == 2.0


@given(st.integers(0, 64), st.integers(0, 64), st.integers(2, 32))
def test_quotas_fill_the_places_and_lose_no_last_one(positives: int, negatives: int, keep: int) -> None:
    kept_positives, kept_negatives = quotas(positives, negatives, keep)
    assert kept_positives + kept_negatives == min(keep, positives + negatives)
    assert 0 <= kept_positives <= positives
    assert 0 <= kept_negatives <= negatives
    assert (kept_positives > 0) == (positives > 0)
    assert (kept_negatives > 0) == (negatives > 0)


def test_quotas_keep_half_of_each_class() -> None:
    assert quotas(8, 8, 8) == (4, 4)
    assert quotas(12, 4, 8) == (6, 2)
    assert quotas(1, 15, 8) == (1, 7)  # round(15 * 8 / 16) alone would drop the lone positive
    assert quotas(15, 1, 8) == (7, 1)
    assert quotas(5, 11, 8) == (3, 5)  # an exact half goes to the rarer class
    assert quotas(11, 5, 8) == (5, 3)
    assert quotas(16, 0, 8) == (8, 0)


groups = st.lists(
    st.builds(
        Candidate,
        sample=st.integers(0, 31),
        reward=st.sampled_from([0.0, 0.5, 1.0]),
        success=st.booleans(),
        turns=st.integers(1, 5),
        tool_calls=st.integers(2, 4),
        failed_calls=st.integers(0, 2),
        format_penalty=st.floats(0, 1),
        tokens=st.integers(1, 100),
    ),
    min_size=2,
    max_size=32,
)


@pytest.mark.parametrize("mode", sorted(ALIASES["selection"]))
@given(group=groups, seed=st.integers(0, 5), keep=st.integers(2, 16))
def test_selection_is_a_reproducible_subset_with_signal(
    mode: str, group: list[Candidate], seed: int, keep: int
) -> None:
    kept = named_selection(mode, keep)(group, random.Random(seed))
    assert kept == named_selection(mode, keep)(group, random.Random(seed))
    assert list(kept) == sorted(set(kept))
    if mode != "release" or kept:  # the release drops groups
        assert len(kept) == min(keep, len(group))
        assert has_signal([group[i].reward for i in kept]) == has_signal([c.reward for c in group])


def test_paper_mode_prefers_clean_positives_in_inverse_proportion() -> None:
    group = [rollout(0, 1, calls=5, failed=1), rollout(1, 1, calls=5, failed=4), rollout(2, 0), rollout(3, 0)]
    draws = [select_paper(group, random.Random(seed), keep=2)[0] for seed in range(4000)]
    clean = draws.count(0) / len(draws)
    assert clean == pytest.approx(0.8, abs=0.03)  # weights 1/0.2 and 1/0.8


def test_paper_mode_draws_negatives_uniformly_whatever_their_penalty() -> None:
    group = [rollout(0, 1), rollout(1, 1), rollout(2, 0), rollout(3, 0, calls=4, failed=4, tags=0)]
    draws = [select_paper(group, random.Random(seed), keep=2)[1] for seed in range(4000)]
    assert draws.count(2) / len(draws) == pytest.approx(0.5, abs=0.03)


def test_equal_rewards_carry_no_signal() -> None:
    assert not has_signal([1.0, 1.0])
    assert not has_signal([0.0, 0.0])
    assert has_signal([0.0, 1.0])
