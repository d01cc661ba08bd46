"""Answers that are copied from the problem: its formulas, their sides, its sums in plain text, a set's own equation.

A copy counts unless it is the gold answer itself, which may stand in the problem too. That is told by tokens, with
nothing of the checker: names, units, fonts, braces and the ways to write a fraction or decimal make no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

_MATHS = re.compile(
    r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|\\begin\{(?:align|equation)\*?\}(.+?)\\end", re.DOTALL
)
_NUMBER = r"[-+(]*[0-9][0-9.,]*(?<![.,])%?\)*"
_PLAIN = re.compile(rf"{_NUMBER}(?:\s*(?:[-+*/\u00d7÷^:]|times|plus|minus)\s*{_NUMBER})*")
_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|leq|geq|neq|approx|equiv|in|to)(?![a-zA-Z])|&|\\\\")
_BRACES = re.compile(r"\{([^{}]+)\}")
_SIDES = re.compile(r"=|\\in(?![a-z])|:")
_UNIT = re.compile(r"(?<=[0-9])[\\\s,;!]*(?:\\(?:text|mathrm)\s*\{[^{}]*\}|[a-z]{2,}|\\?%|\^\{?\\circ\}?)\s*$")
_FRACTION = re.compile(r"\\[dtc]?frac\s*([0-9])\s*([0-9])")
_SPELLINGS = re.compile(r"\\(?:text|mathrm|mathbf|left|right|boxed|q?quad|[dtc]?frac)(?![a-z])|\\[,;!:{} ]|[\s{}$()/]+")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3})")
_TOKEN = re.compile(r"[0-9.]*[0-9]|\\[a-z]+|\S")


FORMS = (r"\{{{}\}}", "{}+0", "0+{}", r"\frac{{{}}}{{1}}", "-(-({}))", r"1\cdot({})")
"""Disguises: what changes nothing about a formula. Each copy is tried as it is, and in one of them in turn."""


def copies(row: Mapping[str, Any]) -> Iterator[str]:
    """What a policy could put into the box without solving the problem."""
    problem = row["problem"]
    formulas = [next(filter(None, match.groups())) for match in _MATHS.finditer(problem)]
    for formula in formulas:
        yield formula
        for side in _RELATION.split(formula):
            yield from (side, *side.split(","))
        yield from _BRACES.findall(formula)
    yield from (match[0] for match in _PLAIN.finditer(problem))
    if "equation" in row:
        yield row["equation"].rpartition("=")[2]


def accepted_copies(row: Mapping[str, Any], check: Callable[[str, str, str], bool]) -> list[str]:
    """The copies that a checker takes for the answer, but for those that are the gold answer itself."""
    gold, problem = row["answer"], row["problem"]
    if re.fullmatch("[A-Z]", gold):  # a choice, with or without its text
        return []
    own = _cores(gold) | {""}
    others = [copy for copy in dict.fromkeys(copies(row)) if own.isdisjoint(_cores(copy))]
    disguised = [form.format(copy) for copy, form in zip(others, cycle(FORMS), strict=False)]
    return [text for text in (*others, *disguised) if check(gold, text, problem)]


def _cores(text: str) -> set[str]:
    """The tokens of each side of an answer, names left out; without units, fonts, and what groups them."""
    sides = [_UNIT.sub("", side.strip()) for side in _SIDES.split(_THOUSANDS.sub("", text))]
    tokens = [_TOKEN.findall(_SPELLINGS.sub(" ", _FRACTION.sub(r"\1 \2", side))) for side in sides]
    return {" ".join(map(_number, each)).strip(" +.,;\\") for each in tokens if len(each) > 1 or each is tokens[-1]}


def _number(token: str) -> str:
    """A number without zeros that say nothing."""
    if not token[-1].isdigit():
        return token
    return (token.rstrip("0").rstrip(".") if "." in token else token).lstrip("0") or "0"
