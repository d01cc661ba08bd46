"""A scheduler whose instructions are carried out at once."""

from __future__ import annotations

from typing import Any

from agent_rl.messages import GroupsProgress, GroupsUnfinished
from agent_rl.scheduling.instructions import AskUnfinished, Assign, Instruction, OpenGroup, Unwanted, Withdraw
from agent_rl.scheduling.scheduler import GroupScheduler
from agent_rl_contract import builders
from tests.builders import evaluate_stage


def scheduler(**changes: Any) -> GroupScheduler:
    """An rl stage and an evaluation. Each rollout may need 10 + 20 tokens."""
    algorithm = changes.pop("algorithm", {})
    defaults: dict[str, Any] = {
        "seed": 0,
        "stages": [builders.rl_stage(), evaluate_stage()],
        "algorithm_of": lambda _: builders.algorithm(**algorithm),
        "problems": lambda stage, number, purpose: builders.problem(number),
        "prompt_tokens": lambda problem: 10,
    }
    return GroupScheduler(**{**defaults, **changes})


def progress(**changes: Any) -> GroupsProgress:
    """The filter's totals of the first stage."""
    defaults = {"stage": 0, "decided": 0, "uncounted": 0, "retries": (), "dropped_groups": ()}
    return GroupsProgress(**{**defaults, **changes})


class World:
    """Groups are recorded, and rollouts stay where they are until a test ends them or their generator is lost."""

    def __init__(self, made: GroupScheduler | None = None, *, opened: int = 0, records: bool = True, **changes: Any):
        self.scheduler = made or scheduler(fault=lambda name, what: self.faults.append(f"{name}: {what}"), **changes)
        self.records, self.already = records, opened
        self.opened: list[str] = []
        self.placed: list[Assign] = []
        """Where rollouts are, in the order in which they were placed."""
        self.told: list[Unwanted] = []
        self.asked: list[int] = []
        self.withdrawn: list[str] = []
        self.faults: list[str] = []

    def __getattr__(self, event: str) -> Any:
        """An event of the scheduler, whose instructions are carried out."""
        return lambda *given: self.do(getattr(self.scheduler, event)(*given))

    def do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case OpenGroup(opened):
                    self.opened.append(opened.group)
                    if self.records:
                        self.group_recorded(opened.group)
                case Assign(request):
                    self.placed = [place for place in self.placed if place.request.rollout != request.rollout]
                    self.placed.append(instruction)
                case Withdraw(generator):
                    self.withdrawn.append(generator)
                    self.placed = [place for place in self.placed if place.generator != generator]
                case Unwanted():
                    self.told.append(instruction)
                case AskUnfinished(stage):
                    self.asked.append(stage)

    def begin(self, *generators: str, stage: int = 0, **load: Any) -> World:
        """A policy is published, these engines report, and the filter answers."""
        self.policy_published(builders.published(stage=stage))
        for generator in generators or ("rollout_generator.0",):
            self.engine_load(builders.engine_load(generator, **load))
        self.unfinished(GroupsUnfinished(stage, self.already, ()))
        return self

    def at(self, generator: str) -> list[str]:
        """The rollouts that a generator has."""
        return [place.request.rollout for place in self.placed if place.generator == generator]

    def place(self, rollout: str) -> Assign:
        """Where a rollout is."""
        return next(place for place in self.placed if place.request.rollout == rollout)

    def finish(self, place: Assign) -> None:
        """The rollout's trajectory is in the journal."""
        self.placed.remove(place)
        self.rollout_done(place.request.rollout)
