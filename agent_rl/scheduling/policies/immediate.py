"""The common part of routers: every turn goes to an engine as soon as it waits, and the engine queues it.

A router keeps nothing back. It counts the requests under way on each engine itself, as routers do, in a heap: the least
loaded engine is found in O(log engines). ``concurrency`` bounds the rollouts that are started and not ended, for each
engine, as the orchestrators around routers do; None: no bound.
"""

from __future__ import annotations

import math
from collections import deque

from agent_rl.scheduling.policies.base import Decision, EngineFacts, Place, Policy, WaitingTurn
from agent_rl.scheduling.policies.loads import Loads


class Immediate(Policy):
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

    def decide(self, now: float) -> list[Decision]:
        """Place all that waits."""
        del now
        decisions: list[Decision] = []
        most = math.inf if self._concurrency is None else self._concurrency * len(self.names)
        while self.names and (self._waiting or (self._new and len(self._started) < most)):
            turn = self._waiting.popleft() if self._waiting else self._new.popleft()
            self._started.add(turn.rollout)
            engine = self.engine_for(turn)
            self.engine_of[turn.rollout] = engine
            self.requests.add(engine, 1)
            decisions.append(Place(turn.rollout, engine))
        return decisions

    def _forget_waiting(self, rollout: str) -> None:
        self._waiting = deque(turn for turn in self._waiting if turn.rollout != rollout)
        self._new = deque(turn for turn in self._new if turn.rollout != rollout)

    def _left(self, rollout: str) -> None:
        engine = self.engine_of.pop(rollout, None)
        if engine is not None:
            self.requests.add(engine, -1)
