"""How long a thread has worked, for tasks that hand it work one after another or wait for it together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Busy:
    """Seconds in which at least one task had work in the thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tasks = 0
        self._seconds = 0.0
        self._since = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """A task has work in the thread."""
        if not self._tasks:
            self._since = self._now()
        self._tasks += 1
        try:
            yield
        finally:
            self._tasks -= 1
            if not self._tasks:
                self._seconds += self._now() - self._since

    def seconds(self) -> float:
        """Seconds so far, with those of the work under way."""
        return self._seconds + (self._now() - self._since if self._tasks else 0.0)
