"""When a learner saves its model, and how: one checkpoint at a time, copied between two steps, written beside the next.

::

    settled --> copied, in torch's thread --> written, in a thread of its own --> whole: `after`
                                         `--(beside)--> training goes on
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.learning.checkpoints import StagedCheckpoint

SAVING_SHARE = 0.05
"""The largest share of a supervised stage's time that checkpoints may take. Large models are saved minutes apart."""
SOONEST = 1.0
"""Seconds of a supervised stage before a new process saves its first checkpoint."""


class Saving:
    """The checkpoints of one process of the learner. At most one is in memory."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        self._seconds = 0.0
        """Seconds that the last checkpoint took, from its copies until it was whole."""
        self._settled = trio.Event()
        self._settled.set()
        self.begin()

    def begin(self) -> None:
        """A supervised stage begins: its time is counted from now on."""
        self._going_since = self._saved_at = self._context.now()

    def due(self) -> bool:
        """Whether to save a checkpoint within a supervised stage: little work may be lost, and saving must stay cheap.

        A new process saves early, then after twice the time, up to ``checkpoint_seconds``. So a process that is always
        killed early also makes progress.
        """
        now = self._context.now()
        least = min(self._context.topology.run.checkpoint_seconds, max(SOONEST, self._saved_at - self._going_since))
        return not self.beside and now - self._saved_at >= max(least, self._seconds / SAVING_SHARE)

    @property
    def beside(self) -> bool:
        """Whether a checkpoint is being written beside training."""
        return not self._settled.is_set()

    async def settled(self) -> None:
        """Wait until no checkpoint is being written beside training."""
        await self._settled.wait()

    async def save(
        self,
        stage: Callable[[], Awaitable[StagedCheckpoint]],
        write: Callable[[StagedCheckpoint], Awaitable[None]],
        after: Callable[[], Awaitable[None]],
        *,
        beside: bool,
    ) -> None:
        """Copy by ``stage``, ``write``, and do ``after``. The caller has waited for `settled`.

        ``beside``: return when all is copied; an error of what follows ends the actor.
        """
        began = self._context.now()
        staged = await stage()
        copied = self._context.now()

        async def finish() -> None:
            await write(staged)
            self._saved_at = self._context.now()
            self._seconds = self._saved_at - began
            self._context.log.info("checkpoint", copied_seconds=copied - began, saved_seconds=self._seconds)
            await after()
            self._settled.set()

        if beside:
            self._settled = trio.Event()
            self._context.nursery.start_soon(finish)
        else:
            await finish()
