"""The filter holds its journal together with the learner's checkpoints; a journal that is taken away ends the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.roc_filter import RoCFilter
from agent_rl.config.topology import Topology
from agent_rl.figures import TrainingFigures
from agent_rl.messages import (
    CheckpointSaved,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
)
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from agent_rl_contract.stage import Stage, running, stand_ins
from tests import builders
from tests.actors.ends import told_at_the_end
from tests.actors.topologies import micro

FILTER = "roc_filter.0"


def two_stages(folder: Path) -> Topology:
    """Two stages of rl."""
    return micro(folder).model_copy(
        update={"stages": (builders.rl_stage(name="a", steps=1), builders.rl_stage(name="b", steps=9))}
    )


@asynccontextmanager
async def filtering(folder: Path, run: Path | None = None) -> AsyncIterator[tuple[Stage, Any]]:
    """A filter of two stages among its peers, whose run directory is ``run``, or else the folder."""
    topology = two_stages(folder)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", run or folder, stage) as actor:
            yield stage, actor


async def enter(stage: Stage, index: int, began: int, version: int, **said: Any) -> StageRecorded:
    said = {"restored": True} | said
    return await stage["learner"].call("stages", FILTER)(StageEntered(index, began, version, **said))


async def settle_group(stage: Stage, number: int, index: int, version: int) -> None:
    group = builders.opened(number, stage=index, version=version)
    opened = stage["kv_scheduler"].push("groups", FILTER)
    await opened.send(group)
    await opened.drained()
    for sample, answer in enumerate(["4", "5", "4", "5"]):
        made = builders.trajectory(group, sample, answer=answer, version=version)
        await stage["rollout_generator"].push("trajectories", FILTER).send(made)


async def train_a_step(stage: Stage, first: int, index: int, version: int) -> StepReady:
    """Two groups, the step of them, and its training."""
    for number in (first, first + 1):
        await settle_group(stage, number, index, version)
    step: StepReady = await stage["learner"].receive(StepReady)
    assert (step.stage, step.version, len(step.groups)) == (index, version, 2)
    trained = StepTrained(index, version, step.groups, TrainingFigures())
    assert await stage["learner"].call("steps", FILTER)(trained) == Recorded()
    return step


def remove_log(path: Path) -> None:
    path.with_name("journal.sqlite-wal").unlink()


def move_another_there(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def copy_another_over_it(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(path.read_bytes())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # also where the clock of files is coarse


def move_the_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize(
    "harm", [Path.unlink, remove_log, move_another_there, copy_another_over_it, move_the_directory]
)
@pytest.mark.parametrize("idle", [True, False])
async def test_a_journal_that_is_taken_away_ends_the_run(
    tmp_path: Path, harm: Callable[[Path], None], *, idle: bool
) -> None:
    (tmp_path / "run").mkdir()
    with told_at_the_end() as said:
        async with filtering(tmp_path, tmp_path / "run") as (stage, _):
            await enter(stage, 0, 0, 0)
            await train_a_step(stage, 0, 0, 0)
            harm(tmp_path / "run" / "journal.sqlite")
            if idle:
                await trio.sleep(1.1)
            else:
                await settle_group(stage, 2, 0, 0)
            await trio.sleep(0.5)
            pytest.fail("the run goes on")
    assert said[0].startswith(f"{tmp_path / 'run' / 'journal.sqlite'} was ")
    assert "while the run was going; the run cannot go on without it. Move what is left elsewhere" in said[0]


async def test_a_filter_that_starts_again_without_its_journal_ends_the_run(tmp_path: Path) -> None:
    topology = two_stages(tmp_path)
    with told_at_the_end() as said:
        async with stand_ins(topology, "roc_filter") as stage:
            async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
                await enter(stage, 0, 0, 0)
                await train_a_step(stage, 0, 0, 0)
            (tmp_path / "journal.sqlite").unlink()
            async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
                await trio.sleep(1.0)
    assert "journal.sqlite is missing, and the run has a history: 1 rows in metrics.jsonl" in said[0]
    assert not (tmp_path / "journal.sqlite").exists()


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"run": "another run", "last_step": 0}, "belongs to run another run, and"),
        ({"version": 2, "run": "", "last_step": 1}, "is older than the learner's checkpoint of version 2"),
        ({"version": 0, "run": ""}, "records checkpoints, but there is none"),
    ],
)
async def test_a_learner_that_goes_on_from_another_history_ends_the_run(
    tmp_path: Path, said: dict[str, Any], fault: str
) -> None:
    """Its checkpoints may lie on another host's disk: what it says of them is held against the journal."""
    with told_at_the_end() as told:
        async with filtering(tmp_path) as (stage, _):
            ours = (await enter(stage, 0, 0, 0)).run
            assert len(ours) == 16
            await train_a_step(stage, 0, 0, 0)
            await stage["learner"].call("checkpoints", FILTER)(CheckpointSaved("x", 1, 1))
            recorded = await enter(stage, 0, 0, 1, run=ours, last_step=0)
            assert (recorded.epoch, recorded.version) == (2, 1)
            version = said.get("version", 1)
            others = {name: value for name, value in said.items() if name != "version"}
            await enter(stage, 0, 0, version, **others | {"run": said["run"] or ours * bool(version)})
    assert fault in told[0]


async def test_a_learner_that_goes_on_within_the_first_stage_is_of_the_same_history(tmp_path: Path) -> None:
    async with filtering(tmp_path) as (stage, _):
        ours = (await enter(stage, 0, 0, 0)).run
        await stage["learner"].call("checkpoints", FILTER)(CheckpointSaved("a supervised step", 0, 0))
        assert (await enter(stage, 0, 0, 0, run=ours)).epoch == 2


async def test_a_learner_that_needs_rollouts_that_are_gone_ends_the_run(tmp_path: Path) -> None:
    with told_at_the_end() as said:
        async with filtering(tmp_path) as (stage, actor):
            await enter(stage, 1, 0, 0)
            await train_a_step(stage, 0, 1, 0)
            actor._journal._db.execute("DELETE FROM trajectories")
            await enter(stage, 1, 0, 0)  # one of its own, which names no run
            await trio.sleep(1.0)
    assert "no longer holds the rollouts of group s1-g000000, which the learner needs again" in said[0]


async def test_a_learner_that_went_back_over_a_stages_end_gets_the_later_stages_steps_again(tmp_path: Path) -> None:
    """The checkpoint at the stage's end was damaged and set aside: the one before it is of the stage before."""
    async with filtering(tmp_path) as (stage, _):
        run = (await enter(stage, 0, 0, 0)).run
        await train_a_step(stage, 0, 0, 0)
        assert (await enter(stage, 1, 1, 1, restored=False)).epoch == 1
        trained = await train_a_step(stage, 0, 1, 1)
        await settle_group(stage, 2, 1, 2)
        waiting = await stage["learner"].receive(TrainingGroup)
        assert waiting.group == "s1-g000002"
        await trio.sleep(1.0)
        stage["learner"].log.clear()

        await enter(stage, 0, 0, 1, run=run, last_step=0)
        await enter(stage, 1, 1, 1, restored=False)
        step = await stage["learner"].receive(StepReady)
        assert step == trained
        assert (await stage["learner"].receive(TrainingGroup)).group == waiting.group
        sent = [message.group for message in stage["learner"].log if isinstance(message, TrainingGroup)]
        assert sent == [*trained.groups, waiting.group]
        await stage["learner"].call("steps", FILTER)(StepTrained(1, 1, step.groups, TrainingFigures()))
        await settle_group(stage, 3, 1, 2)
        following = await stage["learner"].receive(StepReady)
        assert (following.version, following.groups) == (2, ("s1-g000002", "s1-g000003"))
    balance = audit(tmp_path)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.open, balance.dropped) == (4, 2, {})


async def test_what_is_told_is_in_the_journal_first(tmp_path: Path) -> None:
    """A row of metrics.jsonl, and the answer to a trained step, come after the commit."""
    async with filtering(tmp_path) as (stage, _):
        await enter(stage, 0, 0, 0)
        await train_a_step(stage, 0, 0, 0)
        journal = Journal(tmp_path / "journal.sqlite", read_only=True)
        assert journal.last_step() == 0
        assert (tmp_path / "metrics.jsonl").read_text().splitlines() == journal.records()
        journal.close()


async def test_trajectories_that_no_replay_needs_leave_while_the_filter_works(tmp_path: Path) -> None:
    async with filtering(tmp_path) as (stage, actor):
        await enter(stage, 1, 0, 0)
        journal: Journal = actor._journal
        journal.segment_bytes = 1
        steps = [await train_a_step(stage, 2 * version, 1, version) for version in range(4)]
        await stage["learner"].call("checkpoints", FILTER)(CheckpointSaved("checkpoints/version-3", 3, 3))
        await train_a_step(stage, 8, 1, 4)
        await trio.sleep(1.0)
        held = [group for step in steps for group in step.groups if journal.trajectories(group)]
        assert held == [*steps[0].groups, *steps[3].groups]  # samples of the first step, and what a replay needs
        left = {"00000001", "00000002"}
        assert left.isdisjoint(path.name for path in (tmp_path / "journal.trajectories").iterdir())
    assert audit(tmp_path).balanced
