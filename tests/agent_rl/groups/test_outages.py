"""What ends a run whose rollouts or checks are lost: a step's worth in a row, and nothing less."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agent_rl.config.topology import Interim
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Closed, Dropped, Evaluated, Instruction, Outage
from agent_rl.groups.outages import DOUBTS, MOST_LOST, TOO_LONG, CheckerTrust, LostGroups
from agent_rl.groups.resampling import select_paper
from agent_rl.messages import StageEntered
from tests import builders

RL, EVALUATION, INTERIM = 0, 1, 2


def book(stage: int = RL, **changes: Any) -> GroupBook:
    interim = builders.rl_stage(evaluate=Interim(every=2, problems=2))
    made = GroupBook(
        algorithm_of=lambda _: builders.algorithm(**{"rollout_attempts": 2, **changes}),
        stages=[builders.rl_stage(), builders.evaluate_stage(greedy=False), interim],
        seed=0,
        select=partial(select_paper, keep=2),
    )
    made.enter(StageEntered(stage, 0, 0, restored=True), next_version=0)
    return made


def settle(made: GroupBook, number: int, statuses: list[str], *, purpose: Any = "train") -> list[Instruction]:
    """A group whose samples end so, each failing as often as it is tried."""
    stage = made.entered.stage  # type: ignore[union-attr]
    group = builders.opened(number, stage=stage, samples=len(statuses), purpose=purpose)
    made.group_opened(group)
    done: list[Instruction] = []
    for sample, status in enumerate(statuses):
        for attempt in range(2):
            each = builders.trajectory(group, sample, status=status, attempt=attempt, answer="45"[sample % 2])
            if made.wants(each):
                done += made.trajectory(each)
    return done


def outages(instructions: list[Instruction]) -> list[Outage]:
    return [each for each in instructions if isinstance(each, Outage)]


def test_a_step_whose_rollouts_all_failed_is_never_closed_and_ends_the_run() -> None:
    made = book()
    first = settle(made, 0, ["failed"] * 4)
    assert outages(first) == []
    second = settle(made, 1, ["failed"] * 4)
    (outage,) = outages(second)
    assert "too few rollouts of the last 2 groups came to an end (16 attempts failed)" in outage.message
    assert "the last one on rollout_generator.0: failed" in outage.message
    assert outage.again == ("s0-g000000", "s0-g000001")
    assert [type(each) for each in first + second if isinstance(each, Closed | Dropped)] == [Dropped, Dropped]


def test_groups_lost_to_an_accident_are_replaced_and_no_step_counts_them() -> None:
    made = book()
    for number in range(0, 8, 2):
        assert outages(settle(made, number, ["failed"] * 4)) == []
        done = settle(made, number + 1, ["finished"] * 4)
    assert made.progress().uncounted == 4
    (closed,) = [each for each in done if isinstance(each, Closed)]
    assert closed.step.decided == ("s0-g000005", "s0-g000007")
    assert closed.figures.sampled.rollouts == 8
    assert closed.figures.sampled.rollouts_failed == 16  # those since the step before


def test_a_group_with_fewer_rollouts_than_it_needs_is_lost_too() -> None:
    made = book(minimum_samples=3)
    some = ["finished", "finished", "failed", "failed"]
    assert outages(settle(made, 0, some)) == []
    assert len(outages(settle(made, 1, some))) == 1


def test_prompts_that_are_too_long_count_towards_steps_and_end_a_run_that_has_nothing_else() -> None:
    made = book()
    for number in range(TOO_LONG - 1):
        assert outages(settle(made, number, ["prompt_too_long"] * 4)) == []
    assert made.progress().uncounted == 0
    (outage,) = outages(settle(made, TOO_LONG, ["prompt_too_long"] * 4))
    assert "shorten the problems" in outage.message


@pytest.mark.parametrize("status", ["failed", "prompt_too_long"])
def test_an_evaluation_without_any_answer_has_no_result(status: str) -> None:
    made = book(EVALUATION)
    for number in range(2):
        assert outages(settle(made, number, [status], purpose="evaluate_sampled")) == []
    done = settle(made, 2, [status], purpose="evaluate_sampled")
    (outage,) = outages(done)
    assert outage.again == ("s1-g000000", "s1-g000001", "s1-g000002")
    after = [each for each in done[done.index(outage) :] if isinstance(each, Evaluated)]
    assert done.index(outage) < done.index(after[0])  # so the shell, which ends at the outage, never records it


def test_an_evaluation_with_one_answer_has_a_result() -> None:
    made = book(EVALUATION)
    done = []
    for number, status in enumerate(["failed", "finished", "failed"]):
        done += settle(made, number, [status], purpose="evaluate_sampled")
    assert outages(done) == []
    (evaluated,) = [each for each in done if isinstance(each, Evaluated)]
    assert evaluated.figures.sampled.lost == 2


def test_evaluations_within_a_stage_and_its_training_groups_are_lost_to_the_same_outage() -> None:
    made = book(INTERIM)
    assert outages(settle(made, 0, ["failed"], purpose="evaluate_sampled")) == []
    (outage,) = outages(settle(made, 1, ["failed"] * 4))
    assert len(outage.again) == 2


def test_a_large_step_is_not_waited_for() -> None:
    lost = LostGroups(512, trains=True)
    failed = [builders.trajectory(builders.opened(), status="failed")]
    said = [lost.lost(f"g{number}", failed) for number in range(MOST_LOST)]
    assert [bool(each) for each in said] == [False] * (MOST_LOST - 1) + [True]


def test_checkers_are_tried_after_several_answers_in_a_row_and_not_after_as_many_in_all() -> None:
    trust = CheckerTrust()
    for _ in range(5):
        assert not any(trust.doubted() for _ in range(DOUBTS - 1))
        trust.judged()
    assert [trust.doubted() for _ in range(DOUBTS)][-1]
