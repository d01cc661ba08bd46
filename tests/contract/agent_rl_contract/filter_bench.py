"""The peers of a filter under test, and how they act."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import trio

from actors.base import ask
from agent_rl.figures import TrainingFigures
from agent_rl.messages import GroupOpened, Recorded, StageEntered, StageRecorded, StepReady, StepTrained, Trajectory
from agent_rl.records.journal import Stored, read_journal
from agent_rl_contract.base import RoleContract
from agent_rl_contract.builders import call, trajectory
from agent_rl_contract.stage import Stage, stand_ins

FILTER = "roc_filter.0"
RL, EVALUATION = 0, 1
RIGHT, WRONG = "4", "5"


class FilterBench(RoleContract):
    """What the promises of `FilterContract` are proved with."""

    role: ClassVar[str] = "roc_filter"

    @asynccontextmanager
    async def among_stand_ins(self, folder: Path, **changes: Any) -> AsyncIterator[tuple[Any, Stage]]:
        """The topology and the stand-ins; the filter is started, and restarted, by the test."""
        topology = self.topology(folder, **changes)
        async with stand_ins(topology, self.role) as stage:
            yield topology, stage

    @asynccontextmanager
    async def alive(self, folder: Path, **changes: Any) -> AsyncIterator[Stage]:
        """The peers, and the actor under test running among them."""
        async with self.among_stand_ins(folder, **changes) as (topology, stage), self.running(topology, stage):
            yield stage

    async def enter(self, stage: Stage, index: int = RL, *, version: int = 0, restored: bool = True) -> StageRecorded:
        """The learner says where it is."""
        entered = StageEntered(index, 0, version, restored)
        recorded: StageRecorded = await stage["learner"].call("stages", FILTER)(entered)
        return recorded

    async def open(self, stage: Stage, group: GroupOpened, on_ack: Callable[[], None] | None = None) -> None:
        """The scheduler opens a group and waits until it is recorded."""
        link = stage["kv_scheduler"].push("groups", FILTER)
        await link.send(group, on_ack=on_ack)
        with trio.move_on_after(60):
            await link.drained()
            return
        raise AssertionError("an opened group was not acknowledged within 60 s")

    async def give(self, stage: Stage, made: Trajectory, on_ack: Callable[[], None] | None = None) -> None:
        """The generator sends a trajectory."""
        await stage["rollout_generator"].push("trajectories", FILTER).send(made, on_ack=on_ack)

    async def settle(
        self, stage: Stage, group: GroupOpened, answers: Sequence[str], **changes: Any
    ) -> list[Trajectory]:
        """Open a group and give a trajectory for each answer; they are of different lengths, with different calls."""
        await self.open(stage, group)
        made = [rollout(group, sample, answer, **changes) for sample, answer in enumerate(answers)]
        for each in made:
            await self.give(stage, each)
        return made

    async def trained(self, stage: Stage, step: StepReady) -> None:
        """The learner has trained the step."""
        told = StepTrained(RL, step.version, step.groups, TrainingFigures())
        answer = await ask(stage["learner"].call("steps", FILTER), told, timeout=30)
        assert answer == Recorded(), f"a trained step was answered with {answer}"


def rollout(group: GroupOpened, sample: int, answer: str, **changes: Any) -> Trajectory:
    """A trajectory whose length, calls and turns follow from its sample."""
    calls = tuple(call("error" if sample % 3 == number else "success") for number in range(sample % 4))
    texts = (*("I call a tool." for _ in calls), f"<answer>\\boxed{{{answer}}}</answer>")
    return trajectory(group, sample, **{"tokens": 6 + 3 * sample, "calls": calls, "texts": texts, **changes})


def mixed(rng: random.Random, samples: int = 4) -> list[str]:
    """Answers with at least one right and one wrong."""
    while True:
        answers = [rng.choice((RIGHT, WRONG)) for _ in range(samples)]
        if len(set(answers)) == 2:
            return answers


def journalled(folder: Path) -> set[str]:
    """The names of groups and rollouts that another process finds in the journal."""
    journal = read_journal(folder)
    try:
        names = {row.id for row in journal.groups(stage=RL, states=("open", "ready", "dropped", "trained"))}
        rollouts = {f"{name}/{s}/{a}" for name in names for s, a, *_ in journal.trajectories(name)}
    finally:
        journal.close()
    return names | rollouts


def trajectories(folder: Path, group: str) -> list[Stored]:
    """What the journal holds of a group."""
    journal = read_journal(folder)
    try:
        return journal.trajectories(group)
    finally:
        journal.close()
