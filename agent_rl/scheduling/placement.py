"""Which rollout is placed next, and on which engine: the part of scheduling that a scheduler of your own replaces.

What must always hold stays outside: groups are opened within the staleness budget, and no engine is promised more KV cache
than it has. A placement only chooses among what `agent_rl.scheduling.scheduler` finds permitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent_rl.config.plugins import ContractError, called
from agent_rl.messages import EngineLoad, Problem, RolloutRequest, Sampling


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rollout that waits for a place. ``need`` is what it is promised, in tokens of KV cache."""

    request: RolloutRequest
    need: int


@dataclass(frozen=True, slots=True)
class EngineRoom:
    """An engine on which the rollout fits: its free KV cache in tokens, how many rollouts it holds, how many of its group."""

    generator: str
    room: int
    rollouts: int
    of_group: int


def group_of(rollout: str) -> str:
    """The id of the group a rollout belongs to."""
    return rollout.split("/", 1)[0]


@dataclass(slots=True)
class Engine:
    """What the scheduler knows of an engine: its newest load, and what it was promised."""

    load: EngineLoad
    rollouts: dict[str, int] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    """How many rollouts of each group it holds."""
    promised: int = 0
    """KV tokens its rollouts may come to need."""
    unaccounted: int = 0

    def take(self, rollout: str, need: int) -> None:
        """Promise a rollout its share."""
        self.rollouts[rollout] = self.share(need)
        self.promised += self.rollouts[rollout]
        self.groups[group_of(rollout)] += 1

    def free(self, rollout: str) -> None:
        """The rollout has ended."""
        self.promised -= self.rollouts.pop(rollout)
        group = group_of(rollout)
        self.groups[group] -= 1
        if not self.groups[group]:
            del self.groups[group]

    def report(self, load: EngineLoad) -> None:
        """Take in a load. What it uses beyond our promises belongs to rollouts an earlier scheduler placed."""
        self.load = load
        self.unaccounted = max(0, load.kv_tokens_used - self.promised)

    @property
    def room(self) -> int:
        """KV tokens neither promised nor used otherwise; 0 when every place for a rollout is taken."""
        if len(self.rollouts) >= self.load.max_rollouts:
            return 0
        return self.load.kv_tokens_total - self.promised - self.unaccounted

    def share(self, need: int) -> int:
        """What a rollout is promised: what it needs, or the whole cache if it may need more than that.

        The need is estimated from the problem's text; whether the real tokens fit is for the engine to say, and a rollout
        that waited for ever would never be told.
        """
        return min(need, self.load.kv_tokens_total)

    def places(self, need: int) -> int:
        """How many more rollouts of this size fit."""
        return max(0, min(self.load.max_rollouts - len(self.rollouts), self.room // max(1, self.share(need))))


class Placement(Protocol):
    """Pure and deterministic: the same waiting rollouts and engines give the same choice."""

    def next(self, waiting: Sequence[Waiting]) -> int:
        """The position, among at least one waiting rollout, of the one to be placed next; it waits until it fits.

        Called for every placement, with as many rollouts waiting as a restart may leave: look at a few.
        """

    def engine(self, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
        """The ``generator`` of the engine it goes to: one of ``engines``, at least one, on all of which it fits."""


class MostRoom:
    """In order of arrival, to the engine with the most room; ties go to the fewest rollouts, then the name."""

    def next(self, waiting: Sequence[Waiting]) -> int:
        """The first."""
        del waiting
        return 0

    def engine(self, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
        """The one with the most room."""
        del rollout
        return min(engines, key=lambda engine: (-engine.room, engine.rollouts, engine.generator)).generator


def chosen_rollout(placement: Placement, waiting: Sequence[Waiting]) -> int:
    """What the placement chooses. Raises ContractError when it is no position in ``waiting``."""
    name, given = f"{type(placement).__name__}.next", f"for {len(waiting)} waiting rollouts"
    position = called(name, lambda: placement.next(waiting), given)
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < len(waiting):
        raise ContractError(f"{name} returned {position!r} {given}; it must return a position, from 0")
    return position


def chosen_engine(placement: Placement, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
    """What the placement chooses. Raises ContractError when it is none of ``engines``."""
    name, given = f"{type(placement).__name__}.engine", f"for {rollout.request.rollout}"
    generator = called(name, lambda: placement.engine(rollout, engines), given)
    offered = [engine.generator for engine in engines]
    if generator not in offered:
        raise ContractError(f"{name} returned {generator!r} {given}; it must return one of {', '.join(offered)}")
    return generator


def try_placement(placement: Placement) -> None:
    """Let it place made-up rollouts on made-up engines. Raises ContractError when it chooses what was not offered."""
    problem = Problem("p", "?", "!")
    for count in (1, 2, 5):
        waiting = [
            Waiting(
                RolloutRequest(
                    rollout=f"s0-g{number:06d}/0/{number % 2}",
                    group=f"s0-g{number:06d}",
                    stage=0,
                    sample=0,
                    attempt=number % 2,
                    purpose="train",
                    problem=problem,
                    sampling=Sampling(1.0, 100, 4),
                    seed=number,
                ),
                100 + number,
            )
            for number in range(count)
        ]
        engines = [EngineRoom(f"rollout_generator.{i}", 1000 - 100 * i, i, i % 2) for i in range(count)]
        chosen_engine(placement, waiting[chosen_rollout(placement, waiting)], engines)
