"""Whether two formulas are the same number, or the same function of their variables.

Rational arithmetic is exact. Where a formula leaves the rationals, values are compared to 45 of 80 digits; with
variables, both formulas are evaluated at random points: two different elementary functions agree at one with
probability nil. What is too large, too fine for that precision, or undefined is not the same as anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import cycle, islice
from random import Random

import mpmath

from agent_rl.environments.maths.answers.evaluation import (
    DIGITS,
    TOLERANCE_DIGITS,
    Result,
    Undefined,
    evaluate,
    inexact,
    infinite,
    variables_of,
)
from agent_rl.environments.maths.answers.formulas import Apply, Formula, Number, parts_of

FINEST = 10**25
"""Numerators and denominators of the exact parts of an inexact formula: finer ones would be lost in the comparison."""
POINTS, MIN_POINTS = 8, 3
BRANCHING_POINTS = 64
"""Where a function with branches (absolute values, roots, floors) is involved: two may differ in a small part only."""
_BRANCHING = frozenset({"abs", "root", "pow", "floor", "ceil", "max", "min", "log", "arcsin", "arccos"})
_SCALES = (1, 1, 10, 1, 100, 1, 1000, 1)
DECIMAL_DIGITS = 6
"""Significant digits from which a decimal may stand for a number that no decimal spells (Math-Verify's default: 6
places).
"""
FLOAT_DIGITS, MOST_FLOAT_DIGITS = 15, 17
"""Digits of a decimal that binary64 arithmetic gets right, and digits that it prints."""


def same(first: Formula, second: Formula) -> bool:
    """Whether the formulas are equal: exactly, as functions, or one as the decimal that the other rounds to."""
    if identical(first, second):
        return True
    try:
        if infinite(first) or infinite(second) or variables_of(first) or variables_of(second):
            return False
        return _spells(first, second) or _spells(second, first)
    except Undefined:
        return False


def identical(first: Formula, second: Formula) -> bool:
    """Whether the formulas are equal, exactly or as functions; a decimal is the rational number that it spells."""
    if first == second:
        return True
    try:
        if infinite(first) or infinite(second):
            return infinite(first) == infinite(second)
        if not variables_of(first) and not variables_of(second):
            return agree(closed_value(first), closed_value(second))
        return _same_function(first, second)
    except Undefined:
        return False


def closed_value(formula: Formula) -> Result:
    """The value of a formula without variables. Raises Undefined."""
    with mpmath.mp.workdps(DIGITS):
        value = evaluate(formula, {})
        if not isinstance(value, Fraction):
            _require_coarse(formula)
        return value


def agree(first: Result, second: Result) -> bool:
    """Whether two values are the same: exactly if both are rational, else to TOLERANCE_DIGITS digits."""
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    with mpmath.mp.workdps(DIGITS):
        a, b = inexact(first), inexact(second)
        return bool(abs(a - b) <= mpmath.mpf(10) ** -TOLERANCE_DIGITS * max(abs(a), abs(b)))


def ratio_of(first: Formula, second: Formula) -> Result | None:
    """The constant by which ``first`` is a multiple of ``second``, as functions; None if there is none. Not 0."""
    with mpmath.mp.workdps(DIGITS):
        found = [(a, b) for a, b in _values(first, second) if a and b]
        ratios = [
            a / b if isinstance(a, Fraction) == isinstance(b, Fraction) else inexact(a) / inexact(b) for a, b in found
        ]
    if len(ratios) < MIN_POINTS or not all(agree(ratio, ratios[0]) for ratio in ratios):
        return None
    return ratios[0]


def _same_function(first: Formula, second: Formula) -> bool:
    agreed = 0
    for values in _values(first, second):
        if not agree(*values):
            return False
        agreed += 1
    return agreed >= MIN_POINTS


def _values(first: Formula, second: Formula) -> Iterator[tuple[Result, Result]]:
    """The values of two functions at the points where both are defined."""
    for point in _points(first, second):
        with mpmath.mp.workdps(DIGITS):
            try:
                values = evaluate(first, point), evaluate(second, point)
            except Undefined:
                continue
        yield values


def _points(first: Formula, second: Formula) -> Iterator[dict[str, Fraction]]:
    """Points with fractions of both signs, some of them farther out; the same for the same variables."""
    variables = sorted(variables_of(first) | variables_of(second))
    random = Random(",".join(variables))
    count = BRANCHING_POINTS if _branches(first) or _branches(second) else POINTS
    for scale in islice(cycle(_SCALES), count):
        yield {
            name: Fraction(random.choice((1, -1)) * random.randint(5 * scale, 45 * scale), random.choice((11, 13, 16, 17)))
            for name in variables
        }


def _branches(formula: Formula) -> bool:
    """Whether a function in the formula has branches; a power does where its exponent is no integer."""
    for part in parts_of(formula):
        if isinstance(part, Apply) and part.function in _BRANCHING:
            last = part.arguments[-1]
            if part.function != "pow" or not isinstance(last, Number) or last.value.denominator != 1:
                return True
    return False


def _spells(formula: Formula, other: Formula) -> bool:
    """Whether a formula is a plain decimal, of enough digits, that the other one rounds to.

    A number that a decimal spells exactly must be spelt exactly. The exception is what binary64 arithmetic prints for
    it, ``0.30000000000000004``: the number next to it in that format, in the digits of its own spelling.
    """
    number, sign = formula, 1
    if isinstance(number, Apply) and number.function == "neg":
        number, sign = number.arguments[0], -1
    if not isinstance(number, Number) or number.digits < DECIMAL_DIGITS or not number.value:
        return False
    decimal, value = sign * number.value, closed_value(other)
    printed = FLOAT_DIGITS < number.digits <= MOST_FLOAT_DIGITS
    if isinstance(value, Fraction) and _is_decimal(value):
        return printed and _is_next_float(decimal, value)
    return rounds_to(decimal, FLOAT_DIGITS if printed else number.digits, value)


def _is_decimal(value: Fraction) -> bool:
    """Whether a decimal of at most FLOAT_DIGITS digits spells a number."""
    scale: int = 10**FLOAT_DIGITS
    return abs(value.numerator) < scale and scale % value.denominator == 0


def _is_next_float(decimal: Fraction, value: Fraction) -> bool:
    """Whether a decimal is how binary64 spells one of the two numbers next to ``value``."""
    nearest = (math.nextafter(float(value), end) for end in (math.inf, -math.inf))
    return decimal in {Fraction(repr(number)) for number in nearest}


def rounds_to(decimal: Fraction, digits: int, value: Result) -> bool:
    """Whether ``value`` is ``decimal`` when rounded to ``digits`` significant digits."""
    decimal_places = len(str(abs(decimal.numerator))) - len(str(decimal.denominator))
    exponent = decimal_places - (abs(decimal) < Fraction(10) ** decimal_places)
    half_unit = Fraction(10) ** (exponent - digits + 1) / 2
    if isinstance(value, Fraction):
        return abs(value - decimal) <= half_unit
    with mpmath.mp.workdps(DIGITS):
        return bool(abs(inexact(value) - inexact(decimal)) <= inexact(half_unit))


def _require_coarse(formula: Formula) -> None:
    """Raise Undefined if an exact part of an inexact formula is too fine or too large to be seen in the comparison."""
    try:
        value = evaluate(formula, {})
    except Undefined:
        value = None
    if isinstance(value, Fraction):
        if max(abs(value.numerator), value.denominator) > FINEST:
            raise Undefined("too fine")
    elif isinstance(formula, Apply):
        for argument in formula.arguments:
            _require_coarse(argument)
