"""Static: each engine gets its rollouts up front, and in every turn all wait for each other.

The baseline of rStar2-Agent's report (arXiv 2508.20722, "rollout scheduler"): rollouts are dealt to the engines evenly,
without regard to their KV cache. The tools of a turn start when the turn of every rollout has ended, which here means
that the next turns are placed when no turn and no tool is under way. A full engine evicts half of its rollouts and
computes them again later (``evicts_half`` in registry.py). Rollouts that are opened meanwhile wait for the next turn.
"""

from __future__ import annotations

from collections import deque

from agent_rl.scheduling.policies.base import Decision, EngineFacts, Place, Policy, WaitingTurn


class Static(Policy):
    """See above."""

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

    def decide(self, now: float) -> list[Decision]:
        """All turns that wait, when none is under way."""
        del now
        decisions: list[Decision] = []
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
            decisions.append(Place(turn.rollout, engine))
        return decisions
