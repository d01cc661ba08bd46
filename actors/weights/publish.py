"""Published weights: copied between two steps, then written (or kept) and announced while training goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import trio

from agent_rl.figures import PublishFigures
from agent_rl.messages import Policy, PolicyPublished

if TYPE_CHECKING:
    from torch import Tensor

    from actors.base import ActorContext


MOST_WAITED_FOR = 100
"""Policies whose engines are waited for; the time of older ones is not told."""


class PolicyStore(Protocol):
    """Where published policies are until engines have them: files, or the tensors themselves."""

    def keep(self, policy: Policy, weights: dict[str, Tensor]) -> tuple[str, int, int]:
        """Take a copy of weights, in a thread; the URI, size and checksum to announce. Raises TrainingStoppedError, DiskError."""

    def served(self, generator: str, policy: Policy) -> None:
        """An engine reports what it serves."""

    def clean(self, newest: Policy) -> None:
        """Forget what nobody will ask for, now that this policy is announced."""

    def remove(self) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class _Offer:
    policy: Policy
    weights: dict[str, Tensor] | None
    stage: int
    stage_version: int


class Publisher:
    """Keeps one policy at a time, always the newest there is: one that a newer overtakes before its turn is never kept.

    Also knows how long each policy took, from the end of its step until the last of the engines heard of served it or a newer one.
    """

    def __init__(self, context: ActorContext, store: PolicyStore, log: Any) -> None:
        self._context = context
        self._store = store
        self._log = log
        self._thread = trio.CapacityLimiter(1)
        self._kept = "", 0, 0
        """What there is to announce of the newest policy kept."""
        self._next: _Offer | None = None
        self._changed = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._newest: Policy | None = None
        self._ended: dict[Policy, float] = {}
        """When the step that made the policy ended; until every engine serves it."""
        self._served: dict[str, Policy] = {}
        self._figures = PublishFigures()

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

    async def run(self) -> None:
        """Keep and announce what is offered, for ever."""
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
        self._store.clean(policy)

    async def settled(self) -> None:
        """Wait until everything offered is announced."""
        await self._idle.wait()

    def served(self, generator: str, policy: Policy) -> None:
        """An engine reports what it serves."""
        self._store.served(generator, policy)
        self._served[generator] = policy
        oldest = min(self._served.values())
        for done in sorted(each for each in self._ended if each <= oldest):
            seconds = self._context.now() - self._ended.pop(done)
            self._figures = replace(self._figures, update_version=done.version, update_seconds=seconds)
            self._log.info("policy served", version=done.version, epoch=done.epoch, update_seconds=seconds)

    def take_figures(self) -> PublishFigures:
        """Of the newest policies written and served since it was last asked."""
        figures, self._figures = self._figures, PublishFigures()
        return figures
