"""What an rl stage will cost, said before it begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agent_rl.config.algorithm import Algorithm
    from agent_rl.config.topology import RlStage
    from agent_rl.figures import EvaluationFigures


class Pace(NamedTuple):
    """An evaluation, by which the cost of sampling is estimated."""

    rollouts: int
    tokens: float
    """Of a response."""
    seconds: float

    @classmethod
    def of(cls, figures: EvaluationFigures, seconds: float) -> Pace | None:
        """None where nothing was answered."""
        answered = [each.answered for each in (figures.sampled, figures.greedy) if each is not None]
        rollouts = sum(each.rollouts for each in answered)
        tokens = sum(each.rollouts * each.response_tokens for each in answered)
        return cls(rollouts, tokens / rollouts, seconds) if rollouts else None


def forecast(stage: RlStage, algorithm: Algorithm, pace: Pace, update_seconds: Callable[[int], float | None]) -> str:
    """Rollouts, response tokens, and minutes where sampling and updates overlap; all at least.

    ``update_seconds``: by tokens; None where no rate was measured, and sampling alone is counted. Prompts, groups that
    are dropped and sampled again, and evaluations within the stage come on top.
    """
    rollouts = stage.steps * algorithm.groups_per_step * algorithm.samples
    trained = algorithm.groups_per_step * algorithm.keep * algorithm.epochs * pace.tokens
    update = update_seconds(math.ceil(trained)) or 0.0
    seconds = max(rollouts * pace.seconds / pace.rollouts, stage.steps * update)
    tokens, minutes = round(rollouts * pace.tokens), math.ceil(seconds / 60.0)
    return f"{stage.name} takes at least {rollouts:,} rollouts, {tokens:,} response tokens, {minutes:,} minutes"
