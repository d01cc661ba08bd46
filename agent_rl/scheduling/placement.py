"""Decides which rollout is placed next, and on which engine. A user's scheduler can replace this part.

Two rules hold for every placement, because other code enforces them: groups are opened within the staleness budget, and
no engine is promised more KV cache than it has. A placement chooses among what `agent_rl.scheduling.scheduler` permits.
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
    """A rollout that waits to be placed. ``need``: the KV cache it is promised, in tokens.

    ``last`` is the generator that lost the rollout; empty for a new one.
    """

    request: RolloutRequest
    need: int
    last: str = ""


@dataclass(frozen=True, slots=True)
class EngineRoom:
    """An engine with room for the rollout: free KV cache in tokens, number of rollouts, and of those of its group."""

    generator: str
    room: int
    rollouts: int
    of_group: int


def group_of(rollout: str) -> str:
    """The id of the rollout's group."""
    return rollout.split("/", 1)[0]


@dataclass(slots=True)
class Engine:
    """The scheduler's knowledge of an engine: its newest load, and the KV cache promised to its rollouts."""

    load: EngineLoad
    rollouts: dict[str, int] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    """Number of the engine's rollouts by group."""
    promised: int = 0
    """KV tokens that its rollouts may come to need."""
    unaccounted: int = 0

    def take(self, rollout: str, need: int) -> None:
        """Promise a rollout its share of the KV cache."""
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
        """Store a new load. KV cache used beyond our promises belongs to rollouts that an earlier scheduler placed."""
        self.load = load
        self.unaccounted = max(0, load.kv_tokens_used - self.promised)

    @property
    def room(self) -> int:
        """Free KV tokens: neither promised nor in use; 0 when the engine has its most rollouts."""
        if len(self.rollouts) >= self.load.max_rollouts:
            return 0
        return self.load.kv_tokens_total - self.promised - self.unaccounted

    def share(self, need: int) -> int:
        """The share promised to a rollout: its need, or the whole cache if it may need more.

        The need is estimated from the problem's text. Only the engine can tell whether the real tokens fit, so the
        rollout must be placed rather than wait for ever.
        """
        return min(need, self.load.kv_tokens_total)

    def places(self, need: int) -> int:
        """How many more rollouts of this need fit."""
        return max(0, min(self.load.max_rollouts - len(self.rollouts), self.room // max(1, self.share(need))))


class Placement(Protocol):
    """Must be pure and deterministic: the same waiting rollouts and engines give the same choice."""

    def next(self, waiting: Sequence[Waiting]) -> int:
        """The index in ``waiting`` (at least one) of the rollout to place next. It waits until it fits.

        Called for every placement. After a restart very many rollouts may wait: look at a few only.
        """

    def engine(self, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
        """The ``generator`` of one of ``engines`` (at least one). The rollout fits on all of them."""


class MostRoom:
    """First come, first served, to the engine with the most room; ties go to the fewest rollouts, then the name."""

    def next(self, waiting: Sequence[Waiting]) -> int:
        """The first rollout."""
        del waiting
        return 0

    def engine(self, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
        """The engine with the most room."""
        del rollout
        return min(engines, key=lambda engine: (-engine.room, engine.rollouts, engine.generator)).generator


def chosen_rollout(placement: Placement, waiting: Sequence[Waiting]) -> int:
    """The placement's choice. Raises ContractError when it is no index of ``waiting``."""
    name, given = f"{type(placement).__name__}.next", f"for {len(waiting)} waiting rollouts"
    position = called(name, lambda: placement.next(waiting), given)
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < len(waiting):
        raise ContractError(f"{name} returned {position!r} {given}; it must return a position, from 0")
    return position


def chosen_engine(placement: Placement, rollout: Waiting, engines: Sequence[EngineRoom]) -> str:
    """The placement's choice. Raises ContractError when it is not one of ``engines``."""
    name, given = f"{type(placement).__name__}.engine", f"for {rollout.request.rollout}"
    generator = called(name, lambda: placement.engine(rollout, engines), given)
    offered = [engine.generator for engine in engines]
    if generator not in offered:
        raise ContractError(f"{name} returned {generator!r} {given}; it must return one of {', '.join(offered)}")
    return generator


def try_placement(placement: Placement) -> None:
    """Let a placement place made-up rollouts on made-up engines. Raises ContractError for an invalid choice."""
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
