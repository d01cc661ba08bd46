r"""The kinds of answer there are. Which reading of a bracket holds, ``(1, 2)`` a point or an interval, is left open."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from agent_rl.environments.maths.answers.formulas import Apply, Formula, Name, Number
from agent_rl.environments.maths.answers.units import Unit


@dataclass(frozen=True, slots=True)
class Value:
    """A formula; its unit, if stated and known, or the words that say what is counted; its letters, if it is only
    letters.

    ``lax_unit``: the unit is also met as a word for a number, ``5 decades``, so that it is converted but not left out.
    """

    formula: Formula
    unit: Unit | None = None
    label: frozenset[str] = frozenset()
    letters: str = ""
    lax_unit: bool = False


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day, in seconds after midnight; not ``marked`` if it may be in either half of the day.

    ``ratio``: the numbers on both sides of the colon, where ``7:32`` may also be a ratio.
    """

    seconds: int
    marked: bool
    ratio: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """A text, squeezed: letters and digits only, in lower case."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Answers side by side; ``braces``: an explicit set. ``joint`` is the word between them, if there is one."""

    items: tuple[Answer, ...]
    braces: bool = False
    joint: Literal["", "and", "or"] = ""


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A tuple, vector or interval, with its brackets."""

    opening: str
    items: tuple[Answer, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Region:
    """A union of sets, less others."""

    parts: tuple[Answer, ...]
    without: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values; ``nested``: written as a list of lists, which is no tuple."""

    rows: tuple[tuple[Answer, ...], ...]
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A name, or tuple of names, and what it is said to be (or to be in); a function's name with its parameters."""

    name: str
    answer: Answer
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A chain of formulas and the relations between them: =, <, <=, >, >= or !=."""

    sides: tuple[Formula, ...]
    relations: tuple[str, ...]


Answer: TypeAlias = Value | Clock | Words | Listing | Bracketed | Region | Matrix | Named | Comparison

REALS = Bracketed("(", (Value(Apply("neg", (Name("oo"),))), Value(Name("oo"))), ")")
MARKS = {"%": Fraction(1, 100), "°": Fraction(1, 180)}
"""Percent, and degrees as multiples of pi."""


def in_base(value: Value) -> Formula:
    """The value in the base unit of its dimension; percent and degrees as numbers."""
    if value.unit is None or value.unit.factor == 1:
        return value.formula
    scaled = Apply("mul", (value.formula, Number(value.unit.factor)))
    return Apply("mul", (scaled, Name("pi"))) if value.unit.dimension == "°" else scaled
