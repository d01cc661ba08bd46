"""Evaluations within an rl stage: when they are opened, that training goes on, and when they are complete."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.topology import Interim
from agent_rl.groups.instructions import Dropped, Evaluated, EvaluationGroupDone
from agent_rl.groups.interim import InterimEvaluations
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import Evaluation, GroupsUnfinished, Retry, StageEntered, UnfinishedGroup
from agent_rl.records.journal import interim_stage
from agent_rl.records.memory import MemoryJournal
from agent_rl.scheduling.ids import interim_id
from agent_rl.testing import evaluated
from tests import builders
from tests.agent_rl.test_grouping import book, kinds, settle
from tests.agent_rl.test_scheduling import World, progress, scheduler

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
    return group.startswith("s0-e")


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
    assert interim(made) == [interim_id(0, number) for number in range(PROBLEMS)]
    serve(made, 5)  # one that was passed over is due all the same
    assert len(interim(made)) == 2 * PROBLEMS
    serve(made, 6)  # the stage's end is left to an evaluate stage
    assert len(interim(made)) == STAGE.evaluations * PROBLEMS == 2 * PROBLEMS


def test_training_takes_turns_with_it_and_keeps_its_budget_and_numbers() -> None:
    alone, made = World(scheduler(stages=[builders.rl_stage(steps=6)])), world()
    for each in (alone, made):
        each.begin(total=10_000)
        for version in range(1, 6):
            serve(each, version)
    assert [group for group in made.opened if not is_interim(group)] == alone.opened
    between = made.opened[made.opened.index(interim_id(0, 0)) :][:4]
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
    opened = replace(opened, group=interim_id(0, 1), evaluation=Evaluation(0, 1))
    made.do(made.scheduler.policy_published(builders.published(2)))
    made.do(made.scheduler.engine_load(builders.engine_load(version=2, total=10_000)))
    missing = (UnfinishedGroup(opened, (Retry(opened.group, 1, 0, opened.number, opened.evaluation),)),)
    made.do(made.scheduler.unfinished(GroupsUnfinished(0, 4, missing, interim_opened=2)))
    assert interim(made) == [interim_id(0, 2)]
    placed = [place.request for place in made.placed if place.request.group == opened.group]
    assert [request.sample for request in placed] == [1]
    made.do(made.scheduler.progress(progress(retries=(Retry(interim_id(0, 2), 0, 1, 2, Evaluation(0, 1)),))))
    (again,) = [place.request for place in made.placed if place.request.attempt == 1]
    assert (again.group, again.sampling.max_turns) == (interim_id(0, 2), 2)


def filled(number: int, answers: list[str], version: int = 2):
    group = builders.opened(number, samples=len(answers), version=version, purpose="evaluate_sampled")
    group = replace(group, group=interim_id(0, number), evaluation=Evaluation(0, STAGE.interim_of(number)))
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
    assert done.evaluation == Evaluation(0, 1)
    assert done.figures.sampled.success == 0.5
    assert (done.figures.version_oldest, done.figures.version_newest) == (2, 3)
    group, _ = filled(3, ["4", "4"])
    made.group_opened(group)
    answer = made.unfinished(0)
    assert answer is not None
    assert (answer.opened, answer.interim_opened) == (1, 4)
    assert [each.opened.group for each in answer.groups] == [interim_id(0, 3)]
    dropped = made.enter(StageEntered(1, 6, 6, restored=False), next_version=6)
    assert [each.group for each in kinds(dropped, Dropped)] == [interim_id(0, 3)]


@settings(deadline=None)
@given(st.permutations(range(4 * PROBLEMS)))
def test_whatever_the_order_each_is_complete_once(order: list[int]) -> None:
    evaluations = InterimEvaluations(STAGE)
    seen: list[int] = []
    done: list[int] = []
    for number in order:
        seen.append(number)
        rollout = RolloutFigures(
            1, 1, 0, 0, truncated=False, seconds=0.0, reward=1.0, success=True, purpose="evaluate_sampled"
        )
        found = evaluations.group_done(number, [rollout] * SAMPLES)
        complete = [k for k in range(1, 5) if set(evaluations.numbers(k)) <= set(seen)]
        if found:
            done.append(found[0])
            assert (found[1].name, found[1].sampled.success) == (f"rl@{found[0] * EVERY}", 1.0)
        assert sorted(done) == complete
    assert sorted(done) == [1, 2, 3, 4]


def test_the_journal_keeps_them_apart() -> None:
    journal = MemoryJournal()
    journal.open_group("s2-g000000", 2, 0, "train", b"")
    for number in range(4):
        journal.open_group(interim_id(2, number), interim_stage(2), number, "evaluate_sampled", b"")
        journal.add_trajectory(interim_id(2, number), 0, 0, "finished", b"x")
    assert journal.leave_stages(but=2, reason="boundary") == 0
    assert (journal.opened_count(2), journal.opened_count(interim_stage(2))) == (1, 4)
    for number in range(3):
        journal.evaluated(interim_id(2, number))
    journal.add_interim_evaluation(2, 1, evaluated(0.5), range(3))
    assert journal.interim_evaluations(2) == {1: evaluated(0.5)}
    assert list(journal.faults()) == []
    assert journal.leave_stages(but=3, reason="boundary") == 2
    journal.close()


@pytest.mark.parametrize(("every", "evaluations"), [(1, 5), (2, 2), (5, 1), (6, 0), (7, 0)])
def test_how_many_there_are_within_a_stage(every: int, evaluations: int) -> None:
    stage = builders.rl_stage(steps=6, evaluate=Interim(every=every, problems=1))
    assert stage.evaluations == evaluations
    assert json.loads(stage.interim(1).model_dump_json())["name"] == f"rl@{every}"
