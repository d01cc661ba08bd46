"""Rollouts of a generator whose scheduler gets a new process: none of them is run twice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from actors.rollout_generator.kept_turns import KeptTurns
from actors.rollout_generator.running import Running, RunningRollouts
from agent_rl_contract.builders import request


async def asked(
    rollouts: RunningRollouts, rollout: str, acknowledged: list[str], *, placement_epoch: int = 0
) -> Running | None:
    wanted = replace(request(), rollout=rollout, placement_epoch=placement_epoch)
    return await rollouts.begin(wanted, lambda: acknowledged.append(rollout))


async def begun(*given: Any, **more: Any) -> Running:
    running = await asked(*given, **more)
    assert running is not None
    return running


async def test_an_orphan_that_is_asked_for_goes_on() -> None:
    rollouts, acknowledged = RunningRollouts(), list[str]()
    running = await begun(rollouts, "a", acknowledged, placement_epoch=2)
    rollouts.orphaned()
    assert rollouts.orphans == {"a": 2}
    assert await asked(rollouts, "a", acknowledged, placement_epoch=2) is None
    assert (rollouts.orphans, acknowledged) == ({}, [])
    rollouts.end(running)
    assert acknowledged == ["a", "a"]
    assert await asked(rollouts, "a", acknowledged, placement_epoch=3) is not None


async def test_an_orphan_that_ended_before_it_was_asked_for_is_acknowledged_and_not_run_again() -> None:
    rollouts, acknowledged = RunningRollouts(), list[str]()
    running = await begun(rollouts, "a", acknowledged)
    rollouts.orphaned()
    rollouts.end(running)
    assert rollouts.orphans == {}
    assert await asked(rollouts, "a", acknowledged) is None
    assert acknowledged == ["a", "a"]
    assert await asked(rollouts, "a", acknowledged) is not None, "it is run when it is asked for once more"


async def test_a_rollout_is_abandoned_for_a_later_request_alone_and_returns_when_it_is_over_here() -> None:
    rollouts, acknowledged = RunningRollouts(), list[str]()
    running = await begun(rollouts, "a", acknowledged, placement_epoch=2)
    assert [rollouts.abandon({"a": epoch, "b": 9}) for epoch in (1, 2)] == [0, 0]
    running.sampled = True
    assert (rollouts.abandon({"a": 3}), running.scope.cancel_called, rollouts.sampling) == (0, False, 0)
    running.sampled = False
    assert [rollouts.abandon({"a": 3}) for _ in range(2)] == [1, 0]
    assert running.scope.cancel_called
    rollouts.orphaned()
    assert rollouts.orphans == {}
    returned: list[Running] = []

    async def returns() -> None:
        returned.append(await begun(rollouts, "a", acknowledged, placement_epoch=4))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(returns)
        await wait_all_tasks_blocked()
        assert not returned
        rollouts.end(running)
    assert (returned[0].placement_epoch, acknowledged) == (4, ["a"])
    assert (rollouts.abandon({"a": 4}), rollouts.sampling) == (0, 1)


async def test_dropped_groups_end() -> None:
    rollouts = RunningRollouts()
    a, b = [await begun(rollouts, name, []) for name in "ab"]
    b.group = "other"
    rollouts.cancel([a.group])
    assert (a.scope.cancel_called, b.scope.cancel_called) == (True, False)


async def test_the_scheduler_hears_how_each_rollout_goes_on_with_all_its_turns_in_order() -> None:
    sent, acks = list[Any](), list[Any]()

    async def send(message: Any, *, on_ack: Any) -> None:
        sent.append((message.rollout, message.turns, message.then, message.placement_epoch, message.tokens))
        acks.append(on_ack)
        await trio.sleep(1)

    link = SimpleNamespace(send=send, drained=trio.lowlevel.checkpoint)
    kept = KeptTurns(SimpleNamespace(name="g", link=lambda _: link))  # type: ignore[arg-type]
    a, b = (SimpleNamespace(request=request(rollout=name), tokens=[5] * 4, completed=[]) for name in "ab")

    def turn(episode: Any, number: Any) -> None:
        episode.completed.append(number)
        episode.tokens.append(5)
        kept.completed(episode, number)

    async def told(*expected: Any) -> None:
        await kept.kept()
        assert sent == list(expected)
        sent.clear()

    async with trio.open_nursery() as nursery:
        turn(a, 1)
        turn(b, 7)
        turn(a, 2)
        nursery.start_soon(kept.run)
        await told(("a", (1, 2), "goes_on", 0, 6), ("b", (7,), "goes_on", 0, 5))
        kept.repeat("b")
        await told(("b", (7,), "goes_on", 0, 5))
        turn(a, 3)
        kept.repeat("a")
        await told(("a", (1, 2, 3), "goes_on", 0, 7))  # a new scheduler gets no turn twice
        turn(b, 8)
        kept.leave("b", 3, 6, lambda: acks.append("known"))
        await told(("b", (8,), "left", 3, 6))
        acks[-1]()
        assert acks[-1] == "known"
        turn(a, 4)
        kept.ended("a", 8)
        for name in "ab":
            kept.repeat(name)
        await told(("a", (), "ended", 0, 8))  # its turns are in its trajectory
        turn(b, 9)
        kept.forget("b")
        await told()
        kept.resumed(b)  # type: ignore[arg-type]
        kept.repeat("b")
        await told(("b", (7, 8, 9), "goes_on", 0, 7))
        nursery.cancel_scope.cancel()
