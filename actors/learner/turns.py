"""The learner's turns on devices that it shares with engines in time (``share = "time"``).

::

    taken: DeviceTurn(training) --> engines fall asleep, and say so by handling it --> the learner trains, publishes
    given back: the learner's spare memory is freed --> DeviceTurn(not training) --> engines wake
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import trio

from actors.base import ActorContext
from agent_rl.config.placement import partners
from agent_rl.config.standard import DEVICE
from agent_rl.messages import DeviceTurn
from transport import AnnounceLink


def awake(unhandled: Collection[str], gone: Collection[str], sharing: Collection[str]) -> tuple[str, ...]:
    """The generators that still have a shared device: those there that have not handled the learner's turn."""
    return tuple(sorted(set(unhandled) & set(sharing) - set(gone)))


class DeviceTurns:
    """Asks the generators on the learner's devices for their turn, and gives it back."""

    def __init__(self, context: ActorContext, give_back: Callable[[], Awaitable[None]]) -> None:
        """``give_back`` frees what the learner's devices need not hold between two steps."""
        self._context = context
        self._give_back = give_back
        self._link: AnnounceLink | None = context.links.get(DEVICE)
        self._sharing = partners(context.topology, context.name)
        if self._link is not None:
            self._link.set(DeviceTurn(training=False))  # generators begin asleep
        self.waiting_for = ""
        """The reason why the learner waits before it trains; empty when it does not wait."""

    @asynccontextmanager
    async def taken(self, *, needed: bool = True) -> AsyncIterator[None]:
        """Train in this context: the engines are asleep. Without a shared device, or a need, nothing happens.

        A generator that is silent or lost is not waited for, and one that does not answer only for so long.
        """
        link = self._link
        if link is None or not needed:
            yield
            return
        link.set(DeviceTurn(training=True))
        try:
            await self._asleep(link)
            yield
            await self._give_back()
        finally:
            link.set(DeviceTurn(training=False))

    async def _asleep(self, link: AnnounceLink) -> None:
        began, seconds = self._context.now(), self._context.settings.engine_sleep_seconds
        self.waiting_for = self._context.wait(DeviceTurn, "engines on its devices to fall asleep")
        with trio.move_on_after(seconds):
            await link.acknowledged(by=self._sharing)
        self.waiting_for = ""
        log, waited = self._context.log, self._context.now() - began
        if late := awake(link.unhandled, self._context.node.gone, self._sharing):
            log.warning("the learner trains beside engines that are not asleep", generators=list(late), seconds=waited)
        else:
            log.info("engines asleep", seconds=waited)
