"""Slices of tokens: cut at what no bracket encloses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from agent_rl.environments.maths.answers.tokens import Token

_OPENING = frozenset({"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"})
_CLOSING = frozenset({")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"})
UPRIGHT = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|boldsymbol|bm)\s*\{([^{}]*)\}"
)


def squeezed(text: str) -> str:
    """Letters and digits only, in lower case, fonts removed."""
    return "".join(filter(str.isalnum, UPRIGHT.sub(r"\1", text).casefold()))


def wrapped(tokens: Sequence[Token]) -> bool:
    """Whether braces of TeX stand around all of the tokens."""
    return len(tokens) > 1 and tokens[0].text == "{" and end_of(tokens, 0) == len(tokens) - 1


def trimmed(tokens: Sequence[Token], separators: AbstractSet[str]) -> Sequence[Token]:
    """The tokens without separators around them."""
    while tokens and tokens[0].text in separators:
        tokens = tokens[1:]
    while tokens and tokens[-1].text in separators:
        tokens = tokens[:-1]
    return tokens


def end_of(tokens: Sequence[Token], start: int) -> int:
    """Where the bracket at ``start`` closes; -1 if it does not."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index].text in _OPENING) - (tokens[index].text in _CLOSING)
        if not depth:
            return index
    return -1


def split(tokens: Sequence[Token], separators: AbstractSet[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """The slices between separating tokens that no bracket or environment encloses, and those tokens."""
    parts: list[Sequence[Token]] = []
    found: list[str] = []
    depth = begin = 0
    for index, token in enumerate(tokens):
        if token.text in _OPENING or token.text == r"\begin":
            depth += 1
        elif token.text in _CLOSING or token.text == r"\end":
            depth -= 1
        elif depth == 0 and token.text in separators:
            parts.append(tokens[begin:index])
            found.append(token.text)
            begin = index + 1
    parts.append(tokens[begin:])
    return parts, found
