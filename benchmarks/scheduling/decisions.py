"""What the decisions of a scheduling policy cost, and the events of the real `GroupScheduler` around it.

`decisions_per_s` runs a policy behind its guard, as the scheduler does, with nothing around it: rollouts end, and each
makes room for another one.

A `Fleet` is the world around the scheduler: it carries out instructions at once, ends rollouts in random order, and
reports loads. Its rollouts have one turn. Times are processor time and include the fleet's own work.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass

from agent_rl.config.algorithm import Algorithm
from agent_rl.messages import (
    EngineLoad,
    GroupsProgress,
    GroupsUnfinished,
    PolicyPublished,
    PolicyVersion,
    Problem,
    Retry,
    UnfinishedGroup,
)
from agent_rl.scheduling.instructions import Assign, Instruction, OpenGroup
from agent_rl.scheduling.policies import base
from agent_rl.scheduling.policies.guard import Guarded
from agent_rl.scheduling.scheduler import GroupScheduler
from agent_rl_contract.builders import engine_load, opened, problem, rl_stage
from benchmarks.scheduling.policies import POLICIES

SAMPLES = 32
LONGEST_RESPONSE = 16_384
PROMPT_TOKENS = 300
"""The mean; prompts differ by up to half of it either way."""
STALENESS = 8
"""Rollouts end in random order, so the last of a group lasts long, and many groups are open."""
LOADS = 4
"""Loads that an engine reports in turn, all different."""
TURN_S = 32.0
"""Seconds after which a rollout ends a turn: 512 turns a second of 16,384 rollouts. Forecasts age by it."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Engines of a run, and the rollouts that they have at once."""

    engines: int
    rollouts: int

    @property
    def groups(self) -> int:
        """Groups of a step: as many as are in flight."""
        return self.rollouts // SAMPLES


SIZES = {"": Size(engines=64, rollouts=16_384), "_512": Size(engines=512, rollouts=131_072)}
"""The sizes that are measured, by the ends of their figures' names."""


class Fleet:
    """Engines that are full, and all that the scheduler hears of them and of the filter.

    Rollouts have one turn. A rollout's end comes with a new load of its engine. Steps are trained as their groups end,
    and all engines then serve a newer policy.
    """

    def __init__(self, size: Size, policy: str, *, seed: int = 0, waiting: int = 0) -> None:
        """``waiting``: groups that are open as after a restart, and wait beside those that fill the engines."""
        self._size = size
        self._now = 0.0
        self._random = random.Random(seed)
        self.placed = 0
        self._in_flight: list[Assign] = []
        self._open: dict[str, int] = {}
        self._ended = 0
        self._version = 0
        self.loads: dict[str, deque[EngineLoad]] = {}
        self._problems = {number: self._problem(number) for number in range(1024)}
        algorithm = Algorithm(groups_per_step=size.groups, samples=SAMPLES, keep=SAMPLES // 2, max_staleness=STALENESS)
        self.scheduler = GroupScheduler(
            seed=0,
            stages=[rl_stage(steps=10**6, max_response_tokens=LONGEST_RESPONSE)],
            algorithm_of=lambda _: algorithm,
            problems=lambda _stage, number, _purpose: self._problems[number % 1024],
            prompt_tokens=lambda each: len(each.text),
            policy=POLICIES[policy].make(),
            now=lambda: self._now,
        )
        self._publish(waiting)
        self.loads = {name: self._loads(engine) for engine, name in enumerate(self.loads)}

    def _problem(self, number: int) -> Problem:
        length = self._random.randrange(PROMPT_TOKENS // 2, 3 * PROMPT_TOKENS // 2)
        return Problem(f"p{number}", "x" * length, "4", problem().environment)

    def _loads(self, engine: int) -> deque[EngineLoad]:
        total = self._size.rollouts // self._size.engines * (LONGEST_RESPONSE + PROMPT_TOKENS)
        used = self._random.sample(range(total // 4, total // 2), LOADS) if self.placed else [0]
        rows = 2 * self._size.rollouts // self._size.engines
        name = f"rollout_generator.{engine}"
        return deque(
            engine_load(name, version=self._version, total=total, used=each, max_rollouts=rows) for each in used
        )

    def _publish(self, waiting: int = 0) -> None:
        self.loads = {f"rollout_generator.{engine}": self._loads(engine) for engine in range(self._size.engines)}
        self._do(self.scheduler.policy_published(PolicyPublished(PolicyVersion(1, self._version), "", 0, 0)))
        for loads in self.loads.values():
            self._do(self.scheduler.engine_load(loads[0]))
        if self._version:
            return
        groups = tuple(
            UnfinishedGroup(
                group := opened(number, samples=SAMPLES),
                tuple(Retry(group.group, sample, 0, number) for sample in range(SAMPLES)),
            )
            for number in range(waiting)
        )
        self._open.update({each.opened.group: SAMPLES for each in groups})
        self._do(self.scheduler.unfinished(GroupsUnfinished(0, waiting, groups)))

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case OpenGroup(group):
                    self._open[group.group] = group.samples
                    self._do(self.scheduler.group_recorded(group.group))
                case Assign():
                    self.placed += 1
                    self._in_flight.append(instruction)

    def end_one(self) -> None:
        """A rollout ends: its engine reports another load, and the room that it leaves is filled."""
        self._now += TURN_S / self._size.rollouts
        position = self._random.randrange(len(self._in_flight))
        place, self._in_flight[position] = self._in_flight[position], self._in_flight[-1]
        self._in_flight.pop()
        loads = self.loads[place.generator]
        loads.rotate()
        self._do(self.scheduler.engine_load(loads[0]))
        self._do(self.scheduler.rollout_done(place.request.rollout))
        self._open[place.request.group] -= 1
        if not self._open[place.request.group]:
            self._group_ended(place.request.group)

    def _group_ended(self, group: str) -> None:
        del self._open[group]
        self._ended += 1
        self.progress()
        if self._ended % self._size.groups == 0:
            self._version += 1
            self._publish()

    def progress(self, *dropped: str) -> None:
        """The filter says what it has decided, and which groups are dropped."""
        self._do(self.scheduler.progress(GroupsProgress(0, self._ended, 0, (), dropped)))

    @property
    def in_flight(self) -> int:
        """Number of rollouts that the engines have."""
        return len(self._in_flight)


def event_us(size: Size, policy: str, events: int) -> float:
    """Microseconds of a rollout's end, a load with news of its engine, and what is placed then."""
    fleet = Fleet(size, policy)
    if fleet.in_flight < size.rollouts // 4:
        raise ValueError(f"only {fleet.in_flight} of {size.rollouts} rollouts were placed")
    began = time.process_time()
    for _ in range(events):
        fleet.end_one()
    return (time.process_time() - began) / events * 1e6


def decisions_per_s(size: Size, policy: str, decisions: int) -> float:
    """Rollouts that the policy places a second of processor time, with the end of one, a turn and a load update."""
    engines, rollouts = size.engines, size.rollouts
    guard = Guarded(POLICIES[policy].make())
    guard.begin(base.Setting(SAMPLES, size.groups))
    room = 4 * 40_000 * (rollouts // engines + 1)
    facts = [base.EngineFacts(f"engine.{number}", room, 0, 0, 0, 4 * rollouts) for number in range(engines)]
    for fact in facts:
        guard.engine_reported(fact, 0.0)

    def wait(number: int, now: float) -> None:
        turn = base.WaitingTurn(f"g{number}/0", f"g{number}", f"p{number}", 0, 0, 300, 300, 30_600, trains=False)
        guard.turn_waits(turn, now)

    for number in range(rollouts):
        wait(number, 0.0)
    placed = len(guard.decide(0.0))
    assert placed == rollouts, f"{placed} of {rollouts} rollouts were placed"
    began = time.process_time()
    for step in range(decisions):
        now = step * TURN_S / rollouts
        guard.turn_ended(f"g{step + rollouts // 2}/0", 400, now)
        guard.rollout_ended(f"g{step}/0", 500, now)
        guard.engine_reported(facts[step % engines]._replace(kv_used=min(room, step)), now)
        wait(rollouts + step, now)
        assert len(guard.decide(now)) == 1
    return decisions / (time.process_time() - began)
