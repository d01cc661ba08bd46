"""Tells the scheduler how rollouts go on, with their completed turns: another process can then go on with them.

::

    AgentLoop --> KeptTurns.completed, .ended --> news --> run (a task) --> TurnsCompleted over the link "kept"

When the generator leaves, a rollout ends here with the message that brings its last turns (`leave`).

No rollout waits for the scheduler. Turns that find no room on the link wait here, at most until their rollout has
ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import trio

from agent_rl.messages import TurnsCompleted

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.messages import CompletedTurn
    from agent_rl.rollout.episode import Episode

LINK = "kept"


@dataclass(slots=True)
class _News:
    """The next message to the scheduler about a rollout. ``known`` is called when the scheduler has it."""

    turns: list[CompletedTurn] = field(default_factory=list)
    then: Literal["goes_on", "left", "ended"] = "goes_on"
    placement_epoch: int = 0
    tokens: int = 0
    known: Callable[[], None] | None = None


class KeptTurns:
    """The completed turns of a generator's running rollouts."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        self._running: dict[str, Episode] = {}
        """Rollouts that have completed turns."""
        self._waiting: dict[str, _News] = {}
        self._more = trio.Event()
        self._sent = trio.Event()
        self._sent.set()

    def completed(self, episode: Episode, turn: CompletedTurn) -> None:
        """The rollout goes on after a turn."""
        rollout = episode.request.rollout
        self._running[rollout] = episode
        self._news(rollout, "goes_on", len(episode.tokens)).turns.append(turn)

    def resumed(self, episode: Episode) -> None:
        """The rollout goes on from turns that the scheduler has."""
        self._running[episode.request.rollout] = episode

    def repeat(self, rollout: str) -> None:
        """A restarted scheduler asked for a running rollout again: send it all turns, since it has lost them."""
        if rollout in self._running:
            episode = self._running[rollout]
            self._news(rollout, "goes_on", len(episode.tokens)).turns = list(episode.completed)

    def _news(self, rollout: str, then: Literal["goes_on", "left", "ended"], tokens: int) -> _News:
        """The next message to the scheduler about the rollout; the caller sends it."""
        news = self._waiting.setdefault(rollout, _News())
        news.then, news.tokens = then, tokens
        self._more.set()
        if self._sent.is_set():
            self._sent = trio.Event()
        return news

    async def kept(self) -> None:
        """Wait until the scheduler has all completed turns."""
        await self._sent.wait()
        await self._context.link(LINK).drained()

    def ended(self, rollout: str, tokens: int) -> None:
        """The rollout has ended with so many tokens, or without a result (0): its turns are in its trajectory."""
        self.forget(rollout)
        self._news(rollout, "ended", tokens)

    def forget(self, rollout: str) -> None:
        """The rollout is another generator's."""
        self._running.pop(rollout, None)
        self._waiting.pop(rollout, None)

    def leave(self, rollout: str, placement_epoch: int, tokens: int, known: Callable[[], None]) -> None:
        """The generator lets go of the rollout. ``known`` is called when the scheduler has its turns."""
        self._running.pop(rollout, None)
        news = self._news(rollout, "left", tokens)
        news.placement_epoch, news.known = placement_epoch, known

    async def run(self) -> None:
        """Send what waits, in order, until cancelled."""
        link = self._context.link(LINK)
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                rollout = next(iter(self._waiting))
                news = self._waiting.pop(rollout)
                message = TurnsCompleted(
                    rollout, self._context.name, tuple(news.turns), news.then, news.placement_epoch, news.tokens
                )
                await link.send(message, on_ack=news.known)
            self._sent.set()
