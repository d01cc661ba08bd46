"""Filter and scheduler in a select stage and after it, in virtual time: killed in between, nothing is asked twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import trio

from actors.base import ask
from actors.kv_scheduler import KVScheduler
from actors.roc_filter import RoCFilter
from agent_rl.config.selection import SelectStage
from agent_rl.config.topology import EnvironmentEntry, Topology
from agent_rl.messages import Evaluation, EvaluationReady, GroupOpened, GroupsUnfinished, StageEntered, UnfinishedGroups
from agent_rl.records.audit import audit
from agent_rl_contract.stage import Stage, running, stand_ins
from tests import builders
from tests.actors.ends import told_at_the_end
from tests.actors.topologies import micro

SELECT, RL = 0, 1
FILTER, SCHEDULER = "roc_filter.0", "kv_scheduler.0"
PROBLEMS = 3


def selecting(folder: Path) -> Topology:
    """A selection among three problems, two samples each, and a stage that trains on what it keeps."""
    rows = [{"id": f"p{number}", "problem": f"{number + 4} - {number}?", "answer": 4} for number in range(PROBLEMS)]
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    stage = SelectStage(kind="select", name="hard", samples=2, max_response_tokens=20, max_turns=3)
    stages = (stage, builders.rl_stage())
    entry = EnvironmentEntry.model_validate({"class": "maths", "settings": {"files": ["problems.jsonl"]}})
    return micro(folder).model_copy(update={"stages": stages, "environments": (entry,)})


def opened(number: int) -> GroupOpened:
    group = builders.opened(number, stage=SELECT, samples=2, purpose="select")
    problem = replace(group.problem, environment="maths")
    return replace(group, evaluation=None, problem=problem, stage_groups=PROBLEMS)


async def enter(stage: Stage, index: int, *, restored: bool) -> None:
    entered = StageEntered(index, 0, 0, restored=restored)
    await ask(stage["learner"].call("stages", FILTER), entered, timeout=10)


async def answer(stage: Stage, number: int, answers: list[str | None]) -> None:
    """Open the group of a problem and answer it; None: that answer does not come."""
    group = opened(number)
    groups = stage["kv_scheduler"].push("groups", FILTER)
    await groups.send(group)
    await groups.drained()
    for sample, said in enumerate(answers):
        if said is not None:
            arithmetic = replace(group, problem=replace(group.problem, environment="arithmetic"))
            made = builders.trajectory(arithmetic, sample, answer=said)
            await stage["rollout_generator"].push("trajectories", FILTER).send(made)


async def unfinished(stage: Stage, index: int) -> GroupsUnfinished:
    found: GroupsUnfinished = await ask(
        stage["kv_scheduler"].call("journal", FILTER), UnfinishedGroups(index), timeout=10
    )
    return found


async def test_a_filter_that_is_killed_again_and_again_counts_each_problem_once_and_says_what_is_kept(
    tmp_path: Path,
) -> None:
    topology = selecting(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage, SELECT, restored=True)
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
            await enter(stage, SELECT, restored=True)  # a learner that has forgotten the result
            assert await stage["learner"].receive(EvaluationReady) == told
            assert (await unfinished(stage, SELECT)).groups == ()
            await enter(stage, RL, restored=False)
            assert (await unfinished(stage, RL)).kept == {"maths": ("p0", "p2")}
    balance = audit(tmp_path)
    assert balance.balanced, balance.lines()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "selection"]
    assert (row["stage"], row["problems_kept_hard"], row["success_hard"]) == ("hard", 2, 0.5)
    assert json.loads((tmp_path / "summary.json").read_text())["problems_always_solved_hard"] == 1


async def test_a_stage_whose_selection_has_no_result_ends_the_run(tmp_path: Path) -> None:
    """It was written before a stage that the run had entered, for instance: no problem is drawn by mistake."""
    topology = selecting(tmp_path)
    with told_at_the_end() as told:
        async with (
            stand_ins(topology, "roc_filter") as stage,
            running(RoCFilter, topology, "roc_filter", tmp_path, stage),
        ):
            await enter(stage, RL, restored=True)
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
            stage["rollout_generator"].announce("load", SCHEDULER).set(builders.engine_load(total=10_000))
            for at in (SELECT, RL):
                stage["learner"].announce("policy", SCHEDULER).set(builders.published(at, stage=at, stage_version=at))
                stage["rollout_generator"].announce("load", SCHEDULER).set(
                    builders.engine_load(version=at, total=10_000)
                )
                await trio.sleep(5)
        groups = [message for message in records.log if isinstance(message, GroupOpened)]
        first = [group for group in groups if group.stage == SELECT]
        assert [group.problem.id for group in first] == ["p0", "p1", "p2"]
        assert {(group.purpose, group.samples, group.stage_groups) for group in first} == {("select", 2, PROBLEMS)}
        drawn = [group.problem.id for group in groups if group.stage == RL]
        assert drawn == ["p1"] * 4
