"""Rollouts of a generator whose scheduler gets a new process, or wants them back: none of them is run twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.rollout_generator.running import JUST_S, Running, RunningRollouts
from agent_rl.testing import request

pytestmark = pytest.mark.real_time


async def begun(rollouts: RunningRollouts, rollout: str, acknowledged: list[str], *, move: int = 0) -> Running | None:
    asked = replace(request(), rollout=rollout, move=move)
    return await rollouts.begin(asked, lambda: acknowledged.append(rollout))


async def test_an_orphan_that_is_asked_for_goes_on() -> None:
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


async def test_an_orphan_that_ended_before_it_was_asked_for_is_acknowledged_and_not_run_again() -> None:
    """The filter had no trajectory of it when the scheduler asked what is missing, and has it now."""
    rollouts, acknowledged = RunningRollouts(), list[str]()
    running = await begun(rollouts, "a", acknowledged)
    assert running is not None
    rollouts.orphaned()
    rollouts.end(running)
    assert rollouts.orphans == {}
    assert await begun(rollouts, "a", acknowledged) is None
    assert acknowledged == ["a", "a"]
    assert await begun(rollouts, "a", acknowledged) is not None, "it is run when it is asked for once more"


async def test_a_turn_that_has_only_just_begun_is_given_up_when_its_rollout_goes_elsewhere() -> None:
    rollouts = RunningRollouts()
    just, first, late, other = [await begun(rollouts, name, [], move=1) for name in ("just", "first", "late", "other")]
    assert just is not None
    assert first is not None
    assert late is not None
    assert other is not None
    just.goes_on_at, late.goes_on_at, other.goes_on_at = 10.0, 10.0 - JUST_S, 10.0
    rollouts.hold({"just": 1, "first": 1, "late": 1, "other": 0}, 10.1)
    given_up = [each.rollout for each in (just, first, late, other) if each.scope.cancel_called]
    assert given_up == ["just"], "a first turn, a long one, and one of a later request are written to their end"
    assert [each.rollout for each in (just, first, late, other) if each.held] == ["just", "first", "late"]
    assert [each.rollout for each in (just, first, late, other) if each.left] == ["just"]
    rollouts.hold({}, 10.2)
    assert not late.held
    assert just.left, "it cannot be taken back"
