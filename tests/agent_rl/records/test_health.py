"""The alarms about an rl stage: each is raised by its own fault alone, and none by a healthy stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.figures import MismatchFigures, RolloutMeans, StepFigures, TrainingFigures
from agent_rl.records.health import LEAST_START, WINDOW, Alarm, Health, RunHealth, too_low

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
