"""The builders of messages, under the name tests know them by."""

from agent_rl.testing import (
    algorithm,
    call,
    engine_load,
    environments,
    evaluate_stage,
    evaluated,
    opened,
    problem,
    published,
    request,
    rl_stage,
    training_group,
    trajectory,
    wanted,
)

__all__ = [
    "algorithm",
    "call",
    "engine_load",
    "environments",
    "evaluate_stage",
    "evaluated",
    "opened",
    "problem",
    "published",
    "request",
    "rl_stage",
    "training_group",
    "trajectory",
    "wanted",
]
