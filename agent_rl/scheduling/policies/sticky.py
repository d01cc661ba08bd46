"""Sticky: a rollout starts on the fastest engine with room, and stays there until it ends.

Symbols. K: an engine's KV cache. x: the context of a rollout now. m: the mean tokens of a rollout beyond its prompt,
learnt from all that were sampled. All in tokens. The rollouts of an engine are those that were placed there and have
not ended, also while their tools run.

**Room.** The rollouts of an engine are at different points of their lives. So at its highest point, their sum is about
``share`` of the sum of their final lengths. A rollout needs max(x, prompt + ``share`` m). The needs of n rollouts vary:
their sum gets min(``spread`` sqrt(n), (1 - ``share``) n) m on top, so that few rollouts count with m each. A rollout
starts where the sum with it stays below ``fill`` K. An empty engine always has room. When the rollouts of an engine
exceed K all the same, the engine preempts some of them, or evicts prefixes that the next turns need, and computes them
again. Rollouts with many turns then spend most of their time on prefill, which ``spread`` guards against.

**Mean.** m = (tokens that all rollouts wrote or read beyond their prompts) / (rollouts that ended). A rollout under way
counts with the tokens that it has, so the short ones, which end first, do not make m too small.

**Engines.** An engine needs T (1 + (FULL - 1) u) seconds a token, where u is the used share of K. T is learnt from the
tokens that the engine reports. An engine counts with the u of its rollouts' needs, or with its share of rows that are
taken, if that is more. Of the engines with room, the one with the fewest seconds a token gets the next rollout, so that
equal engines fill equally. Nothing starts on an engine with more than ``slowest`` times the seconds a token of the
fastest one.

**Batches.** With staleness S, S + 1 batches may be open. The youngest batch slows the oldest one, for which the next
step waits. So at most S + ``ahead`` batches run at once. Rollouts of evaluations and selections do not count.

**Order.** Rollouts that lost their engine come first. New groups follow in the order of starts.py, so that the samples
of a group start close together. A sample that is late starts where its present context fits.

A decision costs O(log engines).
"""

from __future__ import annotations

import heapq
import math

from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.starts import Starts

FULL = 5.0
"""A full engine needs so many times the seconds a token of an empty one."""
PRIOR_SHARE, PRIOR_ROLLOUTS = 0.3, 16.0
"""Before anything has ended, a rollout is expected to take this share of its limit. That counts as so many rollouts."""
FADES_AFTER = 8192.0
"""Once so many rollouts have ended, the counts behind m are halved, so that m follows a policy that changes."""
REMEMBERED = 100_000.0
"""Tokens of an engine after which the weight of what it reported has fallen to a third."""


class Loads:
    """Engines by a load that changes: a heap with outdated entries, which are skipped. Ties go to who was first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._loads: dict[str, float] = {}
        self._order: dict[str, int] = {}

    def __contains__(self, engine: str) -> bool:
        return engine in self._loads

    def __getitem__(self, engine: str) -> float:
        return self._loads[engine]

    def __len__(self) -> int:
        return len(self._loads)

    def set(self, engine: str, load: float) -> None:
        """The engine has this load; an unknown engine joins."""
        order = self._order.setdefault(engine, len(self._order))
        self._loads[engine] = load
        heapq.heappush(self._heap, (load, order, engine))
        if len(self._heap) > 4 * len(self._loads) + 64:
            self._heap = [(value, self._order[name], name) for name, value in self._loads.items()]
            heapq.heapify(self._heap)

    def add(self, engine: str, change: float) -> None:
        """The engine's load changes, unless the engine is gone."""
        if engine in self._loads:
            self.set(engine, self._loads[engine] + change)

    def remove(self, engine: str) -> None:
        """The engine is gone."""
        self._loads.pop(engine, None)

    def least(self) -> str:
        """The engine with the smallest load; there must be one."""
        heap = self._heap
        while self._loads.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][2]


class _Pace:
    """The mean seconds a token on an empty engine, over the latest tokens."""

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0

    def add(self, seconds: float, tokens: float, used: float) -> None:
        """So many tokens took so many seconds, while this share of the KV cache was used."""
        keep = math.exp(-tokens / REMEMBERED)
        self._seconds = self._seconds * keep + seconds
        self._tokens = self._tokens * keep + tokens * _slower(used)

    @property
    def seconds(self) -> float | None:
        """Seconds a token; None before anything is known."""
        return self._seconds / self._tokens if self._tokens else None


def _slower(used: float) -> float:
    """How much slower than an empty engine one is that uses this share of its KV cache."""
    return 1 + (FULL - 1) * min(1.0, used)


class _Engine:
    def __init__(self, facts: EngineFacts, now: float) -> None:
        self.facts, self.reported = facts, now
        self.pace = _Pace()
        self.needs = 0.0
        self.rollouts: dict[str, None] = {}
        self.places = 0.0
        """New rollouts that there is room for, about."""


class _Rollout:
    def __init__(self, turn: WaitingTurn) -> None:
        self.turn, self.context = turn, turn.context
        self.engine, self.need = "", 0.0
        """Where the rollout runs, and the need that counts there; empty and 0 when it waits."""


class Sticky(PlacementPolicy):
    """See above."""

    def __init__(
        self, share: float = 0.6, spread: float = 1.5, fill: float = 0.95, ahead: float = 0.1, slowest: float = 1.5
    ) -> None:
        """The settings are named in the rules above."""
        self._share, self._fill, self._ahead, self._slowest, self._spread = share, fill, ahead, slowest, spread
        self._engines: dict[str, _Engine] = {}
        self._pace = _Pace()
        """That of all engines: an engine that has not reported tokens counts with it."""
        self._offered = Loads()
        """The seconds a token of each engine that takes rollouts."""
        self._with_room = Loads()
        """The same of those engines where the last rollout that was tried had room. Others are tried again when they
        report, or when one of their rollouts changes."""
        self._rollouts: dict[str, _Rollout] = {}
        self._again: dict[str, None] = {}
        """Rollouts that lost their engine, and wait."""
        self._starts = Starts()
        self._places = 0.0
        """New rollouts that the offered engines have room for, about."""
        self._running = self._training = 0
        """The rollouts of all engines, and those of them that a step waits for."""
        self._most_training = math.inf
        self._ended, self._spent, self._prior = PRIOR_ROLLOUTS, 0.0, 0.0

    def begin(self, setting: Setting) -> None:
        """The run begins, or enters another stage."""
        batch = setting.samples * setting.groups_per_step
        self._most_training = batch * (setting.max_staleness + self._ahead) if setting.max_staleness else math.inf

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed."""
        engine = self._engines.setdefault(facts.engine, _Engine(facts, now))
        before, tokens = engine.facts, facts.generated - engine.facts.generated
        seconds = (now - engine.reported) * (before.running + facts.running) / 2
        engine.facts, engine.reported = facts, now
        if facts.engine in self._offered and before.running and facts.running and tokens > 0 and seconds > 0:
            used = (before.kv_used + facts.kv_used) / 2 / max(1, facts.kv_total)
            for pace in (engine.pace, self._pace):
                pace.add(seconds, tokens, used)
        self._offered.set(facts.engine, 0.0)
        self._changed(engine)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine gets no more rollouts until it reports again."""
        del now
        self._offered.remove(engine)
        if engine in self._engines:
            self._changed(self._engines[engine])

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine's rollouts are nowhere."""
        self.engine_draining(engine, now)
        if engine in self._engines:
            for rollout in list(self._engines[engine].rollouts):
                self._leave(rollout)
            del self._engines[engine]

    def _changed(self, engine: _Engine) -> None:
        """The needs, the facts or the pace of the engine changed."""
        name, facts, places = engine.facts.engine, engine.facts, 0.0
        if name in self._offered:
            empty = engine.pace.seconds or self._pace.seconds or 1.0
            used = max(engine.needs / max(1, facts.kv_total), len(engine.rollouts) / max(1, facts.max_rollouts))
            seconds = empty * _slower(used)
            self._offered.set(name, seconds)
            self._with_room.set(name, seconds)
            room = self._free(engine) // max(1.0, self._share * self.mean)
            places = max(0.0, min(room, facts.max_rollouts - len(engine.rollouts)))
        else:
            self._with_room.remove(name)
        self._places += places - engine.places
        engine.places = places

    # Rollouts

    @property
    def mean(self) -> float:
        """Tokens of a rollout beyond its prompt: m above."""
        return (self._spent + PRIOR_ROLLOUTS * self._prior) / self._ended

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """The rollout is new, or it lost its engine."""
        rollout = self._rollouts.get(turn.rollout)
        if rollout is None:
            self._prior = max(self._prior, PRIOR_SHARE * turn.limit)
            self._rollouts[turn.rollout] = _Rollout(turn)
            self._starts.add(turn, now)
            return
        self._leave(turn.rollout)
        rollout.turn, rollout.context = turn, turn.context
        self._again[turn.rollout] = None

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the rollout, or it was found there."""
        if engine in self._engines:
            self._place(rollout, engine, now)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """The rollout has grown."""
        del now
        known = self._rollouts[rollout]
        self._spent += max(0, context - known.context)
        known.context = max(known.context, context)
        if known.engine:
            self._count(known)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Its length counts for the mean, and its room is free."""
        self.turn_ended(rollout, context, now)
        self._ended += 1
        if self._ended > FADES_AFTER:
            self._ended, self._spent = self._ended / 2, self._spent / 2
        self._starts.ended(now)
        self.rollout_dropped(rollout, now)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """Its room is free."""
        del now
        self._starts.remove(rollout)
        self._again.pop(rollout, None)
        self._leave(rollout)
        self._rollouts.pop(rollout, None)

    def _need(self, rollout: _Rollout) -> float:
        return max(rollout.context, rollout.turn.prompt + self._share * self.mean)

    def _free(self, engine: _Engine) -> float:
        """The tokens that another rollout may need there."""
        rollouts = 1 + len(engine.rollouts)
        deviation = min(self._spread * math.sqrt(rollouts), (1 - self._share) * rollouts)
        return self._fill * engine.facts.kv_total - engine.needs - deviation * self.mean

    def _count(self, rollout: _Rollout) -> None:
        engine, before = self._engines[rollout.engine], rollout.need
        rollout.need = self._need(rollout)
        engine.needs += rollout.need - before
        self._changed(engine)

    def _place(self, name: str, engine: str, now: float) -> Placement:
        """The rollout runs on this engine from now on."""
        self._starts.started(name, now)
        self._again.pop(name, None)
        self._leave(name)
        rollout = self._rollouts[name]
        rollout.engine = engine
        self._engines[engine].rollouts[name] = None
        self._running += 1
        self._training += rollout.turn.trains
        self._count(rollout)
        return Placement(name, engine, rollout.need)

    def _leave(self, name: str) -> None:
        rollout = self._rollouts.get(name)
        if rollout is not None and rollout.engine:
            engine = self._engines[rollout.engine]
            engine.needs -= rollout.need
            del engine.rollouts[name]
            rollout.engine, rollout.need = "", 0.0
            self._running -= 1
            self._training -= rollout.turn.trains
            self._changed(engine)

    # Decisions

    def decide(self, now: float) -> list[Placement]:
        """Rollouts that lost their engine, then new ones, while there is room."""
        placed: list[Placement] = []
        for name in list(self._again):
            engine = self._room_for(self._need(self._rollouts[name]), math.inf)
            if engine is None:
                return placed
            placed.append(self._place(name, engine, now))
        while len(self._offered):
            to_train = self._most_training - self._training if self._training else math.inf
            first = self._starts.first(now, self._places if self._running else math.inf, to_train)
            if first is None:
                break
            turn, late = first
            if turn.trains and to_train < 1 and not late:
                break
            need = turn.context if late else self._need(self._rollouts[turn.rollout])
            engine = self._room_for(need, self._slowest)
            if engine is None:
                break
            placed.append(self._place(turn.rollout, engine, now))
        return placed

    def _room_for(self, need: float, slowest: float) -> str | None:
        """The fastest engine with room for so many tokens; None when there is none, or a slower one than allowed."""
        while len(self._with_room):
            name = self._with_room.least()
            if self._with_room[name] > slowest * self._offered[self._offered.least()]:
                return None
            engine = self._engines[name]
            if not engine.rollouts or (need <= self._free(engine) and len(engine.rollouts) < engine.facts.max_rollouts):
                return name
            self._with_room.remove(name)
        return None
