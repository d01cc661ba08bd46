"""The filter and evaluations within an rl stage, in virtual time: after a kill it goes on and tells each result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from actors.base import ask
from actors.roc_filter import RoCFilter
from actors.testing import Stage, running, stand_ins
from agent_rl.config.topology import Interim, RlStage, Topology
from agent_rl.messages import (
    Evaluation,
    EvaluationReady,
    GroupsUnfinished,
    InterimOpened,
    StageEntered,
    UnfinishedGroups,
)
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from agent_rl.scheduling.ids import group_id
from tests import builders
from tests.actors.test_roc_filter import FILTER, RL, enter
from tests.actors.topologies import micro


def evaluating(folder: Path) -> Topology:
    """The micro topology, with evaluations of two problems, two samples each, every other step."""
    topology = micro(folder)
    rl = topology.stages[RL]
    assert isinstance(rl, RlStage)
    stages = list(topology.stages)
    stages[RL] = rl.model_copy(update={"evaluate": Interim(every=2, problems=2, samples=2)})
    return topology.model_copy(update={"stages": tuple(stages)})


async def answer(stage: Stage, number: int, answers: list[str | None]) -> None:
    """Open a group of an evaluation and answer it; None: that answer does not come."""
    group = builders.opened(number, stage=RL, version=7, samples=len(answers), purpose="evaluate_sampled")
    group = replace(group, group=group_id(RL, number, 2), evaluation=Evaluation(RL, 2))
    opened = stage["kv_scheduler"].push("groups", FILTER)
    await opened.send(group)
    await opened.drained()
    for sample, said in enumerate(answers):
        if said is not None:
            made = builders.trajectory(group, sample, answer=said, version=7)
            await stage["rollout_generator"].push("trajectories", FILTER).send(made)


def simulate(main: Any) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_killed_filter_goes_on_with_half_an_evaluation_and_tells_its_result(tmp_path: Path) -> None:
    topology = evaluating(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            await answer(stage, 0, ["4", "5"])
            await answer(stage, 1, ["4", None])
            await trio.sleep(1)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            journal = stage["kv_scheduler"].call("journal", FILTER)
            unfinished: GroupsUnfinished = await ask(journal, UnfinishedGroups(RL), timeout=10)
            assert (unfinished.opened, unfinished.interim_opened) == (0, (InterimOpened(2, 2),))
            assert [(g.opened.group, [m.sample for m in g.missing]) for g in unfinished.groups] == [
                (group_id(RL, 1, 2), [1])
            ]
            await answer(stage, 1, [None, "4"])
            told = await stage["learner"].receive(EvaluationReady)
            assert (told.evaluation, told.figures.sampled.success) == (Evaluation(RL, 2), 0.75)
            restored = StageEntered(RL, 5, 7, restored=True)  # a learner that has forgotten it
            await ask(stage["learner"].call("stages", FILTER), restored, timeout=10)
            assert await stage["learner"].receive(EvaluationReady) == told
    assert audit(tmp_path).balanced
    opened = Journal(tmp_path / "journal.sqlite")
    assert opened.opened_counts(RL) == {2: 2}
    assert opened.trajectories(group_id(RL, 0, 2)) == []  # read, and of no more use
    opened.close()
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum('"rl@2"' in row for row in rows) == 1
