"""Formulas as trees, and what can be said of them without evaluating them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


class Unreadable(Exception):  # noqa: N818  it is an outcome of reading, not a fault
    """The text is no formula or answer, none with one meaning, or one that is too large."""


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number; ``digits`` significant digits where it was written as a decimal, else 0."""

    value: Fraction
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, or one of the constants pi, e, i and oo."""

    text: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation or function by name; ``f(...)`` of an unknown function is ``call f``."""

    function: str
    arguments: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Calculus:
    """A limit, sum, product or integral, as written: for Math-Verify's parser and sympy."""

    source: str


Formula: TypeAlias = Number | Name | Apply | Calculus


CALL = "call "
"""What the name of an unknown function follows in ``Apply.function``."""
CONSTANTS = frozenset({"pi", "e", "i", "oo"})


def names_in(formula: Formula) -> set[str]:
    """The variables of a formula; those of a Calculus are not known here."""
    if isinstance(formula, Name):
        return set() if formula.text in CONSTANTS else {formula.text}
    if isinstance(formula, Apply):
        return set[str]().union(*map(names_in, formula.arguments))
    return set()


def renamed(formula: Formula, names: dict[str, str]) -> Formula:
    """The formula with variables, and unknown functions that are called, renamed."""
    if isinstance(formula, Name):
        return Name(names.get(formula.text, formula.text))
    if isinstance(formula, Apply):
        called = formula.function.removeprefix(CALL)
        function = CALL + names.get(called, called) if formula.function.startswith(CALL) else formula.function
        return Apply(function, tuple(renamed(argument, names) for argument in formula.arguments))
    return formula


def holds(formula: Formula, part: Formula) -> bool:
    """Whether a part stands somewhere in a formula."""
    inner = formula.arguments if isinstance(formula, Apply) else ()
    return formula == part or any(holds(argument, part) for argument in inner)


def called_in(formula: Formula) -> set[str]:
    """The unknown functions of one argument that a formula calls."""
    if not isinstance(formula, Apply):
        return set()
    own = {formula.function.removeprefix(CALL)} if _calls(formula) else set[str]()
    return own.union(*map(called_in, formula.arguments))


def with_products(formula: Formula, letters: AbstractSet[str]) -> Formula:
    """The formula with ``h(a + b)`` as a product, for the letters that are variables elsewhere."""
    if not isinstance(formula, Apply):
        return formula
    arguments = tuple(with_products(argument, letters) for argument in formula.arguments)
    called = formula.function.removeprefix(CALL)
    if _calls(formula) and called in letters:
        return Apply("mul", (Name(called), *arguments))
    return Apply(formula.function, arguments)


def _calls(formula: Apply) -> bool:
    return formula.function.startswith(CALL) and len(formula.arguments) == 1


def signs_of(formula: Formula) -> list[Formula]:
    r"""What a formula with ``\pm`` stands for: two formulas; any other, itself.

    ``\mp`` is the opposite of ``\pm``. Several ``\pm`` without it could mean two or more values: Unreadable.
    """
    upper, lower = _count(formula, "pm"), _count(formula, "mp")
    if not upper and not lower:
        return [formula]
    if upper + lower > 1 and not (upper and lower):
        raise Unreadable("several signs are left open")
    return [_with_sign(formula, sign) for sign in (1, -1)]


def _count(formula: Formula, function: str) -> int:
    if not isinstance(formula, Apply):
        return 0
    return (formula.function == function) + sum(_count(argument, function) for argument in formula.arguments)


def _with_sign(formula: Formula, sign: int) -> Formula:
    if not isinstance(formula, Apply):
        return formula
    arguments = tuple(_with_sign(argument, sign) for argument in formula.arguments)
    if formula.function in ("pm", "mp"):
        positive = (formula.function == "pm") == (sign > 0)
        return arguments[0] if positive else Apply("neg", arguments)
    return Apply(formula.function, arguments)
