"""The five production actors keep what their roles promise."""

from __future__ import annotations

from typing import ClassVar

import pytest

from actors.kv_scheduler import KVScheduler
from actors.learner import Learner
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator
from actors.tool_executor import ToolExecutor
from agent_rl_contract import ExecutorContract, FilterContract, GeneratorContract, LearnerContract, SchedulerContract


class TestKVScheduler(SchedulerContract):
    actor = KVScheduler
    promises = "likely"


@pytest.mark.slow
class TestKVSchedulerThatReservesTheLongest(SchedulerContract):
    actor = KVScheduler
    settings: ClassVar[dict[str, str]] = {"policy": "worst_case"}


class TestRolloutGenerator(GeneratorContract):
    actor = RolloutGenerator


class TestToolExecutor(ExecutorContract):
    actor = ToolExecutor


class TestRoCFilter(FilterContract):
    actor = RoCFilter


class TestLearner(LearnerContract):
    actor = Learner
