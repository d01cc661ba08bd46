"""The contracts of the five roles, as suites of tests to run against an actor of your own.

Derive from the role's suite and name the class; pytest runs the rest::

    from actors.contract import FilterContract
    from my_filter import MyFilter

    class TestMyFilter(FilterContract):
        actor = MyFilter

The real class runs on an in-memory network among stand-ins for the other four roles, in virtual time (the executor's
suite runs in real time: its sandbox has real processes). A test's docstring is the promise it proves.
"""

from __future__ import annotations

from actors.contract.base import RoleContract
from actors.contract.environment import EnvironmentContract
from actors.contract.executor import ExecutorContract
from actors.contract.filter import FilterContract
from actors.contract.generator import GeneratorContract
from actors.contract.learner import LearnerContract
from actors.contract.scheduler import SchedulerContract

__all__ = [
    "EnvironmentContract",
    "ExecutorContract",
    "FilterContract",
    "GeneratorContract",
    "LearnerContract",
    "RoleContract",
    "SchedulerContract",
]
