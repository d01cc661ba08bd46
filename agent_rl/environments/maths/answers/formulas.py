"""Formulas as trees, and what can be said of them without evaluating them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
PI, INFINITY, ONE = Name("pi"), Name("oo"), Number(Fraction(1))


def neg(formula: Formula) -> Formula:
    """The negative of a formula."""
    return Apply("neg", (formula,))


def parts_of(formula: Formula) -> Iterator[Formula]:
    """The formula and everything that it is built of."""
    yield formula
    for argument in formula.arguments if isinstance(formula, Apply) else ():
        yield from parts_of(argument)


def rebuilt(formula: Formula, change: Callable[[Formula], Formula]) -> Formula:
    """The formula with each part changed, the innermost parts first."""
    if isinstance(formula, Apply):
        formula = Apply(formula.function, tuple(rebuilt(argument, change) for argument in formula.arguments))
    return change(formula)


def names_in(formula: Formula) -> set[str]:
    """The variables of a formula; the variables of a Calculus are not known here."""
    return {part.text for part in parts_of(formula) if isinstance(part, Name)} - CONSTANTS


def renamed(formula: Formula, names: dict[str, str]) -> Formula:
    """The formula with variables, and unknown functions that are called, renamed."""

    def change(part: Formula) -> Formula:
        if isinstance(part, Name):
            return Name(names.get(part.text, part.text))
        if isinstance(part, Apply) and part.function.startswith(CALL):
            called = part.function.removeprefix(CALL)
            return Apply(CALL + names.get(called, called), part.arguments)
        return part

    return rebuilt(formula, change)


def called_in(formula: Formula) -> set[str]:
    """The unknown functions of one argument that a formula calls."""
    return {called for part in parts_of(formula) if (called := _called(part))}


def with_products(formula: Formula, letters: AbstractSet[str]) -> Formula:
    """The formula with ``h(a + b)`` as a product, for the letters that are variables elsewhere."""

    def change(part: Formula) -> Formula:
        called = _called(part)
        return Apply("mul", (Name(called), *part.arguments)) if called in letters and isinstance(part, Apply) else part

    return rebuilt(formula, change)


def _called(part: Formula) -> str:
    calls = isinstance(part, Apply) and part.function.startswith(CALL) and len(part.arguments) == 1
    return part.function.removeprefix(CALL) if calls and isinstance(part, Apply) else ""


def signs_of(formula: Formula) -> list[Formula]:
    r"""What a formula with ``\pm`` stands for: two formulas; any other, itself.

    ``\mp`` is the opposite of ``\pm``. Several ``\pm`` without it could mean two or more values: Unreadable.
    """
    signs = [part.function for part in parts_of(formula) if isinstance(part, Apply) and part.function in ("pm", "mp")]
    if len(signs) > 1 and len(set(signs)) == 1:
        raise Unreadable("several signs are left open")

    def signed(positive: str) -> Formula:
        def change(part: Formula) -> Formula:
            if not isinstance(part, Apply) or part.function not in ("pm", "mp"):
                return part
            return part.arguments[0] if part.function == positive else neg(part.arguments[0])

        return rebuilt(formula, change)

    return [signed("pm"), signed("mp")] if signs else [formula]
