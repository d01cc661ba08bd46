"""Whole runs in virtual time whose generators vanish, return, restart and are stopped: the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from actors.runtime.links import NobodyLeftError
from agent_rl.records.audit import audit
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


def test_one_of_two_generators_vanishes(tmp_path: Path) -> None:
    async def vanish(run: SimulatedRun) -> None:
        await run.steps(3)
        run.vanish(FIRST)
        await run.steps(5)  # the budget and the rollouts of the lost one hold nothing up for long
        figures = run["kv_scheduler.0"].status()[1].scheduler
        assert figures.engines == 1
        assert figures.rollouts_moved >= 1

    finishes(tmp_path, vanish)


def test_both_generators_vanish_and_one_returns(tmp_path: Path) -> None:
    async def vanish(run: SimulatedRun) -> None:
        await run.steps(3)
        run.vanish(FIRST)
        run.vanish(SECOND)
        await trio.sleep(600)
        done = run.learner.version
        assert done < STEPS
        said = run["kv_scheduler.0"].waiting_for()
        assert said == f"rollout_generator: an engine ({FIRST} is gone, {SECOND} is gone)"
        run.back(SECOND)
        await run.steps(done + 3)
        assert run["kv_scheduler.0"].status()[1].scheduler.engines == 1

    assert 600 < finishes(tmp_path, vanish) < 700


def test_a_generator_is_killed_and_a_new_process_takes_its_place(tmp_path: Path) -> None:
    async def kill(run: SimulatedRun) -> None:
        for done in (2, 5):
            await run.steps(done)
            await run.kill(FIRST)
            await run.start(FIRST)
        await run.steps(8)
        assert run["kv_scheduler.0"].status()[1].scheduler.engines == 2

    finishes(tmp_path, kill)


def test_a_generator_that_is_stopped_finishes_its_rollouts_and_gets_no_more(tmp_path: Path) -> None:
    """No rollout is sampled twice for it: they end within its ``finish_seconds``."""

    async def stop(run: SimulatedRun) -> None:
        await run.steps(3)
        began = trio.current_time()
        await run.stop(FIRST)
        assert 0 < trio.current_time() - began < 3  # the longest rollout
        await run.steps(8)
        figures = run["kv_scheduler.0"].status()[1].scheduler
        assert figures.engines == 1
        assert figures.rollouts_moved == 0
        await run.start(FIRST)

    finishes(tmp_path, stop)


def test_a_generator_that_stops_finishes_its_turns_and_leaves_its_rollouts_to_others(tmp_path: Path) -> None:
    async def stop(run: SimulatedRun) -> None:
        await run.steps(2)
        began = trio.current_time()
        await run.stop(FIRST)
        assert 0 < trio.current_time() - began < 2  # the longest turn
        await run.steps(4)
        assert run["kv_scheduler.0"].status()[1].scheduler.rollouts_moved >= 1

    finishes(tmp_path, stop, steps=6, turns=12)


def test_a_host_that_returns_abandons_what_moved(tmp_path: Path) -> None:
    async def vanish(run: SimulatedRun) -> None:
        await run.steps(1)
        run.host_vanishes()
        await trio.sleep(10)  # lost after 7 s, and its rollouts take longer
        assert run["kv_scheduler.0"].status()[1].scheduler.engines == 1
        run.host_back()
        await trio.sleep(3)
        figures = run["kv_scheduler.0"].status()[1].scheduler
        assert figures.engines == 2
        assert figures.rollouts_moved >= 1
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
            figures = run[name].status()[1].generator
            assert figures.calls_failed <= 8  # the rollouts of an engine
            assert figures.rollouts_failed == 0
            router = run[name].context.link("tools").router
            assert router._outstanding["tool_executor.0"] == 0
        failed = [run[name].status()[1].generator.calls_failed for name in (FIRST, SECOND)]
        await run.steps(6)
        assert [run[name].status()[1].generator.calls_failed for name in (FIRST, SECOND)] == failed
        run.vanish("tool_executor.1")
        await trio.sleep(200)
        assert run[FIRST].waiting_for() == "tool_executor: an executor, since none is heard"
        run.back("tool_executor.0")
        await run.steps(8)
        for name in (FIRST, SECOND):
            assert run[name].status()[1].generator.rollouts_failed == 0

    finishes(tmp_path, vanish, executors=2, turns=3)


@pytest.mark.parametrize("role", ["rollout_generator", "tool_executor"])
def test_a_run_with_nobody_left_ends_after_give_up_minutes(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        async with simulated(tmp_path, steps=99, executors=2, turns=2, give_up_minutes=2.0) as run:
            await run.steps(2)
            for number in (0, 1):
                if role == "rollout_generator":
                    await run.kill(f"{role}.{number}")
                else:
                    run.vanish(f"{role}.{number}")
                gone.append(trio.current_time())
                await trio.sleep(0 if number else 30)
            await trio.sleep(115)
            ended.append("after two minutes, and the time to notice that nobody is heard")
            await trio.sleep(85)
        raise AssertionError("the run went on")

    gone: list[float] = []
    ended: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        in_virtual_time(main)
    matching, rest = caught.value.split(NobodyLeftError)
    assert rest is None
    assert matching is not None
    while isinstance(matching.exceptions[0], ExceptionGroup):
        matching = matching.exceptions[0]
    assert f"none of {role}.0, {role}.1 is heard for 2 minutes (run.give_up_minutes)" in str(matching.exceptions[0])
    assert ended
