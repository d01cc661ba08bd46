"""Problems for agents with files: the product of two numbers, in a file."""

from __future__ import annotations

import random

from agent_rl.environments.base import ChatMessages, Environment
from agent_rl.environments.harness import outcome_of
from agent_rl.environments.tasks import DrawnTasks
from agent_rl.messages import Judgement, Problem, Transcript


def draw(rng: random.Random) -> Problem:
    """Two numbers."""
    first, second = rng.randrange(100, 1000), rng.randrange(100, 1000)
    task = f"Write the product of {first} and {second} into the file `answer` of this folder."
    return Problem("", task, answer=str(first * second))


class Products(Environment):
    """The reward is 1 for a file with the product; the harness has ``collect = ["answer"]``."""

    def __init__(self, *, seed: int, base: object) -> None:
        self.problems = lambda: DrawnTasks(seed, draw)

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        outcome = outcome_of(transcript)
        right = outcome is not None and outcome.files.get("answer", "").strip() == problem.answer
        return Judgement(float(right), right)
