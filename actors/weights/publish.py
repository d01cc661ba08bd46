"""Publishes weights: copies them between two steps, then stores and announces them while training goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import trio

from actors.weights.files import PublishedWeights
from actors.weights.kept import KeptWeights
from agent_rl.figures import PublishFigures
from agent_rl.messages import PolicyPublished, PolicyVersion

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from actors.base import ActorContext
    from agent_rl.learning.exporting import Shares
from collections import Counter
from heapq import heappop, heappush


class ServedPolicies:
    """The policy of each engine. An engine reports several times a second, and mostly what it reported before."""

    def __init__(self) -> None:
        self._served: dict[str, PolicyVersion] = {}
        self._engines: Counter[PolicyVersion] = Counter()
        """How many engines serve a policy; also 0, for those that are still in ``_order``."""
        self._order: list[PolicyVersion] = []
        """A heap of the policies in ``_engines``. The first is served by an engine."""

    @property
    def oldest(self) -> PolicyVersion | None:
        """The oldest policy that an engine serves; None without engines."""
        return self._order[0] if self._order else None

    def served(self, engine: str, policy: PolicyVersion) -> bool:
        """An engine reports its policy. Returns whether `oldest` changed."""
        before = self._served.get(engine)
        if before == policy:
            return False
        oldest = self.oldest
        self._served[engine] = policy
        if policy not in self._engines:
            heappush(self._order, policy)
        self._engines[policy] += 1
        self._leaves(before)
        return self.oldest != oldest

    def gone(self, engine: str) -> bool:
        """An engine is lost, or has left. Returns whether `oldest` changed."""
        oldest = self.oldest
        self._leaves(self._served.pop(engine, None))
        return self.oldest != oldest

    def _leaves(self, policy: PolicyVersion | None) -> None:
        if policy is not None:
            self._engines[policy] -= 1
        while self._order and not self._engines[self._order[0]]:
            del self._engines[heappop(self._order)]


MOST_WAITED_FOR = 100
"""The most policies whose update times are measured at once. Older policies get no figure."""


@dataclass(frozen=True, slots=True)
class _Offer:
    policy: PolicyVersion
    weights: Any
    """Tensors by name, this rank's shares, or the path of the file to which several ranks have written them."""
    stage: int
    stage_version: int


class Publisher:
    """Stores and announces one policy at a time, always the newest. An overtaken policy is never stored.

    It also measures each policy's update time: from the end of the step until every engine serves it or a newer one.
    """

    def __init__(self, context: ActorContext, store: PublishedWeights | KeptWeights, log: Any) -> None:
        self._context = context
        self._store = store
        self._log = log
        self._thread = trio.CapacityLimiter(1)
        self._kept = "", 0, 0
        """URI, size and checksum of the newest stored policy."""
        self._next: _Offer | None = None
        self._changed = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._newest: PolicyVersion | None = None
        self._ended: dict[PolicyVersion, float] = {}
        """When the step of a policy ended, for policies that not every engine serves yet."""
        self._served = ServedPolicies()
        self._figures = PublishFigures()

    def knows(self, policy: PolicyVersion) -> bool:
        """Whether the policy's weights were already offered, so that no copy is needed."""
        return policy == self._newest

    def offer(
        self, policy: PolicyVersion, weights: dict[str, Tensor] | Shares | Path | None, stage: int, stage_version: int
    ) -> None:
        """Publish a policy with the learner's position. ``weights`` None: use the weights offered before.

        A path is that of the policy's file in the store, where several ranks have written it already.
        """
        if weights is None and self._next is not None and self._next.policy == policy:
            weights = self._next.weights
        if weights is not None:
            self._ended[policy] = self._context.now()
            if len(self._ended) > MOST_WAITED_FOR:
                del self._ended[min(self._ended)]
        self._newest = policy
        self._next = _Offer(policy, weights, stage, stage_version)
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._changed.set()

    async def run(self) -> None:
        """Store and announce the offered policies, for ever."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while (offer := self._next) is not None:
                self._next = None
                await self._publish(offer)
            self._idle.set()

    async def _publish(self, offer: _Offer) -> None:
        policy = offer.policy
        if (weights := offer.weights) is not None:
            began = self._context.now()
            self._kept = await self._context.in_thread(lambda: self._store.keep(policy, weights), limiter=self._thread)
            self._figures = replace(self._figures, write_seconds=self._context.now() - began)
        uri, size, checksum = self._kept
        self._context.link("policy").set(PolicyPublished(policy, uri, offer.stage, offer.stage_version, size, checksum))
        self._store.clean(min(policy, self._served.oldest or policy))

    async def settled(self) -> None:
        """Wait until every offered policy is announced."""
        await self._idle.wait()

    def served(self, generator: str, policy: PolicyVersion) -> None:
        """An engine reports what it serves."""
        if self._served.served(generator, policy):
            self._measure()

    def gone(self, generator: str) -> None:
        """An engine is lost, or has left. When it returns, it reports what it serves."""
        if self._served.gone(generator):
            self._measure()

    def _measure(self) -> None:
        oldest = self._served.oldest
        for done in sorted(each for each in self._ended if oldest is not None and each <= oldest):
            seconds = self._context.now() - self._ended.pop(done)
            self._figures = replace(self._figures, update_version=done.version, update_seconds=seconds)
            self._log.info("policy served", version=done.version, epoch=done.epoch, update_seconds=seconds)

    def take_figures(self) -> PublishFigures:
        """Figures of the newest policies written and served since the last call."""
        figures, self._figures = self._figures, PublishFigures()
        return figures
