"""How much KV cache the residents of an engine will use, now and later.

All rollouts of an engine write at about the same pace, so the time is counted in tokens: after d further tokens, a
resident of x tokens uses x + d with the probability p(d) that it is so long (lengths.py), and nothing otherwise. The
sum over residents has the mean sum p (x + d) and the variance sum p (1 - p) (x + d)^2. The most that the engine needs,
at z standard deviations, is the largest mean + z deviation over all d of ``AHEAD``. It holds unless more is started.
"""

from __future__ import annotations

import math

AHEAD = (0.0, *(8.0 * 2**power for power in range(15)))
"""Further tokens at which the use is predicted."""
_NOBODY = [0.0] * len(AHEAD)


class Forecast:
    """The use of one engine's KV cache, as sums over its residents."""

    __slots__ = ("mean", "variance")

    def __init__(self) -> None:
        self.mean = [0.0] * len(AHEAD)
        self.variance = [0.0] * len(AHEAD)

    def add(self, context: float, survival: list[float], sign: float = 1.0) -> None:
        """A resident of so many tokens comes (or leaves: ``sign`` -1)."""
        mean, variance = self.mean, self.variance
        for number, (share, ahead) in enumerate(zip(survival, AHEAD, strict=True)):
            size = context + ahead
            used = sign * share * size
            mean[number] += used
            variance[number] += used * size * (1.0 - share)

    def most(self, deviations: float, context: float = 0.0, survival: list[float] | None = None) -> float:
        """The most tokens that are used, now or later; with another resident if one is given."""
        most, sqrt = 0.0, math.sqrt
        for mean, variance, share, ahead in zip(self.mean, self.variance, survival or _NOBODY, AHEAD, strict=True):
            size = context + ahead
            used = share * size
            spread = variance + used * size * (1.0 - share)
            high = mean + used
            if spread > 0.0:
                high += deviations * sqrt(spread)
            most = max(most, high)
        return most
