"""Evaluations within an rl stage: after which steps there is one, and when it is complete."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.topology import Interim
from agent_rl.groups.instructions import Dropped, Evaluated, EvaluationGroupDone
from agent_rl.groups.selection import InterimEvaluations
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import Evaluation, GroupOpened, InterimOpened, StageEntered
from agent_rl.scheduling.ids import group_id
from tests import builders
from tests.agent_rl.groups.test_grouping import book, kinds, settle

EVERY, PROBLEMS, SAMPLES = 2, 3, 2
STAGE = builders.rl_stage(steps=6, evaluate=Interim(every=EVERY, problems=PROBLEMS, samples=SAMPLES, max_turns=2))


def interim(number: int, version: int = 2) -> GroupOpened:
    group = builders.opened(number, samples=SAMPLES, version=version, purpose="evaluate_sampled")
    return replace(group, group=group_id(0, number, version), evaluation=Evaluation(0, version))


def test_an_evaluation_is_told_when_its_last_group_is_judged_and_no_step_counts_it():
    made = book()
    made.stages = [STAGE]
    made.entered = None
    made.enter(StageEntered(0, 0, 0, restored=True), next_version=0)
    settle(made, builders.opened(), ["4", "5", "4", "5"])
    first = settle(made, interim(0), ["4", "4"]) + settle(made, interim(2), ["5", "4"])
    assert len(kinds(first, EvaluationGroupDone)) == 2
    assert kinds(first, Evaluated) == []
    assert made.waiting_groups == 1  # that of training
    (done,) = kinds(settle(made, interim(1), ["5", "5"]), Evaluated)
    assert done.evaluation == Evaluation(0, 2)
    assert done.figures.sampled.success == 0.5
    made.group_opened(interim(0, version=4))
    answer = made.unfinished(0)
    assert answer is not None
    assert (answer.opened, answer.interim_opened) == (1, (InterimOpened(2, 3), InterimOpened(4, 1)))
    assert [each.opened.group for each in answer.groups] == [group_id(0, 0, 4)]
    dropped = made.enter(StageEntered(1, 6, 6, restored=False), next_version=6)
    assert [each.group for each in kinds(dropped, Dropped)] == [group_id(0, 0, 4)]


@given(st.permutations([at_step for at_step in STAGE.evaluation_steps for _ in range(PROBLEMS)]))
def test_whatever_the_order_each_is_complete_once(order):
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


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (6, []), (7, [])])
def test_after_which_steps_a_stage_is_evaluated(every, steps):
    stage = builders.rl_stage(steps=6, evaluate=Interim(every=every, problems=1))
    assert list(stage.evaluation_steps) == steps
    assert json.loads(stage.interim(every).model_dump_json())["name"] == f"rl@{every}"
