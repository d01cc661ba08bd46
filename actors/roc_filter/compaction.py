"""Trajectories leave the journal off the filter's handlers: piece by piece on its task, their payloads in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from agent_rl.records.journal import Journal


class Compaction:
    """Carries out `Journal.compaction` whenever it is wanted, and lets handlers act between its pieces."""

    def __init__(
        self, journal: Journal, keep: str | int, commit: Callable[[], None], in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        """``keep`` is ``run.keep_trajectories``."""
        self._journal = journal
        self._steps = keep if isinstance(keep, int) else 0
        self._all = keep == "all"
        self._commit = commit
        self._in_thread = in_thread
        self._wanted = trio.Event()

    def want(self) -> None:
        """There may be something to forget."""
        self._wanted.set()

    async def run(self) -> None:
        """Forget what may be forgotten, whenever it is wanted."""
        while not self._all:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.once()

    async def once(self) -> None:
        """Forget what may be forgotten now."""
        for remove in self._journal.compaction(self._steps):
            self._commit()
            if remove is None:
                await trio.lowlevel.checkpoint()
            else:
                await self._in_thread(self._remove, remove)

    def _remove(self, remove: Callable[[], None]) -> None:
        self._journal.settle()
        remove()
