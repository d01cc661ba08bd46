"""Converts figures to positions on a page and to words. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = "\u2013"
"""Shown in place of a missing figure."""
NARROW_SPACE = "\u202f"
"""Between a figure and its unit, without a line break."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear: ``low`` and ``high`` of the figures lie at ``start`` and ``end`` of the page."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a figure. Figures outside the range are at the edge."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round figures (1, 2 or 5 times a power of ten) from ``low`` to ``high``, at most about ``count``."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def extent(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis for the figures: from 0 unless one is negative, up to a round figure; never empty."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(0.0, *finite, 0.0), max(0.0, *finite, 0.0)
    if high == low:
        return 0.0, 1.0
    marks = ticks(low, high, 4)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def bins(count: int, limit: int) -> list[range]:
    """``count`` places in at most ``limit`` runs of neighbours, of equal length except the last."""
    size = max(1, -(-count // limit))
    return [range(start, min(count, start + size)) for start in range(0, count, size)]


def percent(value: float) -> str:
    """A share for people; one decimal, two where it would be 0."""
    if not math.isfinite(value):
        return NOTHING
    decimals = 1 if abs(value) >= 0.01 or value == 0 else 2
    return f"{100 * value:.{decimals}f}{NARROW_SPACE}%"


def spread(low: float, high: float) -> str:
    """An interval of shares for people."""
    return f"{percent(low).removesuffix(f'{NARROW_SPACE}%')} to {percent(high)}"


def compact(value: float) -> str:
    """A figure for people: three significant digits, with separators of thousands."""
    if not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}{NARROW_SPACE}M"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 0.001:
        return f"{value:.3g}"
    return f"{value:.1e}"


def axis_labels(marks: Sequence[float], *, share: bool) -> list[str]:
    """The labels of an axis: all with as many decimals as the distance of the ticks needs."""
    if share:
        marks = [100 * mark for mark in marks]
    step = abs(marks[1] - marks[0]) if len(marks) > 1 else abs(marks[0]) or 1.0
    unit = f"{NARROW_SPACE}%" if share else ""
    if max(map(abs, marks)) >= 1e7:
        return [f"{mark:.1e}{unit}" if mark else f"0{unit}" for mark in marks]
    if not share and max(map(abs, marks)) >= 10_000:
        return [f"{mark / 1000:,.{0 if step >= 1000 else 1}f}k" if mark else "0" for mark in marks]
    if step < 1e-4:
        return [f"{mark:.0e}" if mark else "0" for mark in marks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{mark:,.{decimals}f}{unit}" for mark in marks]


def duration(seconds: float) -> str:
    """A length of time for people."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 99.5:
        return f"{seconds:.0f}{NARROW_SPACE}s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def clock(seconds: float) -> str:
    """A time since the start of a run: minutes and seconds, with hours if there are any."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def time_ticks(seconds: float, count: int) -> list[float]:
    """Round times from 0 to ``seconds``: multiples of seconds, minutes, hours or days as on a clock."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    least = seconds / max(1, count)
    step = next((step for step in steps if step >= least), math.ceil(least / 86400) * 86400)
    return [float(mark) for mark in range(0, int(seconds) + 1, step)]
