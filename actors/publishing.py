"""Published weights: copied to host memory between two steps, then written and announced while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from actors.fetching import measured
from agent_rl.messages import Policy, PolicyPublished

if TYPE_CHECKING:
    from torch import Tensor

    from actors.base import ActorContext
    from actors.weights import PublishedWeights


MOST_WAITED_FOR = 100
"""Policies whose engines are waited for; the time of older ones is not told."""


@dataclass(frozen=True, slots=True)
class _Offer:
    policy: Policy
    weights: dict[str, Tensor] | None
    stage: int
    stage_version: int


class Publisher:
    """Writes one policy at a time, always the newest there is: one that a newer overtakes before its turn is never written.

    Also knows how long each policy took, from the end of its step until the last of the engines heard of served it or a newer one.
    """

    def __init__(self, context: ActorContext, weights: PublishedWeights, log: Any, *, fetched: bool = False) -> None:
        """``fetched`` says that generators fetch the files over links, and so need to know their sizes and checksums."""
        self._context = context
        self._weights = weights
        self._log = log
        self._thread = trio.CapacityLimiter(1)
        self._fetched = fetched
        self._written = 0, 0
        """Size and checksum of the newest file, where generators ask for them."""
        self._next: _Offer | None = None
        self._changed = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._newest: Policy | None = None
        self._ended: dict[Policy, float] = {}
        """When the step that made the policy ended; until every engine serves it."""
        self._served: dict[str, Policy] = {}
        self._figures: dict[str, float] = {}

    def knows(self, policy: Policy) -> bool:
        """Whether the policy's weights were offered already, so that no copy of them is needed."""
        return policy == self._newest

    def offer(self, policy: Policy, weights: dict[str, Tensor] | None, stage: int, stage_version: int) -> None:
        """Publish a policy with the learner's place in the recipe; ``weights`` None: those offered for it before."""
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

    async def run(self, write: Callable[[dict[str, Tensor], Any], None]) -> None:
        """Write and announce what is offered, for ever; ``write`` takes weights and a path, in a thread."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while (offer := self._next) is not None:
                self._next = None
                await self._publish(offer, write)
            self._idle.set()

    async def _publish(self, offer: _Offer, write: Callable[[dict[str, Tensor], Any], None]) -> None:
        path = self._weights.path(offer.policy)
        if (weights := offer.weights) is not None:
            began = self._context.now()
            await self._context.in_thread(lambda: write(weights, path), limiter=self._thread)
            self._figures["write_seconds"] = self._context.now() - began
            if self._fetched:
                self._written = await self._context.in_thread(measured, path, limiter=self._thread)
        self._context.link("policy").set(
            PolicyPublished(offer.policy, path.absolute().as_uri(), offer.stage, offer.stage_version, *self._written)
        )
        self._weights.clean(offer.policy)

    async def settled(self) -> None:
        """Wait until everything offered is announced."""
        await self._idle.wait()

    def served(self, generator: str, policy: Policy) -> None:
        """An engine reports what it serves."""
        self._weights.served(generator, policy)
        self._served[generator] = policy
        oldest = min(self._served.values())
        for done in sorted(each for each in self._ended if each <= oldest):
            seconds = self._context.now() - self._ended.pop(done)
            self._figures |= {"update_version": float(done.version), "update_seconds": seconds}
            self._log.info("policy served", version=done.version, epoch=done.epoch, update_seconds=seconds)

    def take_figures(self) -> dict[str, float]:
        """Of the newest policies written and served since it was last asked."""
        figures, self._figures = self._figures, {}
        return figures
