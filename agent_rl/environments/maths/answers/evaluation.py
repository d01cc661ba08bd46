"""The value of a formula at a point: exact while it is rational, an mpmath number beyond.

Values are principal values in the complex plane, but for odd roots of negative numbers, which are real as in school.
What is too large or undefined raises Undefined. Limits, sums, products and integrals are read by Math-Verify's LaTeX
parser and evaluated by sympy, which may take any time and memory: see ``rewards``.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import mpmath

from agent_rl.environments.maths.answers.formulas import (
    CALL,
    CONSTANTS,
    INFINITY,
    Apply,
    Calculus,
    Formula,
    Name,
    Number,
    parts_of,
)

DIGITS = 80
"""mpmath's precision, to be set around ``evaluate``."""
TOLERANCE_DIGITS = 45
NOISE_DIGITS = 55
"""A sum this far below its terms is the zero that rounding missed."""
MAX_BITS = 100_000
"""Of exact integers; a factorial or power beyond that is taken as a floating-point number."""
_MISREAD = re.compile(r"[0-9]\s*\(|[0-9]\s+[0-9]|[0-9]\s*\\frac|[A-Z]|'|\\text|\\log|°|%|,|!!|\^\s*\w\s*\^|\*\*")
"""What Math-Verify's parser misreads: mixed numbers where there are none, letters in lower case, derivatives without
their prime, units dropped.
"""

Result: TypeAlias = Any
"""A Fraction, or an mpmath number."""


class Undefined(ArithmeticError):  # noqa: N818  it is an outcome of evaluating, not a fault
    """The formula has no value here, or none that can be computed within bounds."""


def infinite(formula: Formula) -> int:
    """The sign of an infinite formula, or 0."""
    if isinstance(formula, Apply) and formula.function == "neg":
        return -infinite(formula.arguments[0])
    return int(formula == INFINITY)


def variables_of(formula: Formula) -> set[str]:
    """The free variables, those of a Calculus included. Raises Undefined."""
    found: set[str] = set()
    for part in parts_of(formula):
        if isinstance(part, Calculus):
            found.update(map(str, _expression(part.source).free_symbols))
        elif isinstance(part, Name):
            found.add(part.text)
    return found - CONSTANTS


def evaluate(formula: Formula, point: Mapping[str, Fraction]) -> Result:
    """The value at a point, within mpmath's current precision. Raises Undefined."""
    if isinstance(formula, Number):
        return formula.value
    if isinstance(formula, Name):
        return _name(formula.text, point)
    if isinstance(formula, Calculus):
        return _calculus(formula.source, point)
    values = [evaluate(argument, point) for argument in formula.arguments]
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
    "exp": lambda value: _power(_name("e", {}), value),
    "mod": _integers(operator.mod),
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "max": lambda *values: max(values, key=order),
    "min": lambda *values: min(values, key=order),
    **{f"arc{name}": _transcendental(f"a{name}") for name in ("sin", "cos", "tan")},
    **{name: _transcendental(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
}


@lru_cache(maxsize=8)
def _expression(source: str) -> Any:
    """The sympy expression of ``source``, with limits, sums and integrals worked out. Raises Undefined."""
    if _MISREAD.search(source):
        raise Undefined("notation that Math-Verify's parser is known to misread")
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    try:
        parsed = latex2sympy(
            source, is_real=True, convert_degrees=False, normalization_config=None, conversion_config=config
        )
        found = parsed.doit()
    except Exception as error:  # noqa: BLE001  the parser raises Exception itself, and sympy any
        raise Undefined(f"not read by Math-Verify's parser: {error}") from None
    if not hasattr(found, "free_symbols"):
        raise Undefined("not an expression")
    return found


def _calculus(source: str, point: Mapping[str, Fraction]) -> Result:
    """The value of a limit, sum, product or integral at a point. Raises Undefined."""
    import sympy

    found = _expression(source)
    values = {symbol: sympy.Rational(*point[str(symbol)].as_integer_ratio()) for symbol in found.free_symbols}
    value = sympy.N(found.subs(values), DIGITS)
    if not value.is_number or not value.is_finite:
        raise Undefined("no number")
    real, imaginary = (mpmath.mpmathify(str(part)) for part in value.as_real_imag())
    return _tidy(real + imaginary * 1j if imaginary else real)
