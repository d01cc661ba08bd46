"""The actors that are not ready: those that the run starts with, those that came, and those that are started again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import trio

RESTART_SECONDS = 60.0
"""How long a change waits for actors that are started again. Their processes load their models meanwhile."""


class Starting:
    """The names of the actors that are not ready, in the order in which they began to start."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._ran: set[str] = set()
        """Actors that have been ready."""
        self._fewer = trio.Event()

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def starts(self, *names: str) -> None:
        """Processes of these actors start."""
        self._names |= dict.fromkeys(names)

    def runs(self, name: str) -> None:
        """An actor is ready."""
        self._ran.add(name)
        self.forget(name)

    def forget(self, *names: str) -> None:
        """Nobody waits for these actors any more: they are ready, or have gone."""
        for name in names:
            self._names.pop(name, None)
        self._fewer.set()
        self._fewer = trio.Event()

    async def restarted(self, *, without: Collection[str]) -> None:
        """Wait until all actors are ready that have been ready before, at most `RESTART_SECONDS`.

        Returns at once where another one starts for the first time, apart from those ``without`` which it goes.
        """
        with trio.move_on_after(RESTART_SECONDS):
            while (names := self._names.keys() - without) and names <= self._ran:
                await self._fewer.wait()
