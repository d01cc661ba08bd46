"""What the scheduler's actor decides by itself: the problem of a group, and whether its window holds a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.kv_scheduler import KVScheduler
from agent_rl.config.selection import SelectStage
from tests import builders
from tests.actors.topologies import micro


async def test_the_problems_of_an_evaluation_are_the_same_each_time_and_in_no_training(tmp_path: Path) -> None:
    stages = (builders.rl_stage(evaluate={"every": 1, "problems": 3}), builders.evaluate_stage(), builders.rl_stage())
    topology = micro(tmp_path).model_copy(update={"stages": stages})
    actor = KVScheduler.on_trial(topology, KVScheduler.Settings())
    await actor.prepare()
    within = [actor.problem(0, number, "evaluate_sampled") for number in range(3)]
    assert [actor.problem(1, number, "evaluate_sampled") for number in range(3)] == within
    assert [actor.problem(1, number, "evaluate_greedy") for number in range(3, 6)] == within
    trained = [actor.problem(stage, number, "train") for stage in (0, 2) for number in range(3)]
    assert len({problem.text for problem in (*within, *trained)}) == 9


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        (builders.rl_stage(), "algorithm.samples = 4"),
        (builders.rl_stage(samples=5), "stages.0.samples = 5"),
        (builders.rl_stage(evaluate={"every": 1, "problems": 1, "samples": 6}), "rl.evaluate.samples = 6"),
        (builders.evaluate_stage(samples=7), "after.samples = 7"),
        (SelectStage(kind="select", name="hard", samples=8, max_response_tokens=9, max_turns=1), "hard.samples = 8"),
    ],
)
def test_a_window_smaller_than_the_largest_group_is_refused(tmp_path: Path, stage: object, key: str) -> None:
    changes = {"stages": (stage,), "algorithm": builders.algorithm()}
    topology, largest = micro(tmp_path).model_copy(update=changes), int(key.rpartition(" ")[2])
    (fault,) = KVScheduler.check(topology, KVScheduler.Settings(request_window=largest - 1))
    assert fault == f"request_window {largest - 1} is smaller than a group; set it to at least {key}"
    assert KVScheduler.check(topology, KVScheduler.Settings(request_window=largest)) == []
