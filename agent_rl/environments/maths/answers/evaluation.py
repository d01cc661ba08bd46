"""The value of a formula at a point: exact while it is rational, an mpmath number beyond.

Values are principal values in the complex plane, but for odd roots of negative numbers, which are real as in school.
What is too large or undefined raises Undefined.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import mpmath

from agent_rl.environments.maths.answers import calculus
from agent_rl.environments.maths.answers.formulas import (
    CALL,
    CONSTANTS,
    Apply,
    Calculus,
    Formula,
    Name,
    Number,
    names_in,
)

DIGITS = 80
"""mpmath's precision, to be set around ``evaluate``."""
TOLERANCE_DIGITS = 45
NOISE_DIGITS = 55
"""A sum this far below its terms is the zero that rounding missed."""
MAX_BITS = 100_000
"""Of exact integers; a factorial or power beyond that is taken as a floating-point number."""
FINEST = 10**25
"""Numerators and denominators of the exact parts of an inexact formula: finer ones would be lost in the comparison."""

Result: TypeAlias = Any
"""A Fraction, or an mpmath number."""


class Undefined(ArithmeticError):  # noqa: N818  it is an outcome of evaluating, not a fault
    """The formula has no value here, or none that can be computed within bounds."""


def infinite(formula: Formula) -> int:
    """The sign of an infinite formula, or 0."""
    if isinstance(formula, Apply) and formula.function == "neg":
        return -infinite(formula.arguments[0])
    return int(formula == Name("oo"))


def variables_of(formula: Formula) -> set[str]:
    """The free variables, those of a Calculus included."""
    if isinstance(formula, Calculus):
        return _calculus(formula)[1]
    if isinstance(formula, Apply):
        return set[str]().union(*map(variables_of, formula.arguments))
    return names_in(formula)


def evaluate(formula: Formula, point: Mapping[str, Fraction]) -> Result:
    """The value at a point, within mpmath's current precision. Raises Undefined."""
    if isinstance(formula, Number):
        return formula.value
    if isinstance(formula, Name):
        return _name(formula.text, point)
    if isinstance(formula, Calculus):
        return _calculus_value(formula, point)
    values = [evaluate(argument, point) for argument in formula.arguments]
    try:
        return _apply(formula.function, values)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError) as error:
        raise Undefined(str(error)) from None


def order(value: Result) -> float:
    """A key to sort real values by; they need not be compared exactly. Raises Undefined."""
    if isinstance(value, Fraction):
        return float(value) if abs(value) < 10**300 else math.copysign(math.inf, value)
    value = inexact(value)
    if hasattr(value, "imag") and value.imag:
        raise Undefined("not real")
    return float(value.real)


def inexact(value: Result) -> Result:
    """The value as an mpmath number of the current precision."""
    if isinstance(value, Fraction):
        return mpmath.mpf(value.numerator) / value.denominator
    return value


def _name(name: str, point: Mapping[str, Fraction]) -> Result:
    if name == "oo":
        raise Undefined("infinity within a formula")
    if name in point:
        return point[name]
    if name not in CONSTANTS:
        raise Undefined(f"no value is given for {name}")
    return {"pi": mpmath.mp.pi, "e": mpmath.mp.e, "i": mpmath.mpc(0, 1)}[name] * mpmath.mpf(1)


def _apply(function: str, values: list[Result]) -> Result:
    if function == "add":
        return _add(values)
    if function == "neg":
        return -values[0]
    if function == "mul":
        return _exactly_or_not(values, lambda a, b: a * b)
    if function == "div":
        return _exactly_or_not(values, lambda a, b: a / b)
    if function == "pow":
        return _power(*values)
    if function == "root":
        return _root(*values)
    if function.startswith(CALL):
        return _unknown(function, values)
    if function not in _FUNCTIONS:  # a sign that is left open
        raise Undefined(f"{function} has no one value")
    return _FUNCTIONS[function](*values)


def _exactly_or_not(values: list[Result], operation: Any) -> Result:
    first, second = values
    if isinstance(first, Fraction) != isinstance(second, Fraction):
        if first == 0 or second == 0:
            first, second = (Fraction(0) if value == 0 else value for value in (first, second))
        first, second = inexact(first), inexact(second)
    return _tidy(operation(first, second))


def _add(values: list[Result]) -> Result:
    """The sum; a remainder far below the terms is the zero they cancel to, a term far below the sum is lost:
    Undefined.
    """
    if all(isinstance(value, Fraction) for value in values):
        return sum(values, Fraction(0))
    exact = sum((value for value in values if isinstance(value, Fraction)), Fraction(0))
    terms = [inexact(exact), *(value for value in values if not isinstance(value, Fraction))]
    largest = max(map(abs, terms))
    if any(term and abs(term) < largest * mpmath.mpf(10) ** -35 for term in terms):
        raise Undefined("a term is lost")
    total = mpmath.fsum(terms)
    return _tidy(total) if abs(total) > largest * mpmath.mpf(10) ** -NOISE_DIGITS else Fraction(0)


def _tidy(value: Result) -> Result:
    """The value without an imaginary part that rounding left. Raises Undefined if it is not finite."""
    if isinstance(value, Fraction):
        if max(abs(value.numerator), value.denominator).bit_length() > MAX_BITS:
            raise Undefined("too large")
        return value
    if isinstance(value, mpmath.mpc) and abs(value.imag) <= abs(value.real) * mpmath.mpf(10) ** (10 - DIGITS):
        value = value.real
    if not mpmath.isfinite(value):
        raise Undefined("not finite")
    return value


def _integer(value: Result) -> int | None:
    """The integer a value is, to within the tolerance."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else None
    if isinstance(value, mpmath.mpc) or abs(value) > 10**30:
        return None
    nearest = int(mpmath.nint(value))
    return nearest if abs(value - nearest) < mpmath.mpf(10) ** -TOLERANCE_DIGITS else None


def _power(base: Result, exponent: Result) -> Result:
    if isinstance(base, Fraction) and base in (0, 1):
        if base == 0 and (not isinstance(exponent, Fraction) or exponent <= 0):
            raise Undefined("zero to such a power")
        return base
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(abs(base.numerator), base.denominator).bit_length() if isinstance(base, Fraction) else 0
        if isinstance(base, Fraction) and size * abs(exponent) <= MAX_BITS:
            return base**exponent.numerator
    if isinstance(exponent, Fraction) and exponent.denominator > 1:
        return (
            _power(_root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
            if _real_root(base, exponent)
            else _tidy(mpmath.power(inexact(base), inexact(exponent)))
        )
    if abs(exponent) > 10**6:
        raise Undefined("an exponent beyond bounds")
    return _tidy(mpmath.power(inexact(base), inexact(exponent)))


def _real_root(base: Result, exponent: Fraction) -> bool:
    """Whether a fractional power is taken by a real root: of squares exactly, and of negative numbers by odd roots."""
    if isinstance(base, mpmath.mpc):
        return False
    return exponent.denominator == 2 or (base < 0 and exponent.denominator % 2 == 1)


def _root(radicand: Result, index: Result) -> Result:
    degree = _integer(index)
    if degree is None or not 1 <= abs(degree) <= 10**6:
        return _power(radicand, _exactly_or_not([Fraction(1), index], lambda a, b: a / b))
    if degree == 2 and isinstance(radicand, Fraction) and radicand >= 0:
        roots = math.isqrt(radicand.numerator), math.isqrt(radicand.denominator)
        if (roots[0] ** 2, roots[1] ** 2) == (radicand.numerator, radicand.denominator):
            return Fraction(*roots)
    radicand = inexact(radicand)
    if degree % 2 and not isinstance(radicand, mpmath.mpc) and radicand < 0:
        return -_tidy(mpmath.power(-radicand, mpmath.mpf(1) / degree))
    return _tidy(mpmath.power(radicand, mpmath.mpf(1) / degree))


def _factorial(value: Result) -> Result:
    number = _integer(value)
    if number is not None and number < 0:
        raise Undefined("the factorial of a negative integer")
    if number is not None and number <= 5000:
        return Fraction(math.factorial(number))
    if abs(value) > 10**8:
        raise Undefined("a factorial beyond bounds")
    return _tidy(mpmath.gamma(inexact(value) + 1))


def _binomial(upper: Result, lower: Result) -> Result:
    numbers = _integer(upper), _integer(lower)
    if numbers[0] is not None and numbers[1] is not None and 0 <= numbers[1] <= numbers[0] <= 5000:
        return Fraction(math.comb(numbers[0], numbers[1]))
    if max(abs(upper), abs(lower)) > 10**8:
        raise Undefined("a binomial coefficient beyond bounds")
    return _tidy(mpmath.binomial(inexact(upper), inexact(lower)))


def _whole(value: Result, function: Any) -> Result:
    """Floor or ceiling; a value within the tolerance of an integer is that integer."""
    number = _integer(value)
    if number is None:
        order(value)
        number = int(function(inexact(value)))
    return Fraction(number)


def _log(value: Result, base: Result | None = None) -> Result:
    if value == 0 or base in (0, 1):
        raise Undefined("no logarithm")
    if value == 1:
        return Fraction(0)
    natural = mpmath.log(inexact(value))
    return _tidy(natural if base is None else natural / mpmath.log(inexact(base)))


def _transcendental(name: str) -> Any:
    """One of mpmath's functions, of arguments that keep their precision; a result that only rounding keeps from zero
    is 0.
    """

    def apply(value: Result) -> Result:
        if isinstance(value, Fraction) and value == 0 and name in ("sin", "tan", "asin", "atan", "sinh", "tanh"):
            return Fraction(0)
        if abs(value) > (40 if name in ("sinh", "cosh", "tanh") else 10**12):  # their smaller part would be lost
            raise Undefined("an argument beyond bounds")
        result = _tidy(getattr(mpmath, name)(inexact(value)))
        return Fraction(0) if abs(result) < mpmath.mpf(10) ** (15 - DIGITS) else result

    return apply


def _unknown(function: str, values: list[Result]) -> Result:
    """A pseudo-random value, the same for the same arguments: nothing is known of the function but that it is one."""
    arguments = ",".join(mpmath.nstr(inexact(value), TOLERANCE_DIGITS - 5) for value in values)
    digest = hashlib.sha256(f"{function} {arguments}".encode()).digest()
    return Fraction(int.from_bytes(digest[:4], "big") + 1, 2**30)


def _integers(function: Any) -> Any:
    def apply(*values: Result) -> Result:
        numbers = [_integer(value) for value in values]
        if None in numbers:
            raise Undefined("of integers only")
        return Fraction(function(*numbers))

    return apply


_FUNCTIONS: dict[str, Any] = {
    "abs": lambda value: abs(value) if isinstance(value, Fraction) else _tidy(abs(value)),
    "factorial": _factorial,
    "binomial": _binomial,
    "floor": lambda value: _whole(value, math.floor),
    "ceil": lambda value: _whole(value, math.ceil),
    "log": _log,
    "exp": lambda value: _power(_name("e", {}), value),
    "mod": _integers(operator.mod),
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "max": lambda *values: max(values, key=order),
    "min": lambda *values: min(values, key=order),
    "arcsin": _transcendental("asin"),
    "arccos": _transcendental("acos"),
    "arctan": _transcendental("atan"),
    **{name: _transcendental(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
}


def _calculus(formula: Calculus) -> tuple[Any, set[str]]:
    """A limit, sum, product or integral, evaluated by sympy, and its free variables. Raises Undefined."""
    try:
        found = calculus.expression(formula.source)
    except ValueError as error:
        raise Undefined(str(error)) from None
    return found, {str(symbol) for symbol in found.free_symbols}


def _calculus_value(formula: Calculus, point: Mapping[str, Fraction]) -> Result:
    try:
        return _tidy(calculus.number(_calculus(formula)[0], point, DIGITS))
    except ValueError as error:
        raise Undefined(str(error)) from None
