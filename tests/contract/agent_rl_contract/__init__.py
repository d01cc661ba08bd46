"""The contracts of the five roles, of environments and of trackers, as suites of tests for classes of your own.

Derive from the role's suite and name the class; pytest runs the rest::

    from agent_rl_contract import FilterContract
    from my_filter import MyFilter

    class TestMyFilter(FilterContract):
        actor = MyFilter

The real class runs on an in-memory network among stand-ins for the other four roles, in virtual time (the executor's
suite runs in real time: its sandbox has real processes). A test's docstring is the promise it proves.
"""

from __future__ import annotations

from agent_rl_contract.base import RoleContract
from agent_rl_contract.environment import EnvironmentContract
from agent_rl_contract.executor import ExecutorContract
from agent_rl_contract.filter import FilterContract
from agent_rl_contract.generator import GeneratorContract
from agent_rl_contract.learner import LearnerContract
from agent_rl_contract.scheduler import SchedulerContract
from agent_rl_contract.tracker import TrackerContract

__all__ = [
    "EnvironmentContract",
    "ExecutorContract",
    "FilterContract",
    "GeneratorContract",
    "LearnerContract",
    "RoleContract",
    "SchedulerContract",
    "TrackerContract",
]
