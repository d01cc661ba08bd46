"""Rates from totals, for live figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Rate:
    """Totals in, rates per second since the previous call out."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at = now()
        self._totals: Mapping[str, float] = {}

    def __call__(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Rates by the names of the totals."""
        now = self._now()
        elapsed = max(1e-9, now - self._at)
        rates = {name: (value - self._totals.get(name, 0.0)) / elapsed for name, value in totals.items()}
        self._at, self._totals = now, dict(totals)
        return rates
