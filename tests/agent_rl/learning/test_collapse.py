"""What is taken for a collapse, and which checkpoint is the best."""

import json
import math
from pathlib import Path

import pytest

from agent_rl.config.topology import Collapse
from agent_rl.figures import RolloutMeans
from agent_rl.learning.collapse import CollapseWatch, collapse_message


def figures(success: float, entropy: float | None = 1.0, length: float = 9.0) -> tuple[RolloutMeans, float | None]:
    return RolloutMeans(success=success, response_tokens=length), entropy


TURNS = [(0.5, 1.0, 100.0), (0.5, 0.04, 100.0), (0.5, 1.0, 40.0), (0.5, 1.0, 500.0)]
"""Steps of changing entropy and length, all of one success."""
FALLING = [(0.5 - 0.01 * i, *rest) for i, (_, *rest) in enumerate(TURNS)]
LOW = "the policy's entropy fell to 0.04 nats a token, below entropy_below"
LONG = "responses went to 500 tokens, from 100 in the 1 steps to step 1"
SHORT = "responses went to 40 tokens, from 100 in the 1 steps to step 1"
NONE = "success fell to 0.0%, from 90.0% in the 1 steps to step 1"
FELL = "success fell to 35.0%, from 75.0% in the 2 steps to step 2"


@pytest.mark.parametrize(
    ("settings", "steps", "faults"),
    [
        ({"window": 2}, [(success, 1, 50) for success in (0.7, 0.8, 0.6, 0.4, 0.3)], [""] * 4 + [FELL]),
        ({"window": 3}, [(success, 1, 50) for success in [0.8] * 5 + [0.0] + [0.8] * 3], [""] * 9),  # one bad step
        ({"window": 1}, [(0.15, 1, 50), (0.06, 1, 50)], ["", ""]),  # a small drop
        ({"window": 1}, [(0.9,), (0.0, None), (math.nan,), (0.0,)], ["", "", "", NONE]),  # steps without figures
        ({"window": 1, "success_below": 0.0}, [(0.9, 1, 50), (0.0, 1, 50)], ["", ""]),
        ({"window": 1}, TURNS, [""] * 4),  # entropy and length count when asked for
        ({"window": 1, "entropy_below": 0.05}, TURNS, ["", LOW, "", ""]),
        ({"window": 1, "length_factor": 2.0}, FALLING, ["", "", SHORT, LONG]),
    ],
)
def test_what_is_a_collapse(settings, steps, faults):
    watch = CollapseWatch(Collapse(**settings))
    assert [watch.step(number, *figures(*step)) for number, step in enumerate(steps, 1)] == faults


@pytest.mark.parametrize("at", range(6))
def test_a_restart_changes_nothing(at):
    successes = [0.5, 0.9, 0.8, 0.5, 0.3, 0.2]
    whole, halved = CollapseWatch(Collapse(window=2)), CollapseWatch(Collapse(window=2))
    for number, success in enumerate(successes):
        if number == at:
            halved = CollapseWatch(Collapse(window=2), json.loads(json.dumps(halved.state())))
        assert whole.step(number, *figures(success)) == halved.step(number, *figures(success))
        whole.saved(number)
        halved.saved(number)
    assert whole.state() == halved.state()
    assert whole.best_version == 2  # of the windows that end in a checkpoint the one of 0.9 and 0.8


def test_before_the_first_step_no_checkpoint_is_the_best():
    watch = CollapseWatch(Collapse())
    watch.saved(3)
    assert watch.best_version is None
    json.dumps(watch.state(), allow_nan=False)


def test_the_message_says_what_to_do():
    said = collapse_message("rl", 530, "success fell", Path("runs/a/checkpoints/best-version-000500-stage-00"))
    assert said.startswith("step 530 of stage 'rl': training has collapsed: success fell")
    assert "start a new run from it (model.path)" in said
