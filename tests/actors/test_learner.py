"""The learner among stand-ins, with torch: steps that are not finite, and a full disk.

On the real clock: torch works in a thread, and a mock clock would leap over it.
"""

from __future__ import annotations

import re
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
from agent_rl.config.topology import Topology
from agent_rl.figures import StepFigures
from agent_rl.files.disk import disk_error
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.messages import (
    CheckpointSaved,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
)
from agent_rl.records.checkpoint_files import Position, read_position
from agent_rl_contract.stage import Stage, running, stand_ins
from tests import builders
from tests.actors.topologies import micro
from tests.end_to_end.faulty import BAD_VERSIONS, FaultyLearner
from tests.full_disk import fill, small_disk

pytestmark = pytest.mark.real_time

LEARNER = "learner.0"
STEPS = 8


class AllKept(FaultyLearner):
    """Keeps all weights."""

    async def start(self) -> None:
        await super().start()
        self._model.store.clean = lambda newest: None  # type: ignore[method-assign]

    async def _publish(self) -> None:
        await super()._publish()
        await self._model.publisher.settled()  # all are to be there, also those that the next would overtake
        await self._model.saving.settled()  # no checkpoint is put off


def rl_alone(folder: Path) -> Topology:
    """One stage of RL on a model made here."""
    topology = micro(folder)
    return topology.model_copy(
        update={
            "stages": (builders.rl_stage(steps=STEPS, learning_rate=1e-2, warmup_steps=0),),
            "run": topology.run.model_copy(update={"checkpoint_every": 2}),
            "algorithm": topology.algorithm.model_copy(update={"updates_per_step": 2}),
        }
    )


def ready(version: int) -> tuple[list[TrainingGroup], StepReady]:
    """A step of two groups."""
    numbers = 2 * version, 2 * version + 1
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


async def test_a_step_that_is_not_finite_is_skipped_counted_and_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BAD_VERSIONS, "1")
    async with learning(AllKept, rl_alone(tmp_path), tmp_path, range(3)) as stage:
        steps = await taken(stage, 3)
        assert [step.figures.skipped for step in steps] == [0, 1, 0]
        assert [step.figures.trained_tokens > 0 for step in steps] == [True, False, True]
        assert [len(step.groups) for step in steps] == [2, 2, 2]
        published = weights(tmp_path)
        assert sorted(published) == [0, 1, 2, 3]
        assert same(published[1], published[2])  # bit for bit
        assert not same(published[0], published[1])
        assert not same(published[2], published[3])


@pytest.mark.parametrize(("block", "said"), [(1, 0), (0, 1)])
async def test_the_log_says_once_that_shared_prompts_are_not_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, said: int
) -> None:
    monkeypatch.setattr(PolicyModel, "_block", lambda *_: block)
    with capture_logs() as logs:
        async with learning(Learner, rl_alone(tmp_path), tmp_path, range(2)) as stage:
            await taken(stage, 2)
    assert [each["event"].startswith("shared prompts are computed with each") for each in logs].count(True) == said


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
        async with learning(AllKept, topology, disk, range(3)) as stage:
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
