"""The rollouts of bench_policies: a seed decides how long each turn is, whatever the model writes, and tools sleep.

::

    shapes(seed) --> ShapedEnvironment: Problem.payload --> ShapedGenerator: tokens of each turn
         |                                             `--> Stands.answer: how long the tools of each turn sleep
         `--> the trace that is simulated

Lengths travel in the problem, which scheduling policies do not see.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_rl.config.topology import InitialiseModel
from agent_rl.environments.base import ChatMessages, Demonstration, Environment, TaskError
from agent_rl.messages import Judgement, Problem, Transcript
from agent_rl.simulation.profile import Rollouts, Tools, read_profile
from agent_rl.simulation.trace import Shape
from agent_rl.simulation.workload import draw_groups

LIMIT = 640
"""Response tokens of a rollout at most, those of tools included: `worst_case` reserves as many."""
MAX_TURNS = 5
PROMPTS = (32, 96)
"""Tokens of the shortest and the longest prompt."""
ROLLOUTS = Rollouts(
    mean_tokens=160.0, spread_between=0.4, spread_within=0.6, prompt_tokens=PROMPTS, calls=1.5, most_calls=MAX_TURNS - 1
)
TOOLS = Tools(median_s=0.4, spread=0.8, longest_s=3.0, median_tokens=48.0, tokens_spread=0.5, longest_tokens=128)
MODEL = InitialiseModel(
    hidden_size=256, layers=6, heads=8, kv_heads=4, head_dim=32, mlp_size=768, max_length=1024, tie_embeddings=False
)
"""4.8M parameters. The weights are random: how long a step takes does not depend on them."""


def shapes(seed: int, groups: int, samples: int) -> tuple[tuple[Shape, ...], ...]:
    """The lengths of all rollouts."""
    profile = read_profile("h200").model_copy(update={"rollouts": ROLLOUTS, "tools": TOOLS})  # nothing else is drawn
    return draw_groups(profile, seed=seed, groups=groups, samples=samples, max_response=LIMIT, max_turns=MAX_TURNS)


def shape_in(problem: Problem, sample: int) -> Shape:
    """The lengths of a rollout, by its problem."""
    written, tool_s, tool_tokens = problem.payload["samples"][sample]
    return Shape(int(problem.payload["prompt"]), tuple(written), tuple(tool_s), tuple(tool_tokens))


def turn_after(shape: Shape, context: int) -> int:
    """The turn, from 0, that follows so many tokens of the rollout. Raises ValueError when none does."""
    tokens = shape.prompt
    for turn, written in enumerate(shape.written):
        if tokens == context:
            return turn
        tokens += written + (shape.tool_tokens[turn] if turn < len(shape.tool_tokens) else 0)
    raise ValueError(f"no turn of {shape} begins after {context} tokens")


class ShapedTasks:
    """A problem for each group, with the lengths of its rollouts."""

    evaluation_count = None

    def __init__(self, seed: int, groups: int, samples: int) -> None:
        self._seed, self._drawn = seed, shapes(seed, groups, samples)

    def problem(self, stage: int, number: int) -> Problem:
        """The problem of group ``number``. Its text is as long as its prompt, for the scheduler's estimate."""
        del stage
        group = self._drawn[number]
        payload: dict[str, Any] = {
            "draw": [self._seed, number],
            "prompt": group[0].prompt,
            "samples": [[list(each.written), list(each.tool_s), list(each.tool_tokens)] for each in group],
        }
        return Problem(str(number), "x" * (group[0].prompt - 1), payload=payload)

    def evaluation(self, number: int) -> Problem:
        """Raises TaskError: there are none."""
        raise TaskError(f"bench_policies has no held-out problem {number}")

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Raises TaskError: there are none."""
        del rng
        raise TaskError("bench_policies has no demonstrations")


class ShapedEnvironment(Environment):
    """Answers each turn but the last one."""

    observes = True

    def __init__(self, *, seed: int, base: Path, groups: int, samples: int) -> None:
        del base
        self._tasks = ShapedTasks(seed, groups, samples)

    def problems(self) -> ShapedTasks:
        """One for each group."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The text alone."""
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        """Nothing is judged."""
        del problem, transcript
        return Judgement(0.0, success=False)
