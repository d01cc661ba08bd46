"""Problems that even an untrained model solves now and then: for runs in which something can be learned within
seconds.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from agent_rl.environments.base import Demonstration
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.messages import Problem

CALL = '<tool_call>{{"name": "python_code_with_standard_io", "arguments": {{"code": "{}", "input": ""}}}}</tool_call>'


class CoinTasks:
    """Guess a bit, having printed one or not. Demonstrations guess at random."""

    evaluation_count = None

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def problem(self, stage: int, number: int) -> Problem:
        return Problem(f"{stage}.{number}", "bit?", "1")

    def evaluation(self, number: int) -> Problem:
        return Problem(f"held out {number}", "bit!", "1")

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        while True:
            bit = rng.choice("01")
            messages = [{"role": "user", "content": "bit?"}]
            if rng.random() < 0.8:
                messages += [
                    {"role": "assistant", "content": CALL.format(f"print({bit})")},
                    {"role": "user", "content": f"<tool_response>{bit}</tool_response>"},
                ]
            messages.append({"role": "assistant", "content": f"<answer>\\boxed{{{bit}}}</answer>"})
            yield Demonstration(Problem("demonstration", "bit?", bit), tuple(messages))


class Coins(BoxedAnswers):
    """Their environment."""

    lists_tools = False

    def __init__(self, *, seed: int, base: Path) -> None:
        self._seed = seed

    def problems(self) -> CoinTasks:
        return CoinTasks(self._seed)

    def prompt(self, problem: Problem) -> list[dict[str, str]]:
        return [{"role": "user", "content": problem.text}]
