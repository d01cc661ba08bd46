"""Evaluations within an rl stage: when they are opened, that training goes on, and when they are complete."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.topology import Interim
from agent_rl.groups.instructions import Dropped, Evaluated, EvaluationGroupDone
from agent_rl.groups.selection import InterimEvaluations
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import Evaluation, GroupsUnfinished, InterimOpened, Retry, StageEntered, UnfinishedGroup
from agent_rl.scheduling.ids import group_id
from tests import builders
from tests.agent_rl.groups.test_grouping import book, kinds, settle
from tests.agent_rl.scheduling.test_scheduling import World, progress, scheduler

EVERY, PROBLEMS, SAMPLES = 2, 3, 2
STAGE = builders.rl_stage(steps=6, evaluate=Interim(every=EVERY, problems=PROBLEMS, samples=SAMPLES, max_turns=2))


def world(**changes) -> World:
    return World(scheduler(stages=[STAGE, builders.evaluate_stage()], **changes))


def serve(made: World, version: int, *, published: bool = True) -> None:
    """The learner publishes a version, and the engine serves it; all rollouts end at once."""
    if published:
        made.do(made.scheduler.policy_published(builders.published(version)))
    made.do(made.scheduler.engine_load(builders.engine_load(version=version, total=10_000)))
    for place in list(made.placed):
        made.finish(place)


def is_interim(group: str) -> bool:
    return "@" in group


def interim(made: World) -> list[str]:
    return [group for group in made.opened if is_interim(group)]


def test_an_evaluation_is_opened_once_its_policy_is_served() -> None:
    made = world()
    made.begin(total=10_000)
    serve(made, 1)
    assert interim(made) == []
    made.do(made.scheduler.policy_published(builders.published(2)))
    assert interim(made) == []  # the engine still serves the one before
    serve(made, 2, published=False)
    assert interim(made) == [group_id(0, number, 2) for number in range(PROBLEMS)]
    serve(made, 5)  # one that was passed over is due all the same
    assert interim(made) == [group_id(0, number, at_step) for at_step in (2, 4) for number in range(PROBLEMS)]
    serve(made, 6)  # the stage's end is left to an evaluate stage
    assert len(interim(made)) == 2 * PROBLEMS


def test_training_takes_turns_with_it_and_keeps_its_budget_and_numbers() -> None:
    alone, made = World(scheduler(stages=[builders.rl_stage(steps=6)])), world()
    for each in (alone, made):
        each.begin(total=10_000)
        for version in range(1, 6):
            serve(each, version)
    assert [group for group in made.opened if not is_interim(group)] == alone.opened
    between = made.opened[made.opened.index(group_id(0, 0, 2)) :][:4]
    assert [is_interim(group) for group in between] == [True, False, True, False]


def test_its_rollouts_are_drawn_as_it_says() -> None:
    made = world()
    made.begin(total=10_000)
    made.do(made.scheduler.policy_published(builders.published(2)))
    made.do(made.scheduler.engine_load(builders.engine_load(version=2, total=10_000)))
    requests = [place.request for place in made.placed if is_interim(place.request.group)]
    assert len(requests) == PROBLEMS * SAMPLES
    assert {request.purpose for request in requests} == {"evaluate_sampled"}
    assert {request.sampling.max_turns for request in requests} == {2}
    assert {request.sampling.max_response_tokens for request in requests} == {STAGE.max_response_tokens}


def test_a_restarted_scheduler_goes_on_with_what_is_missing_and_opens_none_again() -> None:
    made = world()
    opened = builders.opened(1, samples=SAMPLES, version=2, purpose="evaluate_sampled")
    opened = replace(opened, group=group_id(0, 1, 2), evaluation=Evaluation(0, 2))
    made.do(made.scheduler.policy_published(builders.published(2)))
    made.do(made.scheduler.engine_load(builders.engine_load(version=2, total=10_000)))
    missing = (UnfinishedGroup(opened, (Retry(opened.group, 1, 0, opened.number, opened.evaluation),)),)
    made.do(made.scheduler.unfinished(GroupsUnfinished(0, 4, missing, interim_opened=(InterimOpened(2, 2),))))
    assert interim(made) == [group_id(0, 2, 2)]
    placed = [place.request for place in made.placed if place.request.group == opened.group]
    assert [request.sample for request in placed] == [1]
    made.do(made.scheduler.progress(progress(retries=(Retry(group_id(0, 2, 2), 0, 1, 2, Evaluation(0, 2)),))))
    (again,) = [place.request for place in made.placed if place.request.attempt == 1]
    assert (again.group, again.sampling.max_turns) == (group_id(0, 2, 2), 2)


def filled(number: int, answers: list[str], version: int = 2):
    group = builders.opened(number, samples=len(answers), version=version, purpose="evaluate_sampled")
    group = replace(group, group=group_id(0, number, version), evaluation=Evaluation(0, version))
    return group, [builders.trajectory(group, s, answer=a, version=version + s) for s, a in enumerate(answers)]


def finish(made, number: int, answers: list[str]):
    group, trajectories = filled(number, answers)
    assert made.group_opened(group)
    return [each for trajectory in trajectories for each in made.trajectory(trajectory)]


def test_an_evaluation_is_told_when_its_last_group_is_judged_and_no_step_counts_it() -> None:
    made = book()
    made.stages = [STAGE]
    made.entered = None
    made.enter(StageEntered(0, 0, 0, restored=True), next_version=0)
    settle(made, 0, ["4", "5", "4", "5"])
    first = finish(made, 0, ["4", "4"]) + finish(made, 2, ["5", "4"])
    assert len(kinds(first, EvaluationGroupDone)) == 2
    assert kinds(first, Evaluated) == []
    assert made.waiting_groups == 1  # that of training
    (done,) = kinds(finish(made, 1, ["5", "5"]), Evaluated)
    assert done.evaluation == Evaluation(0, 2)
    assert done.figures.sampled.success == 0.5
    assert (done.figures.version_oldest, done.figures.version_newest) == (2, 3)
    group, _ = filled(0, ["4", "4"], version=4)
    made.group_opened(group)
    answer = made.unfinished(0)
    assert answer is not None
    assert (answer.opened, answer.interim_opened) == (1, (InterimOpened(2, 3), InterimOpened(4, 1)))
    assert [each.opened.group for each in answer.groups] == [group_id(0, 0, 4)]
    dropped = made.enter(StageEntered(1, 6, 6, restored=False), next_version=6)
    assert [each.group for each in kinds(dropped, Dropped)] == [group_id(0, 0, 4)]


@settings(deadline=None)
@given(st.permutations([at_step for at_step in STAGE.evaluation_steps for _ in range(PROBLEMS)]))
def test_whatever_the_order_each_is_complete_once(order: list[int]) -> None:
    evaluations = InterimEvaluations(STAGE)
    rollout = RolloutFigures(
        1, 1, 0, 0, truncated=False, seconds=0.0, reward=1.0, success=True, purpose="evaluate_sampled"
    )
    seen: Counter[int] = Counter()
    for at_step in order:
        seen[at_step] += 1
        found = evaluations.group_done(at_step, [rollout] * SAMPLES)
        assert (found is not None) == (seen[at_step] == PROBLEMS)
        if found:
            assert (found.name, found.sampled.success) == (f"rl@{at_step}", 1.0)


def test_a_run_goes_on_when_the_interval_was_changed() -> None:
    """What was evaluated stays; evaluations that the new interval adds are made, late ones too."""
    stage = STAGE.model_copy(update={"evaluate": Interim(every=3, problems=PROBLEMS, samples=SAMPLES)})
    made = World(scheduler(stages=[stage]))
    made.do(made.scheduler.policy_published(builders.published(4)))
    made.do(made.scheduler.engine_load(builders.engine_load(version=4, total=10_000)))
    made.do(
        made.scheduler.unfinished(
            GroupsUnfinished(0, 99, (), interim_opened=(InterimOpened(2, PROBLEMS), InterimOpened(4, 1)))
        )
    )
    assert interim(made) == [group_id(0, number, 3) for number in range(PROBLEMS)]


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (6, []), (7, [])])
def test_after_which_steps_a_stage_is_evaluated(every: int, steps: list[int]) -> None:
    stage = builders.rl_stage(steps=6, evaluate=Interim(every=every, problems=1))
    assert list(stage.evaluation_steps) == steps
    assert json.loads(stage.interim(every).model_dump_json())["name"] == f"rl@{every}"
