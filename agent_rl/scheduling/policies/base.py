"""The interface of scheduling policies: events in, decisions out. Pure and deterministic; no clock, no random numbers.

::

    turn_waits --(Placement)--> on an engine --turn_ended--> tools run --turn_waits--> ... --> rollout_ended
        ^                        |
        |--(Hold, or the engine is gone)

A policy is told what happens, and answers `decide` with decisions. It never learns how long a rollout will be. ``now``
is in seconds, of any origin, and never falls. Every event costs the policy O(log engines + log rollouts) at most, so a
policy keeps its own heaps; `decide` costs the same for each decision it returns.

Whoever uses a policy wraps it in `agent_rl.scheduling.policies.guard.Guarded`, which contains what is unsafe. The words
of the field are covered so: to *start* a rollout is the `Placement` of its first turn; to *move* it is a `Placement` on
another engine than `WaitingTurn.kept_on` (after a `Hold`, also within a turn); to *preempt* it is a `Hold`; to *resume*
it is the `Placement` that follows a `Hold`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run asks for: the rollouts of a group, the groups of a step, and how many steps ahead may be sampled."""

    samples: int
    groups_per_step: int
    max_staleness: int = 1


class EngineFacts(NamedTuple):
    """What an engine reports. KV cache in tokens; ``kv_used`` counts rollouts, not prefixes that may be evicted.

    ``running`` and ``waiting`` are turns. ``version`` is the policy that the engine serves.
    """

    engine: str
    kv_total: int
    kv_used: int
    running: int
    waiting: int
    max_rollouts: int
    version: int = 0


class WaitingTurn(NamedTuple):
    """A turn that waits for an engine: the first of a rollout, its next, or one that was interrupted. Sizes in tokens.

    ``context`` is all that the engine must hold before it writes: prompt, earlier turns, tool results, and what an
    interrupted turn wrote. The rollout ends at the latest when its context reaches ``limit``. ``kept`` tokens of the
    prefix are cached on the engine ``kept_on`` (0 and "" if none are, as far as known). ``trains``: a step waits for
    the rollout; no step waits for one that is evaluated or selected.
    """

    rollout: str
    group: str
    problem: str
    sample: int
    turn: int
    prompt: int
    context: int
    limit: int
    kept_on: str = ""
    kept: int = 0
    trains: bool = True


class Placement(NamedTuple):
    """Run the rollout's waiting turn on this engine, which queues it when it has no room.

    ``need`` is the KV cache, in tokens, that the policy expects the rollout to need there. It is recorded beside what
    the rollout then needed; 0: no statement.
    """

    rollout: str
    engine: str
    need: float = 0.0


class Hold(NamedTuple):
    """Stop the rollout's turn under way. Its tokens are kept, its KV cache may be evicted. `turn_waits` follows."""

    rollout: str


class Drop(NamedTuple):
    """Free the KV cache that an engine keeps for a rollout whose tools run. Its next turn needs a prefill."""

    rollout: str


Decision: TypeAlias = Placement | Hold | Drop


class PlacementPolicy:
    """The base of all policies. It ignores every event and decides nothing, so a policy writes only what it needs.

    Only ``turn_waits``, ``decide`` and an engine's arrival must be handled for rollouts to run.
    """

    def begin(self, setting: Setting) -> None:
        """The run begins, or enters another stage. Called before any other event."""

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed. Facts come late and seldom: count your own decisions in between.

        A draining engine that reports again takes turns again.
        """

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine finishes its turns under way and gets no more, unless it reports again.

        It leaves, or it is silent, or its weights are older than the rollouts that wait.
        """

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine is lost or has left. `turn_waits` follows for each turn it had; its cached prefixes are gone."""

    def weights_updated(self, engine: str, version: int, now: float, *, kept: bool) -> None:
        """The engine serves a newer policy. ``kept`` says whether cached prefixes survive the update."""

    # Rollouts

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """A turn waits for an engine."""

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """Somebody else placed this waiting turn.

        The guard does so where the policy named no engine that is here, or let the turn starve; a restarted scheduler
        leaves rollouts where they run.
        """

    def turn_preempted(self, rollout: str, now: float) -> None:
        """The engine ran out of KV cache and computes this turn again later, by itself. The turn stays placed there."""

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """A turn ended, and its tools run. ``context`` counts the rollout's tokens. The engine keeps the prefix."""

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """The rollout ended with so many tokens, prompt included. Nothing more is heard of it."""

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """The rollout is not wanted any more, wherever it is. Nothing more is heard of it."""

    # Decisions

    def decide(self, now: float) -> Iterable[Decision]:
        """What to do now. Called after every event, or after several; the decisions are carried out in order."""
        del now
        return ()
