"""The task of the suites: sums without end, and demonstrations that compute them with the tool."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from agent_rl.environments.base import ChatMessages, Demonstration
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.learning.tiny import CALL_HEAD, CALL_TAIL
from agent_rl.messages import Problem


class SumTasks:
    """The sums of a seed; those to evaluate on are the same for every seed."""

    evaluation_count = None

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def problem(self, stage: int, number: int) -> Problem:
        """A function of stage, number and seed."""
        return _drawn(random.Random(f"{self._seed}/{stage}/{number}"))

    def evaluation(self, number: int) -> Problem:
        """A function of the number."""
        return _drawn(random.Random(f"evaluation/{number}"))

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """One right call, and the answer."""
        while True:
            problem = _drawn(rng)
            call = f"<tool_call>{CALL_HEAD}print({problem.id}){CALL_TAIL}</tool_call>"
            answer = f"<answer>\\boxed{{{problem.answer}}}</answer>"
            texts = (problem.text, call, f"<tool_response>{problem.answer}</tool_response>", answer)
            messages = ({"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts))
            yield Demonstration(problem=problem, messages=tuple(messages))


def _drawn(rng: random.Random) -> Problem:
    a, b = rng.randint(100, 999), rng.randint(100, 999)
    return Problem(id=f"{a}+{b}", text=f"How many are {a} and {b}?", answer=str(a + b))


class Sums(BoxedAnswers):
    """The sums as an environment."""

    lists_tools = False

    def __init__(self, *, seed: int, base: Path) -> None:
        del base
        self._tasks = SumTasks(seed)

    def problems(self) -> SumTasks:
        """The sums."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem's text alone."""
        return [{"role": "user", "content": problem.text}]
