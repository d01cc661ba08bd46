"""A loop of one's own: the model writes an expression, Python computes it, and the loop reports errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from arithmetic import Arithmetic, ArithmeticTasks

from agent_rl.environments.base import Demonstration, Model, Tools
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.messages import Judgement, Problem, Transcript


class Expressions(Arithmetic):
    """The quickstart's problems; the reward is 1 where the last expression is worth the right answer."""

    def __init__(self, *, seed: int, base: object) -> None:
        self._tasks = BareDemonstrations(seed, broken_share=0.0)

    async def rollout(self, problem: Problem, model: Model, tools: Tools) -> None:
        """Let the model try again as long as Python finds a mistake."""
        messages = list(self.prompt(problem))
        while "Error" in (worth := await tools[PYTHON_TOOL](code=f"print({(written := await model(messages))})")):
            messages += [{"role": "assistant", "content": written}, {"role": "user", "content": worth}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        """Look at what the last call returned."""
        right = bool(transcript.calls) and transcript.calls[-1].response == problem.answer
        return Judgement(float(right), right)


class BareDemonstrations(ArithmeticTasks):
    """The expressions alone, without the calls that they stand in."""

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Demonstrations of one turn."""
        for shown in super().demonstrations(rng):
            expression = shown.messages[1]["content"].partition("print(")[2].rpartition(')", "input"')[0]
            yield replace(shown, messages=(shown.messages[0], {"role": "assistant", "content": expression}))
