"""What an rl stage will cost."""

import pytest

from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans
from agent_rl.learning.forecast import Pace, forecast
from tests import builders


def answered(rollouts: int, tokens: float) -> AnswerFigures:
    means = RolloutMeans(rollouts=rollouts, response_tokens=tokens)
    return AnswerFigures(problems=rollouts, success=0.5, low=0.4, high=0.6, lost=0, answered=means)


def test_the_pace_is_that_of_all_answers():
    figures = EvaluationFigures(name="before", sampled=answered(30, 60.0), greedy=answered(10, 20.0))
    assert Pace.of(figures, 8.0) == Pace(40, 50.0, 8.0)
    assert Pace.of(EvaluationFigures(name="before", sampled=answered(0, 0.0)), 8.0) is None


@pytest.mark.parametrize(("a_token", "minutes"), [(0.0, 3), (0.1, 3), (0.5, 9), (None, 3)])
def test_the_slower_of_sampling_and_updates_takes_the_time(a_token, minutes):
    """Ten steps of 2 groups of 4: 80 rollouts of 2 s each; 2 of each group are trained, 200 tokens in two epochs."""
    stage, algorithm = builders.rl_stage(), builders.algorithm(epochs=1)
    told = forecast(stage, algorithm, Pace(40, 25.0, 80.0), lambda tokens: a_token and a_token * tokens)
    assert told == f"{stage.name} takes at least 80 rollouts, 2,000 response tokens, {minutes} minutes"
