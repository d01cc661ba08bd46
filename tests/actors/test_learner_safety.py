"""A learner killed anywhere, with with damaged checkpoints, or collapsing: what it goes on from, and what it tells."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.contract import LearnerContract
from actors.contract.learner import BEGUN, RECIPE, STEPS, equal, read_weights
from actors.learner import Learner
from actors.learner.model import Busy, Saving
from actors.runtime.process import user_mistake
from actors.testing import running, stand_ins
from actors.weights.files import Checkpoints
from agent_rl.config.selection import SelectStage
from agent_rl.figures import RolloutMeans, StepFigures, SupervisedFigures, TrainingFigures
from agent_rl.messages import (
    ActorStatus,
    CheckpointSaved,
    PolicyPublished,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
)
from agent_rl.records.checkpoint_files import STATE_FILE, Position, checksum_of_state, read_position
from tests.actors.topologies import micro


class Contract(LearnerContract):
    """The contract's peers and virtual time, for a learner of the test's."""

    def __init__(self, actor: type[Learner]) -> None:
        self.actor = actor  # type: ignore[misc]


POINTS = (
    "before a step",
    "between a step and its publication",
    "between publication and record",
    "after the record",
    "in the middle of a checkpoint",
    "between a checkpoint and its report",
)


def dying_at(point: str, version: int) -> tuple[type[Learner], trio.Event]:
    """A learner that goes no further than a point of the step that starts at a version, and the event that it is
    there.
    """
    reached = trio.Event()

    async def die() -> None:
        reached.set()
        await trio.sleep_forever()

    class Dying(Learner):
        async def _step(self, stage: Any, ready: Any) -> None:
            self.at = ready.version
            if (point, self.at) == ("before a step", version):
                await die()
            await super()._step(stage, ready)

        async def _publish(self) -> None:
            if (point, self._position.version - 1) == ("between a step and its publication", version):
                await die()
            await super()._publish()

        async def _ask(self, link: str, message: Any) -> Any:
            there = isinstance(message, StepTrained) and message.version == version
            if there and point == "between publication and record":
                await self._model.publisher.settled()
                await die()
            saved = isinstance(message, CheckpointSaved) and message.version == version + 1
            if saved and point == "between a checkpoint and its report":
                await die()
            answer = await super()._ask(link, message)
            if there and point == "after the record":
                await die()
            return answer

        async def _checkpoint(self, *arguments: Any, **more: Any) -> None:
            if (point, self._position.version - 1) == ("in the middle of a checkpoint", version):
                path = self._model.checkpoints.path(self._position)
                partial = path.with_name(f".{path.name}.partial")
                partial.mkdir(parents=True)
                (partial / "model.safetensors").write_bytes(b"half of it")
                await die()
            await super()._checkpoint(*arguments, **more)

    return Dying, reached


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_it_ends_with_the_same_bits_and_trains_every_group_once(point: str, tmp_path: Path) -> None:
    recipe = [*RECIPE[:2], {**RECIPE[2], "steps": STEPS, "learning_rate": 1e-3}, RECIPE[3]]

    async def main() -> None:
        whole = await Contract(Learner).finish(tmp_path / "whole", stages=recipe)
        dying, reached = dying_at(point, BEGUN)
        folder = tmp_path / "killed"
        async with Contract(dying).among_peers(folder, stages=recipe) as (topology, peers):
            async with Contract(dying).running(topology, peers.stage, kill=True):
                await reached.wait()
            before = len(peers.trained)
            async with Contract(Learner).running(topology, peers.stage, incarnation=2):
                await peers.until("finished")
                last = read_weights(peers.policies[-1])
        went_on = [entered for entered in peers.entered if entered.restored][1].version
        assert [step.version for step in peers.trained[before:]] == list(range(went_on, BEGUN + STEPS))
        assert equal(last, whole.weights[max(whole.weights)])
        assert not list(folder.rglob("*.partial"))

    Contract(Learner).run(main)


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


class EveryThird(Learner):
    """Saves itself after every third supervised step, whatever the clock says."""

    taught = 0

    async def start(self) -> None:
        await super().start()
        self._model.saving.due = lambda: self._position.step % 3 == 0  # type: ignore[method-assign]
        trainer, train = self._model.trainer, self._model.trainer.sft_step

        def counted(batch: Any, stage: Any, step: int) -> SupervisedFigures:
            type(self).taught += 1
            return train(batch, stage, step)

        trainer.sft_step = counted  # type: ignore[method-assign]


def test_killed_within_a_supervised_stage_it_goes_on_there_to_the_same_bits(tmp_path: Path) -> None:
    recipe = [{**RECIPE[0], "steps": 40, "learning_rate": 1e-2}, *RECIPE[1:]]
    reached = trio.Event()

    class Dying(EveryThird):
        dies_at = 0

        async def start(self) -> None:
            await super().start()
            in_thread = self._model.in_thread

            async def dying(work: Any) -> Any:
                if self._position.step == self.dies_at > 0:
                    reached.set()
                    await trio.sleep_forever()
                return await in_thread(work)

            self._model.in_thread = dying  # type: ignore[method-assign]

    async def main() -> None:
        nonlocal reached
        whole = await Contract(Learner).finish(tmp_path / "whole", stages=recipe)
        folder = tmp_path / "killed"
        async with Contract(Dying).among_peers(folder, stages=recipe) as (topology, peers):
            for incarnation, Dying.dies_at in enumerate((8, 20, 35), start=1):
                reached = trio.Event()
                async with Contract(Dying).running(topology, peers.stage, incarnation=incarnation, kill=True):
                    await reached.wait()
            assert [path.name for path in (folder / "checkpoints").glob("version-*")] == [
                "version-000000-stage-00-step-000033"
            ]
            async with Contract(EveryThird).running(topology, peers.stage, incarnation=9):
                await peers.until("finished")
                last = read_weights(peers.policies[-1])
        assert equal(last, whole.weights[max(whole.weights)])
        assert Dying.taught == 8 + (20 - 6) + (35 - 18)
        assert EveryThird.taught == 40 - 33
        assert [path.name for path in (folder / "checkpoints").glob("*-step-*")] == []
        assert peers.entered[-1].stage == len(recipe)

    Contract(Learner).run(main)


def test_stopped_within_a_supervised_stage_it_goes_on_from_the_very_step(tmp_path: Path) -> None:
    recipe = [{**RECIPE[0], "steps": 9}, *RECIPE[1:]]
    taught: list[int] = []

    class Watched(Learner):
        stops_at = 5

        async def start(self) -> None:
            await super().start()
            trainer, train = self._model.trainer, self._model.trainer.sft_step

            def watched(batch: Any, stage: Any, step: int) -> SupervisedFigures:
                taught.append(step)
                self._stopping |= step + 1 == self.stops_at  # as `stop` does
                return train(batch, stage, step)

            trainer.sft_step = watched  # type: ignore[method-assign]

    async def main() -> None:
        async with Contract(Watched).among_peers(tmp_path, stages=recipe) as (topology, peers):
            async with Contract(Watched).running(topology, peers.stage):
                await peers.stage["roc_filter"].next(CheckpointSaved)
            Watched.stops_at = 0
            async with Contract(Watched).running(topology, peers.stage, incarnation=2):
                await peers.until("finished")

    Contract(Learner).run(main)
    assert taught == list(range(9))


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


def damage(path: Path) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("model.safetensors", damage, "its checksum differs"),
        ("training/rank-0/optimizer.safetensors", cut, "bytes long"),
        ("training/rank-0/rng.safetensors", Path.unlink, "cannot be read: No such file"),
        ("training/state.json", cut, "cannot be read: JsonError: not JSON"),
    ],
)
def test_of_a_damaged_checkpoint_the_one_before_is_taken_and_the_file_named(
    name: str, harm: Any, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        whole = await Contract(Learner).finish(tmp_path / "whole")
        folder = tmp_path / "damaged"
        async with Contract(Learner).among_peers(folder) as (topology, peers):
            async with Contract(Learner).running(topology, peers.stage, kill=True):
                await peers.until_trained(BEGUN + 1)
            newest = max((folder / "checkpoints").glob("version-*"))
            harm(newest / name)
            async with Contract(Learner).running(topology, peers.stage, incarnation=2):
                await peers.until("finished")
                last = read_weights(peers.policies[-1])
            aside = newest.with_name(f"damaged-{newest.name}")
            assert aside.is_dir()
        assert equal(last, whole.weights[max(whole.weights)])
        assert [entered for entered in peers.entered if entered.restored][1].version < int(newest.name[8:14])
        told = "".join(capfd.readouterr())
        assert re.search(rf"{newest.name}/{re.escape(name)}.*{said}", told), told

    Contract(Learner).run(main)


def test_without_a_whole_checkpoint_the_run_stops_with_every_fault(tmp_path: Path) -> None:
    async def main() -> None:
        async with Contract(Learner).among_peers(tmp_path) as (topology, peers):
            async with Contract(Learner).running(topology, peers.stage, kill=True):
                await peers.until_trained(BEGUN + 1)
            checkpoints = sorted((tmp_path / "checkpoints").glob("version-*"))
            assert len(checkpoints) > 1
            for checkpoint in checkpoints:
                damage(checkpoint / "model.safetensors")
            with pytest.raises(BaseExceptionGroup) as caught:
                async with Contract(Learner).running(topology, peers.stage, incarnation=2):
                    await trio.sleep_forever()
            message = user_mistake(caught.value) or ""
            assert "no checkpoint of this run is whole" in message
            assert all(f"{checkpoint}/model.safetensors" in message for checkpoint in checkpoints)

    Contract(Learner).run(main)


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
        contract = Contract(Collapsing)
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
            with pytest.raises(BaseExceptionGroup) as caught:
                async with contract.running(changed, peers.stage):
                    await trio.sleep_forever()
        message = user_mistake(caught.value) or ""
        assert "step 4 of stage 'rl': training has collapsed: the policy's entropy fell to 0.001" in message
        best = re.search(r"The best checkpoint before is (\S+):", message)
        assert best is not None
        assert Path(best[1]).name == "best-version-000002-stage-02"  # keep_checkpoints is 1, and it was not the newest
        assert read_position(Path(best[1])) == Position(2, BEGUN, 2)
        left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert left == ["best-version-000002-stage-02", "version-000004-stage-02", "version-000005-stage-02"]

    Contract(Learner).run(main)


def test_the_policy_at_a_stages_start_stays_the_reference_of_a_killed_learner(tmp_path: Path) -> None:
    recipe = [*RECIPE[:2], {**RECIPE[2], "learning_rate": 1e-2}, RECIPE[3]]
    changes: dict[str, Any] = {"stages": recipe, "algorithm": {"kl": {"coefficient": 1.0}}}

    async def main() -> None:
        whole = await Contract(Learner).finish(tmp_path / "whole", **changes)
        estimates = [step.figures.kl for step in whole.trained]
        assert estimates[0] == pytest.approx(0.0, abs=1e-6)
        assert min(estimates[1:]) > 1e-4
        dying, reached = dying_at("before a step", BEGUN + 2)
        folder = tmp_path / "killed"
        async with Contract(dying).among_peers(folder, **changes) as (topology, peers):
            async with Contract(dying).running(topology, peers.stage, kill=True):
                await reached.wait()
            async with Contract(Learner).running(topology, peers.stage, incarnation=2):
                await peers.until("finished")
                last = read_weights(peers.policies[-1])
        assert [entered.version for entered in peers.entered if entered.restored][1] == BEGUN + 1  # within the stage
        assert equal(last, whole.weights[max(whole.weights)])

    Contract(Learner).run(main)


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
