"""Curricula: which problem a group gets, whether a group is trained, and what a new process knows of it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.plugins import ContractError
from agent_rl.config.selection import Solved
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Decided, Dropped, Ready
from agent_rl.messages import GroupOutcome, GroupsProgress, GroupsUnfinished, Retry, StageEntered
from agent_rl.scheduling.curriculum import Frontier, curriculum_of
from agent_rl.scheduling.scheduler import GroupScheduler
from tests import builders
from tests.agent_rl.scheduling.test_scheduling import World


class Recalls:
    """Asks each problem twice, and admits what was not always solved."""

    def __init__(self) -> None:
        self.known: list[tuple[int, Solved]] = []

    def choose(self, fresh: int, rng: random.Random) -> int:
        return max(0, fresh - 1) if fresh % 2 else fresh

    def observe(self, problem: int, solved: Solved) -> None:
        self.known.append((problem, solved))

    def admits(self, solved: Solved) -> bool:
        return solved.right < solved.samples


def scheduled(curriculum: Any, **answer: Any) -> World:
    algorithm = builders.algorithm(groups_per_step=4, max_staleness=0)
    world = World(
        GroupScheduler(
            seed=0,
            stages=[builders.rl_stage(), builders.evaluate_stage()],
            algorithm_of=lambda _: algorithm,
            problems=lambda stage, number, purpose: builders.problem(number),
            prompt_tokens=lambda problem: 10,
        )
    )
    world.scheduler._opening._curricula = lambda _: curriculum
    world.do(world.scheduler.policy_published(builders.published()))
    world.do(world.scheduler.engine_load(builders.engine_load()))
    world.do(world.scheduler.unfinished(GroupsUnfinished(0, answer.pop("opened", 0), (), **answer)))
    return world


def drawn(world: World) -> list[str]:
    """The problem of each group, in the order of opening."""
    return list({place.request.group: place.request.problem.id for place in world.placed}.values())


def test_problems_are_those_that_the_curriculum_chooses_and_a_retry_gets_the_same() -> None:
    class Backwards(Recalls):
        def choose(self, fresh: int, rng: random.Random) -> int:
            return 7 if fresh == 0 else 2

    world = scheduled(Backwards())
    seven, two = builders.problem(7).id, builders.problem(2).id
    assert drawn(world) == [seven, two, two, two]
    lost = world.placed[0]
    world.finish(lost)
    retry = Retry(lost.request.group, lost.request.sample, 1, 0, drawn=7)
    world.do(world.scheduler.progress(GroupsProgress(0, 0, 0, (retry,), ())))
    again = next(place for place in world.placed if place.request.attempt == 1)
    assert (again.request.problem.id, again.request.group) == (seven, lost.request.group)


@given(st.data())
def test_every_outcome_is_observed_once_whatever_reports_repeat(data: st.DataObject) -> None:
    made = Recalls()
    world = scheduled(made)
    outcomes = [GroupOutcome(number, number // 2, number % 5, 4) for number in range(20)]
    heard: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.integers(0, 19))
        told = outcomes[first : first + data.draw(st.integers(0, 8))]
        heard |= {each.number for each in told}
        world.do(world.scheduler.progress(GroupsProgress(0, len(told), 0, (), (), tuple(told))))
    assert Counter(made.known) == Counter((n // 2, Solved(n % 5, 4)) for n in heard)


def test_a_new_scheduler_knows_what_the_stage_has_observed_and_goes_on_with_fresh_problems() -> None:
    made = Frontier(again=0)
    outcomes = tuple(GroupOutcome(number, number, 2, 4) for number in range(5))
    world = scheduled(made, opened=5, uncounted=5, outcomes=outcomes)
    assert drawn(world) == [builders.problem(number).id for number in range(5, 9)]
    assert made._known.keys() == set(range(5))


def test_the_frontier_returns_to_problems_that_are_solved_sometimes_and_lets_them_rest() -> None:
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


def test_a_refused_group_is_recorded_with_its_reason_and_every_decided_one_with_its_outcome() -> None:
    algorithm = builders.algorithm(groups_per_step=2)
    made = Recalls()
    book = GroupBook(
        algorithm_of=lambda _: algorithm,
        stages=[builders.rl_stage()],
        seed=0,
        select=lambda group, rng: tuple(range(len(group)))[:2],
        curricula=lambda _: made,
    )
    book.enter(StageEntered(0, 0, 0, restored=True), next_version=0)
    made.admits = lambda solved: solved.right != 1  # type: ignore[method-assign]
    reasons = []
    for number, wrong in enumerate((1, 3, 0)):
        book.group_opened(group := builders.opened(number))
        for sample in range(4):
            done = book.trajectory(builders.trajectory(group, sample, answer="5" if sample < wrong else "4"))
        (decided,) = [each for each in done if isinstance(each, Decided)]
        assert decided.problem.number == number
        reasons += [each.reason for each in done if isinstance(each, Dropped)]
        assert any(isinstance(each, Ready) for each in done) == (number == 0)
    outcomes = tuple(GroupOutcome(number, number, 4 - wrong, 4) for number, wrong in enumerate((1, 3, 0)))
    assert reasons == ["not_admitted", "equal_rewards"]
    assert book.progress().outcomes == outcomes
    unfinished = book.unfinished(0)
    assert unfinished is not None
    assert unfinished.outcomes == outcomes


def test_settings_that_the_class_does_not_take_are_refused() -> None:
    algorithm = builders.algorithm(curriculum="frontier", curriculum_settings={"agian": 0.2})
    with pytest.raises(ContractError, match=r"frontier fails with curriculum_settings \{'agian': 0.2\} .*agian"):
        curriculum_of(algorithm)
