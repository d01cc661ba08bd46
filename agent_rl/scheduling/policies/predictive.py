"""Predictive: fills the engines with as many rollouts as are likely to fit, each where it is likely to end soonest.

Symbols. K: an engine's KV cache. x: the context of a rollout now; both in tokens. A resident of an engine is a rollout
that runs there, is queued there, or whose tools run while its prefix stays there.

**Room.** How long a rollout becomes is predicted from its length so far and its problem (lengths.py). The KV cache that
the residents of an engine will need, at its highest point at z deviations above the mean, is forecast (forecast.py). A
rollout starts where the forecast with it stays below ``fill`` K. Residents are at different points of their lives and
do not reach their ends together, so far more fit than the sum of their lengths allows; at the start of a run, when all
are at the same point, fewer do. What overflows is preempted by the engine and computed again: unwise, not unsafe.
A forecast changes as residents come and leave. It is made anew, with what all have written, every ``refresh_s``
seconds, and sooner where rollouts are short: when they have written ``refresh_share`` of their mean length.

**Engines.** Of the engines with room, the one with the fewest seconds a token gets the next rollout (speeds.py); equal
engines fill equally.

**Moves.** A next turn stays where its prefix is, unless a move pays: another engine with room, once it holds the
rollout too, saves the rollout more seconds, over the tokens that it is likely to write yet, than the prefill of its
prefix takes from all rollouts there. Or its engine will overflow by more than its context, and another one has room.

**Pauses.** Where the residents do not fit any more, a next turn waits until it fits somewhere: at once if its prefix
was evicted already, otherwise when they exceed ``overfull`` K. They would evict each other's prefixes turn by turn.

**Tools.** A resident counts while its tools run. After ``hold_s`` seconds the prefix is dropped: holding x tokens for t
seconds costs t x / K seconds of the engine, and their prefill costs x times the prefill's seconds a token. So the time
at which both are equal is the same for all sizes.

**Batches.** With staleness S, S + 1 batches may be open. Where all of them have room at once, the youngest slows the
oldest, for which the next step waits, and all of them end at about the same time, after which the engines are empty. So
at most S + ``ahead`` batches are residents.

**Order.** Interrupted and dropped rollouts first, since their groups wait for them; then groups in the order of
starts.py, in which the samples of a group start close together. A late sample starts where it fits at present.

A decision costs O(log engines). Making a forecast anew costs O(1) for each resident.
"""

from __future__ import annotations

import math
from collections import deque

from agent_rl.scheduling.policies.base import (
    Decision,
    Drop,
    EngineFacts,
    Placement,
    PlacementPolicy,
    Setting,
    WaitingTurn,
)
from agent_rl.scheduling.policies.forecast import AHEAD, Forecast
from agent_rl.scheduling.policies.lengths import Lengths
from agent_rl.scheduling.policies.loads import Loads
from agent_rl.scheduling.policies.residents import EngineUse, Resident
from agent_rl.scheduling.policies.speeds import Speeds
from agent_rl.scheduling.policies.starts import Starts

FULL_ENGINE = 1e18
"""The load of an engine without room."""


class Predictive(PlacementPolicy):
    """See above."""

    def __init__(
        self,
        deviations: float = 1.5,
        fill: float = 0.98,
        hold_s: float = 60.0,
        refresh_s: float = 20.0,
        refresh_share: float = 0.1,
        move_gain: float = 3.0,
        overfull: float = 1.05,
        ahead: float = 0.1,
    ) -> None:
        """``deviations`` is z above. A move must save ``move_gain`` times what it costs."""
        self._overfull = overfull
        self.lengths = Lengths(ahead=AHEAD)
        self.speeds = Speeds()
        self._deviations = deviations
        self._fill = fill
        self._hold_s = hold_s
        self._refresh_s = refresh_s
        self._refresh_share = refresh_share
        self._ahead = ahead
        self._move_gain = move_gain
        self._engines: dict[str, EngineUse] = {}
        self._load = Loads()
        """Seconds a token of each engine that takes turns; FULL_ENGINE where the last rollout tried did not fit."""
        self._pace = Loads()
        """Seconds a token of each engine that takes turns."""
        self._known: dict[str, Resident] = {}
        self._next: deque[WaitingTurn] = deque()
        """Next turns whose engine counts them as residents."""
        self._again: deque[WaitingTurn] = deque()
        self._starts = Starts()
        self._places = 0.0
        """Further rollouts that have room on the engines that take turns."""
        self._residents = 0
        """Residents of all engines."""
        self._training = 0
        """Those of them that a step waits for."""
        self._most_training = math.inf
        self._share_of_new = 1.0
        """Tokens that the newest rollout adds to the forecast of an engine, at most."""
        self._tools: deque[tuple[float, str]] = deque()
        """Rollouts whose tools run, by the time at which their prefix is dropped."""
        self._grown = self._written = 1.0
        """Tokens that contexts grew by, and those of them that engines wrote."""

    def begin(self, setting: Setting) -> None:
        """The run begins, or enters another stage."""
        self._starts.begin(setting)
        batch = setting.samples * setting.groups_per_step
        self._most_training = batch * (setting.max_staleness + self._ahead) if setting.max_staleness else math.inf

    # Engines

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins, or its facts changed."""
        engine = self._engines.get(facts.engine)
        if engine is None:
            engine = self._engines[facts.engine] = EngineUse(facts)
        before, engine.facts = engine.facts, facts
        changed = before.kv_total != facts.kv_total or before.max_rollouts != facts.max_rollouts
        if facts.engine not in self._load:
            changed = True
            self._load.set(facts.engine, 0.0)
            self._pace.set(facts.engine, 0.0)
        if changed or now > engine.stale:
            self._refresh(engine, now)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine gets no more until it reports again; its residents move with their next turn."""
        del now
        self._load.remove(engine)
        self._pace.remove(engine)
        if engine in self._engines:
            self._has_places(self._engines[engine], 0.0)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine's residents are nowhere."""
        self.engine_draining(engine, now)
        gone = self._engines.get(engine)
        if gone is not None:
            for rollout in list(gone.residents):
                self._leave(rollout)
            del self._engines[engine]
        self.speeds.gone(engine)

    def _refresh(self, engine: EngineUse, now: float) -> None:
        """Make the forecast anew, with what the residents have written since."""
        clock = self._clock(engine, now)
        engine.forecast = Forecast()
        for rollout in engine.residents:
            resident = self._known[rollout]
            context = float(resident.context)
            if resident.writes:
                context += min(resident.limit - context, clock - resident.placed_clock)
                self.lengths.grew(rollout, int(context))
            self._count(engine, rollout, max(context, resident.context))
        pace = self.speeds.seconds(engine.facts.engine, self._share(engine))
        engine.stale = now + min(self._refresh_s, self._refresh_share * self.lengths.mean * pace)
        self._update(engine)

    def _count(self, engine: EngineUse, rollout: str, context: float) -> None:
        resident = self._known[rollout]
        resident.counted = context
        resident.survival = self.lengths.survivals(rollout, context)
        engine.forecast.add(context, resident.survival)

    def _clock(self, engine: EngineUse, now: float) -> float:
        engine.clock += (now - engine.now) / self.speeds.seconds(engine.facts.engine, self._share(engine))
        engine.now = now
        return engine.clock

    def _share(self, engine: EngineUse) -> float:
        return min(1.0, engine.forecast.mean[0] / max(1, engine.facts.kv_total))

    def _seconds(self, engine: EngineUse, used: float) -> float:
        """Seconds a token of the engine when so many tokens of its KV cache are used."""
        return self.speeds.seconds(engine.facts.engine, min(1.0, used / max(1, engine.facts.kv_total)))

    def _update(self, engine: EngineUse) -> None:
        """The loads of the engine, after its forecast changed."""
        name = engine.facts.engine
        if name in self._load:
            facts = engine.facts
            engine.most = engine.forecast.most(self._deviations)
            pace = self._seconds(engine, engine.most)
            full = engine.most > self._fill * facts.kv_total or len(engine.residents) >= facts.max_rollouts
            self._has_places(engine, (self._fill * facts.kv_total - engine.most) / self._share_of_new)
            self._pace.set(name, pace)
            self._load.set(name, FULL_ENGINE if full and engine.residents else pace)

    def _has_places(self, engine: EngineUse, places: float) -> None:
        places = max(0.0, min(places, engine.facts.max_rollouts - len(engine.residents)))
        self._places += places - engine.places
        engine.places = places

    def _fits(self, engine: EngineUse, context: float, survival: list[float]) -> bool:
        if len(engine.residents) >= engine.facts.max_rollouts:
            return False
        if not engine.residents:
            return True
        return engine.forecast.most(self._deviations, context, survival) <= self._fill * engine.facts.kv_total

    # Rollouts

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """Sort the turn in: it goes on where it is, starts again somewhere, or is new."""
        resident = self._known.get(turn.rollout)
        if resident is None:
            self._known[turn.rollout] = Resident(turn)
            self.lengths.started(turn.rollout, turn.problem, turn.prompt, turn.limit)
            self.lengths.grew(turn.rollout, turn.context)
            survival = self.lengths.survivals(turn.rollout, turn.context)
            self._share_of_new = max(share * (turn.context + d) for share, d in zip(survival, AHEAD, strict=True))
            self._starts.add(turn, self.lengths.final(turn.rollout, turn.context, turn.limit), now)
            return
        self._grown += max(0, turn.context - resident.context)
        resident.tools_since = -1.0
        resident.writes = False
        resident.context = turn.context
        self.lengths.grew(turn.rollout, turn.context)
        if resident.engine in self._load:
            self._next.append(turn)
        else:
            self._leave(turn.rollout)
            self._again.append(turn)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        self._starts.remove(rollout, now)
        self._forget_waiting(rollout)
        if engine in self._engines:
            self._settle(rollout, engine, now)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """The tools run. The resident's new length counts when the forecast is made anew."""
        resident = self._known[rollout]
        self._learn(rollout, context, now)
        resident.tools_since = now
        if resident.engine in self._engines:
            self._tools.append((now + self._hold_s, rollout))

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Learn from it; it is no resident any more."""
        self._learn(rollout, context, now)
        self._leave(rollout)
        del self._known[rollout]
        self.lengths.ended(rollout, context)
        self._starts.ended(now)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """It is no resident any more."""
        del now
        self._forget_waiting(rollout)
        self._leave(rollout)
        self._known.pop(rollout, None)
        self.lengths.forgotten(rollout)

    def _learn(self, rollout: str, context: int, now: float) -> None:
        """A turn ended: learn the pace of its engine."""
        resident = self._known[rollout]
        engine = self._engines.get(resident.engine)
        written = context - resident.context
        if engine is not None and resident.writes:
            self.speeds.wrote(resident.engine, written, resident.missing, now - resident.placed_at, self._share(engine))
        self._grown += max(0, written)
        self._written += max(0, written)
        resident.context = max(resident.context, context)
        resident.writes = False
        self.lengths.grew(rollout, resident.context)

    # Residents

    def _settle(self, rollout: str, name: str, now: float) -> None:
        """The rollout is a resident of this engine, with its present length, and writes."""
        resident, engine = self._known[rollout], self._engines[name]
        resident.placed_at = now
        resident.placed_clock = self._clock(engine, now)
        resident.writes = True
        if resident.engine != name:
            self._leave(rollout)
            resident.engine = name
            engine.residents[rollout] = None
            self._residents += 1
            self._training += resident.trains
            self._count(engine, rollout, resident.context)
            self._update(engine)

    def _leave(self, rollout: str) -> None:
        resident = self._known.get(rollout)
        if resident is None:
            return
        engine = self._engines.get(resident.engine)
        if engine is not None and rollout in engine.residents:
            del engine.residents[rollout]
            self._residents -= 1
            self._training -= resident.trains
            engine.forecast.add(resident.counted, resident.survival, -1.0)
            self._update(engine)
        resident.engine = ""

    def _forget_waiting(self, rollout: str) -> None:
        self._starts.remove(rollout)
        for queue in (self._next, self._again):
            for turn in [turn for turn in queue if turn.rollout == rollout]:
                queue.remove(turn)

    # Decisions

    def decide(self, now: float) -> list[Decision]:
        """Drop what waits too long for tools; next turns; what must start again; new rollouts while they fit."""
        decisions: list[Decision] = []
        while self._tools and self._tools[0][0] <= now:
            due, rollout = self._tools.popleft()
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
            chosen = self._home_or_better(turn)
            if self._is_overfull(chosen, turn):
                self._leave(turn.rollout)
                self._again.append(turn)
                continue
            decisions.append(self._place(turn, chosen, now))
        while self._again and len(self._load):
            engine = self._room_for(self._again[0], now)
            if engine is None:
                break
            decisions.append(self._place(self._again.popleft(), engine, now))
        while len(self._load):
            to_train = self._most_training - self._training if self._training else math.inf
            start = self._starts.first(now, self._places if self._residents else math.inf, to_train)
            if start is None:
                break
            turn, late = start
            waits = (self._again or (turn.trains and to_train < 1)) and not late
            engine = None if waits else self._room_for(turn, now, late=late)
            if engine is None:
                break
            self._starts.remove(turn.rollout, now)
            decisions.append(self._place(turn, engine, now))
        return decisions

    def _room_for(self, turn: WaitingTurn, now: float, *, late: bool = False) -> str | None:
        """The fastest engine with room for the rollout; None if there is none."""
        survival: list[float] = []
        while self._load[name := self._load.least()] < FULL_ENGINE:
            engine = self._engines[name]
            if now > engine.stale:
                self._refresh(engine, now)
                continue
            survival = survival or self.lengths.survivals(turn.rollout, turn.context)
            if self._fits(engine, turn.context, survival):
                return name
            self._load.set(name, FULL_ENGINE)
        engine = self._engines[self._pace.least()]
        fits_now = engine.forecast.mean[0] + turn.context <= self._fill * engine.facts.kv_total
        has_row = len(engine.residents) < engine.facts.max_rollouts
        return engine.facts.engine if late and fits_now and has_row else None

    def _place(self, turn: WaitingTurn, engine: str, now: float) -> Placement:
        self._settle(turn.rollout, engine, now)
        self._known[turn.rollout].missing = turn.context - (turn.kept if turn.kept_on == engine else 0)
        return Placement(turn.rollout, engine, self.lengths.final(turn.rollout, turn.context, turn.limit))

    def _is_overfull(self, name: str, turn: WaitingTurn) -> bool:
        """Whether the turn, a resident there, must wait: the residents do not fit, and would evict each other."""
        if name != self._known[turn.rollout].engine:
            return False
        engine = self._engines[name]
        size = engine.facts.kv_total
        evicted = 2 * turn.kept < turn.context or turn.kept_on != name
        limit = self._fill * size if evicted else self._overfull * size
        return len(engine.residents) > 1 and engine.forecast.mean[0] > limit

    def _home_or_better(self, turn: WaitingTurn) -> str:
        """The rollout's engine, or another one where it ends sooner in spite of the move."""
        home, other = self._engines[self._known[turn.rollout].engine], self._pace.least()
        if self._load[other] == FULL_ENGINE:
            other = self._load.least()
        name = home.facts.engine
        if other == name or self._load[other] == FULL_ENGINE:
            return name
        there = self._engines[other]
        if home.most - home.facts.kv_total <= turn.context:  # no room is needed here
            saved = self._pace[name] - self._seconds(there, there.most + turn.context)
            kept = turn.kept if turn.kept_on == name else 0
            if saved <= 0 and kept == turn.context:
                return name
            cost = self.speeds.prefill(other, turn.context) * (1 + len(there.residents))
            cost -= self.speeds.prefill(name, turn.context - kept) * len(home.residents)
            left = self.lengths.final(turn.rollout, turn.context, turn.limit) - turn.context
            if saved * left * self._written / self._grown <= self._move_gain * cost:
                return name
        survival = self.lengths.survivals(turn.rollout, turn.context)
        return other if self._fits(there, turn.context, survival) else name
