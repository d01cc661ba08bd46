"""A valid message that an actor's class does not declare never reaches it, whoever sends it: counted, told once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.kv_scheduler import KVScheduler
from actors.testing import running, stand_ins
from agent_rl.messages import ToolResult
from tests.actors.topologies import micro
from transport import CallFailed


def test_the_scheduler_goes_on(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    message = ToolResult("c", "success", "", "", "", 0.0, 0.0)

    async def main() -> None:
        async with stand_ins(topology, "kv_scheduler") as stage:
            async with running(KVScheduler, topology, "kv_scheduler", tmp_path, stage) as actor:
                await stage.started("kv_scheduler.0")
                peer = stage["rollout_generator"]
                peer.announce("odd_news", "kv_scheduler.0").set(message)
                await peer.push("odd", "kv_scheduler.0").send(message)
                with pytest.raises(CallFailed, match="is unknown here or not expected"):
                    await peer.call("odd_calls", "kv_scheduler.0")(message)
                await peer.push("odd", "kv_scheduler.0").drained()
                assert actor.context.node.figures["decode_errors"] == 3

    trio.run(main, clock=MockClock(autojump_threshold=0))
