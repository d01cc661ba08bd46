"""The interface of scheduling policies: events in, placements out. Pure and deterministic; no clock, no random numbers.

::

    turn_waits --(Placement)--> on an engine --turn_ended--> ... --turn_ended--> rollout_ended
        ^                          |
        `--(the engine is gone)----+

A policy is told what happens, and answers `decide` with placements. A rollout runs all its turns on the engine where it
was placed, until it ends or the engine is gone. A policy never learns how long a rollout will be. ``now`` is in
seconds, of any origin, and never falls. Every event costs the policy O(log engines + log rollouts) at most, so a policy
keeps its own heaps; `decide` costs the same for each placement.

Whoever uses a policy wraps it in `agent_rl.scheduling.policies.guard.Guarded`, which contains what is unsafe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run asks for: the rollouts of a group, the groups of a step, and how many steps ahead may be sampled."""

    samples: int
    groups_per_step: int
    max_staleness: int = 1


class EngineFacts(NamedTuple):
    """What an engine reports. KV cache in tokens; ``kv_used`` counts rollouts, not prefixes that may be evicted.

    ``running`` and ``waiting`` are turns. ``version`` is the policy that the engine serves. ``generated`` counts the
    tokens that the engine has written since it started.
    """

    engine: str
    kv_total: int
    kv_used: int
    running: int
    waiting: int
    max_rollouts: int
    version: int = 0
    generated: int = 0


class WaitingTurn(NamedTuple):
    """A rollout whose next turn waits for an engine: the first turn, or one after the engine is gone. Sizes in tokens.

    ``context`` is all that the engine must hold before it writes: prompt, earlier turns and tool results. The rollout
    ends at the latest when its context reaches ``limit``. ``trains``: a step waits for the rollout; no step waits for
    one that is evaluated or selected.
    """

    rollout: str
    group: str
    problem: str
    sample: int
    turn: int
    prompt: int
    context: int
    limit: int
    trains: bool = True


class Placement(NamedTuple):
    """Run the waiting rollout on this engine, which queues its turns when it has no room.

    ``need`` is the KV cache, in tokens, that the policy expects the rollout to need there. It is recorded beside what
    the rollout then needed; 0: no statement.
    """

    rollout: str
    engine: str
    need: float = 0.0


class PlacementPolicy:
    """The base of all policies. It ignores every event and decides nothing, so a policy writes only what it needs.

    Only ``turn_waits``, ``decide`` and an engine's arrival must be handled for rollouts to run.
    """

    def begin(self, setting: Setting) -> None:
        """The run begins, or enters another stage. Called before any other event."""

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed. Facts come late and seldom: count your own decisions in between.

        A draining engine that reports again takes rollouts again.
        """

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine keeps its rollouts and gets no more, unless it reports again.

        It leaves, or it is silent, or its weights are older than the rollouts that wait.
        """

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine is lost or has left. `turn_waits` follows for each rollout that it had."""

    # Rollouts

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """A rollout waits for an engine."""

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """Somebody else placed this waiting rollout.

        The guard does so where the policy named no engine that is here, or let the rollout starve; a restarted
        scheduler leaves rollouts where they run.
        """

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """A turn ended, and the rollout goes on with ``context`` tokens on its engine."""

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """The rollout ended with so many tokens, prompt included. Nothing more is heard of it."""

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """The rollout is not wanted any more, wherever it is. Nothing more is heard of it."""

    # Decisions

    def decide(self, now: float) -> Iterable[Placement]:
        """The rollouts to place now. Called after every event, or after several."""
        del now
        return ()
