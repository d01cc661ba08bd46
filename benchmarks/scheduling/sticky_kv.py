"""Sticky by KV cache: a rollout starts where it will be written fastest among the engines with room, and stays there.

Symbols. K: an engine's KV cache. x: the context of a rollout now. m: the mean tokens of a rollout beyond its prompt,
learnt from all that were sampled. All in tokens. A resident of an engine is a rollout that was placed there and has not
ended, also while its tools run.

**Room.** Residents are at different points of their lives, so that at its highest point their sum is about ``share`` of
the sum of their final lengths. A resident needs max(x, prompt + share m). A rollout starts where the sum with it stays
below ``fill`` K; the first resident always fits. What overflows is preempted by the engine and computed again: unwise,
not unsafe.

**Engines.** Seconds a token are T (1 + (FULL - 1) s), with s the share of the KV cache that is needed. T is learnt
from the turns that end there. Of the engines with room, the one with the fewest seconds a token gets the next rollout,
so that equal engines fill equally.

**Batches.** At most S + ``ahead`` batches are residents (S: the staleness budget): the youngest slows the oldest, for
which the next step waits.

**Order.** Rollouts that lost their engine first, then first come, first served. A decision costs O(log engines).
"""

from __future__ import annotations

import math
from collections import deque

from agent_rl.scheduling.policies.base import Decision, EngineFacts, Placement, PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.loads import Loads
from agent_rl.scheduling.policies.starts import Starts

FULL = 5.0
"""A full engine takes so many times the seconds a token of an empty one."""
PRIOR_SHARE, PRIOR_ROLLOUTS = 0.3, 16.0
"""Before anything has ended, a rollout is expected to take this share of its limit; it counts as so many rollouts."""
REMEMBERED = 20_000.0
"""Tokens after which the weight of an engine's seconds has fallen to a third."""


class _Resident:
    def __init__(self, turn: WaitingTurn) -> None:
        self.turn, self.engine, self.need = turn, "", 0.0
        self.context, self.placed_at = turn.context, math.nan


class _Engine:
    def __init__(self, facts: EngineFacts) -> None:
        self.facts, self.need, self.residents = facts, 0.0, dict[str, None]()
        self.seconds = self.tokens = 0.0


class StickyKV(PlacementPolicy):
    """See above."""

    def __init__(self, share: float = 0.8, fill: float = 0.95, ahead: float = 0.1, slow: float = 1.5) -> None:
        self._slow = slow
        self._share, self._fill, self._ahead = share, fill, ahead
        self._engines: dict[str, _Engine] = {}
        self._pace = Loads()
        self._known: dict[str, _Resident] = {}
        self._here: deque[str] = deque()
        self._again: deque[str] = deque()
        self._starts = Starts()
        self._ended = PRIOR_ROLLOUTS
        self._spent = 0.0
        self._prior = 0.0
        self._training, self._most_training = 0, math.inf

    def begin(self, setting: Setting) -> None:
        """The run begins, or enters another stage."""
        self._starts.begin(setting)
        batch = setting.samples * setting.groups_per_step
        self._most_training = batch * (setting.max_staleness + self._ahead) if setting.max_staleness else math.inf

    @property
    def mean(self) -> float:
        """Tokens of a rollout beyond its prompt."""
        return (self._spent + PRIOR_ROLLOUTS * self._prior) / self._ended

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed."""
        del now
        self._engines.setdefault(facts.engine, _Engine(facts)).facts = facts
        self._rank(facts.engine)

    def engine_draining(self, engine: str, now: float) -> None:
        """It gets no more until it reports again."""
        del now
        self._pace.remove(engine)

    def engine_gone(self, engine: str, now: float) -> None:
        """Its residents are nowhere."""
        self.engine_draining(engine, now)
        if engine in self._engines:
            for rollout in list(self._engines[engine].residents):
                self._leave(rollout)
            del self._engines[engine]

    def _rank(self, name: str) -> None:
        engine = self._engines[name]
        used = min(1.0, engine.need / max(1, engine.facts.kv_total))
        self._pace.set(name, self._empty(engine) * (1 + (FULL - 1) * used))

    def _empty(self, engine: _Engine) -> float:
        if engine.tokens:
            return engine.seconds / engine.tokens
        known = [each.seconds / each.tokens for each in self._engines.values() if each.tokens]
        return sum(known) / len(known) if known else 1.0

    # Rollouts

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """A resident goes on where it is; others wait for room."""
        resident = self._known.get(turn.rollout)
        if resident is None:
            self._prior = max(self._prior, PRIOR_SHARE * turn.limit)
            self._known[turn.rollout] = _Resident(turn)
            self._starts.add(turn, 0.0, now)
            return
        self._grew(resident, turn.context)
        resident.turn, resident.placed_at = turn, math.nan
        if resident.engine in self._pace:
            self._here.append(turn.rollout)
        else:
            self._leave(turn.rollout)
            self._again.append(turn.rollout)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        self._forget_waiting(rollout, now)
        if engine in self._engines:
            self._settle(rollout, engine, now)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """Learn the pace of its engine."""
        resident = self._known[rollout]
        engine, written, seconds = (
            self._engines.get(resident.engine),
            context - resident.context,
            now - resident.placed_at,
        )
        if engine is not None and written > 0 and seconds > 0:
            used = min(1.0, engine.need / max(1, engine.facts.kv_total))
            keep = max(0.0, 1 - written / REMEMBERED)
            engine.seconds = engine.seconds * keep + seconds
            engine.tokens = engine.tokens * keep + written * (1 + (FULL - 1) * used)
        resident.placed_at = math.nan
        self._grew(resident, context)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Learn from it; its room is free."""
        self.turn_ended(rollout, context, now)
        self._ended += 1
        self._starts.ended(now)
        self._leave(rollout)
        del self._known[rollout]

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """Its room is free."""
        del now
        self._forget_waiting(rollout)
        self._leave(rollout)
        self._known.pop(rollout, None)

    def _grew(self, resident: _Resident, context: int) -> None:
        self._spent += max(0, context - resident.context)
        resident.context = max(resident.context, context)
        if resident.engine:
            self._count(resident)

    def _count(self, resident: _Resident) -> None:
        engine, before = self._engines[resident.engine], resident.need
        resident.need = max(resident.context, resident.turn.prompt + self._share * self.mean)
        engine.need += resident.need - before
        if resident.engine in self._pace:
            self._rank(resident.engine)

    def _settle(self, rollout: str, name: str, now: float) -> None:
        resident = self._known[rollout]
        resident.placed_at = now
        if resident.engine != name:
            self._leave(rollout)
            resident.engine = name
            self._engines[name].residents[rollout] = None
            self._training += resident.turn.trains
            self._count(resident)

    def _leave(self, rollout: str) -> None:
        resident = self._known.get(rollout)
        if resident is not None and resident.engine:
            engine, resident.engine = self._engines[resident.engine], ""
            engine.need -= resident.need
            resident.need = 0.0
            del engine.residents[rollout]
            self._training -= resident.turn.trains
            if engine.facts.engine in self._pace:
                self._rank(engine.facts.engine)

    def _forget_waiting(self, rollout: str, now: float = math.inf) -> None:
        self._starts.remove(rollout, now)
        for queue in (self._here, self._again):
            if rollout in queue:
                queue.remove(rollout)

    # Decisions

    def decide(self, now: float) -> list[Decision]:
        """Next turns where they are; then what lost its engine, and new rollouts while they fit."""
        decisions: list[Decision] = []
        while self._here:
            rollout = self._here.popleft()
            self._known[rollout].placed_at = now
            decisions.append(Placement(rollout, self._known[rollout].engine, self._known[rollout].need))
        while self._again and len(self._pace):
            resident = self._known[self._again[0]]
            engine = self._with_room(self._need(resident), math.inf)
            if engine is None:
                return decisions
            rollout = self._again.popleft()
            self._settle(rollout, engine, now)
            decisions.append(Placement(rollout, engine, resident.need))
        while len(self._starts) and len(self._pace):
            first = self._starts.first(now, self._places(), self._most_training - self._training)
            if first is None:
                break
            turn, late = first
            resident = self._known[turn.rollout]
            if turn.trains and self._training >= self._most_training and not late:
                break
            engine = self._with_room(resident.context if late else self._need(resident), self._slow)
            if engine is None:
                break
            self._starts.remove(turn.rollout, now)
            self._settle(turn.rollout, engine, now)
            decisions.append(Placement(turn.rollout, engine, resident.need))
        return decisions

    def _need(self, resident: _Resident) -> float:
        return max(resident.context, resident.turn.prompt + self._share * self.mean)

    def _places(self) -> float:
        need = max(1.0, self._share * self.mean)
        return sum(
            max(0.0, (self._fill * each.facts.kv_total - each.need) // need)
            for name, each in self._engines.items()
            if name in self._pace
        )

    def _with_room(self, need: float, slow: float) -> str | None:
        """The fastest engine with room; None when there is none."""
        best = self._pace[self._pace.least()]
        skipped: list[str] = []
        found = None
        while len(self._pace) and found is None:
            name = self._pace.least()
            if self._pace[name] > slow * best:
                break
            engine = self._engines[name]
            room = engine.need + need <= self._fill * engine.facts.kv_total
            if not engine.residents or (room and len(engine.residents) < engine.facts.max_rollouts):
                found = name
            else:
                skipped.append(name)
                self._pace.remove(name)
        for name in skipped:
            self._rank(name)
        return found
