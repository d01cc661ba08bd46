"""The filter holds its journal together with the learner's checkpoints and with what a selection kept; a journal that
is taken away ends the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.kv_scheduler import KVScheduler
from actors.roc_filter import RoCFilter
from agent_rl.config.selection import SelectStage
from agent_rl.config.topology import EnvironmentEntry, Topology
from agent_rl.figures import TrainingFigures
from agent_rl.messages import (
    CheckpointSaved,
    Evaluation,
    EvaluationReady,
    GroupOpened,
    GroupsUnfinished,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
    UnfinishedGroups,
)
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from agent_rl_contract import builders
from agent_rl_contract.filter_bench import FilterBench
from agent_rl_contract.stage import Stage, running, stand_ins
from tests.actors.ends import told_at_the_end
from tests.actors.test_roc_filter import filtering as filtering_of
from tests.actors.test_roc_filter import rows_of, summary_of, unfinished
from tests.actors.topologies import micro

FILTER, BENCH = "roc_filter.0", FilterBench()


def two_stages(folder: Path) -> Topology:
    """Two stages of rl."""
    return micro(folder).model_copy(
        update={"stages": (builders.rl_stage(name="a", steps=1), builders.rl_stage(name="b", steps=9))}
    )


def filtering(folder: Path, run: str = "") -> AbstractAsyncContextManager[tuple[Stage, Any]]:
    """A filter of two stages among its peers; its run directory is ``run`` in the folder, or else the folder."""
    return filtering_of(folder / run, two_stages(folder))


async def enter(stage: Stage, index: int, began: int, version: int, **said: Any) -> StageRecorded:
    said = {"restored": True} | said
    return await stage["learner"].call("stages", FILTER)(StageEntered(index, began, version, **said))


async def settle_group(stage: Stage, number: int, index: int, version: int) -> None:
    group = builders.opened(number, stage=index, version=version)
    await BENCH.settle(stage, group, ["4", "5", "4", "5"], version=version)


async def checkpoint(stage: Stage, path: str, version: int) -> None:
    await stage["learner"].call("checkpoints", FILTER)(CheckpointSaved(path, version, version))


async def train_a_step(stage: Stage, first: int, index: int, version: int) -> StepReady:
    """Two groups, the step of them, and its training."""
    for number in (first, first + 1):
        await settle_group(stage, number, index, version)
    step: StepReady = await stage["learner"].receive(StepReady)
    assert (step.stage, step.version, len(step.groups)) == (index, version, 2)
    await trained(stage, step)
    return step


async def trained(stage: Stage, step: StepReady) -> None:
    told = StepTrained(step.stage, step.version, step.groups, TrainingFigures())
    assert await stage["learner"].call("steps", FILTER)(told) == Recorded()


def copy_another_over_it(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(path.read_bytes())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # also where the clock of files is coarse


HARMS: dict[str, Callable[[Path], Any]] = {
    "the journal is removed": Path.unlink,
    "its log is removed": lambda path: path.with_name("journal.sqlite-wal").unlink(),
    "another is moved there": lambda path: Path(shutil.copy(path, path.with_name("copy"))).replace(path),
    "another is copied over it": copy_another_over_it,
    "its directory is moved": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("idle", [True, False])
async def test_a_journal_that_is_taken_away_ends_the_run(
    tmp_path: Path, harm: Callable[[Path], Any], *, idle: bool
) -> None:
    (tmp_path / "run").mkdir()
    with told_at_the_end() as said:
        async with filtering(tmp_path, "run") as (stage, _):
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


async def test_a_learner_that_goes_on_from_another_history_ends_the_run(tmp_path: Path) -> None:
    """Its checkpoints may lie on another host's disk: what it says of them is held against the journal."""
    with told_at_the_end() as told:
        async with filtering(tmp_path) as (stage, _):
            ours = (await enter(stage, 0, 0, 0)).run
            assert len(ours) == 16
            await train_a_step(stage, 0, 0, 0)
            await checkpoint(stage, "x", 1)
            recorded = await enter(stage, 0, 0, 1, run=ours, last_step=0)
            assert (recorded.epoch, recorded.version) == (2, 1)
            await enter(stage, 0, 0, 2, run=ours, last_step=1)
    assert "is older than the learner's checkpoint of version 2" in told[0]


async def test_a_learner_that_goes_on_within_the_first_stage_is_of_the_same_history(tmp_path: Path) -> None:
    async with filtering(tmp_path) as (stage, _):
        ours = (await enter(stage, 0, 0, 0)).run
        await checkpoint(stage, "a supervised step", 0)
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
        ended = await train_a_step(stage, 0, 1, 1)
        await settle_group(stage, 2, 1, 2)
        waiting = await stage["learner"].receive(TrainingGroup)
        assert waiting.group == "s1-g000002"
        await trio.sleep(1.0)
        stage["learner"].log.clear()

        await enter(stage, 0, 0, 1, run=run, last_step=0)
        await enter(stage, 1, 1, 1, restored=False)
        step = await stage["learner"].receive(StepReady)
        assert step == ended
        assert (await stage["learner"].receive(TrainingGroup)).group == waiting.group
        sent = [message.group for message in stage["learner"].log if isinstance(message, TrainingGroup)]
        assert sent == [*ended.groups, waiting.group]
        await trained(stage, step)
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
        await checkpoint(stage, "checkpoints/version-3", 3)
        await train_a_step(stage, 8, 1, 4)
        await trio.sleep(1.0)
        held = [group for step in steps for group in step.groups if journal.trajectories(group)]
        assert held == [*steps[0].groups, *steps[3].groups]  # samples of the first step, and what a replay needs
        left = {"00000001", "00000002"}
        assert left.isdisjoint(path.name for path in (tmp_path / "journal.trajectories").iterdir())
    assert audit(tmp_path).balanced


# Selections: killed in between, nothing is asked twice -----------------------------------------------------------------

SELECT, RL, PROBLEMS = 0, 1, 3


def selecting(folder: Path) -> Topology:
    """A selection among three problems, two samples each, and a stage that trains on what it keeps."""
    rows = [{"id": f"p{number}", "problem": f"{number + 4} - {number}?", "answer": 4} for number in range(PROBLEMS)]
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    stage = SelectStage(kind="select", name="hard", samples=2, max_response_tokens=20, max_turns=3)
    stages = (stage, builders.rl_stage())
    entry = EnvironmentEntry.model_validate({"class": "maths", "settings": {"files": ["problems.jsonl"]}})
    return micro(folder).model_copy(update={"stages": stages, "environments": (entry,)})


def selected(number: int) -> GroupOpened:
    group = builders.opened(number, stage=SELECT, samples=2, purpose="select")
    problem = replace(group.problem, environment="maths")
    return replace(group, evaluation=None, problem=problem, stage_groups=PROBLEMS)


async def answer(stage: Stage, number: int, answers: list[str | None]) -> None:
    """Open the group of a problem and answer it; None: that answer does not come."""
    group = selected(number)
    await BENCH.open(stage, group)
    for sample, said in enumerate(answers):
        if said is not None:
            arithmetic = replace(group, problem=replace(group.problem, environment="arithmetic"))
            made = builders.trajectory(arithmetic, sample, answer=said)
            await BENCH.give(stage, made)


async def test_a_filter_that_is_killed_again_and_again_counts_each_problem_once_and_says_what_is_kept(
    tmp_path: Path,
) -> None:
    topology = selecting(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage, SELECT, 0, 0)
            await answer(stage, 0, ["4", "5"])
            await answer(stage, 1, ["4", None])
            await trio.sleep(1)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2, kill=True):
            missing = await unfinished(stage, SELECT)
            assert (missing.opened, missing.kept) == (2, None)
            assert [(g.opened.number, [m.sample for m in g.missing]) for g in missing.groups] == [(1, [1])]
            await answer(stage, 1, [None, "4"])
            await answer(stage, 2, ["5", "5"])
            told = await stage["learner"].receive(EvaluationReady)
            assert (told.evaluation, told.figures) == (Evaluation(SELECT), None)
            assert (told.selection.kept, told.selection.dropped) == (2, {"always_solved": 1})
            await trio.sleep(1)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=3):
            await enter(stage, SELECT, 0, 0)  # a learner that has forgotten the result
            assert await stage["learner"].receive(EvaluationReady) == told
            assert (await unfinished(stage, SELECT)).groups == ()
            await enter(stage, RL, 0, 0, restored=False)
            assert (await unfinished(stage, RL)).kept == {"maths": ("p0", "p2")}
    balance = audit(tmp_path)
    assert balance.balanced, balance.lines()
    (row,) = rows_of(tmp_path, "selection")
    assert (row["stage"], row["problems_kept_hard"], row["success_hard"]) == ("hard", 2, 0.5)
    assert summary_of(tmp_path)["problems_always_solved_hard"] == 1


async def test_a_stage_whose_selection_has_no_result_ends_the_run(tmp_path: Path) -> None:
    """It was written before a stage that the run had entered, for instance: no problem is drawn by mistake."""
    with told_at_the_end() as told:
        async with filtering_of(tmp_path, selecting(tmp_path)) as (stage, _):
            await enter(stage, RL, 0, 0)
            await unfinished(stage, RL)
    assert "stages.1: stage 'rl' trains on what stage 'hard' keeps, and that stage has no result" in told[0]


async def test_the_scheduler_asks_each_problem_once_and_then_draws_from_those_that_were_kept(tmp_path: Path) -> None:
    kept = {"maths": ("p1",)}
    topology = selecting(tmp_path)
    async with stand_ins(topology, "kv_scheduler") as stage:
        records = stage["roc_filter"]
        records.reply = lambda message: (
            GroupsUnfinished(message.stage, 0, (), kept=kept if message.stage == RL else None)
            if isinstance(message, UnfinishedGroups)
            else None
        )
        async with running(KVScheduler, topology, "kv_scheduler", tmp_path, stage):
            stage["rollout_generator"].announce("load", "kv_scheduler.0").set(builders.engine_load(total=10_000))
            for at in (SELECT, RL):
                stage["learner"].announce("policy", "kv_scheduler.0").set(
                    builders.published(at, stage=at, stage_version=at)
                )
                stage["rollout_generator"].announce("load", "kv_scheduler.0").set(
                    builders.engine_load(version=at, total=10_000)
                )
                await trio.sleep(5)
        groups = [message for message in records.log if isinstance(message, GroupOpened)]
        first = [group for group in groups if group.stage == SELECT]
        assert [group.problem.id for group in first] == ["p0", "p1", "p2"]
        assert {(group.purpose, group.samples, group.stage_groups) for group in first} == {("select", 2, PROBLEMS)}
        drawn = [group.problem.id for group in groups if group.stage == RL]
        assert drawn == ["p1"] * 4
