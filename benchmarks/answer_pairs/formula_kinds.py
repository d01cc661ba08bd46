"""Kinds of answers with variables: polynomials, functions, equations of curves, chains, named quantities."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from benchmarks.answer_pairs.forms import Case, Form, Kind, altered, form, words, wrong
from benchmarks.answer_pairs.number_kinds import VOCABULARY, case
from benchmarks.answer_pairs.trees import EULER, Tree, add, call, div, mul, neg, power, symbol, text, tree


def nonzero(rng: Random, limit: int) -> int:
    """A whole number of either sign."""
    return rng.choice((1, -1)) * rng.randint(1, limit)


def polynomial(coefficients: list[int], x: Tree, rng: Random | None = None) -> Tree:
    """The sum with these coefficients of 1, x, x^2, ...; highest power first, or in any order."""
    terms = [mul(c, *([power(x, k)] if k > 1 else [x] * k)) if k else tree(c) for k, c in enumerate(coefficients) if c]
    terms.reverse()
    if rng:
        rng.shuffle(terms)
    return add(*terms) if len(terms) > 1 else terms[0]


def polynomials(rng: Random) -> Case:
    """Products of two or three linear factors, expanded, permuted and factored."""
    x = symbol(rng.choice("xxxtnyamz"))
    factors = [(nonzero(rng, 9), rng.choice((1, 1, 2, 3))) for _ in range(rng.randint(2, 3))]
    coefficients = [1]
    for b, a in factors:
        coefficients = [b * low + a * high for low, high in zip([*coefficients, 0], [0, *coefficients], strict=True)]
    linear = [add(mul(a, x), b) for b, a in factors]
    expressions = [polynomial(coefficients, x), polynomial(coefficients, x, rng), mul(*linear), mul(*reversed(linear))]
    if factors[0] == factors[-1] and len(factors) == 2:
        expressions.append(power(linear[0], 2))
    changed = wrong("variable", polynomial(coefficients, symbol("w"))) + wrong(
        "exponent", polynomial([0, *coefficients], x)
    )
    return case(rng, expressions, [], changed, wrong("+C", add(expressions[0], symbol("C"))))


def monomials(rng: Random) -> Case:
    """Products of powers of several variables."""
    x, y = map(symbol, rng.sample("abxymn", 2))
    c, p, q = nonzero(rng, 12), rng.randint(2, 6), rng.randint(2, 5)
    expressions = [mul(c, power(x, p), power(y, q)), mul(c, power(y, q), power(x, p))]
    expressions += [mul(c, x, power(x, p - 1), power(y, q))]
    expressions += [mul(c, power(mul(x, y), q), power(x, p - q))] if p > q + 1 else []
    texts = [f"{c} {y.name}^{q} {x.name}^{p}", f"{c}{x.name}^{{{p}}}{y.name}^{{{q}}}"] if abs(c) > 1 else []
    changed = wrong("order", mul(c, power(x, q), power(y, p))) if p != q else []
    changed += wrong("exponent", mul(c, power(mul(x, y), p * q)), mul(c, power(power(x, y), p * q)))
    return case(rng, expressions, texts, changed, wrong("sum for product", add(mul(c, power(x, p)), power(y, q))))


def quotients(rng: Random) -> Case:
    """Quotients of linear functions, whole and in parts."""
    x = symbol(rng.choice("xxtnk"))
    a, b, c = nonzero(rng, 6), nonzero(rng, 9), nonzero(rng, 9)
    b += b == a * c
    upper, lower = add(mul(a, x), b), add(x, c)
    expressions = [div(upper, lower), add(a, div(b - a * c, lower)), div(add(b, mul(a, x)), add(c, x))]
    expressions += [div(add(mul(-a, x), -b), add(mul(-1, x), -c)), add(div(mul(a, x), lower), div(b, lower))]
    return case(rng, expressions, [], wrong("dropped part", upper, add(mul(a, x), div(b, lower))))


def trigonometric(rng: Random) -> Case:
    """Sines and cosines of multiples of a variable, and their squares."""
    x = symbol(rng.choice("xxt"))
    a, k, c = rng.randint(2, 9), rng.randint(2, 6), nonzero(rng, 5)
    first, second = rng.sample(("sin", "cos"), 2)
    shape, texts = rng.randrange(4), list[str]()
    if shape == 0:
        double = mul(2 * a, call("sin", x), call("cos", x))
        expressions = [add(mul(a, call("sin", mul(2, x))), c), add(double, c), add(c, double)]
        texts = [f"{a}\\sin 2{x.name} {'+' if c > 0 else '-'} {abs(c)}"]
    elif shape == 1:
        squares = [mul(a, power(call(first, x), 2)), mul(a, call(first, x), call(first, x))]
        expressions = [*(add(square, c) for square in squares), add(a + c, mul(-a, power(call(second, x), 2)))]
    else:
        wave = mul(a, call(first, mul(k, x)))
        expressions = [add(wave, c), add(c, wave)]
    changed = wrong("nesting", mul(a, call(first, add(mul(k, x), c))), add(mul(a * k, call(first, x)), c))
    return case(rng, expressions, texts, changed)


def exponentials(rng: Random) -> Case:
    """Exponential functions."""
    x = symbol(rng.choice("xxtn"))
    a, k, c = rng.randint(2, 9), rng.choice((rng.randint(2, 6), -rng.randint(2, 6))), nonzero(rng, 9)
    base = rng.choice((EULER, tree(rng.choice((2, 3, 5)))))
    growth = mul(a, power(base, mul(k, x)))
    expressions = [add(growth, c), add(c, growth), add(mul(a, power(power(base, x), k)), c)]
    expressions += [add(mul(a, call("exp", mul(k, x))), c)] if base is EULER else []
    expressions += [add(div(a, power(base, mul(-k, x))), c)] if k < 0 else []
    changed = wrong("nesting", mul(a, power(base, add(mul(k, x), c))), add(power(mul(a, base), mul(k, x)), c))
    return case(rng, expressions, [], changed, wrong("exponent", add(mul(a, power(base, add(k, x))), c)))


def definitions(rng: Random) -> Case:
    """Functions by their equation, under another parameter, or by their right side."""
    right = [nonzero(rng, 9), nonzero(rng, 9), nonzero(rng, 6)]
    letter, meaning = rng.choice("fgh"), polynomial(right, symbol("x"))

    def defined(left: str, body: Tree, meaning: Tree = meaning) -> Form:
        return Form(meaning, lambda style: f"{left} = {text(body, style)}")

    renamed = [defined(f"{letter}({x})", polynomial(right, symbol(x), rng)) for x in "xxt"]
    unnamed = [renamed[0], defined("y", meaning), form(meaning)]
    changed = []
    for name, other in altered(rng, meaning):
        assert isinstance(other.meaning, Tree)
        changed += wrong(name, defined(f"{letter}(x)", other.meaning, other.meaning))
    return Case(rng.choice((renamed, unnamed[::2], unnamed[:2])), changed)


def equation(meaning: Tree, left: Tree | int, right: Tree | int) -> Form:
    """An equation between two expressions, whose points are where a third one is zero."""
    return Form(("curve", meaning), lambda style: f"{text(tree(left), style)} = {text(tree(right), style)}")


def lines(rng: Random) -> Case:
    """Lines by their equations: solved for y, with all terms on one side, multiplied."""
    x, y = symbol("x"), symbol("y")
    a, b, c = nonzero(rng, 7), rng.randint(1, 4), nonzero(rng, 12)
    b, k = b if math.gcd(a, b) == 1 else 1, rng.choice((2, 3, -1, -2))

    def line(a: int, b: int, c: int) -> list[Form]:
        """``b y = a x + c``."""
        solved, left = add(mul(Fraction(a, b), x), Fraction(c, b)), add(mul(a, x), mul(-b, y))
        sides: list[tuple[Tree | int, Tree | int]] = [
            (y, solved),
            (solved, y),
            (mul(b, y), add(mul(a, x), c)),
            (left, -c),
        ]
        sides += [(add(mul(k * a, x), mul(-k * b, y), k * c), 0)]
        return [equation(add(left, c), *pair) for pair in sides]

    others = [("sign", (-a, b, c)), ("sign", (a, b, -c)), ("sign", (-a, b, -c)), ("off by one", (a + 2 * b, b, c))]
    others += [("off by one", (a, b, c + 1)), ("reciprocal", (b, abs(a), c)), ("order", (c, b, a))]
    changed = [one for name, numbers in others if numbers[0] for one in wrong(name, *line(*numbers))]
    body = text(add(mul(a, x), c))
    changed += wrong("relation", *words(*(f"y {sign} {body}" for sign in ("<", r"\ge", r"\ne"))))
    return Case(line(a, b, c), [*changed, *wrong("exponent", *words(f"y = {text(add(mul(a, power(x, 2)), c))}"))])


def circles(rng: Random) -> Case:
    """Circles by centre and radius, and expanded."""
    x, y = symbol("x"), symbol("y")
    h, k, r = nonzero(rng, 6), nonzero(rng, 6), rng.randint(2, 9)

    def circle(h: int, k: int, square: int, stretch: int = 1) -> list[Form]:
        squares = [power(add(x, -h), 2), mul(stretch, power(add(y, -k), 2))]
        whole = [power(x, 2), mul(stretch, power(y, 2)), mul(-2 * h, x), mul(-2 * k * stretch, y)]
        constant = h * h + k * k * stretch - square
        sides: list[tuple[Tree | int, Tree | int]] = [(add(*squares), square), (add(*squares[::-1]), square)]
        sides += [
            (square, add(*squares)),
            (add(*whole, *([constant] if constant else [])), 0),
            (add(*whole), -constant),
        ]
        return [equation(add(*whole, constant), *pair) for pair in sides]

    others = [("sign", circle(-h, k, r * r)), ("sign", circle(h, -k, r * r)), ("sign", circle(-h, -k, r * r))]
    others += [("order", circle(k, h, r * r)), ("exponent", circle(h, k, r)), ("exponent", circle(h, k, r**4))]
    others += [("off by one", circle(h + 1, k, r * r)), ("off by one", circle(h, k, r * r + 1))]
    others += [("scale", circle(h, k, r * r, 2)), ("sign", circle(h, k, r * r, -1))]
    others += [("relation", words(f"x^2 + y^2 \\le {r * r}", f"(x - {h})^2 + (y - {k})^2 < {r * r}"))]
    return Case(circle(h, k, r * r), [one for name, forms in others for one in wrong(name, *forms)])


def named_quantities(rng: Random) -> Case:
    """An equation whose left side says what was asked for, and the value alone."""
    n, name = rng.randint(2, 500), rng.choice(VOCABULARY["names"])
    value = tree(n if rng.random() < 0.7 else Fraction(n, rng.choice((7, 9, 11, 13))))

    def named(value: Tree) -> Form:
        return Form(value, lambda style: f"{name} = {text(value, style)}")

    changed = []
    for mutation, other in altered(rng, value):
        assert isinstance(other.meaning, Tree)
        changed += wrong(mutation, other, named(other.meaning))
    spelt, near = text(value), text(tree(value.value + 1))
    changed += wrong("relation", *words(*(f"{name} {sign} {spelt}" for sign in ("<", ">", r"\ne", r"\ge", r"\neq"))))
    changed += wrong("denial", *words(f"\\text{{not }}{name} = {spelt}", f"{name} = \\text{{not }} {spelt}"))
    changed += wrong("extra part", *words(f"{name} = {spelt} \\text{{ or }} {near}"))
    return Case([form(value), named(value)], changed, [form(value)])


def chains(rng: Random) -> Case:
    """A true chain of equalities that ends in the answer, and the answer alone."""
    a, b, c = rng.randint(2, 30), rng.randint(2, 30), rng.randint(2, 9)
    first, middle, value = rng.choice(
        (
            (add(mul(a, b), c), add(a * b, c), tree(a * b + c)),
            (div(a * c, b * c), tree(Fraction(a, b)), tree(Fraction(a, b))),
            (add(power(a, 2), power(b, 2)), add(a * a, b * b), tree(a * a + b * b)),
            (mul(c, add(a, b)), mul(c, a + b), tree(c * (a + b))),
        )
    )
    name = rng.choice(("", "", "x = ", r"\text{Total} = ", "m + n = ", "f(3) = "))

    def chain(*links: Tree) -> Form:
        return Form(value, lambda style: name + " = ".join(text(link, style) for link in links))

    v = value.value
    near, scaled = tree(v + 1), tree(10 * v)
    false = [(first, near), (first, value, near), (first, middle, scaled), (middle, neg(value))]
    changed = wrong("false chain", *words(*(name + " = ".join(map(text, links)) for links in false)))
    relations = (f"{text(first)} = {text(middle)} {sign} {text(value)}" for sign in ("<", r"\ne", ">"))
    changed += wrong("relation", *words(*relations)) + altered(rng, value)
    return Case([form(value), chain(first, value), chain(first, middle, value)], changed, [form(value)])


FORMULA_KINDS: dict[str, tuple[int, Kind]] = {
    "polynomial": (3, polynomials),
    "monomial": (2, monomials),
    "quotient of functions": (2, quotients),
    "trigonometric": (2, trigonometric),
    "exponential": (2, exponentials),
    "definition": (2, definitions),
    "line": (2, lines),
    "circle": (2, circles),
    "named quantity": (2, named_quantities),
    "chain of equalities": (2, chains),
}
"""The kinds, each with its weight."""
