"""Expressions as trees: their values, computed here and not by the checker, and the many ways to write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, TypeAlias

import mpmath

DIGITS = 50
SAME_DIGITS = 40
_POINTS = tuple(Fraction(n, d) for n, d in ((31, 17), (11, 13), (-17, 11), (47, 23), (-5, 19)))
"""Where functions of variables are compared, each variable at another rotation of them.

No pole of a generated function lies here: its coefficients are smaller than these denominators.
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """An operation and its operands; a number's ``value``, the ``name`` of a variable, constant or function."""

    head: str
    parts: tuple[Tree, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""


Operand: TypeAlias = "Tree | int | Fraction"


def tree(operand: Operand) -> Tree:
    """A number as a tree; a tree as it is."""
    return operand if isinstance(operand, Tree) else Tree("number", value=Fraction(operand))


def decimal_text(value: Fraction) -> str:
    """A fraction that ends, as a decimal."""
    places = next(k for k in range(30) if 10**k % value.denominator == 0)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return ("-" if value < 0 else "") + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def decimal(value: Fraction) -> Tree:
    """A number that is written as a decimal."""
    return Tree("number", value=value, name=decimal_text(value))


def symbol(name: str) -> Tree:
    """A variable of one letter."""
    return Tree("symbol", name=name)


PI, EULER, IMAGINARY = (Tree("constant", name=name) for name in ("pi", "e", "i"))


def add(*terms: Operand) -> Tree:
    """A sum."""
    return Tree("add", tuple(map(tree, terms)))


def mul(*factors: Operand) -> Tree:
    """A product."""
    return Tree("mul", tuple(map(tree, factors)))


def neg(operand: Operand) -> Tree:
    """The negative of a number or a product."""
    operand = tree(operand)
    return tree(-operand.value) if operand.head == "number" else mul(-1, operand)


def div(upper: Operand, lower: Operand) -> Tree:
    """A quotient, written as a fraction."""
    return Tree("div", (tree(upper), tree(lower)))


def power(base: Operand, exponent: Operand) -> Tree:
    """A power."""
    return Tree("pow", (tree(base), tree(exponent)))


def root(radicand: Operand, index: int = 2) -> Tree:
    """A square root, or that of another index."""
    return Tree("root", (tree(radicand), tree(index)))


def call(name: str, argument: Operand) -> Tree:
    """An elementary function: sin, cos, tan, ln, exp, abs."""
    return Tree("call", (tree(argument),), name=name)


def log(base: Operand, argument: Operand) -> Tree:
    """A logarithm to a base."""
    return Tree("log", (tree(base), tree(argument)))


def factorial(n: Operand) -> Tree:
    """A factorial."""
    return Tree("factorial", (tree(n),))


def binomial(n: Operand, k: Operand) -> Tree:
    """A binomial coefficient."""
    return Tree("binomial", (tree(n), tree(k)))


def variables(expression: Tree) -> frozenset[str]:
    """The names of the variables in an expression."""
    own = frozenset({expression.name} if expression.head == "symbol" else ())
    return own.union(*map(variables, expression.parts))


def evaluate(expression: Tree, at: Mapping[str, Any]) -> Any:
    """The value, an mpmath number; call it within ``mpmath.workdps(DIGITS)``. Raises ArithmeticError at a pole."""
    parts = [evaluate(part, at) for part in expression.parts]
    match expression.head:
        case "number":
            return mpmath.mpf(expression.value.numerator) / expression.value.denominator
        case "symbol":
            return at[expression.name]
        case "constant":
            return {"pi": mpmath.pi(), "e": mpmath.e(), "i": mpmath.mpc(0, 1)}[expression.name]
        case "add":
            return mpmath.fsum(parts)
        case "mul":
            return mpmath.fprod(parts)
        case "div":
            return parts[0] / parts[1]
        case "pow":
            return mpmath.power(*parts)
        case "root":
            real = not isinstance(parts[0], mpmath.mpc) and parts[0] < 0 and parts[1] == 3
            return -mpmath.root(-parts[0], 3) if real else mpmath.root(parts[0], int(parts[1]))
        case "log":
            return mpmath.log(parts[1]) / mpmath.log(parts[0])
        case "factorial":
            return mpmath.factorial(parts[0])
        case "binomial":
            return mpmath.binomial(*parts)
    functions = {"ln": mpmath.log, "abs": mpmath.fabs, "exp": mpmath.exp}
    functions |= {"sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan}
    return functions[expression.name](*parts)


def values(expression: Tree, names: frozenset[str]) -> list[Any]:
    """The values at the points of comparison, or the only value of an expression without variables."""
    ordered = sorted(names)
    with mpmath.workdps(DIGITS):
        points = [
            {name: mpmath.mpf(p.numerator) / p.denominator for name, p in zip(ordered, turned, strict=False)}
            for turned in (_POINTS[k:] + _POINTS[:k] for k in range(len(_POINTS) if names else 1))
        ]
        return [evaluate(expression, point) for point in points]


def close(first: Any, second: Any) -> bool:
    """Whether two values agree to SAME_DIGITS digits; what differs beyond them is generated nowhere."""
    with mpmath.workdps(DIGITS):
        return bool(abs(first - second) <= mpmath.mpf(10) ** -SAME_DIGITS * max(abs(first), abs(second), 1))


def same_value(first: Tree, second: Tree) -> bool:
    """Whether two expressions have the same values at all points of comparison."""
    names = variables(first) | variables(second)
    return all(map(close, values(first, names), values(second, names)))


@dataclass(frozen=True, slots=True)
class Style:
    """How an expression is written: in LaTeX, or in plain text as in a program."""

    plain: bool = False
    fraction: str = r"\frac"
    times: str = ""
    sized: bool = False
    spaced: bool = True
    minus: str = "-"
    braces: bool = True

    @classmethod
    def drawn(cls, rng: Random) -> Style:
        """A style at random, the usual ones more often."""
        return cls(
            plain=rng.random() < 0.15,
            fraction=rng.choice((r"\frac", r"\frac", r"\dfrac", r"\tfrac")),
            times=rng.choice(("", "", "", r"\cdot", r"\times", "·", "×")),
            sized=rng.random() < 0.4,
            spaced=rng.random() < 0.7,
            minus="−" if rng.random() < 0.08 else "-",
            braces=rng.random() < 0.6,
        )


USUAL = Style()
_SUM, _PRODUCT, _POWER, _ATOM = range(4)


def text(expression: Tree, style: Style = USUAL) -> str:
    """The expression as it is written in a style."""
    return _written(expression, style)[0].replace("-", style.minus)


def bracketed(inside: str, style: Style = USUAL, ends: str = "()") -> str:
    r"""Something in brackets, sized by ``\left`` and ``\right`` where the style says so."""
    opening, closing = (f"\\{end}" if end in "{}" and not style.plain else end for end in (ends[0], ends[-1]))
    return (
        f"\\left{opening}{inside}\\right{closing}" if style.sized and not style.plain else f"{opening}{inside}{closing}"
    )


def _at_least(expression: Tree, level: int, style: Style) -> str:
    written, own = _written(expression, style)
    return written if own >= level else bracketed(written, style)


def _written(expression: Tree, style: Style) -> tuple[str, int]:
    """The text of an expression, and how tightly its outermost operation binds."""
    parts = expression.parts
    match expression.head:
        case "number":
            if expression.name:
                return expression.name, _SUM if expression.value < 0 else _ATOM
            return _number(expression.value, style)
        case "symbol":
            return expression.name, _ATOM
        case "constant":
            return ("\\pi" if expression.name == "pi" and not style.plain else expression.name), _ATOM
        case "add":
            return _sum(parts, style), _SUM
        case "mul":
            return _product(parts, style)
        case "div":
            return _quotient(parts, style)
        case "pow":
            return _power(parts, style)
        case "root":
            return _root(parts, style), _ATOM
        case "factorial":
            return _at_least(parts[0], _ATOM, style) + "!", _ATOM
        case "binomial":
            command = style.fraction.replace("frac", "binom")
            return f"{command}{{{_written(parts[0], style)[0]}}}{{{_written(parts[1], style)[0]}}}", _ATOM
        case "log":
            base = _written(parts[0], style)[0]
            return f"\\log_{{{base}}}{bracketed(_written(parts[1], style)[0], style)}", _POWER
    argument = _written(parts[0], style)[0]
    if expression.name == "abs":
        return (f"abs({argument})" if style.plain else f"|{argument}|"), _ATOM
    return f"{'' if style.plain else chr(92)}{expression.name}{bracketed(argument, style)}", _POWER


def _number(value: Fraction, style: Style) -> tuple[str, int]:
    if value.denominator == 1:
        return str(value.numerator), _ATOM if value >= 0 else _SUM
    sign = "-" if value < 0 else ""
    upper, lower = abs(value.numerator), value.denominator
    if style.plain:
        return f"{sign}{upper}/{lower}", _SUM if sign else _PRODUCT
    return f"{sign}{style.fraction}{{{upper}}}{{{lower}}}", _SUM if sign else _POWER


def _sum(terms: tuple[Tree, ...], style: Style) -> str:
    written = ""
    for term in terms:
        piece = _written(term, style)[0]
        space = " " if style.spaced or written[-1:] == "e" else ""  # 3e+4 could be a number
        if not written:
            written = piece
        elif piece.startswith("-"):
            written += f"{space}-{space}{piece[1:]}"
        else:
            written += f"{space}+{space}{piece}"
    return written


def _product(factors: tuple[Tree, ...], style: Style) -> tuple[str, int]:
    sign = ""
    first, *rest = factors
    if first.head == "number" and rest and first.value < 0:
        sign, first = "-", tree(-first.value)
    if first.head == "number" and first.value == 1 and rest:
        first, *rest = rest
    written = _at_least(first, _PRODUCT, style)
    for factor in rest:
        piece = _at_least(factor, _PRODUCT, style)
        if style.plain:
            written += f"*{_at_least(factor, _POWER, style)}"
            continue
        touching = re.match(r"[0-9]|\\[dt]?frac", piece) or (
            written[-1] not in ")}" and written[-1].isalpha() and piece[0] == "("
        )
        joint = style.times or (r"\cdot" if touching else "")
        written += f" {joint} {piece}" if joint or written[-1].isalpha() else piece
    return sign + written, _SUM if sign else _PRODUCT


def _quotient(parts: tuple[Tree, ...], style: Style) -> tuple[str, int]:
    if style.plain:
        return f"{_at_least(parts[0], _PRODUCT, style)}/{_at_least(parts[1], _ATOM, style)}", _PRODUCT
    upper, lower = (_written(part, style)[0] for part in parts)
    if not style.braces and len(upper) == len(lower) == 1 and upper.isdigit() and lower.isdigit():
        return f"{style.fraction}{upper}{lower}", _POWER
    return f"{style.fraction}{{{upper}}}{{{lower}}}", _POWER


def _power(parts: tuple[Tree, ...], style: Style) -> tuple[str, int]:
    base, exponent = parts
    named = base.head == "call" and base.name != "abs"
    if named and exponent.head == "number" and exponent.value > 0 and not style.plain:
        argument = bracketed(_written(base.parts[0], style)[0], style)
        return f"\\{base.name}^{{{exponent.value}}}{argument}", _POWER
    written, raised = _at_least(base, _ATOM, style), _written(exponent, style)[0]
    if style.plain:
        return f"{written}^{raised if raised.isalnum() else f'({raised})'}", _POWER
    return f"{written}^{raised if len(raised) == 1 and not style.braces else f'{{{raised}}}'}", _POWER


def _root(parts: tuple[Tree, ...], style: Style) -> str:
    inside, index = _written(parts[0], style)[0], int(parts[1].value)
    if style.plain and index == 2:
        return f"sqrt({inside})"
    if not style.braces and index == 2 and len(inside) == 1:
        return f"\\sqrt {inside}"
    return f"\\sqrt{'' if index == 2 else f'[{index}]'}{{{inside}}}"


def square_free(n: int) -> bool:
    """Whether no square above 1 divides n."""
    return all(n % (k * k) for k in range(2, math.isqrt(n) + 1))
