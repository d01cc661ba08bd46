"""Predictive: reserves what a rollout is likely to need, and fills the engines as far as that is worth its risk.

Symbols. K: an engine's KV cache. x: the context of a rollout now; F: the quantile q of its final context, learnt online
(lengths.py). A resident of an engine is a rollout that runs there, is queued there, or whose tools run while its prefix
stays there.

**Reservation.** A resident reserves r = x + a (F - x). Residents are at different points of their lives and do not
reach their ends together, so a < 1 overcommits. A rollout starts where the reservations stay below ``fill`` K. What
overflows is preempted by the engine and computed again: unwise, not unsafe.

**Moves.** A next turn stays where its prefix is, unless the engine is overcommitted by more tokens than the turn's
context, and another engine has room: then the prefill there costs less than the preemption here. Both are prices in
tokens to prefill.

**Tools.** A resident keeps its reservation while its tools run. After ``hold_s`` seconds the prefix is dropped: holding
x tokens for t seconds costs t x / K seconds of the engine, and their prefill costs x times the prefill's seconds a
token. So the time at which both are equal is the same for all sizes.

**Order.** Interrupted and dropped rollouts first, since their groups wait for them; then groups in the order in which
they were opened, all samples of a group one after the other: the oldest batch completes first, and no sample starts
long after its group's first.

**Engines.** The one with the largest free share of its KV cache gets the next rollout. A decision costs O(log engines).
"""

from __future__ import annotations

import heapq
from collections import deque

from agent_rl.scheduling.policies.base import Decision, Drop, EngineFacts, Place, Policy, WaitingTurn
from agent_rl.scheduling.policies.lengths import Lengths
from agent_rl.scheduling.policies.loads import Loads


class _Resident:
    __slots__ = ("context", "engine", "limit", "problem", "reserved", "tools_since")

    def __init__(self, turn: WaitingTurn) -> None:
        self.engine = ""
        self.problem = turn.problem
        self.limit = turn.limit
        self.context = turn.context
        self.reserved = 0.0
        self.tools_since = -1.0


class Predictive(Policy):
    """See above."""

    def __init__(self, quantile: float = 0.5, growth: float = 0.7, fill: float = 0.95, hold_s: float = 60.0) -> None:
        """``growth`` is a above."""
        self.lengths = Lengths(quantile)
        self._growth = growth
        self._fill = fill
        self._hold_s = hold_s
        self._facts: dict[str, EngineFacts] = {}
        self._draining: set[str] = set()
        self._reserved: dict[str, float] = {}
        self._rows: dict[str, int] = {}
        self._load = Loads()
        """The reserved share of each engine's KV cache."""
        self._known: dict[str, _Resident] = {}
        self._next: deque[WaitingTurn] = deque()
        """Next turns whose engine holds a reservation for them."""
        self._again: deque[WaitingTurn] = deque()
        self._starts: deque[WaitingTurn] = deque()
        self._tools: list[tuple[float, str]] = []
        """Rollouts whose tools run, by the time at which their prefix is dropped."""

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed."""
        del now
        name = facts.engine
        if name not in self._reserved:
            self._reserved[name] = 0.0
            self._rows[name] = 0
        self._facts[name] = facts
        self._draining.discard(name)
        self._update(name)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine gets no more until it reports again; its residents move with their next turn."""
        del now
        self._draining.add(engine)
        self._load.remove(engine)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine's residents are nowhere. O(rollouts), for once."""
        self.engine_draining(engine, now)
        for rollout, resident in self._known.items():
            if resident.engine == engine:
                self._leave(rollout)
        for of_engines in (self._reserved, self._rows, self._facts):
            of_engines.pop(engine, None)
        self._draining.discard(engine)

    def _update(self, engine: str) -> None:
        facts = self._facts[engine]
        if engine not in self._draining:
            full = self._rows[engine] >= facts.max_rollouts
            self._load.set(engine, 2.0 if full else self._reserved[engine] / max(1, facts.kv_total))

    # Rollouts

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """Sort the turn in: it goes on where it is, starts again somewhere, or is new."""
        del now
        resident = self._known.get(turn.rollout)
        if resident is None:
            self._known[turn.rollout] = _Resident(turn)
            self.lengths.started(turn.rollout, turn.problem, turn.context, turn.limit)
            self._starts.append(turn)
            return
        resident.tools_since = -1.0
        resident.context = turn.context
        if resident.engine in self._load:
            self._next.append(turn)
        else:
            self._leave(turn.rollout)
            self._again.append(turn)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        del now
        self._forget_waiting(rollout)
        if engine in self._reserved:
            self._settle(rollout, engine)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """The tools run; the reservation is that of the new length."""
        resident = self._known[rollout]
        resident.context = context
        resident.tools_since = now
        if resident.engine in self._reserved:
            self._settle(rollout, resident.engine)
            heapq.heappush(self._tools, (now + self._hold_s, rollout))

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Learn from it, and free its reservation."""
        del now
        self._leave(rollout)
        self.lengths.ended(rollout, self._known.pop(rollout).problem, context)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """Free its reservation."""
        del now
        self._forget_waiting(rollout)
        self._leave(rollout)
        self._known.pop(rollout, None)
        self.lengths.forgotten(rollout)

    # Reservations

    def _need(self, resident: _Resident) -> float:
        final = self.lengths.final(resident.problem, resident.context, resident.limit)
        return resident.context + self._growth * (final - resident.context)

    def _settle(self, rollout: str, engine: str) -> None:
        """The rollout is a resident of this engine, with a reservation of its present length."""
        self._leave(rollout)
        resident = self._known[rollout]
        resident.engine = engine
        resident.reserved = self._need(resident)
        self._reserved[engine] += resident.reserved
        self._rows[engine] += 1
        self._update(engine)

    def _leave(self, rollout: str) -> None:
        resident = self._known.get(rollout)
        if resident is not None and resident.engine in self._reserved:
            self._reserved[resident.engine] -= resident.reserved
            self._rows[resident.engine] -= 1
            self._update(resident.engine)
        if resident is not None:
            resident.engine = ""
            resident.reserved = 0.0

    def _forget_waiting(self, rollout: str) -> None:
        for queue in (self._next, self._again, self._starts):
            for turn in [turn for turn in queue if turn.rollout == rollout]:
                queue.remove(turn)

    # Decisions

    def decide(self, now: float) -> list[Decision]:
        """Drop what waits too long for tools; next turns; what must start again; new rollouts while they fit."""
        decisions: list[Decision] = []
        while self._tools and self._tools[0][0] <= now:
            due, rollout = heapq.heappop(self._tools)
            resident = self._known.get(rollout)
            if resident is not None and resident.tools_since == due - self._hold_s and resident.engine:
                self._leave(rollout)
                decisions.append(Drop(rollout))
        while self._next:
            turn = self._next.popleft()
            if self._known[turn.rollout].engine not in self._load:  # it left since
                self._leave(turn.rollout)
                self._again.append(turn)
                continue
            decisions.append(self._place(turn, self._home_or_better(turn)))
        for queue in (self._again, self._starts):
            while queue and len(self._load):
                engine = self._load.least()
                need = self._need(self._known[queue[0].rollout])
                facts = self._facts[engine]
                room = self._fill * facts.kv_total - self._reserved[engine]
                if (need > room and self._rows[engine]) or self._rows[engine] >= facts.max_rollouts:
                    return decisions
                decisions.append(self._place(queue.popleft(), engine))
        return decisions

    def _place(self, turn: WaitingTurn, engine: str) -> Place:
        self._settle(turn.rollout, engine)
        return Place(turn.rollout, engine, self._known[turn.rollout].reserved)

    def _home_or_better(self, turn: WaitingTurn) -> str:
        home, other = self._known[turn.rollout].engine, self._load.least()
        over = self._reserved[home] - self._facts[home].kv_total
        if over > turn.context and other != home:
            room = self._fill * self._facts[other].kv_total - self._reserved[other]
            if room > self._known[turn.rollout].reserved:
                return other
        return home
