r"""The value of a formula at a point, and whether two formulas are the same number or function.

Values are exact while they are rational, mpmath numbers beyond, compared to 45 of 80 digits. They are principal values
in the complex plane, but for odd roots of negative numbers, which are real as in school. Functions are compared at
random points: two different elementary functions agree at one with probability nil. What is too large, too fine or
undefined raises Undefined and is not the same as anything.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import cycle, islice
from random import Random
from typing import Any, TypeAlias

import mpmath

from agent_rl.environments.maths.answers.formulas import (
    CALL,
    CONSTANTS,
    INFINITY,
    Apply,
    Formula,
    Name,
    Number,
    names_in,
    parts_of,
)

DIGITS = 80
"""mpmath's precision, to be set around ``evaluate``."""
TOLERANCE_DIGITS = 45
NOISE_DIGITS = 55
"""A sum this far below its terms is the zero that rounding missed."""
MAX_BITS = 100_000
"""Of exact integers; a factorial or power beyond that is taken as a floating-point number."""
Result: TypeAlias = Any
"""A Fraction, or an mpmath number."""


class Undefined(ArithmeticError):  # noqa: N818  it is an outcome of evaluating, not a fault
    """The formula has no value here, or none that can be computed within bounds."""


def infinite(formula: Formula) -> int:
    """The sign of an infinite formula, or 0."""
    if isinstance(formula, Apply) and formula.function == "neg":
        return -infinite(formula.arguments[0])
    return int(formula == INFINITY)


def evaluate(formula: Formula, point: Mapping[str, Fraction], *, real: bool = False) -> Result:
    """The value at a point, within mpmath's current precision; ``real``: of real parts only. Raises Undefined."""
    if isinstance(formula, Number):
        return formula.value
    if isinstance(formula, Name):
        return _name(formula.text, point)
    values = [evaluate(argument, point, real=real) for argument in formula.arguments]
    if real and any(isinstance(value, mpmath.mpc) for value in values):
        raise Undefined("not real")
    if formula.function.startswith(CALL):
        return _unknown(formula.function, values)
    if formula.function not in _FUNCTIONS:  # a sign that is left open
        raise Undefined(f"{formula.function} has no one value")
    try:
        return _FUNCTIONS[formula.function](*values)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError) as error:
        raise Undefined(str(error)) from None


def order(value: Result) -> float:
    """A key to sort real values by; they need not be compared exactly. Raises Undefined."""
    if isinstance(value, Fraction):
        return float(value) if abs(value) < 10**300 else math.inf if value > 0 else -math.inf
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


def _exactly_or_not(operation: Callable[[Any, Any], Any]) -> Callable[[Result, Result], Result]:
    def apply(first: Result, second: Result) -> Result:
        if isinstance(first, Fraction) != isinstance(second, Fraction):
            if first == 0 or second == 0:
                first, second = (Fraction(0) if value == 0 else value for value in (first, second))
            first, second = inexact(first), inexact(second)
        return _tidy(operation(first, second))

    return apply


_divided = _exactly_or_not(operator.truediv)


def _add(*values: Result) -> Result:
    """The sum; a remainder far below the terms is the zero they cancel to, a term far below the sum is lost:
    Undefined.
    """
    exact = sum((value for value in values if isinstance(value, Fraction)), Fraction(0))
    others = [value for value in values if not isinstance(value, Fraction)]
    if not others:
        return exact
    terms = [inexact(exact), *others]
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
    if isinstance(exponent, Fraction) and exponent.denominator > 1:
        degree = exponent.denominator
        real = not isinstance(base, mpmath.mpc) and (degree == 2 or (base < 0 and degree % 2 == 1))
        if real:  # by a real root: of squares exactly, of negative numbers by odd roots
            return _power(_root(base, Fraction(degree)), Fraction(exponent.numerator))
    elif isinstance(exponent, Fraction):
        size = max(abs(base.numerator), base.denominator).bit_length() if isinstance(base, Fraction) else 0
        if isinstance(base, Fraction) and size * abs(exponent) <= MAX_BITS:
            return base**exponent.numerator
    if abs(exponent) > 10**6:
        raise Undefined("an exponent beyond bounds")
    return _tidy(mpmath.power(inexact(base), inexact(exponent)))


def _root(radicand: Result, index: Result) -> Result:
    degree = _integer(index)
    if degree is None or not 1 <= abs(degree) <= 10**6:
        return _power(radicand, _divided(Fraction(1), index))
    if degree == 2 and isinstance(radicand, Fraction) and radicand >= 0:
        roots = math.isqrt(radicand.numerator), math.isqrt(radicand.denominator)
        if (roots[0] ** 2, roots[1] ** 2) == (radicand.numerator, radicand.denominator):
            return Fraction(*roots)
    radicand = inexact(radicand)
    negative = degree % 2 and not isinstance(radicand, mpmath.mpc) and radicand < 0
    root = _tidy(mpmath.power(-radicand if negative else radicand, mpmath.mpf(1) / degree))
    return -root if negative else root


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
    n, k = _integer(upper), _integer(lower)
    if n is not None and k is not None and 0 <= k <= n <= 5000:
        return Fraction(math.comb(n, k))
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
    "add": _add,
    "neg": operator.neg,
    "mul": _exactly_or_not(operator.mul),
    "div": _divided,
    "pow": _power,
    "root": _root,
    "abs": lambda value: _tidy(abs(value)),
    "factorial": _factorial,
    "binomial": _binomial,
    "floor": lambda value: _whole(value, math.floor),
    "ceil": lambda value: _whole(value, math.ceil),
    "log": _log,
    "plain base": lambda value, _: value,
    "exp": lambda value: _power(_name("e", {}), value),
    "mod": _integers(operator.mod),
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "max": lambda *values: max(values, key=order),
    "min": lambda *values: min(values, key=order),
    **{f"arc{name}": _transcendental(f"a{name}") for name in ("sin", "cos", "tan")},
    **{name: _transcendental(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
}


FINEST = 10**25
"""Numerators and denominators of the exact parts of an inexact formula: finer ones would be lost in the comparison."""
POINTS, MIN_POINTS = 8, 3
BRANCHING_POINTS = 64
"""Where a function with branches (absolute values, roots, floors) is involved: two may differ in a small part only."""
_BRANCHING = frozenset({"abs", "root", "pow", "floor", "ceil", "max", "min", "log", "arcsin", "arccos"})
_SCALES, _DENOMINATORS = (1, 1, 10, 1, 100, 1, 1000, 1), (11, 13, 16, 17)
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
        if infinite(first) or infinite(second) or names_in(first) or names_in(second):
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
        if not names_in(first) and not names_in(second):
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
    r"""The values of two functions at the points where both are defined.

    Roots and logarithms of letters are those of real numbers. A point where a part of each function is not real counts
    only if hardly another is left. Where one function is real, the other has its value: ``\ln x`` is not ``\ln|x|``;
    but several letters are not negative at once, so ``\sqrt a \sqrt b`` is ``\sqrt{ab}``.
    """
    complex_numbers = _is_complex(first) or _is_complex(second)
    doubtful: list[tuple[Result, Result]] = []
    real_points = 0
    for point in _points(first, second):
        with mpmath.mp.workdps(DIGITS):
            try:
                (a, ours), (b, theirs) = _value_at(point, first), _value_at(point, second)
            except Undefined:
                continue
        real_points += ours and theirs
        several_negative = sum(value < 0 for value in point.values()) > 1
        if complex_numbers or (ours and theirs) or (ours != theirs and not several_negative):
            yield a, b
        else:
            doubtful.append((a, b))
    if real_points < MIN_POINTS:
        yield from doubtful


def _value_at(point: Mapping[str, Fraction], formula: Formula) -> tuple[Result, bool]:
    """The value at a point, and whether it and all its parts are real. Raises Undefined."""
    try:
        value = evaluate(formula, point, real=True)
        return value, not isinstance(value, mpmath.mpc)
    except Undefined:
        return evaluate(formula, point), False


def _is_complex(formula: Formula) -> bool:
    """Whether a formula is about complex numbers: it has ``i``, or a power of a negative constant, ``(-1)^n``."""
    powers = [part.arguments for part in parts_of(formula) if isinstance(part, Apply) and part.function == "pow"]
    bases = [closed_value(base) for base, exponent in powers if names_in(exponent) and not names_in(base)]
    return Name("i") in parts_of(formula) or any(isinstance(base, mpmath.mpc) or base < 0 for base in bases)


def _points(first: Formula, second: Formula) -> Iterator[dict[str, Fraction]]:
    """Points with fractions of both signs, some of them farther out; the same for the same variables. A function with
    branches also has positive points, since real roots of many variables are rare.

    Some have even denominators: by its odd roots a power of a negative number could be that of its absolute value.
    """
    variables = sorted(names_in(first) | names_in(second))
    random = Random(",".join(variables))
    count, positive = (BRANCHING_POINTS, POINTS) if _branches(first) or _branches(second) else (POINTS, 0)
    for place, scale in enumerate(islice(cycle(_SCALES), count + positive)):
        yield {
            name: random.choice((1, -1 if place < count else 1))
            * Fraction(random.randint(5 * scale, 45 * scale), random.choice(_DENOMINATORS))
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

    An integer, a decimal, and any number that a short decimal spells, must be spelt exactly. The exception is what
    binary64 arithmetic prints for it, ``0.30000000000000004``: the number next to it in that format, in the digits of
    its own spelling.
    """
    number, sign = formula, 1
    if isinstance(number, Apply) and number.function == "neg":
        number, sign = number.arguments[0], -1
    if not isinstance(number, Number) or number.digits < DECIMAL_DIGITS or not number.value:
        return False
    decimal, value = sign * number.value, closed_value(other)
    printed = FLOAT_DIGITS < number.digits <= MOST_FLOAT_DIGITS
    if isinstance(value, Fraction) and (_is_short(value) or _is_in_decimals(other, value)):
        return printed and _is_short(value) and _is_next_float(decimal, value)
    return rounds_to(decimal, FLOAT_DIGITS if printed else number.digits, value)


def _is_short(value: Fraction) -> bool:
    """Whether a decimal of at most FLOAT_DIGITS digits spells a number."""
    scale: int = 10**FLOAT_DIGITS
    return abs(value.numerator) < scale and scale % value.denominator == 0


def _is_in_decimals(formula: Formula, value: Fraction) -> bool:
    """Whether a number is an integer, or a decimal that is written as one, or with powers of ten."""
    decimals = any(isinstance(part, Number) and (part.digits or part.value == 10) for part in parts_of(formula))
    ends = pow(10, value.denominator.bit_length(), value.denominator) == 0
    return value.denominator == 1 or (decimals and ends)


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
