"""Kinds of answers with variables: polynomials, functions, equations of curves, chains, named quantities."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from benchmarks.answer_pairs.forms import Case, Form, Kind, form, mutated, said, words, wrong
from benchmarks.answer_pairs.meanings import Meaning
from benchmarks.answer_pairs.trees import (
    USUAL,
    Tree,
    add,
    call,
    div,
    mul,
    neg,
    power,
    symbol,
    text,
    tree,
)


def nonzero(rng: Random, limit: int) -> int:
    """A whole number of either sign."""
    return rng.choice((1, -1)) * rng.randint(1, limit)


def term(coefficient: int | Fraction, *factors: Tree) -> Tree:
    """A coefficient and its factors."""
    return mul(coefficient, *factors) if factors else tree(coefficient)


def polynomial(coefficients: list[int], x: Tree, rng: Random | None = None) -> Tree:
    """The sum with these coefficients of 1, x, x^2, ...; highest power first, or in any order."""
    terms = [term(c, *([power(x, k)] if k > 1 else [x] * k)) for k, c in enumerate(coefficients) if c]
    terms.reverse()
    if rng:
        rng.shuffle(terms)
    return add(*terms) if len(terms) > 1 else terms[0]


def polynomials(rng: Random) -> Case:
    """Products of two or three linear factors, expanded, permuted and factored."""
    letter = rng.choice("xxxtnyamz")
    x, y = symbol(letter), symbol(rng.choice([c for c in "xyzt" if c != letter]))
    factors = [(nonzero(rng, 9), rng.choice((1, 1, 2, 3))) for _ in range(rng.randint(2, 3))]
    coefficients = [1]
    for b, a in factors:
        coefficients = [b * low + a * high for low, high in zip([*coefficients, 0], [0, *coefficients], strict=True)]
    linear = [add(term(a, x), b) for b, a in factors]
    expanded = polynomial(coefficients, x)
    factored, turned = mul(*linear), mul(*reversed(linear))
    forms = [form(expanded), form(expanded), form(polynomial(coefficients, x, rng)), form(factored), form(turned)]
    if factors[0] == factors[-1] and len(factors) == 2:
        forms.append(form(power(linear[0], 2)))
    changed: list[tuple[str, Form]] = []
    for mutation, place, by in (
        ("off by one", 0, 1),
        ("off by one", 1, -1),
        ("scale", len(coefficients) - 1, coefficients[-1]),
    ):
        other = list(coefficients)
        other[place] += by
        changed += wrong(mutation, polynomial(other, x))
    place = rng.choice([k for k, c in enumerate(coefficients) if c and k < len(coefficients) - 1])
    other = list(coefficients)
    other[place] = -other[place]
    changed += wrong("sign", polynomial(other, x), neg(factored))
    other[place] = 0
    changed += wrong("dropped term", polynomial(other, x), mul(*linear[1:]))
    changed += wrong(
        "variable", polynomial(coefficients, y), mul(*linear[1:], add(term(factors[0][1], y), factors[0][0]))
    )
    changed += wrong("sign", mul(*linear[1:], add(term(factors[0][1], x), -factors[0][0])))
    changed += wrong("exponent", polynomial([*coefficients, 0][-1:] + coefficients, x), power(factored, 2))
    changed += mutated("+C", [form(add(expanded, symbol("C")))])
    return Case(forms, changed)


def monomials(rng: Random) -> Case:
    """Products of powers of several variables."""
    x, y = map(symbol, rng.sample("abxymn", 2))
    c, p, q = nonzero(rng, 12), rng.randint(2, 6), rng.randint(2, 5)
    number = term(c, power(x, p), power(y, q))
    names = (x.name, y.name)
    texts = [f"{c} {names[1]}^{q} {names[0]}^{p}", f"{c}{names[0]}^{{{p}}}{names[1]}^{{{q}}}"] if abs(c) > 1 else []
    forms = [form(number), form(number), form(term(c, power(y, q), power(x, p))), *said(number, *texts)]
    forms += [
        form(term(c, x, power(x, p - 1), power(y, q))),
        form(term(c, power(mul(x, y), q), power(x, p - q))) if p > q + 1 else form(number),
    ]
    changed = [
        *wrong("sign", neg(number), term(c, power(x, -p), power(y, q))),
        *wrong(
            "exponent",
            term(c, power(x, p + 1), power(y, q)),
            term(c, power(x, p), power(y, q - 1)),
            term(c, power(mul(x, y), p * q)),
        ),
        *wrong("order", term(c, power(x, q), power(y, p)), term(c, power(power(x, y), p * q))),
        *wrong("off by one", term(c + 1, power(x, p), power(y, q)), add(number, 1)),
        *wrong("dropped part", term(c, power(x, p)), term(c, power(y, q)), power(x, p)),
        *wrong("sum for product", add(term(c, power(x, p)), power(y, q))),
        *wrong("reciprocal", div(1, number), div(term(c, power(x, p)), power(y, q))),
        *wrong("variable", term(c, power(x, p), power(symbol("w"), q))),
    ]
    return Case(forms, changed)


def quotients(rng: Random) -> Case:
    """Quotients of linear functions, whole and in parts."""
    x = symbol(rng.choice("xxtnk"))
    a, b, c = nonzero(rng, 6), nonzero(rng, 9), nonzero(rng, 9)
    upper, lower = add(term(a, x), b), add(x, c)
    if b == a * c:
        upper, b = add(term(a, x), b + 1), b + 1
    number = div(upper, lower)
    forms = [form(number), form(number), form(add(a, div(b - a * c, lower))), form(div(add(b, term(a, x)), add(c, x)))]
    forms += [form(div(add(term(-a, x), -b), add(term(-1, x), -c))), form(add(div(term(a, x), lower), div(b, lower)))]
    changed = [
        *wrong("reciprocal", div(lower, upper)),
        *wrong("sign", neg(number), div(add(term(a, x), -b), lower), div(upper, add(x, -c))),
        *wrong("off by one", div(add(term(a, x), b + 1), lower), add(number, 1)),
        *wrong("dropped part", div(term(a, x), lower), upper, add(term(a, x), div(b, lower))),
        *wrong("product for quotient", mul(upper, lower)),
        *mutated("+C", [form(add(number, symbol("C")))]),
        *wrong("variable", div(upper, add(symbol("y"), c))),
    ]
    return Case(forms, changed)


def trigonometric(rng: Random) -> Case:
    """Sines and cosines of multiples of a variable."""
    x = symbol(rng.choice("xxt"))
    a, k, c = rng.randint(2, 9), rng.randint(2, 6), nonzero(rng, 5)
    first, second = rng.sample(("sin", "cos"), 2)
    angle = mul(k, x)
    wave = add(mul(a, call(first, angle)), c)
    forms = [form(wave), form(wave), form(add(c, mul(a, call(first, angle))))]
    if rng.random() < 0.5:
        twice = mul(2, call("sin", x), call("cos", x))
        wave, k, angle = add(mul(a, call("sin", mul(2, x))), c), 2, mul(2, x)
        forms = [form(wave), form(add(mul(a, twice), c)), form(add(mul(2 * a, call("sin", x), call("cos", x)), c))]
        forms += said(wave, f"{a}\\sin 2{x.name} {'+' if c > 0 else '-'} {abs(c)}")
        first, second = "sin", "cos"
    elif rng.random() < 0.5:
        wave, angle, k = add(mul(a, power(call(first, x), 2)), c), x, 1
        forms = [
            form(wave),
            form(add(a + c, mul(-a, power(call(second, x), 2)))),
            form(add(mul(a, call(first, x), call(first, x)), c)),
        ]
        changed = [
            *wrong("nesting", add(mul(a, call(first, power(x, 2))), c), add(mul(a, call(first, call(first, x))), c)),
            *wrong("function", add(mul(a, power(call(second, x), 2)), c)),
            *wrong("exponent", add(mul(a, call(first, x)), c), add(mul(a, power(call(first, x), 3)), c)),
            *wrong("sign", add(mul(-a, power(call(first, x), 2)), c), add(mul(a, power(call(first, x), 2)), -c)),
            *wrong("dropped part", mul(a, power(call(first, x), 2))),
            *mutated("+C", [form(add(wave, symbol("C")))]),
        ]
        return Case(forms, changed)
    changed = [
        *wrong("function", add(mul(a, call(second, angle)), c), add(mul(a, call("tan", angle)), c)),
        *wrong("sign", add(mul(-a, call(first, angle)), c), add(mul(a, call(first, angle)), -c)),
        *wrong("off by one", add(mul(a, call(first, mul(k + 1, x))), c), add(mul(a + 1, call(first, angle)), c)),
        *wrong("dropped part", mul(a, call(first, angle)), add(call(first, angle), c), add(mul(a, call(first, x)), c)),
        *wrong("nesting", mul(a, call(first, add(angle, c))), add(mul(a * k, call(first, x)), c)),
        *mutated("+C", [form(add(wave, symbol("C")))]),
    ]
    return Case(forms, changed)


def exponentials(rng: Random) -> Case:
    """Exponential functions."""
    x = symbol(rng.choice("xxtn"))
    a, k, c = rng.randint(2, 9), rng.choice((rng.randint(2, 6), -rng.randint(2, 6))), nonzero(rng, 9)
    base = rng.choice((Tree("constant", name="e"), tree(rng.choice((2, 3, 5)))))
    growth = power(base, mul(k, x))
    number = add(mul(a, growth), c)
    forms = [form(number), form(number), form(add(c, mul(a, growth))), form(add(mul(a, power(power(base, x), k)), c))]
    if base.head == "constant":
        forms.append(form(add(mul(a, call("exp", mul(k, x))), c)))
    if k < 0:
        forms.append(form(add(div(a, power(base, mul(-k, x))), c)))
    changed = [
        *wrong("sign", add(mul(a, power(base, mul(-k, x))), c), add(mul(-a, growth), c), add(mul(a, growth), -c)),
        *wrong("exponent", add(mul(a, power(base, add(k, x))), c), add(mul(a, power(base, mul(k + 1, x))), c)),
        *wrong("base", add(mul(a, power(7, mul(k, x))), c)),
        *wrong("nesting", mul(a, power(base, add(mul(k, x), c))), add(power(mul(a, base), mul(k, x)), c)),
        *wrong("dropped part", mul(a, growth), add(growth, c), add(mul(a, power(base, x)), c)),
        *mutated("+C", [form(add(number, symbol("C")))]),
        *wrong("off by one", add(mul(a + 1, growth), c), add(mul(a, growth), c + 1)),
    ]
    return Case(forms, changed)


def definitions(rng: Random) -> Case:
    """Functions by their equation, under another parameter, or by their right side."""
    a, b, c = nonzero(rng, 6), nonzero(rng, 9), nonzero(rng, 9)
    letter = rng.choice("fgh")

    def defined(coefficients: list[int], x: str, *, shuffled: bool = False) -> Form:
        body = polynomial(coefficients, symbol(x), rng if shuffled else None)
        return Form(polynomial(coefficients, symbol("x")), lambda style: f"{letter}({x}) = {text(body, style)}")

    right = [c, b, a]
    forms = [defined(right, "x"), defined(right, "x", shuffled=True), defined(right, "x"), defined(right, "t")]
    forms += [
        form(polynomial(right, symbol("x"))),
        Form(polynomial(right, symbol("x")), lambda style: f"y = {text(polynomial(right, symbol('x')), style)}"),
    ]
    forms = forms[:4] if rng.random() < 0.5 else [forms[0], forms[1], *forms[4 : 5 if rng.random() < 0.5 else 6]]
    changed = mutated("sign", [defined([-c, b, a], "x"), defined([c, -b, a], "t"), defined([-c, -b, -a], "x")])
    changed += mutated("off by one", [defined([c + 1, b, a], "x"), defined([c, b, a + 1], "t")])
    changed += mutated("order", [defined([a, b, c], "x")]) if a != c else []
    changed += mutated("dropped term", [defined([c, 0, a], "x"), defined([c, b], "x")])
    changed += mutated("exponent", [defined([c, 0, b, a], "x")])
    return Case(forms, changed)


def curve(expression: Tree) -> Meaning:
    """The points where an expression is zero."""
    return ("curve", expression)


def equation(meaning: Meaning, left: Tree, right: Tree) -> Form:
    """An equation between two expressions."""
    return Form(meaning, lambda style: f"{text(left, style)} = {text(right, style)}")


def lines(rng: Random) -> Case:
    """Lines by their equations: solved for y, with all terms on one side, multiplied."""
    x, y = symbol("x"), symbol("y")
    a, b, c = nonzero(rng, 7), rng.randint(1, 4), nonzero(rng, 12)
    if math.gcd(a, b) > 1:
        b = 1

    def line(a: int, b: int, c: int, k: int = 1) -> list[Form]:
        """``b y = a x + c``."""
        meaning = curve(add(term(a, x), term(-b, y), c))
        solved = add(term(Fraction(a, b), x), Fraction(c, b))
        sides = [(y, solved), (solved, y), (term(b, y), add(term(a, x), c))]
        sides += [(add(term(k * a, x), term(-k * b, y), k * c), tree(0)), (add(term(a, x), term(-b, y)), tree(-c))]
        return [equation(meaning, left, right) for left, right in sides]

    k = rng.choice((2, 3, -1, -2))
    right = line(a, b, c, k)
    changed = mutated("sign", [rng.choice(line(*other)) for other in ((-a, b, c), (a, b, -c), (-a, b, -c))])
    changed += mutated("off by one", [rng.choice(line(*other)) for other in ((a + 2 * b, b, c), (a, b, c + 1))])
    changed += mutated("reciprocal", [rng.choice(line(b, a, c)), line(b, -a, c)[0]] if abs(a) != b else [])
    changed += mutated("order", [rng.choice(line(c, b, a))] if a != c else [])
    changed += mutated(
        "relation", [words(f"y {sign} {text(add(term(a, x), c), USUAL)}") for sign in ("<", r"\ge", r"\ne")]
    )
    changed += mutated("exponent", [words(f"y = {text(add(term(a, power(x, 2)), c), USUAL)}")])
    return Case(right, changed)


def circles(rng: Random) -> Case:
    """Circles by centre and radius, and expanded."""
    x, y = symbol("x"), symbol("y")
    h, k, r = nonzero(rng, 6), nonzero(rng, 6), rng.randint(2, 9)

    def circle(h: int, k: int, square: int) -> list[Form]:
        squares = [power(add(x, -h), 2), power(add(y, -k), 2)]
        whole = [power(x, 2), power(y, 2), term(-2 * h, x), term(-2 * k, y)]
        constant = h * h + k * k - square
        meaning = curve(add(*whole, constant))
        sides = [(add(*squares), tree(square)), (add(*reversed(squares)), tree(square)), (tree(square), add(*squares))]
        sides += [(add(*whole, constant) if constant else add(*whole), tree(0)), (add(*whole), tree(-constant))]
        return [equation(meaning, left, right) for left, right in sides]

    changed = mutated(
        "sign", [rng.choice(circle(*other)) for other in ((-h, k, r * r), (h, -k, r * r), (-h, -k, r * r))]
    )
    changed += mutated("order", [rng.choice(circle(k, h, r * r))] if h != k else [])
    changed += mutated("exponent", [circle(h, k, r)[0], circle(h, k, r)[3], circle(h, k, r**4)[0]])
    changed += mutated("off by one", [rng.choice(circle(h + 1, k, r * r)), rng.choice(circle(h, k, r * r + 1))])
    ellipse = add(power(add(x, -h), 2), mul(2, power(add(y, -k), 2)))
    difference = add(power(add(x, -h), 2), neg(power(add(y, -k), 2)))
    others = [equation(curve(add(left, -r * r)), left, tree(r * r)) for left in (ellipse, difference)]
    changed += mutated("scale", others)
    changed += mutated("relation", [words(f"{text(add(power(x, 2), power(y, 2)), USUAL)} \\le {r * r}")])
    return Case(circle(h, k, r * r), changed)


NAMES = (
    "m + n", "a+b+c", "AB", "|AB|", r"\text{Area}", "f(2)", "S_{10}", "E(X)", r"x^2 + y^2", "a - b", "xy",
    r"\tan\theta",
    r"\overline{AB}", r"\frac{a}{b}", r"\text{perimeter}", "a_5", "[ABC]", "A", "k",
)  # fmt: skip
"""Left sides of equations that say what is asked for."""


def named_quantities(rng: Random) -> Case:
    """An equation whose left side says what was asked for, and the value alone."""
    n = rng.randint(2, 500)
    name = rng.choice(NAMES)
    value = tree(n if rng.random() < 0.7 else Fraction(n, rng.choice((7, 9, 11, 13))))
    spelt = text(value)

    def named(value: Tree) -> Form:
        return Form(value, lambda style: f"{name} = {text(value, style)}")

    forms = [form(value), named(value)]
    changed = [
        *mutated("sign", [named(neg(value)), form(neg(value))]),
        *mutated("off by one", [named(tree(value.value + 1)), named(tree(value.value - 1))]),
        *mutated("scale", [named(tree(10 * value.value))]),
        *mutated("reciprocal", [named(tree(1 / value.value))]),
        *mutated("relation", [words(f"{name} {sign} {spelt}") for sign in ("<", ">", r"\ne", r"\ge", r"\neq")]),
        *mutated("denial", [words(f"\\text{{not }}{name} = {spelt}"), words(f"{name} = \\text{{not }} {spelt}")]),
        *mutated("extra solution", [words(f"{name} = {spelt} \\text{{ or }} {text(tree(value.value + 1))}")]),
    ]
    return Case(forms, changed, forms[:1])


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

    def chain(*links: Tree, end: Tree) -> Form:
        return Form(end, lambda style: name + " = ".join(text(link, style) for link in (*links, end)))

    v = value.value
    near = tree(v + 1)
    forms = [form(value), chain(first, end=value), chain(first, middle, end=value)]
    false = [(first, near), (first, value, near), (first, middle, tree(10 * v)), (middle, tree(-v))]
    texts = [name + " = ".join(map(text, links)) for links in false]
    changed = mutated("false chain", [words(spelt) for spelt in texts])
    changed += mutated(
        "relation", [words(f"{text(first)} = {text(middle)} {sign} {text(value)}") for sign in ("<", r"\ne", ">")]
    )
    changed += wrong("off by one", near) + wrong("sign", tree(-v))
    return Case(forms, changed, forms[:1])


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
