"""Figures and texts as people read them: shares, counts, times, and hidden characters made visible. Pure."""

from __future__ import annotations

import math
import re

NOTHING = "\u2013"
"""Shown in place of a missing figure."""
NARROW_SPACE = "\u202f"
"""Between a figure and its unit, without a line break."""

_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def visible(value: str) -> str:
    """``value`` with invisible characters, and those that change the direction of reading, replaced by visible ones.

    Control characters become their pictures. Characters that reorder text, and surrogates, become their numbers.
    """
    return _INVISIBLE.sub(_picture, value)


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"


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
    return f"{value:.3g}" if size >= 0.001 else f"{value:.1e}"


def count_of(count: int, what: str) -> str:
    """A count with the thing that is counted, as in "3 turns"."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


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
