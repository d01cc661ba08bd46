"""Checks a policy on made-up engines and rollouts before a run starts, and refuses one that decides what is unsafe."""

from __future__ import annotations

from collections import deque
from typing import NoReturn

from agent_rl.config.plugins import ContractError, defined_at
from agent_rl.scheduling.policies.base import EngineFacts, PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.guard import Guarded

SAMPLES = 4
ROUNDS = 400
KV_TOKENS = 1000
TURN_TOKENS = 50


def check_policy(policy: PlacementPolicy) -> None:
    """Let a policy run some groups of two turns on engines that come and go.

    Raises ContractError when the policy fails, when a decision is unsafe, or when rollouts never end.
    """
    if not isinstance(policy, PlacementPolicy):
        base = f"{PlacementPolicy.__module__}.{PlacementPolicy.__name__}"
        raise ContractError(f"{policy!r} is no scheduling policy; derive it from {base}")

    def refuse(name: str, description: str) -> NoReturn:
        place = defined_at(type(policy))
        raise ContractError(f"{description} ({name}" + (f"; {place})" if place else ")"))

    world = _World(Guarded(policy, refuse))
    for engines, groups in ((1, 1), (2, 3), (5, 7)):
        world.run(engines, groups)
    if world.turns:
        refuse("rollout_starved", f"{type(policy).__name__}: {len(world.turns)} made-up rollouts never end")


class _World:
    def __init__(self, policy: Guarded) -> None:
        self.policy = policy
        self.turns: dict[str, WaitingTurn] = {}
        """The last turn of each rollout that has not ended."""
        self._running: deque[tuple[str, str]] = deque()
        """Rollouts under way, each with its engine. That of the oldest turn comes first."""
        self._now = 0.0
        self._opened = 0

    def run(self, engines: int, groups: int) -> None:
        """Another stage of the run, with this many engines. One of several is lost midway."""
        policy = self.policy
        policy.begin(Setting(SAMPLES, groups))
        names = [f"rollout_generator.{number}" for number in range(engines)]
        for name in names:
            policy.engine_reported(EngineFacts(name, KV_TOKENS, 0, 0, 0, SAMPLES), self._now)
        for number in range(self._opened, self._opened + groups):
            for sample in range(SAMPLES):
                group = f"s0-g{number:06d}"
                self._wait(WaitingTurn(f"{group}/{sample}/0", group, f"p{number}", sample, 0, 10, 10, 10 + number * 30))
        self._opened += groups
        self._decide()
        for round_ in range(ROUNDS):
            if not self._running:
                break
            if round_ == SAMPLES and engines > 1:
                self._lose(names.pop())
            self._step()
        for name in names:
            policy.engine_gone(name, self._now)

    def _step(self) -> None:
        """The oldest turn ends; after the second turn, so does the rollout."""
        rollout, engine = self._running.popleft()
        turn = self.turns[rollout]
        context = turn.context + TURN_TOKENS
        if turn.turn:
            del self.turns[rollout]
            self.policy.rollout_ended(rollout, context, self._now)
        else:
            self.policy.turn_ended(rollout, context, self._now)
            self.turns[rollout] = turn._replace(turn=1, context=context)
            self._running.append((rollout, engine))
        self._decide()

    def _lose(self, engine: str) -> None:
        self.policy.engine_gone(engine, self._now)
        for rollout, at in list(self._running):
            if at == engine:
                self._running.remove((rollout, at))
                self._wait(self.turns[rollout])
        self._decide()

    def _wait(self, turn: WaitingTurn) -> None:
        self.turns[turn.rollout] = turn
        self.policy.turn_waits(turn, self._now)

    def _decide(self) -> None:
        self._now += 1
        for decision in self.policy.decide(self._now):
            self._running.append((decision.rollout, decision.engine))
