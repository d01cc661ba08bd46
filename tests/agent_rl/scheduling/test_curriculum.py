"""Curricula: which problem a group gets, whether a group is trained, and what a new process knows of it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.plugins import ContractError
from agent_rl.config.selection import Solved
from agent_rl.messages import GroupOutcome
from agent_rl.scheduling.curriculum import Frontier, curriculum_of
from agent_rl_contract import builders
from tests.agent_rl.scheduling.test_opening import Draws
from tests.agent_rl.scheduling.world import World, progress


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 8)), min_size=1, max_size=6))
def test_every_outcome_is_observed_once_whatever_reports_repeat(reports):
    made, world = Draws(), World()
    world.scheduler._opening._curricula = lambda _: made
    world.begin()
    outcomes = [GroupOutcome(number, number // 2, number % 5, 4) for number in range(20)]
    heard = {each.number for first, count in reports for each in outcomes[first : first + count]}
    for first, count in reports:
        world.progress(progress(outcomes=tuple(outcomes[first : first + count])))
    assert Counter(made.known) == Counter((n // 2, Solved(n % 5, 4)) for n in heard)


def test_of_a_problem_its_newest_group_counts_and_half_of_what_was_known_before():
    made, rng = Frontier(again=1, rest=0), random.Random(0)
    for problem, solved in ((0, Solved(4, 4)), (0, Solved(2, 4)), (1, Solved(1, 4)), (2, Solved(0, 0))):
        made.observe(problem, solved)
    drawn = Counter(made.choose(3, rng) for _ in range(4000))
    weights = 4 / 6 * 2 / 6, 1 / 4 * 3 / 4  # 2 + 4 / 2 of 4 + 4 / 2, and 1 of 4
    assert drawn[0] / 4000 == pytest.approx(weights[0] / sum(weights), abs=0.02)
    assert drawn.keys() == {0, 1}


def test_a_problem_rests_after_it_was_chosen_until_enough_others_are_decided():
    made, rng = Frontier(again=1, rest=3), random.Random(0)
    made.observe(0, Solved(2, 4))
    chosen = []
    for _ in range(8):
        chosen.append(made.choose(9, rng))
        made.observe(5, Solved(4, 4))
    assert chosen == [9, 9, 9, 0, 9, 9, 0, 9]


def test_the_frontier_returns_to_problems_that_are_solved_sometimes_and_lets_them_rest():
    made, rng = Frontier(again=0.5, rest=10), random.Random(0)
    fresh, last, returned, chosen = 0, {}, set(), []
    for turn in range(2000):
        number = made.choose(fresh, rng)
        if number < fresh:
            assert turn - last[number] >= 10
            returned.add(number % 5)
        fresh = max(fresh, number + 1)
        last[number] = turn
        chosen.append(number)
        made.observe(number, Solved(number % 5, 4))  # never, sometimes, ..., always
    assert returned == {1, 2, 3}
    assert 0.45 < fresh / len(chosen) < 0.55
    again = [number % 5 for turn, number in enumerate(chosen) if number in chosen[:turn]]
    assert again.count(2) > 1.1 * again.count(1)
    assert made.admits(Solved(0, 4))
    strict = Frontier(admit=(0, 1))
    assert [strict.admits(Solved(right, 4)) for right in (0, 2, 4)] == [False, True, False]


def test_settings_that_the_class_does_not_take_are_refused():
    algorithm = builders.algorithm(curriculum="frontier", curriculum_settings={"agian": 0.2})
    with pytest.raises(ContractError, match=r"frontier fails with curriculum_settings \{'agian': 0.2\} .*agian"):
        curriculum_of(algorithm)
