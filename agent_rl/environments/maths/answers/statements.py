r"""The kinds of answer there are. Which reading of a bracket holds, ``(1, 2)`` a point or an interval, is left open."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from agent_rl.environments.maths.answers.formulas import INFINITY, PI, Apply, Formula, Number, neg
from agent_rl.environments.maths.answers.units import Unit


@dataclass(frozen=True, slots=True)
class Value:
    """A formula; its unit, if stated; its letters, if it is only letters."""

    formula: Formula
    unit: Unit | None = None
    letters: str = ""

    @property
    def marked(self) -> bool:
        """Whether its unit is percent or degree, which are numbers."""
        return self.unit is not None and self.unit.dimension in MARKS

    @property
    def in_base(self) -> Formula:
        """The value in the base unit of its dimension; percent and degrees as numbers."""
        if self.unit is None or self.unit.factor == 1:
            return self.formula
        scaled = Apply("mul", (self.formula, Number(self.unit.factor)))
        return Apply("mul", (scaled, PI)) if self.unit.dimension == "°" else scaled


@dataclass(frozen=True, slots=True)
class Words:
    """A text that is no formula, in lower case."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Answers side by side; ``braces``: an explicit set. ``joint`` is the word between them, if there is one."""

    items: tuple[Answer, ...]
    braces: bool = False
    joint: Literal["", "and", "or"] = ""


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A tuple, vector or interval; ``brackets`` is the opening and the closing one."""

    brackets: str
    items: tuple[Answer, ...]


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

    @property
    def ascending(self) -> Comparison:
        """The comparison without > and >=."""
        if self.relations[0][0] != ">":
            return self
        relations = tuple(relation.replace(">", "<") for relation in reversed(self.relations))
        return Comparison(tuple(reversed(self.sides)), relations)


Answer: TypeAlias = Value | Words | Listing | Bracketed | Region | Matrix | Named | Comparison

REALS = Bracketed("()", (Value(neg(INFINITY)), Value(INFINITY)))
EMPTY = Listing((), braces=True)
MARKS = {"%": Fraction(1, 100), "°": Fraction(1, 180)}
"""Percent, and degrees as multiples of pi."""


def all_named(items: tuple[Answer, ...]) -> bool:
    """Whether each item has a name."""
    return all(isinstance(item, Named) for item in items)
