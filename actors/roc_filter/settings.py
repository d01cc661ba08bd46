"""The settings of the RoC filter."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from actors.base import Settings


class RoCFilterSettings(Settings):
    """When to commit, and how long to wait for judgements."""

    commit_seconds: PositiveFloat = 0.02
    """The longest time that a message waits for the commit that acknowledges it."""
    check_timeout_seconds: PositiveFloat = 300.0
    """From asking an executor to its judgement, queueing included. After that, the filter asks again."""
    check_attempts: PositiveInt = 3
    """How often an executor may fail at judging one rollout before the rollout counts as lost."""
    training_window: PositiveInt = 4096
    """The most groups and steps sent to the learner that the learner has not taken."""
