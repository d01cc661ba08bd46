"""What the scheduler's actor decides by itself: the problem of a group, and whether its window holds a group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("first", "continued", "awaited"),
    [
        (False, True, {"rollout_generator.0", "elsewhere.0"}),
        (True, True, {"elsewhere.0"}),  # generators of this host were started together with the scheduler
        (True, False, set()),
    ],
)
def test_generators_are_awaited_that_may_run_rollouts_of_a_former_scheduler(
    tmp_path: Path, first: bool, continued: bool, awaited: set[str]
) -> None:
    actor = KVScheduler.on_trial(micro(tmp_path), KVScheduler.Settings())
    targets = SimpleNamespace(targets=("rollout_generator.0", "elsewhere.0"))
    given = {"topology": micro(tmp_path), "name": "kv_scheduler.0", "first": first, "link": lambda _: targets}
    actor.context, actor._turn_log = SimpleNamespace(**given), SimpleNamespace(continued=continued)
    assert actor._may_run_rollouts() == awaited
