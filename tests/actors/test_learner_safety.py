"""When a learner saves itself, what it leaves when it is killed then or its policy collapses, how it waits, and what its
log says.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.learner import Learner
from actors.learner.model import Busy, Saving
from actors.weights.files import Checkpoints
from agent_rl.config.selection import SelectStage
from agent_rl.figures import RolloutMeans, StepFigures, TrainingFigures
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.messages import ActorStatus, PolicyPublished, Recorded, StageEntered, StageRecorded, StepReady
from agent_rl.records.checkpoint_files import STATE_FILE, Position, checksum_of_state, read_position
from agent_rl_contract import LearnerContract
from agent_rl_contract.learner import BEGUN, RECIPE
from agent_rl_contract.stage import running, stand_ins
from tests.actors.ends import bench_of, told_at_the_end
from tests.actors.topologies import micro


@pytest.mark.parametrize(
    ("saving", "expected"),
    [
        (0.0, [1, 2, 4, 8, 13, 18, 23, 28]),  # a process that is killed early comes further too
        (0.5, [1, 11, 21]),  # a twentieth of the time
    ],
)
def test_a_new_process_saves_a_supervised_stage_soon_and_then_seldom(saving: float, expected: list[float]) -> None:
    time, saved = 100.0, []
    run = SimpleNamespace(checkpoint_seconds=5.0)
    context: Any = SimpleNamespace(now=lambda: time, topology=SimpleNamespace(run=run))
    saves = Saving(context)
    for tick in range(300):
        time = 100.0 + tick / 10
        if saves.due():
            saved.append(tick / 10)
            saves._saved_at, saves._seconds = time, saving
    assert saved == pytest.approx(expected, abs=0.2)


def test_killed_while_it_deletes_a_checkpoint_it_leaves_none_that_is_half_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(directory: Path) -> None:
        (directory / STATE_FILE).unlink()
        raise KeyboardInterrupt

    saved = Checkpoints(tmp_path)
    for step in (3, 6):
        state = saved.path(Position(0, 0, 0, step)) / STATE_FILE
        state.parent.mkdir(parents=True)
        content = {"stage": 0, "stage_version": 0, "version": 0, "step": step}
        state.write_text(json.dumps(content | {"checksum": checksum_of_state(content)}))
    with monkeypatch.context() as patch:
        patch.setattr("actors.weights.files.remove", lambda path: killed(path) if path.is_dir() else None)
        with pytest.raises(KeyboardInterrupt):
            saved.remove_all_but(1)
    assert Checkpoints(tmp_path).positions() == [Position(0, 0, 0, 6)]
    assert [path.name for path in tmp_path.iterdir()] == ["version-000000-stage-00-step-000006"]


@pytest.mark.parametrize(("block", "said"), [(1, 0), (0, 1)])
def test_the_log_says_once_that_shared_prompts_are_not_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, said: int
) -> None:
    monkeypatch.setattr(PolicyModel, "_block", lambda *_: block)
    contract = bench_of(LearnerContract, Learner)
    with capture_logs() as logs:
        contract.run(partial(contract.finish, tmp_path))
    assert [each["event"].startswith("shared prompts are computed with each") for each in logs].count(True) == said


class Collapsing(Learner):
    """Its policy loses its entropy at version 4."""

    async def start(self) -> None:
        await super().start()
        in_thread = self._model.in_thread

        async def collapsed(work: Any) -> Any:
            figures = await in_thread(work)
            if isinstance(figures, TrainingFigures) and self._position.version >= 4:
                return replace(figures, entropy=0.001)
            return figures

        self._model.in_thread = collapsed  # type: ignore[method-assign]


def test_a_collapse_stops_the_run_names_the_best_checkpoint_and_keeps_it(tmp_path: Path) -> None:
    stage = {**RECIPE[2], "steps": 20, "collapse": {"window": 1, "entropy_below": 0.1}}

    async def main() -> None:
        contract = bench_of(LearnerContract, Collapsing)
        async with contract.among_peers(tmp_path, stages=[RECIPE[0], RECIPE[1], stage, RECIPE[3]]) as (topology, peers):
            changed = topology.model_copy(update={"run": topology.run.model_copy(update={"keep_checkpoints": 1})})
            groups = peers._groups

            async def send(entered: Any) -> None:
                link = peers.stage["roc_filter"].push("training", "learner.0")
                for version in range(entered.version, BEGUN + 6) if entered.stage == 2 else ():
                    for group in groups(version):
                        await link.send(group)
                    success = 0.6 if version == BEGUN else 0.4
                    figures = StepFigures(sampled=RolloutMeans(success=success, response_tokens=12.0))
                    await link.send(StepReady(2, version, tuple(g.group for g in groups(version)), figures))

            original = peers._send
            peers._send = lambda entered: send(entered) if entered.stage == 2 else original(entered)  # type: ignore[method-assign]
            with told_at_the_end() as told:
                async with contract.running(changed, peers.stage):
                    await trio.sleep_forever()
        [message] = told
        assert "step 4 of stage 'rl': training has collapsed: the policy's entropy fell to 0.001" in message
        best = re.search(r"The best checkpoint before is (\S+):", message)
        assert best is not None
        assert Path(best[1]).name == "best-version-000002-stage-02"  # keep_checkpoints is 1, and it was not the newest
        assert read_position(Path(best[1])) == Position(2, BEGUN, 2)
        left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert left == ["best-version-000002-stage-02", "version-000004-stage-02", "version-000005-stage-02"]

    bench_of(LearnerContract, Learner).run(main)


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


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_time_counts_once_however_many_tasks_have_work(moves: list[tuple[bool, int]]) -> None:
    """Each move begins or ends a task's work; then some time passes."""
    time, expected, tasks = 0.0, 0.0, list[ExitStack]()
    busy = Busy(lambda: time)
    for begins, seconds in moves:
        if begins:
            tasks.append(ExitStack())
            tasks[-1].enter_context(busy.working())
        elif tasks:
            tasks.pop(0).close()  # the first one ends while others go on
        expected += seconds if tasks else 0
        time += seconds
        assert busy.seconds() == expected
