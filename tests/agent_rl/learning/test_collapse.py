"""What is taken for a collapse, and which checkpoint is the best."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agent_rl.config.topology import Collapse
from agent_rl.figures import RolloutMeans
from agent_rl.learning.collapse import CollapseWatch, collapse_message


def told(settings: Collapse, steps: list[tuple[float, float, float]]) -> list[str]:
    watch = CollapseWatch(settings)
    return [watch.step(i + 1, *figures(*step)) for i, step in enumerate(steps)]


def figures(success: float, entropy: float | None = 1.0, length: float = 9.0) -> tuple[RolloutMeans, float | None]:
    return RolloutMeans(success=success, response_tokens=length), entropy


def test_success_that_falls_below_its_share_of_the_best_window_is_a_collapse() -> None:
    faults = told(Collapse(window=2), [(0.7, 1, 50), (0.8, 1, 50), (0.6, 1, 50), (0.4, 1, 50), (0.3, 1, 50)])
    assert faults[:4] == [""] * 4
    assert faults[4] == "success fell to 35.0%, from 75.0% in the 2 steps to step 2"


def test_a_single_bad_step_and_a_small_drop_are_none() -> None:
    assert not any(told(Collapse(window=3), [(0.8, 1, 50)] * 5 + [(0.0, 1, 50)] + [(0.8, 1, 50)] * 3))
    assert not any(told(Collapse(window=1), [(0.15, 1, 50), (0.06, 1, 50)]))
    assert not any(told(Collapse(window=1, success_below=0.0), [(0.9, 1, 50), (0.0, 1, 50)]))


def test_entropy_and_length_count_when_asked_for() -> None:
    steps = [(0.5, 1.0, 100.0), (0.5, 0.04, 100.0), (0.5, 1.0, 40.0), (0.5, 1.0, 500.0)]
    assert not any(told(Collapse(window=1), steps))
    assert "entropy fell to 0.04 nats" in told(Collapse(window=1, entropy_below=0.05), steps)[1]
    growing = [(0.5 - 0.01 * i, entropy, length) for i, (_, entropy, length) in enumerate(steps)]
    faults = told(Collapse(window=1, length_factor=2.0), growing)
    assert [bool(fault) for fault in faults] == [False, False, True, True]
    assert faults[3] == "responses went to 500 tokens, from 100 in the 1 steps to step 1"


def test_steps_without_figures_say_nothing() -> None:
    watch = CollapseWatch(Collapse(window=1))
    assert watch.step(1, *figures(0.9)) == ""
    assert watch.step(2, *figures(0.0, None)) == ""
    assert watch.step(3, *figures(math.nan)) == ""
    assert watch.step(4, *figures(0.0))


@pytest.mark.parametrize("at", range(6))
def test_a_restart_changes_nothing(at: int) -> None:
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


def test_before_the_first_step_no_checkpoint_is_the_best() -> None:
    watch = CollapseWatch(Collapse())
    watch.saved(3)
    assert watch.best_version is None
    json.dumps(watch.state(), allow_nan=False)


def test_the_message_says_what_to_do() -> None:
    said = collapse_message("rl", 530, "success fell", Path("runs/a/checkpoints/best-version-000500-stage-00"))
    assert said.startswith("step 530 of stage 'rl': training has collapsed: success fell")
    assert "start a new run from it (model.path)" in said
