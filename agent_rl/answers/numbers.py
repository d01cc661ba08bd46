"""Whether two formulas are the same number, or the same function of their variables.

Rational arithmetic is exact. Where a formula leaves the rationals, values are compared to 45 of 80 digits; with variables,
both formulas are evaluated at random points: two different elementary functions agree at one with probability nil. What
is too large, too fine for that precision, or undefined is not the same as anything.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import mpmath

from agent_rl.answers.evaluation import (
    DIGITS,
    TOLERANCE_DIGITS,
    Result,
    Undefined,
    evaluate,
    inexact,
    infinite,
    variables_of,
)
from agent_rl.answers.formulas import Apply, Formula, Number

FINEST = 10**25
"""Numerators and denominators of the exact parts of an inexact formula: finer ones would be lost in the comparison."""
POINTS, MIN_POINTS = 7, 3
DECIMAL_DIGITS = 6
"""Significant digits from which a decimal may stand for a number that rounds to it (Math-Verify's default: 6 places)."""
MOST_DECIMAL_DIGITS = 12
"""Digits after this one are not compared: floating-point output."""


def same(first: Formula, second: Formula) -> bool:
    """Whether the formulas are equal: exactly, as functions, or one as the decimal that the other rounds to."""
    if first == second:
        return True
    try:
        if infinite(first) or infinite(second):
            return infinite(first) == infinite(second)
        variables = variables_of(first) | variables_of(second)
        if not variables:
            values = closed_value(first), closed_value(second)
            return agree(*values) or _rounds_to(first, values[1]) or _rounds_to(second, values[0])
        return _same_function(first, second, sorted(variables))
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
    variables = sorted(variables_of(first) | variables_of(second))
    ratios: list[Result] = []
    with mpmath.mp.workdps(DIGITS):
        for point in _points(variables):
            try:
                a, b = evaluate(first, point), evaluate(second, point)
                if not a or not b:
                    continue
                ratios.append(a / b if isinstance(a, Fraction) == isinstance(b, Fraction) else inexact(a) / inexact(b))
            except Undefined:
                continue
    if len(ratios) < MIN_POINTS or not all(agree(ratio, ratios[0]) for ratio in ratios):
        return None
    return ratios[0]


def _same_function(first: Formula, second: Formula, variables: list[str]) -> bool:
    agreed = 0
    with mpmath.mp.workdps(DIGITS):
        for point in _points(variables):
            try:
                values = evaluate(first, point), evaluate(second, point)
            except Undefined:
                continue
            if not agree(*values):
                return False
            agreed += 1
    return agreed >= MIN_POINTS


def _points(variables: list[str]) -> list[dict[str, Fraction]]:
    """Points with small fractions of both signs, one of them farther out; the same for the same variables."""
    random = Random(",".join(variables))

    def coordinate(scale: int) -> Fraction:
        return Fraction(random.choice((1, -1)) * random.randint(5 * scale, 45 * scale), random.choice((11, 13, 17)))

    points = [{name: coordinate(1) for name in variables} for _ in range(POINTS - 3)]
    points += [{name: abs(coordinate(1)) for name in variables} for _ in range(2)]
    return [*points, {name: coordinate(1000) for name in variables}]


def _rounds_to(formula: Formula, value: Result) -> bool:
    """Whether a formula is a plain decimal, of enough digits, that ``value`` rounds to."""
    number, sign = formula, 1
    if isinstance(number, Apply) and number.function == "neg":
        number, sign = number.arguments[0], -1
    if not isinstance(number, Number) or number.digits < DECIMAL_DIGITS or not number.value:
        return False
    return rounds_to(sign * number.value, min(number.digits, MOST_DECIMAL_DIGITS), value)


def rounds_to(decimal: Fraction, digits: int, value: Result) -> bool:
    """Whether ``value`` is ``decimal`` when rounded to ``digits`` significant digits."""
    exponent = math.floor(math.log10(abs(decimal)))
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
