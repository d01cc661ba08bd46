"""Substitutes for real runs of tests: a filter that finds half the answers right, a learner whose loss fails."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from actors.learner import Learner
from actors.roc_filter import RoCFilter
from agent_rl.messages import Trajectory

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


class FaultyLearner(Learner):
    """Its loss is NaN in the steps that the environment names."""

    def loss(self, *arguments: Any, **settings: Any) -> Any:
        loss, sums = super().loss(*arguments, **settings)
        bad = {int(version) for version in os.environ.get(BAD_VERSIONS, "").split(",") if version}
        return loss * (torch.nan if self._position.version in bad else 1.0), sums
