"""Times of day: ``3:00 PM``, ``3 p.m.``, ``15:00``, ``noon``."""

from __future__ import annotations

import re

from agent_rl.environments.maths.answers.statements import Clock

_TIME = re.compile(
    r"([0-9]{1,2})(?::([0-5][0-9])(?::([0-5][0-9]))?)?\s*"
    r"(?:(?:\\text\s*\{)?\s*(?:([AaPp])\.?\s*[Mm]\.?|(o'clock))\s*\}?)?"
)
_NAMED = {"noon": 12, "12noon": 12, "midday": 12, "midnight": 0, "12midnight": 0}


def clock_of(source: str) -> Clock | None:
    """The time of day that a text is; None if it is none.

    Hours from 1 to 12 without a mark, as in ``3:00``, may belong to either half of the day; so may ``12:00``.
    """
    named = _NAMED.get(re.sub(r"[\s{}]|\\text", "", source.lower()))
    if named is not None:
        return Clock(3600 * named, marked=True)
    match = _TIME.fullmatch(source.strip())
    if match is None or not (match[2] or match[4] or match[5]):
        return None
    if not match[2] and match[4] in ("a", "p") and source.strip()[len(match[1])].isalpha():
        return None  # 5am is a product
    hour, seconds = int(match[1]), 60 * int(match[2] or 0) + int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        return Clock(3600 * (hour % 12 + (12 if match[4] in "Pp" else 0)) + seconds, marked=True)
    if hour > 23:
        return None
    marked = not 1 <= hour <= 12 or match[1][0] == "0"
    ratio = (hour, int(match[2])) if match[2] and not match[3] and not match[5] else None
    return Clock(3600 * hour + seconds, marked, ratio)
