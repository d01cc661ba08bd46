"""Sends completed turns to the scheduler, which keeps them: another process can then go on with the rollout.

::

    AgentLoop --> KeptTurns.completed --> waiting turns --> run (a task) --> TurnsCompleted over the link "kept"

A rollout that the scheduler wants back ends here with the message that brings its last turns (`left`).

No rollout waits for the scheduler. Turns that find no room on the link wait here, at most until their rollout has
ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from agent_rl.messages import TurnsCompleted

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.messages import CompletedTurn
    from agent_rl.rollout.episode import Episode

LINK = "kept"


class KeptTurns:
    """The completed turns of a generator's running rollouts."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        self._running: dict[str, Episode] = {}
        """Rollouts that have completed turns."""
        self._waiting: dict[str, list[CompletedTurn]] = {}
        self._left: dict[str, tuple[int, Callable[[], None]]] = {}
        """Rollouts that this generator has let go of: the request's move, and what to do when the scheduler knows."""
        self._more = trio.Event()
        self._sent = trio.Event()
        self._sent.set()

    def completed(self, episode: Episode, began: float) -> None:
        """The rollout goes on after a turn. It began here at ``began``, in seconds of the context's clock."""
        rollout = episode.request.rollout
        self._running[rollout] = episode
        self._waiting.setdefault(rollout, []).append(episode.complete(self._context.now() - began))
        self._send()

    def resumed(self, episode: Episode) -> None:
        """The rollout goes on from turns that the scheduler has."""
        self._running[episode.request.rollout] = episode

    def repeat(self, rollout: str) -> None:
        """A restarted scheduler asked for a running rollout again: send it all turns, since it has lost them."""
        if rollout in self._running:
            self._waiting[rollout] = list(self._running[rollout].completed)
            self._send()

    def _send(self) -> None:
        self._more.set()
        if self._sent.is_set():
            self._sent = trio.Event()

    async def kept(self) -> None:
        """Wait until the scheduler has all completed turns."""
        await self._sent.wait()
        await self._context.link(LINK).drained()

    def ended(self, rollout: str) -> None:
        """The rollout has ended: its turns are in its trajectory."""
        self._running.pop(rollout, None)
        self._waiting.pop(rollout, None)

    def leave(self, rollout: str, move: int, known: Callable[[], None]) -> None:
        """The generator lets go of the rollout. ``known`` is called when the scheduler has its turns."""
        self._running.pop(rollout, None)
        self._waiting.setdefault(rollout, [])
        self._left[rollout] = move, known
        self._send()

    async def run(self) -> None:
        """Send what waits, in order, until cancelled."""
        link = self._context.link(LINK)
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                rollout = next(iter(self._waiting))
                turns = tuple(self._waiting.pop(rollout))
                if rollout in self._left:
                    move, known = self._left.pop(rollout)
                    message = TurnsCompleted(rollout, self._context.name, turns, left=True, move=move)
                    await link.send(message, on_ack=known)
                else:
                    await link.send(TurnsCompleted(rollout, self._context.name, turns))
            self._sent.set()
