"""The summary says what happened, and plainly when it was nothing; and the alarms about an rl stage: each is raised by its
own fault alone, and none by a healthy stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.figures import (
    AnswerFigures,
    EvaluationFigures,
    MismatchFigures,
    RolloutMeans,
    StepFigures,
    TrainingFigures,
)
from agent_rl.groups.statistics import evaluation_figures
from agent_rl.messages import Evaluation
from agent_rl.records.continuing import CHECKPOINTS, MADE_WITH
from agent_rl.records.health import LEAST_START, WINDOW, Alarm, Health, RunHealth, too_low
from agent_rl.records.journal import Journal
from agent_rl.records.run_directory import MEMORY_KILLS, read_memory_kills, record_memory_kill
from agent_rl.records.summary import SECONDS, SFT_SKIPPED, STAGE_SECONDS
from agent_rl.records.summary import summary as summary_of
from tests.builders import evaluate_stage


def a_step(
    journal: Journal, version: int, *, trained: int = 0, equal: int = 0, correct: float = 0.0, skipped: bool = False
) -> None:
    """A step of so many groups of 8 rollouts of 100 tokens."""
    first = journal.opened_counts(0)[None]
    names = [f"s0-g{first + number:06d}" for number in range(trained + equal)]
    for number, name in enumerate(names):
        journal.open_group(name, 0, first + number, "train", b"")
        if number < trained:
            journal.ready(name, [(0, 0)], [1.0], version, first + number + 1)
        else:
            journal.drop(name, "equal_rewards", 0.0, version, first + number + 1)
    figures = StepFigures(
        sampled=RolloutMeans(rollouts=8 * len(names), success=correct, response_tokens=100.0, tool_calls=1.0),
        staleness_mean=float(trained),
        staleness_max=2 * trained,
    )
    journal.close_step(version, 0, names[:trained], names, figures)
    learner = TrainingFigures(trained_rollouts=4 * trained, trained_tokens=50 * trained)
    if skipped:
        journal.step_trained(version, TrainingFigures(skipped=True), dropped_for="not_finite")
    else:
        journal.step_trained(version, learner)


def summary(journal: Journal, *evaluations: EvaluationFigures, **facts: float) -> dict[str, Any]:
    known = {SECONDS: 90.0, STAGE_SECONDS.format(0): 60.0, **facts}
    for name, value in known.items():
        journal.set_fact(name, str(value))
    journal.set_fact(MADE_WITH, json.dumps({"stages.0": "rl stage named rl", "stages.1": "sft stage named sft"}))
    for stage, figures in enumerate(evaluations):
        journal.add_evaluation(Evaluation(stage), figures)
    return summary_of(journal.path.parent, journal)


def test_a_run_that_learnt_nothing_says_so(journal: Journal) -> None:
    for version in range(3):
        a_step(journal, version, equal=4)
    made = summary(journal)
    assert made["remarks"] == [
        "0 of 96 training rollouts correct: the tasks are too hard for the model, or its answers are not in the form asked for",
        "all 12 groups were dropped for equal rewards",
        "no update was made in 3 of 3 steps: nothing was learnt",
    ]
    assert (made["steps"], made["steps_updated"], made["steps_empty"], made["steps_skipped"]) == (3, 0, 3, 0)
    assert (made["mean_staleness"], made["max_staleness"]) == (None, None)  # of nothing: not 0
    assert (made["tokens_sampled"], made["tokens_trained"], made["tokens_per_second_rl"]) == (9600, 0, 160.0)


def test_success_that_fell_is_said_whatever_the_stage_says_of_collapse(journal: Journal) -> None:
    for version, success in enumerate((0.5, 0.9, 0.95, 0.95, 0.95, 1.0, 0.6, 0.3, 0.3, 0.25, 0.25, 0.3)):
        a_step(journal, version, trained=2, correct=success)
    (remark,) = summary(journal)["remarks"]
    assert remark.startswith("stages.0, steps 11 to 12: success fell to 28%, from 95% at best")


def test_a_run_without_a_training_step_has_no_rates_and_no_remarks(journal: Journal) -> None:
    made = summary(journal, **{STAGE_SECONDS.format(0): 0.0})
    assert made["remarks"] == []
    assert (made["rollouts_sampled"], made["tokens_per_second_rl"], made["steps"]) == (0, None, 0)


def test_an_ordinary_run_has_its_figures_and_no_remarks(journal: Journal) -> None:
    a_step(journal, 0, trained=1, correct=0.25)
    a_step(journal, 1, trained=3, correct=0.5)
    made = summary(journal)
    assert made["remarks"] == []
    assert (made["rollouts_sampled"], made["rollouts_correct"], made["rollouts_trained"]) == (32, 14, 16)
    assert (made["minutes"], made["minutes_rl"], made["tokens_trained"]) == (1.5, 1.0, 200)
    assert (made["mean_staleness"], made["max_staleness"]) == (2.5, 6.0)  # weighted by groups
    assert made["steps"] == made["steps_updated"] == 2


def test_checkpoints_that_were_passed_over_and_processes_that_the_kernel_killed_are_told(journal: Journal) -> None:
    directory = journal.path.parent
    a_step(journal, 0, trained=4, correct=0.5)
    for name in ("damaged-1", "damaged-2"):
        (directory / CHECKPOINTS / name).mkdir(parents=True)
    for actor in ("learner.0", "rollout_generator.1", "learner.0"):
        record_memory_kill(directory, actor)
    made = summary(journal)
    assert (made["checkpoints_damaged"], made["memory_kills"]) == (2, 3)
    damaged, killed = sorted(made["remarks"])
    assert damaged.startswith("2 damaged checkpoints were skipped and renamed to checkpoints/damaged-*")
    assert killed.startswith("the kernel killed learner.0 (2 times), rollout_generator.1 (1 time) for lack of memory: ")
    (directory / MEMORY_KILLS).write_text('["learner.0"]')
    assert read_memory_kills(directory) == {}


def test_steps_without_update_and_skipped_steps_are_told_apart(journal: Journal) -> None:
    a_step(journal, 0, trained=2, correct=0.5)
    a_step(journal, 1, trained=1, correct=0.5, skipped=True)
    a_step(journal, 2, equal=1, correct=1.0)
    made = summary(journal, **{SFT_SKIPPED.format(1): 2})
    assert (made["steps_updated"], made["steps_empty"], made["steps_skipped"]) == (1, 1, 1)
    assert made["sft_steps_skipped"] == 2
    assert made["groups_dropped_not_finite"] == 1
    assert made["mean_staleness"] == 2.0  # of the step that was trained alone
    assert made["remarks"] == [
        "no update was made in 2 of 3 steps",
        "1 steps were skipped: their loss or gradient was not finite",
        "2 supervised steps were skipped: their loss or gradient was not finite",
    ]


def test_mostly_dropped_groups_are_named_with_the_reason_most_had(journal: Journal) -> None:
    a_step(journal, 0, trained=1, equal=3, correct=0.1)
    assert summary(journal)["remarks"] == ["3 of 4 groups were dropped for equal rewards"]


def test_tasks_that_are_too_easy_are_said_to_be(journal: Journal) -> None:
    a_step(journal, 0, equal=2, correct=1.0)
    assert summary(journal)["remarks"][0] == "16 of 16 training rollouts correct: the tasks are too easy"


def test_evaluations_say_of_how_many_and_what_never_came(journal: Journal) -> None:
    made = summary(journal, evaluation_figures([], evaluate_stage(problems=20)))
    assert (made["success_after_greedy"], made["problems_after_greedy"]) == (0.0, 20.0)
    assert made["remarks"] == [
        "20 sampled answers of evaluation 'after' are missing and count as wrong",
        "20 greedy answers of evaluation 'after' are missing and count as wrong",
    ]


def test_gains_are_from_the_first_evaluation_to_the_last(journal: Journal) -> None:
    def measured(name: str, sampled: float, greedy: float | None) -> EvaluationFigures:
        drawn, best = (
            AnswerFigures(problems=20, success=success or 0.0, low=0.0, high=1.0, lost=0, answered=RolloutMeans())
            for success in (sampled, greedy)
        )
        return EvaluationFigures(name=name, sampled=drawn, greedy=None if greedy is None else best)

    made = summary(journal, measured("before", 0.2, 0.3), measured("after", 0.575, None))
    assert made["points_gained_sampled"] == 37.5
    assert "points_gained_greedy" not in made


# Alarms -------------------------------------------------------------------------------------------------------------

MEANS = RolloutMeans(rollouts=32, success=0.5, response_tokens=90.0, tool_calls=1.2, truncated_share=0.1)
STEP = StepFigures(sampled=MEANS, groups_decided=4, groups_trained=3)
TRAINED = TrainingFigures(entropy=0.3, clip_share=0.01, kl=0.02)
MISMATCH = MismatchFigures(
    mismatch_gap=0.3, mismatch_max=4.0, mismatch_ratio=1.1, staleness_gap=0.01, staleness_ratio=1.0, mismatch_tokens=100
)


def alarms(
    steps: Iterable[tuple[StepFigures, TrainingFigures | None]], *, tools: bool = True
) -> list[tuple[Alarm, ...]]:
    watch = Health(tools=tools)
    return [watch.step(*step) for step in steps]


def with_means(**changes: Any) -> StepFigures:
    return replace(STEP, sampled=replace(MEANS, **changes))


FAULTS = {
    "no_tool_calls": (with_means(tool_calls=0.0), TRAINED, "no rollout of the last 5 steps called a tool"),
    "no_signal": (replace(STEP, groups_trained=0), None, "all 20 groups of the last 5 steps"),
    "low_entropy": (STEP, replace(TRAINED, entropy=0.004), "0.004 nats a token at 50% success"),
    "truncated": (with_means(truncated_share=0.4), TRAINED, "40% of rollouts run out of tokens"),
    "length": (with_means(response_tokens=200.0), TRAINED, "responses grew from 90 to 200 tokens"),
    "luck": (with_means(unaided_share_correct=0.7), TRAINED, "70% of right rollouts had no successful tool call"),
    "clip_share": (STEP, replace(TRAINED, clip_share=0.5), "0.5 of tokens are clipped"),
    "kl": (STEP, replace(TRAINED, kl=3.0), "3 nats a token from the reference"),
    "mismatch": (STEP, replace(TRAINED, mismatch=MISMATCH), "differ by 0.3 nats a token"),
    "lora_delta_kept": (STEP, replace(TRAINED, lora_delta_kept=0.2), "serve 20% of what the adapters learned"),
    "fall": (with_means(success=0.2), TRAINED, "success fell to 20%, from 50% at best"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_raises_its_alarm_alone_and_soundness_ends_it(name: str) -> None:
    sampled, trained, said = FAULTS[name]
    found = alarms([(STEP, TRAINED)] * WINDOW + [(sampled, trained)] * WINDOW + [(STEP, TRAINED)] * WINDOW)
    assert not any(found[:WINDOW])
    ((raised, text),) = found[2 * WINDOW - 1]
    assert raised == name
    assert said in text
    assert found[-1] == ()


def test_a_start_with_hardly_a_right_answer_is_said() -> None:
    ((raised, text),) = alarms([(with_means(success=0.01), TRAINED)] * WINDOW)[-1]
    assert (raised, text[:27]) == ("low_success", "1.0% of answers are right, ")
    sound = (0.02, 0.02), (0.05, 0.05, LEAST_START), (0.0, 0.3), (0.0, 0.3, LEAST_START)
    assert [each for given in sound for each in too_low(*given)] == [], "rewards between 0 and 1 say something"
    assert [each.name for each in too_low(0.04, 0.04, LEAST_START)] == ["low_success"]


def test_what_the_numerics_guard_found_is_said_at_once() -> None:
    wrong = replace(TRAINED, mismatch_cause="it still computes with version 1")
    assert alarms([(STEP, TRAINED), (STEP, wrong), (STEP, TRAINED)]) == [
        (),
        (Alarm("numerics", "it still computes with version 1"),),
        (),
    ]


def test_a_short_stage_and_one_without_tools_raise_nothing() -> None:
    silent = with_means(tool_calls=0.0, unaided_share_correct=1.0)
    assert not any(alarms([(silent, TRAINED)] * (WINDOW - 1)))
    assert not any(alarms([(silent, TRAINED)] * (2 * WINDOW), tools=False))


def test_tools_that_an_agent_lists_are_missed_too() -> None:
    silent = replace(with_means(tool_calls=0.0), lists_tools=True)
    ((raised, _),) = alarms([(silent, TRAINED)] * WINDOW, tools=False)[-1]
    assert raised == "no_tool_calls"


def test_low_entropy_of_a_policy_that_succeeds_and_stale_groups_are_no_alarm() -> None:
    sure = (with_means(success=0.95), replace(TRAINED, entropy=0.001))
    stale = (replace(STEP, groups_trained=0, groups_dropped_stale=4), None)
    assert not any(alarms([sure] * (2 * WINDOW)))
    assert not any(alarms([stale] * (2 * WINDOW)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.35, 0.65), st.floats(60, 120), st.floats(0, 0.3)), min_size=1, max_size=60))
def test_a_noisy_but_healthy_stage_raises_nothing(drawn: list[tuple[float, float, float]]) -> None:
    steps = [with_means(success=s, response_tokens=n, truncated_share=t) for s, n, t in drawn]
    assert not any(alarms([(step, TRAINED) for step in steps]))


def test_a_remark_says_when_an_alarm_held_and_what_it_said_last() -> None:
    watch = RunHealth()
    for stage, means in ((0, 0.5), *[(2, 0.5)] * WINDOW, *[(2, 0.2)] * 4, (2, 0.15), (2, 0.1), (2, 1.0)):
        watch.step(stage, with_means(success=means), TRAINED, tools=True)
    (held,) = watch.held
    assert watch.now == ()
    assert held.remark().startswith("stages.2, steps 10 to 11: success fell to 17%, from 50% at best: ")
