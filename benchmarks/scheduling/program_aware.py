"""Program aware: whole rollouts are paused and resumed, so that the engines' rollouts fit into their KV cache.

Source: ThunderAgent (its scheduler's document; smallest first is Lemma 4.1 of its paper). A rollout counts on its
engine with its tokens while it writes ("reasoning"), and with ``acting_weight`` times its tokens while its tools run
("acting"), plus 100 tokens each. Every ``interval_s`` seconds:

1. Rollouts that are not on an engine are resumed: those with a next turn first, then new ones, then those whose tools
   run; in each class the largest first, each on the engine with the most free capacity, while it fits.
2. An engine over capacity pauses rollouts, the smallest first: those whose tools run at once, then those that write,
   which are marked and leave when their turn ends.

A turn of a rollout that is not paused goes to its engine at once. A new rollout is taken at once while an engine has
room and nobody waits. Tokens are those of the last turn that ended, as ThunderAgent learns them from answers.
"""

from __future__ import annotations

import heapq
import math

from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, WaitingTurn
from agent_rl.scheduling.policies.loads import Loads

BUFFER = 100


class ProgramAware(PlacementPolicy):
    """See above."""

    def __init__(self, acting_weight: float = 1.0, interval_s: float = 5.0) -> None:
        self._weight = acting_weight
        self._interval = interval_s
        self._checked = -math.inf
        self._capacity: dict[str, int] = {}
        self._load = Loads()
        """Used less total tokens of each engine: the least has the most free capacity."""
        self._on: dict[str, tuple[str, int, bool]] = {}
        """Of each rollout on an engine: the engine, its tokens, and whether it writes."""
        self._members: dict[str, dict[str, None]] = {}
        self._marked: set[str] = set()
        self._pool: list[tuple[int, int, int, str]] = []
        """Waiting turns: next turns before new rollouts, the largest first, then the oldest."""
        self._turns: dict[str, WaitingTurn] = {}
        self._ready: list[WaitingTurn] = []
        self._order = 0

    # Events

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins."""
        del now
        if facts.engine not in self._load:
            self._capacity[facts.engine] = facts.kv_total
            self._members[facts.engine] = {}
            self._load.set(facts.engine, -facts.kv_total)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine's rollouts leave with their next turn."""
        self.engine_gone(engine, now)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine's rollouts leave with their next turn."""
        del now
        self._load.remove(engine)

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """A rollout that is on an engine goes on there; another one waits in the pool."""
        del now
        engine, _, _ = self._on.get(turn.rollout, ("", 0, False))
        if engine in self._load:
            self._ready.append(turn)
            return
        self._off(turn.rollout)
        self._turns[turn.rollout] = turn
        self._order += 1
        heapq.heappush(self._pool, (turn.turn == 0, -turn.context, self._order, turn.rollout))

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        del now
        self._ready = [turn for turn in self._ready if turn.rollout != rollout]
        turn = self._turns.pop(rollout, None)
        self._set(rollout, engine, turn.context if turn is not None else 0, writes=True)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """The rollout's tools run; a marked rollout is paused now."""
        del now
        if rollout in self._marked:
            self._off(rollout)
        elif rollout in self._on:
            self._set(rollout, self._on[rollout][0], context, writes=False)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """The rollout leaves."""
        del context, now
        self._off(rollout)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """The rollout leaves."""
        del now
        self._ready = [turn for turn in self._ready if turn.rollout != rollout]
        self._turns.pop(rollout, None)
        self._off(rollout)

    # Decisions

    def decide(self, now: float) -> list[Placement]:
        """See above."""
        decisions: list[Placement] = []
        for turn in self._ready:
            engine = self._on[turn.rollout][0]
            self._set(turn.rollout, engine, turn.context, writes=True)
            decisions.append(Placement(turn.rollout, engine))
        self._ready = []
        if now - self._checked >= self._interval or not self._on:
            self._checked = now
            self._resume(decisions)
            for engine in self._members:
                if engine in self._load and self._load[engine] > 0:
                    self._pause(engine)
        elif len(self._turns) == 1:
            self._resume(decisions)
        return decisions

    def _resume(self, decisions: list[Placement]) -> None:
        """The pool, as far as it fits. New rollouts are alike: the first that does not fit ends the search."""
        aside = []
        while self._pool and len(self._load):
            entry = heapq.heappop(self._pool)
            turn = self._turns.get(entry[3])
            if turn is None or turn.context != -entry[1]:
                continue  # placed by the guard, or dropped
            engine = self._load.least()
            fits = turn.context + BUFFER <= -self._load[engine] or not self._members[engine]
            if not fits:
                aside.append(entry)
                if entry[0]:
                    break
                continue
            del self._turns[turn.rollout]
            self._set(turn.rollout, engine, turn.context, writes=True)
            decisions.append(Placement(turn.rollout, engine))
        for entry in aside:
            heapq.heappush(self._pool, entry)

    def _pause(self, engine: str) -> None:
        members = [(self._on[name][2], self._on[name][1], name) for name in self._members[engine]]
        excess = self._load[engine] - sum(tokens + BUFFER for _, tokens, name in members if name in self._marked)
        for writes, tokens, name in sorted(members):
            if excess <= 0:
                return
            if name in self._marked:
                continue
            excess -= tokens + BUFFER
            if writes:
                self._marked.add(name)
            else:
                self._off(name)

    def _set(self, rollout: str, engine: str, tokens: int, *, writes: bool) -> None:
        marked = rollout in self._marked
        self._off(rollout)
        if marked:
            self._marked.add(rollout)
        self._on[rollout] = (engine, tokens, writes)
        self._members[engine][rollout] = None
        self._load.add(engine, self._charge(tokens, writes=writes))

    def _off(self, rollout: str) -> None:
        self._marked.discard(rollout)
        engine, tokens, writes = self._on.pop(rollout, ("", 0, False))
        if engine:
            del self._members[engine][rollout]
            self._load.add(engine, -self._charge(tokens, writes=writes))

    def _charge(self, tokens: int, *, writes: bool) -> float:
        return BUFFER + (tokens if writes else self._weight * tokens)
