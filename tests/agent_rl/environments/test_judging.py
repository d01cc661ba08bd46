"""Judgements: what environments return is used only when it is sound, and what they do wrong is told with its place."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import trio

from agent_rl.environments.judging import OUTPUTS, judged_at_once, sound_judgement, tried_judge
from agent_rl.messages import Judgement, Transcript
from agent_rl_contract import builders
from agent_rl_contract.sums import Sums


class Mine(Sums):
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def judge_at_once(self, problem: Any, transcript: Transcript) -> Any:
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


UNSOUND = {
    "no judgement": (True, "must return a Judgement"),
    "a reward that is NaN": (Judgement(math.nan, success=False), "whose reward is nan; it must be a finite number"),
    "an infinite reward": (Judgement(math.inf, success=False), "whose reward is inf"),
    "a reward that is text": (Judgement("1", success=False), "whose reward is '1'"),
    "a part that is NaN": (Judgement(1.0, success=True, parts={"length": math.nan}), "whose part 'length' is nan"),
    "parts that are none": (Judgement(1.0, success=True, parts=[1]), "whose parts are"),
    "a success that is none": (Judgement(1.0, success=1), "whose success is 1; it must be True or False"),
    "a penalty beyond 1": (
        Judgement(1.0, success=True, format_penalty=2),
        "whose format_penalty is 2, not from 0 to 1",
    ),
    "a note that is none": (Judgement(1.0, success=True, note=None), "whose note is no text"),
    "half a character in a part": (
        Judgement(1.0, success=True, parts={"\ud83d": 1.0}),
        "whose part '\\ud83d' is no text",
    ),
    "half a character": (Judgement(1.0, success=True, answer="\ud83d"), "whose answer is no text"),
    "what raises": (ZeroDivisionError("no"), "Mine.judge_at_once fails with ZeroDivisionError: no"),
    "half a character in an error": (ValueError("\ud83d"), "fails with ValueError: \ufffd ("),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_what_cannot_be_used_is_the_environments_fault_with_file_and_line(case: str) -> None:
    returned, said = UNSOUND[case]
    group = builders.opened()
    made = judged_at_once({"arithmetic": Mine(returned)}, group.problem, builders.trajectory(group))
    assert made.status == "environment_failed"
    assert said in made.reason
    assert "(test_judging.py, line " in made.reason


def test_a_sound_judgement_is_carried_and_one_left_open_is_not_made() -> None:
    group = builders.opened()
    trajectory = builders.trajectory(group, answer=None)
    whole = Judgement(1, success=True, parts={"a": 2}, note="n", answer="x")
    made = judged_at_once({"arithmetic": Mine(whole)}, group.problem, trajectory)
    assert (
        made.judgement == sound_judgement(whole) == Judgement(1.0, success=True, parts={"a": 2.0}, note="n", answer="x")
    )
    lost = builders.trajectory(group, status="failed")
    assert judged_at_once({"arithmetic": Mine(ValueError("never asked"))}, group.problem, lost) == lost


class Elsewhere(Mine):
    """Judges where there is no event loop: by a thread, by another library, by a check."""

    async def judge(self, problem: Any, transcript: Transcript, context: Any) -> Any:
        match self.returned:
            case "thread":
                await context.in_thread(lambda: 1)
            case "trio":
                await trio.sleep(1)
            case "asyncio":
                await asyncio.sleep(1)
            case "check":
                await context.check("a:b", "x")
        raise AssertionError("there is nothing to wait for")


@pytest.mark.parametrize("way", ["thread", "trio", "asyncio", "check"])
def test_a_judge_that_waits_for_more_than_a_program_is_not_tried(way: str) -> None:
    assert tried_judge(Elsewhere(way), builders.problem(), Transcript(("x",)), OUTPUTS[0]) is None
