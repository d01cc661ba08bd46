"""The actors around a scheduler, as its contract plays them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import trio

from actors.rollout_generator.kept_turns import LINK as TURNS
from agent_rl.messages import (
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    RolloutRequest,
    TurnsCompleted,
    UnfinishedGroups,
)
from agent_rl_contract.builders import engine_load, published
from agent_rl_contract.stage import Stage

SCHEDULER = "kv_scheduler.0"
ENGINES = ("rollout_generator.0", "rollout_generator.1")
RL, EVALUATION = 0, 1


class Peers:
    """The filter, two generators and the learner as the scheduler meets them: what they saw, and when they answer."""

    def __init__(
        self,
        stage: Stage,
        *,
        seconds: Callable[[RolloutRequest], float],
        unfinished: GroupsUnfinished,
        tokens: Callable[[RolloutRequest], int] | None = None,
    ) -> None:
        """``tokens``: what a rollout has at its end, which its generator tells; None: it does not."""
        self.stage = stage
        self.opened: list[GroupOpened] = []
        self.recorded: set[str] = set()
        self.requests: list[RolloutRequest] = []
        self.early: list[str] = []
        """Rollouts that were requested before their group was recorded."""
        self.at_engine: dict[str, list[str]] = defaultdict(list)
        self.in_flight: Counter[str] = Counter()
        self.most_in_flight: Counter[str] = Counter()
        self.recording = trio.Event()
        self.recording.set()
        self.answering = trio.Event()
        self.answering.set()
        self.asked: list[int] = []
        self._seconds = seconds
        self._unfinished = unfinished
        self._tokens = tokens
        self._running: dict[str, dict[str, tuple[float, RolloutRequest]]] = defaultdict(dict)
        """Of each generator: when its rollouts began."""
        self.used: dict[str, list[float]] = defaultdict(list)
        """KV tokens that each generator used whenever a rollout came or was about to end."""
        stage["roc_filter"].reply = self._filter
        for name in ENGINES:
            stage[name].reply = self._generator(name)

    async def _filter(self, message: Any) -> Any:
        if isinstance(message, UnfinishedGroups):
            self.asked.append(message.stage)
            await self.answering.wait()
            answer = self._unfinished
            return answer if answer.stage == message.stage else GroupsUnfinished(message.stage, 0, ())
        self.opened.append(message)
        await self.recording.wait()
        self.recorded.add(message.group)
        return None

    def _generator(self, name: str) -> Callable[[Any], Any]:
        async def sample(message: Any) -> None:
            if not isinstance(message, RolloutRequest):
                return
            self.requests.append(message)
            self.at_engine[name].append(message.rollout)
            if message.group not in self.recorded:
                self.early.append(message.rollout)
            self.in_flight[name] += 1
            self.most_in_flight[name] = max(self.most_in_flight[name], self.in_flight[name])
            self._running[name][message.rollout] = trio.current_time(), message
            self._count(name)
            try:
                await trio.sleep(self._seconds(message))
                self._count(name)
                if self._tokens is not None:
                    ended = TurnsCompleted(
                        message.rollout, name, (), "ended", message.placement_epoch, self._tokens(message)
                    )
                    known = trio.Event()
                    await self.stage[name].push(TURNS, SCHEDULER).send(ended, on_ack=known.set)
                    await known.wait()
            finally:
                self.in_flight[name] -= 1
                self._running[name].pop(message.rollout, None)

        return sample

    def _count(self, name: str) -> None:
        """Rollouts write their tokens evenly."""
        if self._tokens is not None:
            now = trio.current_time()
            shares = [(min(1.0, (now - at) / self._seconds(of)), of) for at, of in self._running[name].values()]
            self.used[name].append(sum(share * self._tokens(of) for share, of in shares))

    def begin(self, *engines: str) -> None:
        """The first policy is published, and these generators serve it; without names the first of them."""
        self.publish()
        for name in engines or ENGINES[:1]:
            self.load(name)

    def publish(self, version: int = 0, *, stage: int = RL, epoch: int = 1, begun: int = 0) -> None:
        """The learner publishes a policy."""
        policy = published(version, stage=stage, stage_version=begun, epoch=epoch)
        self.stage["learner"].announce("policy", SCHEDULER).set(policy)

    def load(self, name: str, version: int = 0, *, epoch: int = 1, total: int = 100_000, most: int = 1000) -> None:
        """A generator says what it holds and serves."""
        report = engine_load(name, version=version, epoch=epoch, total=total, max_rollouts=most)
        self.stage[name].announce("load", SCHEDULER).set(report)

    def progress(self, **changes: Any) -> None:
        """The filter says what it has decided."""
        totals = {"stage": RL, "decided": 0, "uncounted": 0, "retries": (), "dropped_groups": (), **changes}
        self.stage["roc_filter"].announce("progress", SCHEDULER).set(GroupsProgress(**totals))

    def asked_for(self) -> Counter[tuple[str, int, int]]:
        """How often each attempt at each sample was requested."""
        return Counter((request.group, request.sample, request.attempt) for request in self.requests)
