"""Whole runs in virtual time whose generators vanish, return, restart and are stopped: the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from agent_rl.records.audit import audit
from benchmarks.simulated_run import SimulatedRun, in_virtual_time, simulated

STEPS = 12
FIRST, SECOND = "rollout_generator.0", "rollout_generator.1"


def finishes(folder: Path, disturb: Any, **options: Any) -> float:
    """The run's virtual seconds; it must finish, with its books balanced."""

    async def main() -> float:
        async with simulated(folder, steps=STEPS, **options) as run:
            await disturb(run)
            await run.learner.finished.wait()
            return trio.current_time()

    seconds: float = in_virtual_time(main)
    balance = audit(folder)
    assert balance.balanced, balance.lines()
    assert balance.steps == STEPS
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
