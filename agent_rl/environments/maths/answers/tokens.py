"""Cleaned text cut into tokens, and the number that one of them spells."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from agent_rl.environments.maths.answers.formulas import Number, Unreadable

MAX_CHARACTERS = 1500
MAX_DIGITS = 1000
"""Of one literal number."""


class Token(NamedTuple):
    """A piece of text at ``start``; ``kind`` is number, letters, command or symbol."""

    kind: str
    text: str
    start: int
    end: int


_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+(?![0-9]*\.))?)|(?P<letters>[A-Za-z]+)"
    r"|(?P<command>\\[A-Za-z]+|\\.)|(?P<symbol>\*\*|<=|>=|!=|:=|\.\.\.|\S)"
)


def tokens_of(text: str) -> list[Token]:
    """Cut cleaned text into tokens; space only separates."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable("too long")
    return [Token(m.lastgroup or "", m[0], m.start(), m.end()) for m in _TOKEN.finditer(text)]


def number_of(text: str) -> Number:
    """The number that a token spells, a decimal with its significant digits. Raises Unreadable."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or "0")) > MAX_DIGITS:
        raise Unreadable("a number is too long")
    value = Fraction(mantissa) * Fraction(10) ** int(exponent or "0")
    if "." not in text and not exponent:
        return Number(value)
    return Number(value, len(mantissa.replace(".", "").lstrip("0")))
