"""The remedy for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The nearest name, or else what is said ``otherwise``, or the list of those there are."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    if otherwise:
        return otherwise
    return f"there is {', '.join(known)}" if known else "there are none"
