"""The wrapper around every policy: a policy can be unwise, never unsafe.

What is unsafe is contained, counted and named in `Guarded.faults`:

=========================  =====================================================================================
``engine_unknown``         a rollout was placed on an engine that is not here, or is draining: another engine gets it
``rollout_unknown``        a rollout was placed that does not wait
``need_not_finite``        a predicted need is NaN, infinite or negative: the rollout's limit counts instead
``rollout_starved``        one was overtaken too often, or nothing runs and nothing was placed: the guard places it
``engine_overfull``        an engine reports more KV cache than it has, or negative numbers: cut to what is possible
``decisions_endless``      a policy returned more decisions at once than there are rollouts: the rest is ignored
=========================  =====================================================================================

A rollout is starved when, since the first decision after it began to wait, ``PATIENCE`` times as many rollouts were
started as were open then. First come, first served starts at most as many. A policy that raises an exception stops the
run with its file and line.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

from agent_rl.config.plugins import ContractError, described
from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, Setting, WaitingTurn

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 3
"""A rollout may be overtaken by at most this many times the rollouts open when it began to wait."""
AT_LEAST = 64
"""Fewer starts than this never starve anybody."""


def _named(method: Callable[Concatenate[Guarded, P], R]) -> Callable[Concatenate[Guarded, P], R]:
    """The method; an exception in it becomes a ContractError that names the policy and its file and line."""

    @wraps(method)
    def named(self: Guarded, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except ContractError:
            raise
        except Exception as error:
            name = f"{type(self.policy).__name__}.{method.__name__}"
            raise ContractError(f"{name} fails with {described(error)}") from error

    return named


class Guarded:
    """A policy behind the checks above. It has the events of a policy; `decide` returns safe decisions only."""

    def __init__(self, policy: PlacementPolicy, fault: Callable[[str, str], None] | None = None) -> None:
        """``fault`` is called with name and description of each fault."""
        self.policy = policy
        self.faults: Counter[str] = Counter()
        self._fault = fault
        self._facts: dict[str, EngineFacts] = {}
        self._load: dict[str, int] = {}
        """Rollouts placed on each engine."""
        self._draining: set[str] = set()
        self._waiting: dict[str, WaitingTurn] = {}
        self._placed: dict[str, str] = {}
        """The engine of each rollout that was placed."""
        self._queue: deque[tuple[int, WaitingTurn]] = deque()
        """In the order in which they began to wait, each with the number of starts that starves it."""
        self._arrived: list[WaitingTurn] = []
        """Those that wait since the policy decided last."""
        self._starts = 0

    @_named
    def begin(self, setting: Setting) -> None:
        """The run begins."""
        self.policy.begin(setting)

    # Engines

    @_named
    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed. A draining engine that reports again takes rollouts again."""
        sizes = facts[1:6]
        if min(sizes) < 0 or facts.kv_used > facts.kv_total:
            self._record(
                "engine_overfull", f"{facts.engine} reports {facts.kv_used} of {facts.kv_total} KV tokens used"
            )
            total, used, running, waiting, most = (max(0, size) for size in sizes)
            facts = facts._replace(
                kv_total=total, kv_used=min(used, total), running=running, waiting=waiting, max_rollouts=most
            )
        self._load.setdefault(facts.engine, 0)
        self._draining.discard(facts.engine)
        self._facts[facts.engine] = facts
        self.policy.engine_reported(facts, now)

    @_named
    def engine_draining(self, engine: str, now: float) -> None:
        """The engine gets no more rollouts, until it reports again."""
        self._draining.add(engine)
        self.policy.engine_draining(engine, now)

    @_named
    def engine_gone(self, engine: str, now: float) -> None:
        """The engine is gone. The caller lets its rollouts wait again."""
        self._load.pop(engine, None)
        self._facts.pop(engine, None)
        self._draining.discard(engine)
        self.policy.engine_gone(engine, now)

    # Rollouts

    @_named
    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """A rollout waits for an engine."""
        self._leave(turn.rollout)
        self._waiting[turn.rollout] = turn
        self._arrived.append(turn)
        self.policy.turn_waits(turn, now)

    @_named
    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The waiting rollout runs on this engine, as the caller found it."""
        if self._waiting.pop(rollout, None) is not None:
            self._placed[rollout] = engine
            if engine in self._load:
                self._load[engine] += 1
        self.policy.turn_placed(rollout, engine, now)

    @_named
    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """A turn ended, and the rollout goes on."""
        self.policy.turn_ended(rollout, context, now)

    @_named
    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """The rollout ended."""
        self._leave(rollout)
        self.policy.rollout_ended(rollout, context, now)

    @_named
    def rollout_dropped(self, rollout: str, now: float) -> None:
        """The rollout is not wanted any more."""
        self._leave(rollout)
        self.policy.rollout_dropped(rollout, now)

    # Decisions

    @_named
    def decide(self, now: float) -> list[Placement]:
        """The policy's placements, made safe, and those of the guard for rollouts that starve."""
        opened = len(self._waiting) + len(self._placed)
        starved_at = self._starts + PATIENCE * opened + AT_LEAST
        self._queue.extend((starved_at, turn) for turn in self._arrived)
        self._arrived.clear()
        most = 2 * opened + AT_LEAST
        given = list(islice(self.policy.decide(now), most + 1))
        if len(given) > most:
            self._record("decisions_endless", f"{len(given)} decisions at once; at most {most} count")
        if not given and not self._queue:
            return []
        decisions = [safe for decision in given[:most] if (safe := self._safe(decision, now)) is not None]
        self._save_starved(decisions, now)
        return decisions

    def _safe(self, decision: Placement, now: float) -> Placement | None:
        turn = self._waiting.get(decision.rollout)
        if turn is None:
            self._record("rollout_unknown", f"{decision.rollout} is placed, but it does not wait")
            return None
        if not 0 <= decision.need < math.inf:
            self._record("need_not_finite", f"a need of {decision.need} tokens for {decision.rollout}")
            decision = decision._replace(need=float(turn.limit))
        if decision.engine not in self._load or decision.engine in self._draining:
            here = ", ".join(islice(self._open(), 8)) or "none"
            self._record("engine_unknown", f"{decision.rollout} is placed on {decision.engine!r}; here: {here}")
            return self._elsewhere(turn, decision.need, now)
        return self._take(turn, decision)

    def _take(self, turn: WaitingTurn, place: Placement) -> Placement:
        del self._waiting[turn.rollout]
        self._placed[turn.rollout] = place.engine
        self._load[place.engine] += 1
        self._starts += turn.turn == 0
        return place

    def _elsewhere(self, turn: WaitingTurn, need: float, now: float) -> Placement | None:
        """The rollout on the engine with the fewest rollouts, as the policy is told; None when no engine is here."""
        engine = min(self._open(), key=lambda name: (self._load[name], name), default=None)
        if engine is None:
            return None
        place = self._take(turn, Placement(turn.rollout, engine, need))
        self.policy.turn_placed(turn.rollout, engine, now)
        return place

    def _save_starved(self, decisions: list[Placement], now: float) -> None:
        queue = self._queue
        while queue:
            starved_at, turn = queue[0]
            if self._waiting.get(turn.rollout) is not turn:
                queue.popleft()  # it was placed, or dropped
                continue
            stuck = not decisions and self._nothing_runs()
            if not (stuck or self._starts > starved_at) or not any(self._open()):
                return
            queue.popleft()
            reason = "nothing runs, and nothing was placed" if stuck else f"{self._starts} rollouts were started"
            self._record("rollout_starved", f"{turn.rollout} still waits: {reason}")
            place = self._elsewhere(turn, float(turn.limit), now)
            if place is not None:
                decisions.append(place)

    # Helpers

    def _open(self) -> Iterator[str]:
        """The engines that take rollouts."""
        return (engine for engine in self._load if engine not in self._draining)

    def _nothing_runs(self) -> bool:
        """No rollout is placed, and no engine reports rollouts that somebody else placed."""
        return not self._placed and not any(self._facts[engine].kv_used for engine in self._open())

    def _leave(self, rollout: str) -> None:
        """The rollout is in none of its places any more."""
        self._waiting.pop(rollout, None)
        engine = self._placed.pop(rollout, "")
        if engine in self._load:
            self._load[engine] -= 1

    def _record(self, name: str, description: str) -> None:
        self.faults[name] += 1
        if self._fault is not None:
            self._fault(name, f"{type(self.policy).__name__}: {description}")
