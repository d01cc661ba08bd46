"""Whole runs in virtual time whose generators vanish, return, restart and are stopped: the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from agent_rl.records.audit import audit
from tests.actors.ends import told_at_the_end
from tests.actors.simulated_run import SimulatedRun, in_virtual_time, simulated

STEPS = 12
FIRST, SECOND = "rollout_generator.0", "rollout_generator.1"


def finishes(folder: Path, disturb: Any, steps: int = STEPS, **options: Any) -> float:
    """The run's virtual seconds; it must finish, with its books balanced."""

    async def main() -> float:
        async with simulated(folder, steps=steps, **options) as run:
            await disturb(run)
            await run.learner.finished.wait()
            return trio.current_time()

    seconds: float = in_virtual_time(main)
    balance = audit(folder)
    assert balance.balanced, balance.lines()
    assert balance.steps == steps
    return seconds


def test_both_generators_vanish_and_one_returns(tmp_path: Path) -> None:
    async def vanish(run: SimulatedRun) -> None:
        await run.steps(3)
        run.vanish(FIRST, SECOND)
        await trio.sleep(600)
        done = run.learner.version
        assert done < STEPS
        said = run["kv_scheduler.0"].waiting_for()
        assert said == f"rollout_generator: an engine ({FIRST} is gone, {SECOND} is gone)"
        run.back(SECOND)
        await run.steps(done + 3)
        assert run.scheduled.engines == 1

    assert 600 < finishes(tmp_path, vanish) < 700


@pytest.mark.parametrize(
    ("turns", "longest", "moves"),
    [
        pytest.param(1, 3, False, id="it finishes its rollouts"),  # within its finish_seconds
        pytest.param(12, 2, True, id="it finishes its turns, and others the rollouts"),
    ],
)
def test_a_generator_that_is_stopped_gets_no_more_rollouts(
    tmp_path: Path, turns: int, longest: float, moves: bool
) -> None:
    """``longest``: seconds of a rollout or of a turn. No rollout is sampled twice for it unless it has to move."""

    async def stop(run: SimulatedRun) -> None:
        await run.steps(2)
        began = trio.current_time()
        await run.stop(FIRST)
        assert 0 < trio.current_time() - began < longest
        await run.steps(5)
        assert run.scheduled.engines == 1
        assert (run.scheduled.rollouts_moved > 0) == moves
        await run.start(FIRST)

    finishes(tmp_path, stop, steps=7, turns=turns)


def test_a_host_that_returns_abandons_what_moved(tmp_path: Path) -> None:
    async def vanish(run: SimulatedRun) -> None:
        await run.steps(1)
        run.vanish(*run.of_far)
        await trio.sleep(10)  # lost after 7 s, and its rollouts take longer
        assert run.scheduled.engines == 1
        run.back(*run.of_far)
        await trio.sleep(3)
        assert run.scheduled.engines == 2
        assert run.scheduled.rollouts_moved >= 1
        twice = run[FIRST]._running._running.keys() & run[SECOND]._running._running.keys()
        assert not twice

    finishes(tmp_path, vanish, steps=4, turns=20)


def test_lost_executors_are_not_tried_over_and_over(tmp_path: Path) -> None:
    """One of two: what was under way there is tried once more. Both: calls wait, and no attempt is spent."""

    async def vanish(run: SimulatedRun) -> None:
        await run.steps(2)
        run.vanish("tool_executor.0")
        await run.steps(4)
        for name in (FIRST, SECOND):
            assert run[name].context.link("tools").router._outstanding["tool_executor.0"] == 0
        failed = calls_failed(run)
        assert max(failed) <= 8  # the rollouts of an engine
        await run.steps(6)
        assert calls_failed(run) == failed
        run.vanish("tool_executor.1")
        await trio.sleep(200)
        assert run[FIRST].waiting_for() == "tool_executor: an executor, since none is heard"
        run.back("tool_executor.0")
        await run.steps(8)
        assert [run[name].status()[1].generator.rollouts_failed for name in (FIRST, SECOND)] == [0, 0]

    def calls_failed(run: SimulatedRun) -> list[int]:
        return [run[name].status()[1].generator.calls_failed for name in (FIRST, SECOND)]

    finishes(tmp_path, vanish, executors=2, turns=3)


@pytest.mark.parametrize("role", ["rollout_generator", "tool_executor"])
def test_a_run_with_nobody_left_ends_after_give_up_minutes(tmp_path: Path, role: str) -> None:
    ended: list[str] = []

    async def main() -> None:
        async with simulated(tmp_path, steps=99, executors=2, turns=2, give_up_minutes=2.0) as run:
            await run.steps(2)
            for number, seconds in ((0, 30), (1, 115)):
                if role == "rollout_generator":
                    await run.kill(f"{role}.{number}")
                else:
                    run.vanish(f"{role}.{number}")
                await trio.sleep(seconds)
            ended.append("after two minutes, and the time to notice that nobody is heard")
            await trio.sleep(85)
        raise AssertionError("the run went on")

    with told_at_the_end() as told:
        in_virtual_time(main)
    assert f"none of {role}.0, {role}.1 is heard for 2 minutes (run.give_up_minutes)" in told[0]
    assert ended
