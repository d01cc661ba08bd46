"""The quickstart's environment: generated word problems, put as they are, with boxed answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt

from agent_rl.environments.arithmetic.problems import ArithmeticTasks
from agent_rl.environments.base import ChatMessages, TaskSource
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.messages import Problem

Share = Annotated[float, Field(ge=0, le=1)]


class Arithmetic(BoxedAnswers):
    """Word problems of one or two operations. The model is not told of its tool: demonstrations teach it the call."""

    lists_tools = False

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        right_share: Share = 0.20,
        mistaken_share: Share = 0.48,
        broken_share: Share = 0.25,
        retried_share: Share = 0.5,
        max_calls: PositiveInt = 3,
    ) -> None:
        """The settings are of the demonstrations, see `ArithmeticTasks`."""
        del base
        self._tasks = ArithmeticTasks(
            seed,
            right_share=right_share,
            mistaken_share=mistaken_share,
            broken_share=broken_share,
            retried_share=retried_share,
            max_calls=max_calls,
        )

    def problems(self) -> TaskSource:
        """Generated; none of them is ever both trained and held out."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem's text alone."""
        return [{"role": "user", "content": problem.text}]
