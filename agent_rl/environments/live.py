"""Sessions of live traffic: whoever begins a session knows its task, and tells its reward."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from agent_rl.environments.base import ChatMessages, Demonstration, Environment, TaskError, TaskSource
from agent_rl.environments.harness import outcome_of
from agent_rl.messages import Judgement, Problem, Transcript


class Sessions:
    """One problem after the other, each without a text. Sessions fill its group as they come."""

    evaluation_count: int | None = None

    def problem(self, stage: int, number: int) -> Problem:
        """The problem of this number."""
        return Problem(f"{stage}-{number}", "")

    def evaluation(self, number: int) -> Problem:
        """A problem of an evaluation, such as those of `agent-rl serve`."""
        return Problem(f"session-{number}", "")

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """There are none."""
        del rng
        return iter(())


class Live(Environment):
    """The reward of a session is that of ``/rl/set_reward``; it is a success if it is at least ``success_at``."""

    def __init__(self, *, seed: int, base: Path, success_at: float = 1.0) -> None:
        del seed, base
        self._success_at = success_at

    def problems(self) -> TaskSource:
        """Any number, without texts."""
        return Sessions()

    def prompt(self, problem: Problem) -> ChatMessages:
        """The agent writes the prompt itself; this one only names the session."""
        return [{"role": "user", "content": problem.id}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        """By the session's reward. Raises TaskError where no sessions come."""
        del problem
        if self.harness is None or self.harness.source != "live":
            raise TaskError('rollouts of live are sessions: write source = "live" in [environments.harness]')
        outcome = outcome_of(transcript)
        reward = 0.0 if outcome is None or outcome.reward is None else outcome.reward
        return Judgement(reward, success=reward >= self._success_at)
