r"""Slices of tokens: cut at what no bracket encloses, unwrapped, or taken as the name of something."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from agent_rl.answers.formulas import CONSTANTS
from agent_rl.answers.grammar import Token
from agent_rl.answers.vocabulary import FONTS

_OPENING = frozenset({"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"})
_CLOSING = frozenset({")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"})
_LETTER = r"(?:[a-zA-Z]|\\[a-zA-Z]+)'*(?:_(?:\{[^{}]*\}|\w))?'*"
_NO_NAME = re.compile(
    r"[-+*/^!|<>°%]|\\(?:frac|sqrt|cdot|times|pm|mp|log|ln|sin|cos|tan|binom|lim|sum|int|prod|max|min|infty|pi)(?![a-zA-Z])"
)
_POINTS = re.compile(r"(?:m?\\angle|\\triangle|\\(?:overline|vec|overrightarrow|bar)|\{|\}|[A-Z](?:_\{?\w\}?|')*)+")
"""``AB``, ``\\angle ABC``."""
UPRIGHT = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|boldsymbol|bm)\s*\{([^{}]*)\}"
)


def squeezed(text: str) -> str:
    """Letters and digits only, in lower case, fonts removed."""
    return "".join(filter(str.isalnum, UPRIGHT.sub(r"\1", text).casefold()))


def name_of(tokens: Sequence[Token], source: str) -> str | None:
    r"""What a left side names: a variable, ``a_{1}``, ``f(x)``, ``f(2)``, ``AB``, ``\angle ABC``, ``(p, q)``, ``a:b``, words."""
    plain = re.sub(r"\s+|\\left|\\right", "", UPRIGHT.sub(r"\1", source))
    if _NO_NAME.search(plain):
        return None
    if plain in CONSTANTS or not re.search(r"[^\W\d]", plain):
        return None
    if re.fullmatch(r"\([a-zA-Z](?:_\{?\w+\}?)?(?:,[a-zA-Z](?:_\{?\w+\}?)?)+\)", plain):
        return plain
    if any(token.text in FONTS for token in tokens) or re.search(r"[a-z]{4,}(?<!angle)", source):
        return squeezed(source) if not re.search(r"\d", source) else None
    if re.fullmatch(rf"{_LETTER}(?:\([^()]+\))?", plain):
        return re.sub(r"_\{([^{}]*)\}", r"_\1", plain)
    if _POINTS.fullmatch(plain) or (":" in plain and all(re.fullmatch(_LETTER, part) for part in plain.split(":"))):
        return plain
    return None


def unwrapped(tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens without braces of grouping around all of them."""
    while len(tokens) > 1 and tokens[0].text == "{" and end_of(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
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
