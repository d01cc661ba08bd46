"""The run's wall-clock limit holds also for a learner whose next step never comes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.learner import Learner
from actors.testing import running, stand_ins
from agent_rl.config.selection import SelectStage
from agent_rl.messages import ActorStatus, PolicyPublished, Recorded, StageEntered, StageRecorded
from tests.actors.topologies import micro

SELECT = SelectStage(kind="select", max_response_tokens=20, max_turns=3)


@pytest.mark.parametrize(("select", "waits_for"), [(False, "step 0"), (True, "1 evaluations")])
def test_a_learner_that_waits_for_the_filter_leaves_the_stage_when_its_time_is_up(
    tmp_path: Path, waits_for: str, *, select: bool
) -> None:
    """And the stages after a selection without a result are left at once: their problems are not known."""
    topology = micro(tmp_path)
    limited = topology.run.model_copy(update={"max_minutes": 60.0})
    stages = (SELECT, SELECT, topology.stages[2]) if select else (topology.stages[2],)
    topology = topology.model_copy(update={"run": limited, "stages": stages})
    clock = MockClock(rate=1.0)  # torch is loaded in a thread, which a clock that jumps by itself would not wait for

    async def main() -> None:
        async with stand_ins(topology, "learner") as stage:
            records = stage["roc_filter"]
            records.reply = lambda message: StageRecorded(1) if isinstance(message, StageEntered) else Recorded()
            async with running(Learner, topology, "learner", tmp_path, stage):
                entered = await records.receive(StageEntered)
                assert entered.stage == 0
                status = await stage["supervisor.local"].receive(ActorStatus)
                while status.waiting_for != f"roc_filter: {waits_for}":
                    status = await stage["supervisor.local"].receive(ActorStatus)
                clock.jump(3600.0)
                for index in range(1, len(stages) + 1):
                    entered = await records.next(StageEntered)
                    assert entered.stage == index
                said = [m for m in stage["kv_scheduler"].log if isinstance(m, PolicyPublished)]
                assert {message.stage for message in said} <= {0, len(stages)}

    trio.run(main, clock=clock)
