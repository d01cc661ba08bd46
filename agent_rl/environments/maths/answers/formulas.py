r"""Formulas as trees: their parts, and what they are built of. `grammar.py` reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd
from typing import TypeAlias

from agent_rl.environments.maths.answers.notation import Unreadable


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number; ``digits`` significant digits where it was written as a decimal, else 0."""

    value: Fraction
    digits: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, or one of the constants pi, e, i and oo."""

    text: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation or function by name; ``f(...)`` of an unknown function is ``call f``."""

    function: str
    arguments: tuple[Formula, ...]


Formula: TypeAlias = Number | Name | Apply

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
    """The variables of a formula."""
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


def factors_in(formula: Formula) -> list[tuple[int, int]] | None:
    """Base and exponent of each factor of a product of whole numbers, in order; None for any other formula."""
    if isinstance(formula, Number):
        return [(int(formula.value), 1)] if is_integer(formula) else None
    if not isinstance(formula, Apply) or formula.function not in ("mul", "pow"):
        return None
    one, other = (factors_in(part) for part in formula.arguments)
    if one is None or other is None:
        return None
    if formula.function == "mul":
        return sorted([*one, *other])
    return [(one[0][0], other[0][0])] if len(one) == len(other) == one[0][1] == other[0][1] == 1 else None


def operations_of(formula: Formula) -> set[str]:
    """What a formula is built with: names, functions, and "plain" arithmetic, that of numbers alone.

    A power of ten is how a number is written. Arithmetic of roots and constants stays as it is, but for products and
    powers of sums, and products of several numbers.
    """
    if not isinstance(formula, Apply):
        return {formula.text} if isinstance(formula, Name) else set()
    name, arguments = formula.function, formula.arguments
    found = set[str]().union(*map(operations_of, arguments))
    if name == "neg" or _is_power_of_ten(formula) or (name == "mul" and not found and _is_power_of_ten(arguments[1])):
        return found
    if name == "exp":
        return found | {"e"}
    if name == "pow" and not is_integer(arguments[1]) and operations_of(arguments[1]) <= {"plain div"}:
        return operations_of(arguments[0]) | {"root"}
    if name == "plain base":
        return {f"{name} {value.value}" for value in arguments[1:] if isinstance(value, Number)}
    if name == "log":  # \ln(7^3 \cdot 6)
        found -= {"plain mul", "plain pow"}
    if name not in ("add", "mul", "div", "pow"):
        return found | {name}
    if all(operation.startswith("plain") for operation in found):
        return found | {f"plain {name}"}
    if any(factors > 1 for factors in _numbers_in(formula)):
        found |= {"plain mul"}
    sums = [isinstance(part, Apply) and part.function == "add" for part in arguments]
    return found | {"expansion"} if (name == "mul" and all(sums)) or (name == "pow" and sums[0]) else found


def _numbers_in(formula: Formula) -> tuple[int, int]:
    """How many numbers are factors of a formula, above and below the bars of its fractions."""
    if not isinstance(formula, Apply) or _is_power_of_ten(formula):
        return int(isinstance(formula, Number) and formula != ONE), 0
    if formula.function not in ("neg", "mul", "div"):
        return 0, 0
    counts = [_numbers_in(argument) for argument in formula.arguments]
    if formula.function == "div":
        counts[1] = counts[1][::-1]
    return sum(above for above, _ in counts), sum(below for _, below in counts)


def bare(formula: Formula) -> Formula:
    """The formula without signs and without the numbers that change nothing: ``x + 0``, ``1 x``, ``x / 1``."""

    def change(part: Formula) -> Formula:
        if not isinstance(part, Apply):
            return part
        name, arguments = part.function, part.arguments
        neutral = {"add": Number(Fraction(0)), "mul": ONE, "div": ONE, "pow": ONE}.get(name)
        fixed = name in ("div", "pow")  # 1 / x is not x
        rest = [each for place, each in enumerate(arguments) if each != neutral or (fixed and place == 0)]
        ratio = name == "div" and is_integer(arguments[0])  # 3:1 says more than 3
        return rest[0] if len(rest) == 1 and (name == "neg" or (neutral is not None and not ratio)) else part

    return rebuilt(formula, change)


def shape_of(formula: Formula) -> str:
    """What a bare formula is at its outside: "number", also as a fraction in lowest terms, "fraction", "product", also
    as a quotient, "power", also as a root, or the name of its function.
    """
    if not isinstance(formula, Apply):
        return "number" if isinstance(formula, Number) else "name"
    name, arguments = formula.function, formula.arguments
    if name == "div" and all(map(is_integer, arguments)):
        numbers = [part.value.numerator for part in arguments if isinstance(part, Number)]
        return "number" if gcd(*numbers) == 1 and numbers[1] != 1 else "fraction"
    return {"mul": "product", "div": "product", "pow": "power", "root": "power", "exp": "power"}.get(name, name)


def functions_among(operations: AbstractSet[str]) -> set[str]:
    """Those operations that are functions, such as logarithms and factorials."""
    return {each for each in operations if not each.startswith("plain")} - CONSTANTS - {"root", "expansion"}


def additions_in(formula: Formula) -> int:
    """How many terms the sums of a formula add, but for values of functions."""
    sums = [part.arguments for part in parts_of(formula) if isinstance(part, Apply) and part.function == "add"]
    terms = [[term for term in each if not functions_among(operations_of(term))] for each in sums]
    return sum(len(some) - (len(some) == len(each)) for some, each in zip(terms, sums, strict=True))


def _is_power_of_ten(formula: Formula) -> bool:
    if not isinstance(formula, Apply) or formula.function != "pow":
        return False
    return formula.arguments[0] == Number(Fraction(10)) and is_integer(formula.arguments[1])


def is_integer(formula: Formula) -> bool:
    """Whether a formula is written as an integer."""
    if isinstance(formula, Apply) and formula.function == "neg":
        return is_integer(formula.arguments[0])
    return isinstance(formula, Number) and formula.value.denominator == 1


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
