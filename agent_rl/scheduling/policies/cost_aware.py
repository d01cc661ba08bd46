"""Cost aware: the engine where prefill and load together cost least.

Source: the KV router of NVIDIA Dynamo. An engine costs ``overlap_weight`` times the blocks that the prompt must be
prefilled for there, plus the blocks that would then be active there; the cheapest is taken (router temperature 0). Only
three engines can be the cheapest: the one that has the rollout's prefix, the one that last got a rollout of its group,
and the one with the fewest active blocks. So a choice is O(log engines). Blocks are counted at the placement, as Dynamo
does without tracking of output blocks.
"""

from __future__ import annotations

from agent_rl.scheduling.policies.base import EngineFacts, WaitingTurn
from agent_rl.scheduling.policies.immediate import Immediate
from agent_rl.scheduling.policies.loads import Loads

BLOCK = 16


class CostAware(Immediate):
    """See above."""

    def __init__(self, overlap_weight: float = 1.0, concurrency: int | None = None) -> None:
        super().__init__(concurrency)
        self._weight = overlap_weight
        self._active = Loads()
        self._blocks: dict[str, tuple[str, int]] = {}
        """The engine and the active blocks of each turn under way."""
        self._group_home: dict[str, str] = {}

    def engine_for(self, turn: WaitingTurn) -> str:
        """The cheapest of the three."""
        blocks = -(-turn.context // BLOCK)
        candidates = {self._active.least(): 0}
        group_home = self._group_home.get(turn.group, "")
        if group_home in self._active:
            candidates[group_home] = turn.prompt // BLOCK
        if turn.kept_on in self._active:
            candidates[turn.kept_on] = max(candidates.get(turn.kept_on, 0), turn.kept // BLOCK)
        engine = min(candidates, key=lambda name: self._weight * (blocks - candidates[name]) + self._active[name])
        self._group_home[turn.group] = engine
        self._blocks[turn.rollout] = (engine, blocks)
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

    def _left(self, rollout: str) -> None:
        engine, blocks = self._blocks.pop(rollout, ("", 0))
        self._active.add(engine, -blocks)
        super()._left(rollout)
