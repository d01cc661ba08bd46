"""The learner among stand-ins: steps that are not finite, and where a stopped run goes on.

On the real clock: torch works in a thread, and a mock clock would leap over it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from safetensors.torch import load_file
from structlog.testing import capture_logs

from actors.learner import Learner
from actors.runtime.process import user_mistake
from actors.testing import Stage, running, stand_ins
from agent_rl.config.topology import SftStage, Topology
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans, StepFigures, SupervisedFigures
from agent_rl.files.disk import disk_error
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.messages import (
    CheckpointSaved,
    Evaluation,
    EvaluationReady,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
)
from agent_rl.records.checkpoint_files import Position, read_position
from tests import builders
from tests.actors.topologies import micro
from tests.builders import evaluate_stage
from tests.full_disk import fill, small_disk

pytestmark = pytest.mark.real_time

LEARNER = "learner.0"
STEPS = 8


def at_versions(*bad: int) -> type[Learner]:
    """A learner that keeps all weights, and whose loss is NaN in the steps at these versions."""

    class Faulty(Learner):
        async def start(self) -> None:
            await super().start()
            self._model.store.clean = lambda newest: None  # type: ignore[method-assign]
            trainer, loss = self._model.trainer, self._model.trainer.loss

            def faulty(batch: Any, settings: Any) -> Any:
                terms = loss(batch, settings)
                return replace(terms, objective=terms.objective * (torch.nan if self._position.version in bad else 1.0))

            trainer.loss = faulty

        async def _publish(self) -> None:
            await super()._publish()
            await self._model.publisher.settled()  # all are to be there, also those that the next would overtake
            await self._model.saving.settled()  # no checkpoint is put off

    return Faulty


def rl_alone(folder: Path, *, checkpoint_every: int = 2, updates: int = 2) -> Topology:
    """One stage of RL on a model made here."""
    topology = micro(folder)
    return topology.model_copy(
        update={
            "stages": (builders.rl_stage(steps=STEPS, learning_rate=1e-2, warmup_steps=0),),
            "run": topology.run.model_copy(update={"checkpoint_every": checkpoint_every}),
            "algorithm": topology.algorithm.model_copy(update={"updates_per_step": updates}),
        }
    )


def ready(version: int, *, empty: bool = False) -> tuple[list[TrainingGroup], StepReady]:
    """A step of two groups."""
    numbers = () if empty else (2 * version, 2 * version + 1)
    groups = [builders.training_group(builders.opened(number), [1.0, 0.0, 0.0, 1.0]) for number in numbers]
    return groups, StepReady(0, version, tuple(group.group for group in groups), StepFigures())


@asynccontextmanager
async def learning(
    cls: type[Learner], topology: Topology, folder: Path, steps: Iterable[int], *, incarnation: int = 1
) -> AsyncIterator[Stage]:
    """The learner among stand-ins that record what it asks and have sent it these steps."""
    async with stand_ins(topology, "learner") as stage:
        replies = {StageEntered: StageRecorded(1), StepTrained: Recorded(), CheckpointSaved: Recorded()}
        stage["roc_filter"].reply = lambda message: replies[type(message)]
        async with running(cls, topology, "learner", folder, stage, incarnation=incarnation):
            training = stage["roc_filter"].push("training", LEARNER)
            for version in steps:
                groups, step = ready(version)
                for message in (*groups, step):
                    await training.send(message)
            yield stage


async def taken(stage: Stage, count: int) -> list[StepTrained]:
    return [await stage["roc_filter"].receive(StepTrained) for _ in range(count)]


def message_of(stop: pytest.ExceptionInfo[BaseExceptionGroup[Any]]) -> str:
    """What the user is told; anything but a stop is raised again."""
    message = user_mistake(stop.value)
    if message is None:
        raise stop.value
    return message


def weights(folder: Path) -> dict[int, dict[str, torch.Tensor]]:
    """What was published, by version; gone when the learner has stopped."""
    files = (folder / "weights").glob("policy-*.safetensors")
    return {int(file.stem.rsplit("-", 1)[1]): load_file(file) for file in files}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def positions(folder: Path) -> list[Position | None]:
    return [read_position(path) for path in sorted((folder / "checkpoints").glob("version-*"))]


async def test_a_step_that_is_not_finite_is_skipped_counted_and_followed_by_the_next(tmp_path: Path) -> None:
    async with learning(at_versions(1), rl_alone(tmp_path), tmp_path, range(3)) as stage:
        steps = await taken(stage, 3)
        assert [step.figures.skipped for step in steps] == [0, 1, 0]
        assert [step.figures.trained_tokens > 0 for step in steps] == [True, False, True]
        assert [len(step.groups) for step in steps] == [2, 2, 2]
        published = weights(tmp_path)
        assert sorted(published) == [0, 1, 2, 3]
        assert same(published[1], published[2])  # bit for bit
        assert not same(published[0], published[1])
        assert not same(published[2], published[3])


def test_three_in_a_row_stop_the_run_before_the_first_and_it_goes_on_from_there(tmp_path: Path) -> None:
    topology = rl_alone(tmp_path)

    async def bad() -> None:
        async with learning(at_versions(3, 4, 5), topology, tmp_path, range(STEPS)) as stage:
            stages.append(stage)
            await trio.sleep_forever()

    stages: list[Stage] = []
    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(bad)
    message = message_of(caught)
    assert "3 steps of stage 'rl' in a row were not finite and changed nothing (step 4: the loss is nan" in message
    assert re.search(r"step 5: .* step 6: ", message)
    assert "lower the stage's learning_rate" in message
    assert f"{tmp_path}/checkpoints/version-000003-stage-00" in message
    recorded = [step for step in stages[0]["roc_filter"].log if isinstance(step, StepTrained)]
    assert [step.figures.skipped for step in recorded] == [0, 0, 0, 1, 1, 1]
    assert positions(tmp_path) == [Position(0, 0, 2), Position(0, 0, 3)]  # none of a skipped step's

    async def good() -> None:
        async with learning(Learner, topology, tmp_path, range(3, STEPS), incarnation=2) as stage:
            entered = await stage["roc_filter"].receive(StageEntered)
            assert (entered.version, entered.restored) == (3, True)
            steps = await taken(stage, STEPS - 3)
            assert [step.version for step in steps] == list(range(3, STEPS))
            assert [step.figures.skipped for step in steps] == [0] * (STEPS - 3)

    trio.run(good)


def test_the_checkpoint_of_a_stopped_run_holds_the_weights_from_before_the_first_bad_step(tmp_path: Path) -> None:
    async def main(folder: Path, *bad: int) -> None:
        async with learning(at_versions(*bad), rl_alone(folder, checkpoint_every=50), folder, range(4)) as stage:
            await taken(stage, 4)
            published.append(weights(folder))
            if not bad:
                return
            await trio.sleep_forever()

    published: list[dict[int, dict[str, torch.Tensor]]] = []
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    trio.run(main, tmp_path / "good")
    with pytest.raises(BaseExceptionGroup):
        trio.run(main, tmp_path / "bad", 1, 2, 3)
    checkpoint = load_file(tmp_path / "bad" / "checkpoints" / "version-000001-stage-00" / "model.safetensors")
    assert same(checkpoint, published[0][1])


async def test_no_checkpoint_is_of_a_skipped_step_and_none_is_forgotten(tmp_path: Path) -> None:
    async with learning(at_versions(1, 2, 4), rl_alone(tmp_path), tmp_path, range(6)) as stage:
        saved = [(await stage["roc_filter"].receive(CheckpointSaved)).version for _ in range(2)]
        assert saved == [4, 6]  # that of version 2 came with the next step that was trained


async def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    trained = threading.Event()

    class Slow(Learner):
        async def start(self) -> None:
            await super().start()
            stage = self._model.trainer.stage

            def staged(*given: Any) -> Any:
                made = stage(*given)
                write = made.write

                def slow() -> None:
                    assert trained.wait(60.0)
                    write()

                made.write = slow  # type: ignore[method-assign]
                return made

            self._model.trainer.stage = staged  # type: ignore[method-assign]

    async with learning(Slow, rl_alone(tmp_path), tmp_path, range(6)) as stage:
        await taken(stage, 5)
        assert positions(tmp_path) == []
        assert not [m for m in stage["roc_filter"].log if isinstance(m, CheckpointSaved)]
        trained.set()
        assert (await stage["roc_filter"].receive(CheckpointSaved)).version == 2
    found = tmp_path / "checkpoints" / "version-000002-stage-00" / "model.safetensors"
    twin = tmp_path / "twin"
    twin.mkdir()
    await one_checkpoint(twin)
    expected = twin / "checkpoints" / "version-000002-stage-00" / "model.safetensors"
    assert same(load_file(found), load_file(expected))  # later steps have not changed the copies


async def one_checkpoint(folder: Path) -> None:
    async with learning(at_versions(), rl_alone(folder), folder, range(2)) as stage:
        assert (await stage["roc_filter"].receive(CheckpointSaved)).version == 2


async def test_the_card_of_a_checkpoint_has_the_evaluations_so_far_also_after_a_restart(tmp_path: Path) -> None:
    topology = rl_alone(tmp_path)
    stages = (builders.rl_stage(steps=2), *(evaluate_stage(name=name, problems=4) for name in ("after", "again")))
    topology = topology.model_copy(update={"stages": stages})
    answers = AnswerFigures(problems=4, success=0.75, low=0.301, high=0.954, lost=0, answered=RolloutMeans())

    async def evaluated(stage: Stage, index: int, name: str) -> str:
        figures = EvaluationFigures(name=name, sampled=answers)
        await stage["roc_filter"].push("training", LEARNER).send(EvaluationReady(Evaluation(index), figures))
        while not (saved := await stage["roc_filter"].receive(CheckpointSaved)).path.endswith(f"stage-0{index + 1}"):
            pass
        return (Path(saved.path) / "README.md").read_text()

    async with learning(Learner, topology, tmp_path, range(2)) as stage:
        card = await evaluated(stage, 1, "after")
        row = "| after | 2 | sampled | 75.0% | 30.1% to 95.4% | 4 |"
        assert row in card.splitlines()
    async with learning(Learner, topology, tmp_path, (), incarnation=2) as stage:
        card = await evaluated(stage, 2, "again")
        assert [line for line in card.splitlines() if "| 2 | sampled |" in line] == [row, row.replace("after", "again")]


@pytest.mark.parametrize(("block", "said"), [(1, 0), (0, 1)])
async def test_the_log_says_once_that_shared_prompts_are_not_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, said: int
) -> None:
    monkeypatch.setattr(PolicyModel, "_block", lambda *_: block)
    with capture_logs() as logs:
        async with learning(Learner, rl_alone(tmp_path), tmp_path, range(2)) as stage:
            await taken(stage, 2)
    assert [each["event"].startswith("shared prompts are computed with each") for each in logs].count(True) == said


def test_an_empty_step_between_skipped_ones_is_no_good_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with learning(at_versions(0, 2, 3), rl_alone(tmp_path), tmp_path, [0]) as stage:
            training = stage["roc_filter"].push("training", LEARNER)
            await training.send(ready(1, empty=True)[1])
            for version in (2, 3):
                groups, step = ready(version)
                for message in (*groups, step):
                    await training.send(message)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert "(step 1: " in message_of(caught)
    assert positions(tmp_path) == [Position(0, 0, 0)]


def test_a_group_with_log_probabilities_that_are_not_finite_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with learning(Learner, rl_alone(tmp_path), tmp_path, []) as stage:
            training = stage["roc_filter"].push("training", LEARNER)
            for version in range(3):
                groups, step = ready(version)
                logprobs = groups[1].trajectories[2].unpack().logprobs.copy()
                logprobs[0] = -np.inf
                first, second, third, *others = groups[1].trajectories
                groups[1] = replace(
                    groups[1], trajectories=(first, second, builders.repacked(third, logprobs=logprobs), *others)
                )
                for message in (*groups, step):
                    await training.send(message)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert "log-probabilities by the engine of s0-g000005, sample 2" in message_of(caught)


def test_a_full_disk_stops_the_learner_with_its_checkpoints_whole_and_it_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    async def main(topology: Topology, disk: Path) -> None:
        async with learning(at_versions(), topology, disk, range(3)) as stage:
            await taken(stage, 3)
            fill(disk, but=50_000)
            training = stage["roc_filter"].push("training", LEARNER)
            for version in range(3, STEPS):
                groups, step = ready(version)
                for message in (*groups, step):
                    await training.send(message)
            await trio.sleep_forever()

    async def again(topology: Topology, disk: Path) -> None:
        async with learning(Learner, topology, disk, range(2, STEPS), incarnation=2) as stage:
            entered = await stage["roc_filter"].receive(StageEntered)
            assert (entered.version, entered.restored) == (2, True)
            assert len(await taken(stage, STEPS - 2)) == STEPS - 2

    topology = rl_alone(tmp_path)
    with small_disk(tmp_path / "small", "2M") as disk:
        with pytest.raises(BaseExceptionGroup) as caught:
            trio.run(main, topology, disk)
        message = str(disk_error(caught.value, disk))
        assert re.match(
            rf"{disk}/(weights|checkpoints)/\S+ cannot be written: No space left on device; make room", message
        )
        assert positions(disk)[-1] == Position(0, 0, 2)
        assert not list(disk.rglob(".*.partial"))
        (disk / "filler").unlink()
        trio.run(again, topology, disk)


def test_supervised_steps_are_skipped_counted_and_stop_the_run_too(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    stage_of = SftStage(kind="sft", steps=6, batch=4, learning_rate=1e-3)

    def learner(*bad: int) -> type[Learner]:
        class Faulty(Learner):
            async def start(self) -> None:
                await super().start()
                trainer, train = self._model.trainer, self._model.trainer.sft_step
                head = trainer.model.module.lm_head

                def faulty(batch: Any, stage: Any, step: int) -> SupervisedFigures:
                    bias = head.weight.new_zeros(len(head.weight)) / (0.0 if step in bad else 1.0)
                    head.bias = torch.nn.Parameter(bias)
                    try:
                        return train(batch, stage, step)
                    finally:
                        head.bias = None

                trainer.sft_step = faulty  # type: ignore[method-assign]

        return Faulty

    async def main(folder: Path, *bad: int) -> StageEntered:
        never = topology.run.model_copy(update={"checkpoint_seconds": 1e6})
        alone = topology.model_copy(update={"stages": (stage_of, builders.rl_stage()), "run": never})
        async with learning(learner(*bad), alone, folder, []) as stage:
            await stage["roc_filter"].receive(StageEntered)
            return await stage["roc_filter"].receive(StageEntered)

    (tmp_path / "good").mkdir()
    left = trio.run(main, tmp_path / "good", 1, 2, 4)
    assert left.left.supervised.steps_skipped == 3
    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main, tmp_path, 2, 3, 4)
    message = message_of(caught)
    assert "3 steps of stage 'sft' in a row" in message
    assert "step 3: the loss is nan on a micro-batch of 4 demonstrations" in message
    assert "from the model the run began with" in message
    assert positions(tmp_path) == []
