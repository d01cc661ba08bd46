"""Rates from totals, for live figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

WINDOW_SECONDS = 5.0


class Rate:
    """Totals in, rates per second over the last few seconds out."""

    def __init__(self, now: Callable[[], float], window: float = WINDOW_SECONDS) -> None:
        self._now = now
        self._window = window
        self._seen: deque[tuple[float, Mapping[str, float]]] = deque([(now(), {})])

    def __call__(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Rates by the names of the totals."""
        now = self._now()
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._window:
            self._seen.popleft()
        since, before = self._seen[0]
        self._seen.append((now, dict(totals)))
        elapsed = max(1e-9, now - since)
        return {name: (value - before.get(name, 0.0)) / elapsed for name, value in totals.items()}
