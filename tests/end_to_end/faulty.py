"""Substitutes for real runs of tests: half the answers right, a loss that fails, turns that always call a tool."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from actors.engines.base import Engine
from actors.engines.scripted import ScriptedEngine
from actors.learner import Learner
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator, RolloutGeneratorSettings
from agent_rl.messages import Policy, Trajectory
from agent_rl.prompts import PYTHON_TOOL

ANSWER = "4"
BAD_VERSIONS = "BAD_VERSIONS"
"""The environment's name for the versions at which the loss is NaN."""


class HalfRight(RoCFilter):
    """Every second sample says 4, so that groups about problems whose answer that is carry signal."""

    async def handle(self, message: Any) -> Any:
        if isinstance(message, Trajectory):
            answer = ANSWER if message.sample % 2 else "5"
            message = replace(message, text=f"<answer>\\boxed{{{answer}}}</answer>")
        return await super().handle(message)


class AnyWeights(ScriptedEngine):
    """Serves whatever is published."""

    async def load_weights(self, path: Path, policy: Policy) -> None:
        await super().load_weights(Path("/weights"), policy)


class CallsTools(RolloutGenerator):
    """Its engine writes a call that takes a while, reads the result, and answers 4."""

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        code = "import time; time.sleep(0.2); print(2 + 2)"
        call = f'{{"name": "{PYTHON_TOOL}", "arguments": {{"code": "{code}"}}}}'
        turns = (f"<tool_call>{call}</tool_call>", f"<answer>\\boxed{{{ANSWER}}}</answer>")
        return AnyWeights(directory, initial_policy=Policy(0, 0), script=lambda number, _: turns[number - 1])


class FaultyLearner(Learner):
    """Its loss is NaN in the steps that the environment names."""

    def loss(self, *arguments: Any, **settings: Any) -> Any:
        loss, sums = super().loss(*arguments, **settings)
        bad = {int(version) for version in os.environ.get(BAD_VERSIONS, "").split(",") if version}
        return loss * (torch.nan if self._position.version in bad else 1.0), sums
