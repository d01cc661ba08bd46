"""The common part of routers: every turn goes to an engine as soon as it waits, and the engine queues it.

A router keeps nothing back. It counts the requests under way on each engine itself, as routers do, in a heap: the least
loaded engine is found in O(log engines).
"""

from __future__ import annotations

import heapq
from collections import deque

from agent_rl.scheduling.policies.base import Decision, EngineFacts, Place, Policy, WaitingTurn


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


class Immediate(Policy):
    """Places each turn at once, where `engine_for` says. Counts the requests under way on each engine."""

    def __init__(self) -> None:
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
        self._waiting.append(turn)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        """The guard placed the turn."""
        del now
        self._waiting = deque(turn for turn in self._waiting if turn.rollout != rollout)
        self.engine_of[rollout] = engine
        self.requests.add(engine, 1)

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        """One request less."""
        del context, now
        self._left(rollout)

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        """One request less."""
        del context, now
        self._left(rollout)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        """One request less."""
        del now
        self._left(rollout)
        self._waiting = deque(turn for turn in self._waiting if turn.rollout != rollout)

    def decide(self, now: float) -> list[Decision]:
        """Place all that waits."""
        del now
        decisions: list[Decision] = []
        while self._waiting and self.names:
            turn = self._waiting.popleft()
            engine = self.engine_for(turn)
            self.engine_of[turn.rollout] = engine
            self.requests.add(engine, 1)
            decisions.append(Place(turn.rollout, engine))
        return decisions

    def _left(self, rollout: str) -> None:
        engine = self.engine_of.pop(rollout, None)
        if engine is not None:
            self.requests.add(engine, -1)
