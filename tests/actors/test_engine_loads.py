"""A generator announces its engine's load when it has changed, or when a peer that had lost it must hear it again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import trio

from actors.engines.base import EngineFigures
from actors.rollout_generator import RolloutGenerator
from agent_rl.messages import EngineLoad
from agent_rl_contract import GeneratorContract
from agent_rl_contract.scripted import ScriptedEngine
from tests.transport.contract import Cut, FaultyNetwork
from transport import Limits, LinkEvent, PeerBack, PeerGone
from transport.memory import MemoryNetwork


async def test_a_load_is_announced_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"kv_tokens_used": 0, "preempted": 0, "cached_tokens": 0}
    monkeypatch.setattr(
        ScriptedEngine, "figures", property(lambda _: EngineFigures(kv_tokens_total=6400, max_rollouts=8, **now))
    )
    bench = GeneratorContract()
    bench.actor = RolloutGenerator  # type: ignore[misc]
    seen: list[list[EngineLoad]] = []
    async with bench.bench(tmp_path) as made:

        async def look() -> None:
            await bench.settled(10)
            seen.append([each for each in made.stage["kv_scheduler"].log if isinstance(each, EngineLoad)])

        await made.ask()
        await made.trajectory()
        await look()
        await look()
        now["kv_tokens_used"] = 99
        await look()
        now["kv_tokens_used"], now["cached_tokens"] = 100, 7
        await look()
        now["preempted"] = 1
        await look()
    assert len(seen[0]) >= 1
    assert len(seen[1]) == len(seen[0]), "a load was sent again though nothing had changed"
    assert len(seen[2]) == len(seen[0]), "less than a 64th of the cache is no news"
    assert [(load.kv_tokens_used, load.cached_tokens) for load in seen[3][len(seen[2]) :]] == [(100, 7)]
    assert [load.preempted for load in seen[4][len(seen[3]) :]] == [1]
    assert all(before.news != after.news for before, after in pairwise(seen[4]))


async def test_whoever_had_lost_an_idle_generator_hears_its_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scheduler and learner drop the engine of a lost generator, which has nothing new to announce."""
    cut = Cut()
    monkeypatch.setattr("agent_rl_contract.stage.MemoryNetwork", lambda: FaultyNetwork(MemoryNetwork(), cut))
    bench = GeneratorContract()
    bench.actor = RolloutGenerator  # type: ignore[misc]
    async with bench.bench(tmp_path) as made:
        peers = [made.stage[role] for role in ("kv_scheduler", "learner")]
        loads: dict[str, EngineLoad] = {}
        events: list[LinkEvent] = []
        for peer in peers:
            peer.node.watch(events.append)
        await bench.settled(10)
        for peer in peers:
            *_, loads[peer.name] = [each for each in peer.log if isinstance(each, EngineLoad)]
        cut.closed = True
        await trio.sleep(2 * Limits().lost_after)
        assert sum(isinstance(event, PeerGone) for event in events) == len(peers)
        for peer in peers:
            peer.forget()
        cut.closed = False
        for peer in peers:
            assert (await peer.receive(EngineLoad)).news == loads[peer.name].news
        assert sum(isinstance(event, PeerBack) for event in events) == len(peers)
