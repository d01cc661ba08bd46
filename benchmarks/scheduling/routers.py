"""Opponents of `sticky`: routers, which place every turn as soon as it waits, and the paper's baseline.

A router keeps nothing back. It counts the requests under way on each engine itself, as routers do, in a heap: the least
loaded engine is found in O(log engines). ``concurrency`` bounds the rollouts that are started and not ended, for each
engine, as the orchestrators around routers do; None: no bound. In a run, a rollout stays where its first turn is
placed: only the lab asks them again.
"""

from __future__ import annotations

import math
from collections import deque

from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, WaitingTurn
from agent_rl.scheduling.policies.loads import Loads

BLOCK = 16


class Immediate(PlacementPolicy):
    """Places each turn at once, where `engine_for` says. Counts the requests under way on each engine."""

    def __init__(self, concurrency: int | None = None) -> None:
        self._concurrency = concurrency
        self._started: set[str] = set()
        self._new: deque[WaitingTurn] = deque()
        """First turns that wait until fewer rollouts are under way."""
        self.names: list[str] = []
        """The engines that take turns."""
        self.requests = Loads()
        self.engine_of: dict[str, str] = {}
        """The engine of each turn under way."""
        self._waiting: deque[WaitingTurn] = deque()

    def engine_for(self, turn: WaitingTurn) -> str:
        """The engine for this turn; there is at least one."""
        raise NotImplementedError

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """Take in an engine that joins."""
        del now
        if facts.engine not in self.requests:
            self.names.append(facts.engine)
            self.requests.set(facts.engine, 0)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine takes no more turns."""
        self.engine_gone(engine, now)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine takes no more turns."""
        del now
        if engine in self.names:
            self.names.remove(engine)
            self.requests.remove(engine)

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """Take in the turn."""
        del now
        self._left(turn.rollout)
        (self._waiting if turn.rollout in self._started else self._new).append(turn)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        del now
        self._forget_waiting(rollout)
        self._started.add(rollout)
        self.engine_of[rollout] = engine
        self.requests.add(engine, 1)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """One request less."""
        del context, now
        self._left(rollout)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """One rollout less."""
        del context, now
        self._left(rollout)
        self._started.discard(rollout)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """One rollout less, wherever it is."""
        self._forget_waiting(rollout)
        self.rollout_ended(rollout, 0, now)

    def decide(self, now: float) -> list[Placement]:
        """Place all that waits."""
        del now
        decisions: list[Placement] = []
        most = math.inf if self._concurrency is None else self._concurrency * len(self.names)
        while self.names and (self._waiting or (self._new and len(self._started) < most)):
            turn = self._waiting.popleft() if self._waiting else self._new.popleft()
            self._started.add(turn.rollout)
            engine = self.engine_for(turn)
            self.engine_of[turn.rollout] = engine
            self.requests.add(engine, 1)
            decisions.append(Placement(turn.rollout, engine))
        return decisions

    def _forget_waiting(self, rollout: str) -> None:
        self._waiting = deque(turn for turn in self._waiting if turn.rollout != rollout)
        self._new = deque(turn for turn in self._new if turn.rollout != rollout)

    def _left(self, rollout: str) -> None:
        engine = self.engine_of.pop(rollout, None)
        if engine is not None:
            self.requests.add(engine, -1)


class RoundRobin(Immediate):
    """Round robin: the engines in turn, whatever their load.

    The simplest rule, of a router that knows nothing: each turn goes to the next engine of a circle. A rollout's turns
    land on different engines, so its prefix is computed again nearly every time. Source: the usual default of HTTP
    routers; prime-rl routed so until its pull request #1791.
    """

    def __init__(self, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._next = -1

    def engine_for(self, turn: WaitingTurn) -> str:
        """The next engine."""
        del turn
        self._next = (self._next + 1) % len(self.names)
        return self.names[self._next]


class LeastRequests(Immediate):
    """Least requests: the engine with the fewest requests under way, whatever they need.

    Turns of a rollout may land on different engines, so prefixes are lost; requests of 300 and of 30,000 tokens count
    the same. Source: the classic router rule; verl's least-requests choice for new requests (pull request #5399) and
    prime-rl's least-loaded choice (#1791), here without their stickiness.
    """

    def engine_for(self, turn: WaitingTurn) -> str:
        """The engine with the fewest requests."""
        del turn
        return self.requests.least()


class StickyLeastLoaded(Immediate):
    """Sticky least loaded: a new rollout goes to the engine with the fewest rollouts, and stays there.

    Source: prime-rl's default since its pull request #3563, of vllm-router (``sticky_least_loaded``): a session is an
    active rollout, a new session goes to the engine with the least active sessions, and all its requests follow.
    prime-rl bounds the rollouts under way as well (``concurrency``). Stickiness keeps prefixes only as long as the
    engine can hold them: see prime-rl #3255, hit rate 98 to 5 % when engines fill.
    """

    def __init__(self, concurrency: int | None = 24) -> None:
        super().__init__(concurrency)
        self._sessions = Loads()
        self._home: dict[str, str] = {}

    def engine_for(self, turn: WaitingTurn) -> str:
        """The rollout's engine, or the one with the fewest rollouts."""
        home = self._home.get(turn.rollout)
        if home is not None and home in self._sessions:
            return home
        engine = self._home[turn.rollout] = self._sessions.least()
        self._sessions.add(engine, 1)
        return engine

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins."""
        if facts.engine not in self._sessions:
            self._sessions.set(facts.engine, 0)
        super().engine_reported(facts, now)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine's sessions move with their next turn."""
        self._sessions.remove(engine)
        super().engine_gone(engine, now)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """One session less."""
        home = self._home.pop(rollout, None)
        if home is not None:
            self._sessions.add(home, -1)
        super().rollout_ended(rollout, context, now)


class CacheAware(Immediate):
    """Cache aware: the engine with the longest known prefix, unless the load is out of balance.

    Source: the cache-aware policy of SGLang's and vLLM's router. The load is out of balance when the most loaded engine
    has more than ``absolute`` requests more than the least loaded one, and more than ``relative`` times as many: then
    the least loaded engine is taken. Otherwise the engine whose prefix tree matches most, if it matches more than the
    share ``threshold`` of the prompt; else the engine with the smallest tree. The routers approximate trees by what
    they sent; here the tree of an engine has the contexts of its rollouts and the prompts of their groups.
    """

    def __init__(
        self, threshold: float = 0.3, absolute: int = 64, relative: float = 1.5, concurrency: int | None = None
    ) -> None:
        super().__init__(concurrency)
        self._threshold = threshold
        self._absolute = absolute
        self._relative = relative
        self._most = Loads()
        """Requests under way, negative: the least is the most loaded engine."""
        self._trees = Loads()
        self._home: dict[str, tuple[str, int]] = {}
        """The engine of each rollout, and the tokens of it in the engine's tree."""
        self._group_home: dict[str, str] = {}

    def engine_for(self, turn: WaitingTurn) -> str:
        """See above."""
        engine = self._choice(turn)
        before, tokens = self._home.pop(turn.rollout, ("", 0))
        self._trees.add(before, -tokens)
        self._trees.add(engine, turn.context)
        self._home[turn.rollout] = (engine, turn.context)
        self._group_home[turn.group] = engine
        self._most.add(engine, -1)
        return engine

    def _choice(self, turn: WaitingTurn) -> str:
        least = self.requests.least()
        most = -self._most[self._most.least()]
        if most - self.requests[least] > self._absolute and most > self._relative * self.requests[least]:
            return least
        home, matched = self._home.get(turn.rollout, ("", 0))
        if home not in self.requests:
            home, matched = self._group_home.get(turn.group, ""), turn.prompt
        if home in self.requests and matched > self._threshold * turn.context:
            return home
        return self._trees.least()

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins."""
        if facts.engine not in self._trees:
            self._trees.set(facts.engine, 0)
            self._most.set(facts.engine, 0)
        super().engine_reported(facts, now)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine's tree is gone."""
        self._trees.remove(engine)
        self._most.remove(engine)
        super().engine_gone(engine, now)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        self._most.add(engine, -1)
        super().turn_placed(rollout, engine, now)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Its context leaves the tree."""
        home, tokens = self._home.pop(rollout, ("", 0))
        self._trees.add(home, -tokens)
        super().rollout_ended(rollout, context, now)

    def _left(self, rollout: str) -> None:
        self._most.add(self.engine_of.get(rollout, ""), 1)
        super()._left(rollout)


class Margin(Immediate):
    """Margin: a rollout stays on its engine while that has at most ``margin`` requests more than the least loaded one.

    Source: verl's pull request #7435 (``affinity_break_margin``). A request of a known rollout stays where the rollout
    was while its engine is within the margin; otherwise the rollout moves to the engine with the fewest requests under
    way, for good. verl's #6533, a rule by the imbalance of all engines, was 18 to 20 % slower than none on long
    contexts.
    """

    def __init__(self, margin: int = 2, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._margin = margin
        self._home: dict[str, str] = {}

    def engine_for(self, turn: WaitingTurn) -> str:
        """The rollout's engine, or the one with the fewest requests."""
        least = self.requests.least()
        home = self._home.get(turn.rollout)
        if home is not None and home in self.requests and self.requests[home] <= self.requests[least] + self._margin:
            return home
        self._home[turn.rollout] = least
        return least

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Forget the rollout."""
        self._home.pop(rollout, None)
        super().rollout_ended(rollout, context, now)


class CostAware(Immediate):
    """Cost aware: the engine where prefill and load together cost least.

    Source: the KV router of NVIDIA Dynamo. An engine costs ``overlap_weight`` times the blocks that the prompt must be
    prefilled for there, plus the blocks that would then be active there; the cheapest is taken (router temperature 0).
    Only three engines can be the cheapest: the one that has the rollout's prefix, the one that last got a rollout of
    its group, and the one with the fewest active blocks. So a choice is O(log engines). Blocks are counted at the
    placement, as Dynamo does without tracking of output blocks.
    """

    def __init__(self, overlap_weight: float = 1.0, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._weight = overlap_weight
        self._active = Loads()
        self._blocks: dict[str, tuple[str, int]] = {}
        """The engine and the active blocks of each turn under way."""
        self._home: dict[str, tuple[str, int]] = {}
        """The engine that last had each rollout, and the tokens of its prefix there."""
        self._group_home: dict[str, str] = {}

    def engine_for(self, turn: WaitingTurn) -> str:
        """The cheapest of the three."""
        blocks = -(-turn.context // BLOCK)
        candidates = {self._active.least(): 0}
        group_home = self._group_home.get(turn.group, "")
        if group_home in self._active:
            candidates[group_home] = turn.prompt // BLOCK
        home, kept = self._home.get(turn.rollout, ("", 0))
        if home in self._active:
            candidates[home] = max(candidates.get(home, 0), kept // BLOCK)
        engine = min(candidates, key=lambda name: self._weight * (blocks - candidates[name]) + self._active[name])
        self._group_home[turn.group] = engine
        self._blocks[turn.rollout] = (engine, blocks)
        self._home[turn.rollout] = (engine, turn.context)
        self._active.add(engine, blocks)
        return engine

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins."""
        if facts.engine not in self._active:
            self._active.set(facts.engine, 0)
        super().engine_reported(facts, now)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine gets no more."""
        self._active.remove(engine)
        super().engine_gone(engine, now)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """Forget the rollout."""
        self._home.pop(rollout, None)
        super().rollout_ended(rollout, context, now)

    def _left(self, rollout: str) -> None:
        engine, blocks = self._blocks.pop(rollout, ("", 0))
        self._active.add(engine, -blocks)
        super()._left(rollout)


class Static(PlacementPolicy):
    """Static: each engine gets its rollouts up front, and in every turn all wait for each other.

    The baseline of rStar2-Agent's report (arXiv 2508.20722, "rollout scheduler"): rollouts are dealt to the engines
    evenly, without regard to their KV cache. The tools of a turn start when the turn of every rollout has ended, which
    here means that the next turns are placed when no turn and no tool is under way. A full engine evicts half of its
    rollouts and computes them again later (``evicts_half``). Rollouts that are opened meanwhile wait for the next turn.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._dealt = 0
        self._home: dict[str, str] = {}
        """The engine of each rollout that has started."""
        self._waiting: deque[WaitingTurn] = deque()
        self._under_way: set[str] = set()

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        """An engine joins."""
        del now
        if facts.engine not in self._names:
            self._names.append(facts.engine)

    def engine_draining(self, engine: str, now: float) -> None:
        """The engine gets no more."""
        self.engine_gone(engine, now)

    def engine_gone(self, engine: str, now: float) -> None:
        """The engine gets no more."""
        del now
        if engine in self._names:
            self._names.remove(engine)

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        """The turn waits for the others."""
        del now
        self._under_way.discard(turn.rollout)
        self._waiting.append(turn)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        del engine, now
        self._waiting = deque(turn for turn in self._waiting if turn.rollout != rollout)
        self._under_way.add(rollout)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """The others wait for it no more."""
        del context, now
        self._under_way.discard(rollout)
        self._home.pop(rollout, None)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """The others wait for it no more."""
        self._waiting = deque(turn for turn in self._waiting if turn.rollout != rollout)
        self.rollout_ended(rollout, 0, now)

    def decide(self, now: float) -> list[Placement]:
        """All turns that wait, when none is under way."""
        del now
        decisions: list[Placement] = []
        if self._under_way or not self._names:
            return decisions
        here = set(self._names)
        while self._waiting:
            turn = self._waiting.popleft()
            engine = self._home.get(turn.rollout)
            if engine not in here:
                engine = self._home[turn.rollout] = self._names[self._dealt % len(self._names)]
                self._dealt += 1
            self._under_way.add(turn.rollout)
            decisions.append(Placement(turn.rollout, engine))
        return decisions
