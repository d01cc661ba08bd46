"""Resample on correct: quotas, penalties, both named modes."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_rl.config.plugins import ALIASES, ContractError
from agent_rl.groups.resampling import (
    Candidate,
    has_signal,
    made_up_groups,
    named_selection,
    penalty,
    quotas,
    select_paper,
    select_uniform,
    sound_selection,
)


def rollout(sample: int, reward: float, *, calls: int = 1, failed: int = 0, penalty: float = 0.0) -> Candidate:
    return Candidate(sample, reward, 2, calls, failed, penalty, 50, reward > 0)


def test_penalty_follows_the_paper():
    assert penalty(rollout(0, 1)) == 0.0
    assert penalty(rollout(0, 1, calls=0)) == 0.5  # no tool call
    assert penalty(rollout(0, 1, calls=4, failed=1)) == 0.25
    assert penalty(rollout(0, 1, calls=4, failed=1, penalty=0.5)) == 0.75
    assert penalty(rollout(0, 1, calls=2, failed=2, penalty=1.0)) == 2.0


@example(5, 11, 8)
@example(11, 5, 8)
@given(st.integers(0, 64), st.integers(0, 64), st.integers(2, 32))
def test_places_go_to_each_class_by_its_size_an_exact_half_to_the_rarer_one(positives, negatives, keep):
    """Each class keeps one at least: round(15 * 8 / 16) alone would drop a lone positive."""
    size, places = positives + negatives, min(keep, positives + negatives)
    possible = range(max(min(1, positives), places - negatives), min(positives, places - min(1, negatives)) + 1)
    rarer = 1 if positives <= negatives else -1
    kept = min(possible, key=lambda count: (abs(Fraction(keep * positives, size or 1) - count), -rarer * count))
    if size > keep:
        assert quotas(positives, negatives, keep) == (kept, places - kept)
    else:
        assert quotas(positives, negatives, keep) == (positives, negatives)


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
def test_selection_is_a_reproducible_subset_with_signal(mode, group, seed, keep):
    kept = named_selection(mode, keep)(group, random.Random(seed))
    assert kept == named_selection(mode, keep)(group, random.Random(seed))
    assert list(kept) == sorted(set(kept))
    if mode != "release" or kept:  # the release drops groups
        assert len(kept) == min(keep, len(group))
        assert has_signal([group[i].reward for i in kept]) == has_signal([c.reward for c in group])


@given(group=groups, seed=st.integers(0, 5), keep=st.integers(2, 16))
def test_the_baseline_keeps_as_many_of_each_class_as_the_paper(group, seed, keep):
    group = [replace(each, reward=float(each.success)) for each in group]
    right = [
        sum(group[at].success for at in select(group, random.Random(seed), keep=keep))
        for select in (select_paper, select_uniform)
    ]
    assert right == [quotas(sum(each.success for each in group), sum(not each.success for each in group), keep)[0]] * 2


@pytest.mark.parametrize(
    ("mode", "first", "second", "share"),
    [
        ("paper", (5, 1, 0.0), (5, 4, 0.0), 0.8),  # weights 1/0.2 and 1/0.8
        ("paper", (20, 1, 0.0), (5, 1, 0.0), 0.8),  # one error in twenty calls is told from none
        ("paper", (40, 1, 0.0), (5, 1, 0.0), 0.8),  # and less is not
        ("paper", (1, 0, 0.25), (0, 0, 0.25), 0.75),
        ("none", (1, 0, 0.0), (4, 4, 1.0), 0.5),
    ],
)
def test_of_right_rollouts_the_cleaner_ones_are_drawn_more_often_and_of_wrong_ones_all_alike(
    mode, first, second, share
):
    group = [
        rollout(at % 2, float(at < 2), calls=calls, failed=failed, penalty=penalty)
        for at, (calls, failed, penalty) in enumerate((first, second) * 2)
    ]
    select, rng = named_selection(mode, 2), random.Random(0)
    draws = [select(group, rng) for _ in range(4000)]
    assert sum(0 in kept for kept in draws) / len(draws) == pytest.approx(share, abs=0.02)
    assert sum(2 in kept for kept in draws) / len(draws) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("samples", "minimum"), [(2, 2), (8, 3), (16, 16), (4, 9)])
def test_made_up_groups_are_of_all_kinds(samples, minimum):
    made = list(made_up_groups(samples, minimum))
    every = [each for group in made for each in group]
    assert {len(group) for group in made} <= {*range(min(minimum, samples), samples + 1)}
    assert all(0 < sum(each.success for each in group) < len(group) for group in made)
    assert {1, samples - 1} <= {sum(each.success for each in group) for group in made if len(group) == samples}
    assert all(each.success == (each.reward == 1.0) and each.turns == each.tool_calls + 1 for each in every)
    assert {each.failed_calls == each.tool_calls for each in every} == {True, False}
    assert [each.sample for each in every] == [at for group in made for at in range(len(group))]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "it must return positions"),
        ((True, 0), "it must return positions"),
        ((0.0, 1), "it must return positions"),
        ((0, 4), "positions go from 0 to 3"),
        ((-1, 0), "positions go from 0 to 3"),
        ((0, 0, 1), "each position once"),
        ((1, 3), "kept only rollouts with the reward 0.5"),
        ((1,), "kept only rollouts with the reward 0.5"),
    ],
)
def test_what_a_selection_may_not_keep(returned, said):
    group = [rollout(at, (1.0, 0.5)[at % 2]) for at in range(4)]
    with pytest.raises(ContractError, match=f"{said}.* for a group of 4 rollouts|for a group of 4 rollouts.*{said}"):
        sound_selection(lambda *_: returned, group, random.Random(0), "a group")
    assert sound_selection(lambda *_: [np.int64(3), 0], group, random.Random(0), "a group") == (0, 3)
    assert sound_selection(lambda *_: (), group, random.Random(0), "a group") == ()
