"""What ends a run whose rollouts or checks are lost: a step's worth in a row, and nothing less."""

from typing import Any

import pytest

from agent_rl.config.topology import Interim
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Evaluated, Instruction, Outage
from agent_rl.groups.outages import DOUBTS, MOST_LOST, TOO_LONG, CheckerTrust, EnvironmentTrust, LostGroups
from tests import builders
from tests.agent_rl.groups import test_grouping as grouping

RL, EVALUATION, INTERIM = 0, 1, 2


INTERIM_STAGE = builders.rl_stage(evaluate=Interim(every=2, problems=2))
STAGES = [builders.rl_stage(), builders.evaluate_stage(greedy=False), INTERIM_STAGE]


def book(stage: int = RL) -> GroupBook:
    return grouping.book(stage=stage, stages=STAGES, rollout_attempts=2)


def settle(made: GroupBook, number: int, ends: list[str], *, purpose: Any = "train") -> list[Instruction]:
    stage = made.entered.stage
    return grouping.settle(made, builders.opened(number, stage=stage, samples=len(ends), purpose=purpose), ends)


def outages(instructions: list[Instruction]) -> list[Outage]:
    return [each for each in instructions if isinstance(each, Outage)]


def test_prompts_that_are_too_long_count_towards_steps_and_end_a_run_that_has_nothing_else():
    made = book()
    for number in range(TOO_LONG - 1):
        assert outages(settle(made, number, ["prompt_too_long"] * 4)) == []
    assert made.progress().uncounted == 0
    (outage,) = outages(settle(made, TOO_LONG, ["prompt_too_long"] * 4))
    assert "shorten the problems" in outage.message


@pytest.mark.parametrize("status", ["failed", "prompt_too_long"])
def test_an_evaluation_without_any_answer_has_no_result(status):
    made = book(EVALUATION)
    for number in range(2):
        assert outages(settle(made, number, [status], purpose="evaluate_sampled")) == []
    done = settle(made, 2, [status], purpose="evaluate_sampled")
    (outage,) = outages(done)
    assert outage.again == ("s1-g000000", "s1-g000001", "s1-g000002")
    after = [each for each in done[done.index(outage) :] if isinstance(each, Evaluated)]
    assert done.index(outage) < done.index(after[0])  # so the shell, which ends at the outage, never records it


def test_evaluations_within_a_stage_and_its_training_groups_are_lost_to_the_same_outage():
    made = book(INTERIM)
    assert outages(settle(made, 0, ["failed"], purpose="evaluate_sampled")) == []
    (outage,) = outages(settle(made, 1, ["failed"] * 4))
    assert len(outage.again) == 2


def test_a_large_step_is_not_waited_for():
    lost = LostGroups(512, trains=True)
    failed = [builders.trajectory(builders.opened(), status="failed")]
    said = [lost.lost(f"g{number}", failed) for number in range(MOST_LOST)]
    assert [bool(each) for each in said] == [False] * (MOST_LOST - 1) + [True]


def test_checkers_are_tried_after_several_answers_in_a_row_and_not_after_as_many_in_all():
    trust = CheckerTrust()
    for _ in range(5):
        assert not any(trust.doubted() for _ in range(DOUBTS - 1))
        trust.judged()
    assert [trust.doubted() for _ in range(DOUBTS)][-1]


def test_the_rollouts_that_an_environment_loses_in_a_row_are_counted_once_each():
    trust = EnvironmentTrust()
    assert [trust.failed("a", rollout, "no") for rollout in ("1", "2", "2", "1")] == [""] * 4
    assert trust.failed("b", "1", "no") == ""
    assert (trust.judged("b"), trust.judged("b"), trust.faults) == (True, False, {"a": ["1", "2"]})
    assert "environment 'a' failed at 3 rollouts in a row, the last time: never" in trust.failed("a", "3", "never")
    assert trust.failed("a", "4", "no") == "", "the next run counts anew"
