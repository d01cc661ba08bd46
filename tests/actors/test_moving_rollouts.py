"""Real scheduler, filter and generators in virtual time, with a policy that moves rollouts at the end of each turn."""

from __future__ import annotations

from pathlib import Path

from actors.kv_scheduler import KVScheduler
from agent_rl.records.audit import audit
from agent_rl.scheduling.policies.base import Decision, EngineFacts, Place, Policy, WaitingTurn
from benchmarks.simulated_run import in_virtual_time, simulated


class Shuttle(Policy):
    """Each turn runs on the engine after that of the turn before."""

    def __init__(self) -> None:
        self.engines: list[str] = []
        self.waiting: dict[str, WaitingTurn] = {}

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        if facts.engine not in self.engines:
            self.engines.append(facts.engine)

    def engine_draining(self, engine: str, now: float) -> None:
        self.engine_gone(engine, now)

    def engine_gone(self, engine: str, now: float) -> None:
        if engine in self.engines:
            self.engines.remove(engine)

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        self.waiting[turn.rollout] = turn

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        self.waiting.pop(rollout, None)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        self.waiting.pop(rollout, None)

    def decide(self, now: float) -> list[Decision]:
        if not self.engines:
            return []
        placed: list[Decision] = []
        for turn in self.waiting.values():
            last = self.engines.index(turn.kept_on) if turn.kept_on in self.engines else turn.sample
            placed.append(Place(turn.rollout, self.engines[(last + 1) % len(self.engines)]))
        self.waiting.clear()
        return placed


class Shuttling(KVScheduler):
    def policy(self) -> Policy:
        return Shuttle()


def test_rollouts_that_move_at_each_turn_are_finished_once_each(tmp_path: Path) -> None:
    async def main() -> int:
        async with simulated(tmp_path, generators=3, turns=3, scheduler=Shuttling) as run:
            await run.steps(8)
            return int(run["kv_scheduler.0"].status()[1].scheduler.rollouts_moved)

    assert in_virtual_time(main) > 50
    balance = audit(tmp_path)
    assert balance.balanced
    assert balance.trained > 8
