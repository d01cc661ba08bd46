"""Worst case: every rollout reserves its longest possible response on one engine, until it ends.

Symbols. K: an engine's KV cache in tokens. P: what is reserved there, the sum of min(limit, K) over its rollouts. U:
what the engine uses beyond P, which belongs to rollouts that nobody reserved for. R = K - P - U: its room; 0 when it
has its most rollouts.

The first rollout that waits goes to the engine with the most room, once min(limit, K) <= R there; ties go to the fewest
rollouts, then the name. It waits until it fits, and all others wait behind it. Rollouts that lost their engine go
first. So the sum of reservations never exceeds K, and nothing is ever preempted. The price: a cache that is reserved
for the longest response is mostly empty. Source: the paper's dynamic scheduler.

A rollout whose limit exceeds K fits on an empty engine alone. The limit is estimated, and only the engine can tell
whether the real tokens fit. So the engines with room are a heap by room, and the empty ones another by size.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, WaitingTurn


@dataclass(slots=True)
class Reserved:
    """An engine, what is reserved there, and its room in tokens."""

    facts: EngineFacts
    reserved: dict[str, int] = field(default_factory=dict)
    promised: int = 0
    unaccounted: int = 0
    takes_turns: bool = True
    room: int = 0
    rank: tuple[int, int, str] = (0, 0, "")

    def fits(self, limit: int) -> bool:
        """Whether a rollout of at most so many tokens may be placed here."""
        return self.takes_turns and 0 < min(limit, self.facts.kv_total) <= self.room


class WorstCase(PlacementPolicy):
    """See above."""

    def __init__(self) -> None:
        self.engines: dict[str, Reserved] = {}
        """All engines that are here."""
        self._by_room: list[tuple[int, int, str]] = []
        """A heap of ranks; an entry that is not its engine's rank any more is skipped."""
        self._empty: list[tuple[int, str]] = []
        """A heap of the engines that are empty, the largest first; others are skipped."""
        self._home: dict[str, str] = {}
        """The engine that each rollout was placed on last."""
        self._waiting: dict[str, WaitingTurn] = {}
        self._next: tuple[deque[str], deque[str]] = (deque(), deque())
        """The order of what waits: rollouts that were placed before, and the others. Who waits no more is skipped."""

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """Take the facts in. KV cache that is used beyond what is reserved is nobody's who could be asked."""
        del now
        engine = self.engines.get(facts.engine)
        if engine is None:
            engine = self.engines[facts.engine] = Reserved(facts)
        before = engine.facts.kv_total, engine.facts.max_rollouts, engine.unaccounted, engine.takes_turns
        engine.facts, engine.takes_turns = facts, True
        engine.unaccounted = max(0, facts.kv_used - engine.promised)
        if before != (facts.kv_total, facts.max_rollouts, engine.unaccounted, True) or not engine.rank[2]:
            self._rank(engine)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine gets no more rollouts until it reports again. What it has stays reserved."""
        del now
        if engine in self.engines:
            self.engines[engine].takes_turns = False

    def engine_gone(self, engine: str, now: float) -> None:
        """Its rollouts have no home any more; they are first when they wait again."""
        del now
        self.engines.pop(engine, None)

    # Rollouts

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """The rollout waits in order of arrival, behind those that were placed before."""
        del now
        known = turn.rollout in self._home
        self._free(turn.rollout)
        self._waiting[turn.rollout] = turn
        self._next[0 if known else 1].append(turn.rollout)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The rollout was placed there, whatever room there is."""
        del now
        turn = self._waiting.pop(rollout, None)
        if turn is not None and engine in self.engines:
            self._reserve(turn, self.engines[engine])

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Its reservation ends."""
        del context
        self.rollout_dropped(rollout, now)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """It waits no more, and its reservation ends."""
        del now
        self._waiting.pop(rollout, None)
        self._free(rollout)

    # Decisions

    def decide(self, now: float) -> list[Placement]:
        """Place what waits, in order, as long as the first fits."""
        del now
        decisions: list[Placement] = []
        for order in self._next:
            while order:
                turn = self._waiting.get(order[0])
                if turn is not None:
                    engine = self.engine_for(turn)
                    if engine is None:
                        return decisions
                    del self._waiting[turn.rollout]
                    self._reserve(turn, engine)
                    decisions.append(Placement(turn.rollout, engine.facts.engine, float(engine.reserved[turn.rollout])))
                order.popleft()
        return decisions

    def engine_for(self, turn: WaitingTurn) -> Reserved | None:
        """The engine with the most room, if the turn's rollout fits there; None when it fits nowhere."""
        while self._by_room:
            engine = self.engines.get(self._by_room[0][2])
            if engine is not None and engine.takes_turns and engine.rank == self._by_room[0]:
                if engine.fits(turn.limit):
                    return engine
                break
            heapq.heappop(self._by_room)
        while self._empty:
            size, name = self._empty[0]
            engine = self.engines.get(name)
            if engine is not None and engine.takes_turns and engine.room == engine.facts.kv_total == -size:
                return engine if 0 < -size < turn.limit else None
            heapq.heappop(self._empty)
        return None

    def _reserve(self, turn: WaitingTurn, engine: Reserved) -> None:
        share = min(turn.limit, engine.facts.kv_total)
        engine.reserved[turn.rollout] = share
        engine.promised += share
        self._home[turn.rollout] = engine.facts.engine
        self._rank(engine)

    def _free(self, rollout: str) -> None:
        engine = self.engines.get(self._home.pop(rollout, ""))
        if engine is not None and rollout in engine.reserved:
            engine.promised -= engine.reserved.pop(rollout)
            self._rank(engine)

    def _rank(self, engine: Reserved) -> None:
        """Enter the engine into the heaps anew. They are cleared of outdated entries when most entries are."""
        facts, rollouts = engine.facts, len(engine.reserved)
        engine.room = facts.kv_total - engine.promised - engine.unaccounted if rollouts < facts.max_rollouts else 0
        engine.rank = (-engine.room, rollouts, facts.engine)
        heapq.heappush(self._by_room, engine.rank)
        if engine.room == facts.kv_total:
            heapq.heappush(self._empty, (-facts.kv_total, facts.engine))
        if len(self._by_room) + len(self._empty) > 8 * len(self.engines) + 64:
            self._by_room = [each.rank for each in self.engines.values()]
            self._empty = [
                (-each.facts.kv_total, each.facts.engine)
                for each in self.engines.values()
                if each.room == each.facts.kv_total
            ]
            heapq.heapify(self._by_room)
            heapq.heapify(self._empty)
