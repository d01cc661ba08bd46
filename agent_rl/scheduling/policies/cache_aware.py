"""Cache aware: the engine with the longest known prefix, unless the load is out of balance.

Source: the cache-aware policy of SGLang's and vLLM's router. The load is out of balance when the most loaded engine has
more than ``absolute`` requests more than the least loaded one, and more than ``relative`` times as many: then the least
loaded engine is taken. Otherwise the engine whose prefix tree matches most, if it matches more than the share
``threshold`` of the prompt; else the engine with the smallest tree. The routers approximate trees by what they sent;
here the tree of an engine has the contexts of its rollouts and the prompts of their groups.
"""

from __future__ import annotations

from agent_rl.scheduling.policies.base import EngineFacts, WaitingTurn
from agent_rl.scheduling.policies.immediate import Immediate
from agent_rl.scheduling.policies.loads import Loads


class CacheAware(Immediate):
    """See above."""

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
