"""Forms: a meaning and a way to write it. Meanings prove that a pair is what it is said to be.

A meaning is an expression, or words, or a tuple of a tag and what belongs to it:

| tag | then |
|---|---|
| ``set`` | meanings, in any order, repeated or not |
| ``tuple`` | meanings, in order; a matrix is a tuple of rows, tagged ``matrix`` |
| ``region`` | pieces of the real line in order: (low end or None, closed, high end or None, closed) |
| ``quantity`` | a dimension, and an expression in its base unit |
| ``curve`` | an expression whose zeros are the points; any multiple means the same |
| any other, as ``words`` | words and meanings that are the same one by one |

Meanings of different kinds are different. Whatever a teacher could discuss (``5`` for ``5 cm``, ``50`` for ``50 %``,
``(1, 2)`` for ``{1, 2}``) is therefore generated nowhere, neither as equal nor as unequal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import NamedTuple, TypeAlias

from benchmarks.answer_pairs.trees import (
    IMAGINARY,
    PI,
    Style,
    Tree,
    add,
    close,
    div,
    mul,
    neg,
    power,
    root,
    same_value,
    symbol,
    text,
    tree,
    values,
    variables,
)

Meaning: TypeAlias = "Tree | str | bool | tuple[Meaning, ...] | None"
Writer: TypeAlias = Callable[[Style], str]


class Form(NamedTuple):
    """A meaning and how it is written in a style."""

    meaning: Meaning
    write: Writer


Wrong: TypeAlias = tuple[str, Form]
"""A mutation, and the form that it made."""


@dataclass(frozen=True, slots=True)
class Case:
    """An answer in its forms, and wrong answers, each with the mutation that made it of the right one.

    ``golds`` are the forms in which it may be the gold answer, if not all: ``m + n = 5`` states 5, and could be a line.
    """

    forms: Sequence[Form]
    wrong: Sequence[Wrong]
    golds: Sequence[Form] = ()


Kind: TypeAlias = Callable[[Random], Case]


def form(expression: Tree) -> Form:
    """An expression, written in any style."""
    return Form(expression, lambda style: text(expression, style))


def said(meaning: Meaning, *texts: str) -> list[Form]:
    """A meaning in texts that no style changes."""
    return [Form(meaning, lambda _, spelt=spelt: spelt) for spelt in texts]  # type: ignore[misc]


def words(*texts: str) -> list[Form]:
    """Texts that mean nothing but themselves."""
    return [one for spelt in texts for one in said(("words", spelt), spelt)]


def wrong(mutation: str, *forms: Form | Tree) -> list[Wrong]:
    """Forms, or expressions, that one mutation made."""
    return [(mutation, form(one) if isinstance(one, Tree) else one) for one in forms]


def differ(first: Meaning, second: Meaning) -> bool:
    """Whether two meanings are known to differ; not where one of them has no value."""
    try:
        return not same(first, second)
    except (ArithmeticError, ValueError, TypeError):  # a pole, or no real number where one must be
        return False


def same(first: Meaning, second: Meaning) -> bool:
    """Whether two meanings are the same."""
    if isinstance(first, Tree) and isinstance(second, Tree):
        return same_value(first, second)
    if not isinstance(first, tuple) or not isinstance(second, tuple):
        return type(first) is type(second) and first == second
    if first[:1] == second[:1] == ("set",):
        return _same_elements(first[1:], second[1:])
    if len(first) != len(second) or not first or isinstance(first[0], str) != isinstance(second[0], str):
        return False
    if first[0] == second[0] == "curve":
        return _same_zeros(first[1], second[1])
    return all(map(same, first, second))


def _same_elements(first: Sequence[Meaning], second: Sequence[Meaning]) -> bool:
    """Whether each element of either is one of the other: order and repetitions say nothing."""
    return all(any(same(a, b) for b in second) for a in first) and all(any(same(a, b) for a in first) for b in second)


def _same_zeros(first: Meaning, second: Meaning) -> bool:
    """Whether one expression is a constant multiple of the other. Both are irreducible, so their zeros decide."""
    assert isinstance(first, Tree)
    assert isinstance(second, Tree)
    names = variables(first) | variables(second)
    pairs = list(zip(values(first, names), values(second, names), strict=True))
    upper, lower = next(pair for pair in pairs if pair[0] and pair[1])
    return all(close(a * lower, b * upper) for a, b in pairs)


def altered(rng: Random, expression: Tree, tries: int = 6) -> list[Wrong]:
    """An expression with one part mutated, several times. Some mutations change nothing: compare before use."""
    places = list(_places(expression))
    found: list[Wrong] = []
    for _ in range(tries):
        place = rng.choice(places)
        mutation, part = rng.choice(list(_mutations(_at(expression, place), rng, whole=not place)))
        found += wrong(mutation, _put(expression, place, part))
    return found


def altered_items(rng: Random, items: Sequence[Tree], *, ordered: bool = False) -> list[tuple[str, list[Tree]]]:
    """Several answers, of which one is missing, too many, mutated, or, where they are ``ordered``, at another place."""
    found = [("missing part", list(items[1:])), ("missing part", list(items[:-1]))]
    found += [("extra part", [*items, tree(37)]), ("extra part", [tree(Fraction(1, 7)), *items])]
    for mutation, other in altered(rng, items[0], 6):
        assert isinstance(other.meaning, Tree)
        found.append((mutation, [other.meaning, *items[1:]]))
    if ordered:
        found += [("order", [items[1], items[0], *items[2:]]), ("order", [*items[1:], items[0]])]
    return found


def transposed(n: int, rng: Random) -> Iterator[int]:
    """The number with two neighbouring digits exchanged, if that makes another."""
    digits = list(str(abs(n)))
    places = [k for k in range(len(digits) - 1) if digits[k] != digits[k + 1] and (k or digits[1] != "0")]
    if places:
        k = rng.choice(places)
        digits[k], digits[k + 1] = digits[k + 1], digits[k]
        yield int("".join(digits)) * (-1 if n < 0 else 1)


_OTHER_NAMES = {"sin": "cos", "cos": "sin", "tan": "sin", "ln": "exp", "exp": "ln", "abs": "exp", "pi": "e", "e": "pi"}


def _mutations(part: Tree, rng: Random, *, whole: bool) -> Iterator[tuple[str, Tree]]:
    """What one mutation can make of a part of an expression, or of the ``whole`` of it."""
    parts = part.parts
    yield "sign", neg(part)
    if part.head == "number":
        yield "off by one", tree(part.value + rng.choice((-1, 1)))
        yield "scale", tree(part.value * rng.choice((10, 2, Fraction(1, 10), Fraction(1, 2))))
        yield from (("digit", tree(n)) for n in transposed(int(part.value), rng) if part.value.denominator == 1)
        if part.value and part.value.denominator > 1:
            yield "reciprocal", tree(1 / part.value)
            yield "dropped part", tree(part.value.numerator)
    elif part.head == "symbol":
        yield "variable", symbol("w")
        yield "exponent", power(part, 2)
    elif part.name in _OTHER_NAMES:
        yield "function", replace(part, name=_OTHER_NAMES[part.name])
    if part.head in ("add", "mul"):
        for k in range(len(parts)):
            rest = parts[:k] + parts[k + 1 :]
            yield "dropped part", rest[0] if len(rest) == 1 else replace(part, parts=rest)
        yield "operation", replace(part, head="mul" if part.head == "add" else "add")
    if part.head in ("div", "pow", "log", "binomial"):
        yield "order", replace(part, parts=parts[::-1])
        yield "dropped part", parts[0]
    if part.head == "pow" and parts[0].head in ("add", "mul"):
        yield "nesting", replace(parts[0], parts=(*parts[0].parts[:-1], power(parts[0].parts[-1], parts[1])))
    if part.head == "root":
        yield "exponent", root(parts[0], 5 - int(parts[1].value))
        yield "nesting", root(part)
        yield "dropped part", parts[0]
    if part.head == "call":
        yield "nesting", replace(part, parts=(part,))
        yield "nesting", replace(part, parts=(power(parts[0], 2),))
    if part.head == "mul" and parts[-1].head in ("root", "call"):
        inner = parts[-1]
        yield "nesting", replace(inner, parts=(mul(*parts[:-1], inner.parts[0]), *inner.parts[1:]))
    if whole:
        yield "reciprocal", div(1, part)
        yield "scale", mul(rng.choice((10, 2, 100)), part)
        yield "off by one", add(part, rng.choice((-1, 1)))
        yield "root or power", power(part, 2)
        yield "constant", mul(part, rng.choice((PI, IMAGINARY)))
        if variables(part):
            yield "+C", add(part, symbol("C"))


def _places(expression: Tree) -> Iterator[tuple[int, ...]]:
    """The way to each part that a mutation may change: no exponent or factorial grows out of bounds."""
    yield ()
    if expression.head not in ("factorial", "binomial"):
        for k, part in enumerate(expression.parts):
            if not (expression.head == "root" and k == 1):
                yield from ((k, *rest) for rest in _places(part))


def _at(expression: Tree, place: tuple[int, ...]) -> Tree:
    return _at(expression.parts[place[0]], place[1:]) if place else expression


def _put(expression: Tree, place: tuple[int, ...], part: Tree) -> Tree:
    if not place:
        return part
    k = place[0]
    parts = (*expression.parts[:k], _put(expression.parts[k], place[1:], part), *expression.parts[k + 1 :])
    return replace(expression, parts=parts)
