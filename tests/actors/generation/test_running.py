"""Rollouts of a generator whose scheduler gets a new process: none of them is run twice."""

from __future__ import annotations

from dataclasses import replace

import trio

from actors.generation.running import Running, RunningRollouts
from agent_rl.testing import request


async def begun(rollouts: RunningRollouts, rollout: str, acknowledged: list[str], *, move: int = 0) -> Running | None:
    asked = replace(request(), rollout=rollout, move=move)
    return await rollouts.begin(asked, lambda: acknowledged.append(rollout))


def test_an_orphan_that_is_asked_for_goes_on() -> None:
    async def main() -> None:
        rollouts, acknowledged = RunningRollouts(), list[str]()
        running = await begun(rollouts, "a", acknowledged, move=2)
        assert running is not None
        rollouts.orphaned()
        assert rollouts.orphans == {"a": 2}
        assert await begun(rollouts, "a", acknowledged, move=2) is None
        assert (rollouts.orphans, acknowledged) == ({}, [])
        rollouts.end(running)
        assert acknowledged == ["a", "a"]
        assert await begun(rollouts, "a", acknowledged, move=3) is not None

    trio.run(main)


def test_an_orphan_that_ended_before_it_was_asked_for_is_acknowledged_and_not_run_again() -> None:
    """The filter had no trajectory of it when the scheduler asked what is missing, and has it now."""

    async def main() -> None:
        rollouts, acknowledged = RunningRollouts(), list[str]()
        running = await begun(rollouts, "a", acknowledged)
        assert running is not None
        rollouts.orphaned()
        rollouts.end(running)
        assert rollouts.orphans == {}
        assert await begun(rollouts, "a", acknowledged) is None
        assert acknowledged == ["a", "a"]
        assert await begun(rollouts, "a", acknowledged) is not None, "it is run when it is asked for once more"

    trio.run(main)
