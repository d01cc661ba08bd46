"""The run's wall-clock limit holds also for a learner whose next step never comes."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from actors.learner import Learner
from actors.testing import running, stand_ins
from agent_rl.messages import ActorStatus, Recorded, StageEntered, StageRecorded
from tests.actors.topologies import micro


def test_a_learner_that_waits_for_a_step_leaves_the_stage_when_its_time_is_up(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    limited = topology.run.model_copy(update={"max_minutes": 60.0})
    topology = topology.model_copy(update={"run": limited, "stages": (topology.stages[2],)})
    clock = MockClock(rate=1.0)  # torch is loaded in a thread, which a clock that jumps by itself would not wait for

    async def main() -> None:
        async with stand_ins(topology, "learner") as stage:
            records = stage["roc_filter"]
            records.reply = lambda message: StageRecorded(1) if isinstance(message, StageEntered) else Recorded()
            async with running(Learner, topology, "learner", tmp_path, stage):
                entered = await records.receive(StageEntered)
                assert entered.stage == 0
                status = await stage["supervisor.local"].receive(ActorStatus)
                while status.waiting_for != "roc_filter: step 0":
                    status = await stage["supervisor.local"].receive(ActorStatus)
                clock.jump(3600.0)
                entered = await records.next(StageEntered)
                assert entered.stage == 1

    trio.run(main, clock=clock)
