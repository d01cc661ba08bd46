"""Kinds of answers that are one number of another sort: roots, pi and e, complex numbers, logarithms, binomials."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from benchmarks.answer_pairs.forms import Case, Kind, form, said, wrong
from benchmarks.answer_pairs.number_kinds import transposed
from benchmarks.answer_pairs.trees import (
    EULER,
    IMAGINARY,
    PI,
    add,
    binomial,
    call,
    div,
    factorial,
    log,
    mul,
    neg,
    power,
    root,
    square_free,
    tree,
)


def radicals(rng: Random) -> Case:
    """Multiples of square roots."""
    n = rng.choice([k for k in range(2, 40) if square_free(k)])
    a, b = rng.choice((1, -1, 1)) * rng.randint(2, 12), rng.choice((1, 1, rng.randint(2, 9)))
    surd = div(mul(a, root(n)), b) if b > 1 and math.gcd(a, b) == 1 else mul(a, root(n))
    scale = Fraction(a, b) if surd.head == "div" else Fraction(a)
    sign = -1 if a < 0 else 1
    forms = [form(surd), form(surd), form(surd), form(mul(scale, root(n))), form(mul(sign, root(scale**2 * n)))]
    forms += [form(div(scale * n, root(n))) if scale.denominator == 1 else form(div(mul(sign, root(a * a * n)), b))]
    changed = [
        *wrong("sign", neg(surd)),
        *wrong("off by one", mul(scale, root(n + 1)), mul(scale + 1, root(n))),
        *wrong("scale", mul(10 * scale, root(n)), mul(scale / 2, root(n))),
        *wrong("nesting", mul(sign, root(abs(scale) * n)), mul(scale, n), mul(scale, root(root(n)))),
        *wrong("exponent", mul(scale, root(n, 3)), mul(scale, n, root(n))),
        *wrong("reciprocal", div(root(n), scale)),
        *wrong("dropped part", root(n), tree(scale)),
    ]
    return Case(forms, changed)


def surd_sums(rng: Random) -> Case:
    """A rational number and a root, over a denominator."""
    n = rng.choice([k for k in range(2, 30) if square_free(k)])
    p, q, r = rng.randint(1, 12) * rng.choice((1, -1)), rng.randint(1, 6) * rng.choice((1, -1)), rng.randint(2, 9)
    surd = mul(q, root(n))
    number = div(add(p, surd), r)
    conjugate = div(p * p - q * q * n, mul(r, add(p, mul(-q, root(n)))))
    forms = [form(number), form(number), form(div(add(surd, p), r)), form(add(Fraction(p, r), div(surd, r)))]
    forms += [form(add(mul(Fraction(q, r), root(n)), Fraction(p, r))), form(mul(Fraction(1, r), add(p, surd)))]
    forms += [form(conjugate)]
    changed = [
        *wrong("sign", div(add(p, mul(-q, root(n))), r), div(add(-p, surd), r), div(neg(add(p, surd)), r)),
        *wrong("dropped part", add(p, surd), div(surd, r), add(Fraction(p, r), surd)),
        *wrong("off by one", div(add(p + 1, surd), r), div(add(p, mul(q, root(n + 1))), r)),
        *wrong("reciprocal", div(r, add(p, surd))),
        *wrong("nesting", div(mul(q, root(abs(p) + n)), r), div(add(p, mul(q, n)), r)),
    ]
    return Case(forms, changed)


def constants(rng: Random) -> Case:
    """Rational multiples of pi, with or without a rational number beside, and powers of e."""
    scale = Fraction(rng.choice((1, -1, 1)) * rng.randint(1, 40), rng.choice((1, 2, 3, 4, 5, 6, 7, 12)))
    k = rng.randint(2, 9)
    constant, other = rng.choice(((PI, EULER), (EULER, PI), (power(EULER, k), power(EULER, -k))))
    number = mul(scale, constant)
    whole = div(mul(scale.numerator, constant), scale.denominator) if scale.denominator > 1 else number
    rest = rng.choice((0, rng.randint(1, 9)))
    with_rest = (lambda t: add(rest, t)) if rest else (lambda t: t)
    forms = [form(with_rest(t)) for t in (number, whole, number, whole)]
    forms += [form(add(t, rest)) for t in (number, whole)] if rest else [form(mul(constant, scale))]
    changed = [
        *wrong("sign", *([add(rest, neg(number))] if rest else [neg(number)])),
        *wrong("constant", with_rest(mul(scale, other)), with_rest(mul(scale, Fraction(314, 100)))),
        *wrong("exponent", with_rest(mul(scale, power(constant, 2)))),
        *wrong("dropped part", tree(scale + rest), with_rest(constant)),
        *wrong("reciprocal", with_rest(mul(1 / scale, constant)), with_rest(div(scale, constant))),
        *wrong("off by one", with_rest(mul(scale + 1, constant)), add(rest + 1, number)),
        *wrong("scale", with_rest(mul(scale * 10, constant)), with_rest(mul(scale / 2, constant))),
    ]
    return Case(forms, changed)


def complex_numbers(rng: Random) -> Case:
    """Complex numbers with integer or fractional parts."""
    a, b = (Fraction(rng.choice((1, -1)) * rng.randint(1, 15), rng.choice((1, 1, 1, 2, 3))) for _ in range(2))
    number = add(a, mul(b, IMAGINARY))
    forms = [
        form(number),
        form(number),
        form(add(mul(b, IMAGINARY), a)),
        form(add(a, mul(IMAGINARY, b) if b > 1 else mul(b, IMAGINARY))),
    ]
    if b.denominator == a.denominator == 1:
        spelt = f"{a}{'+' if b > 0 else '-'}{abs(b) if abs(b) != 1 else ''}"
        forms += said(number, f"{spelt}i", f"{spelt}\\mathrm{{i}}", f"{spelt} i")
    changed = [
        *wrong("sign", add(a, mul(-b, IMAGINARY)), add(-a, mul(b, IMAGINARY)), add(-a, mul(-b, IMAGINARY))),
        *wrong("order", add(b, mul(a, IMAGINARY))),
        *wrong("dropped part", add(a, b), tree(a), mul(b, IMAGINARY)),
        *wrong("off by one", add(a, mul(b + 1, IMAGINARY)), add(a - 1, mul(b, IMAGINARY))),
        *wrong("modulus", root(a * a + b * b)),
        *wrong("scale", add(10 * a, mul(b, IMAGINARY))),
    ]
    return Case(forms, changed)


def logarithms(rng: Random) -> Case:
    """Natural logarithms of products and quotients, and logarithms to a base."""
    a, b = rng.sample(range(2, 12), 2)
    if math.gcd(a, b) > 1:
        a, b = 2, 3
    k = rng.randint(2, 5)
    if rng.random() < 0.5:
        number = log(a, b)
        forms = [form(number), form(number), form(div(call("ln", b), call("ln", a))), form(div(1, log(b, a)))]
        forms += said(number, f"\\log_{{{a}}} {b}", f"\\log_{{{a}}}{{{b}}}", f"\\frac{{\\ln {b}}}{{\\ln {a}}}")
        changed = [
            *wrong("order", log(b, a)),
            *wrong("base", log(a + 1, b), call("ln", b)),
            *wrong("off by one", log(a, b + 1), add(log(a, b), 1)),
            *wrong("sign", neg(number)),
            *wrong("nesting", call("ln", Fraction(b, a)), mul(call("ln", b), call("ln", a))),
            *wrong("dropped part", tree(b), div(b, a)),
        ]
        return Case(forms, changed)
    number = call("ln", a**k * b)
    total = add(mul(k, call("ln", a)), call("ln", b))
    forms = [
        form(number),
        form(total),
        form(add(call("ln", b), mul(k, call("ln", a)))),
        form(call("ln", mul(power(a, k), b))),
    ]
    forms += [
        *said(number, f"\\ln {a**k * b}", f"\\ln({a**k * b})", f"{k}\\ln {a}+\\ln {b}"),
        form(add(call("ln", a**k), call("ln", b))),
    ]
    changed = [
        *wrong("sign", add(mul(k, call("ln", a)), neg(call("ln", b))), neg(number)),
        *wrong("nesting", call("ln", a**k + b), mul(k, call("ln", a), call("ln", b)), mul(k, call("ln", a * b))),
        *wrong("base", log(10, a**k * b), log(2, a**k * b)),
        *wrong("dropped part", mul(k, call("ln", a)), tree(a**k * b)),
        *wrong("off by one", call("ln", a**k * b + 1), add(mul(k + 1, call("ln", a)), call("ln", b))),
    ]
    return Case(forms, changed)


def combinations(rng: Random) -> Case:
    """Binomial coefficients and factorials."""
    n = rng.randint(5, 16)
    k = rng.randint(2, n - 2)
    value = math.comb(n, k)
    number = binomial(n, k)
    quotient = div(factorial(n), mul(factorial(k), factorial(n - k)))
    forms = [form(number), form(number), *said(number, f"{{{n} \\choose {k}}}"), form(quotient), form(tree(value))]
    forms += [form(binomial(n, n - k))]
    changed = [
        *wrong("off by one", binomial(n + 1, k), binomial(n, k - 1), tree(value + 1)),
        *wrong("dropped part", div(factorial(n), factorial(n - k)), div(factorial(n), factorial(k)), factorial(n)),
        *wrong("order", binomial(k, n), power(k, n)),
        *wrong("quotient for choice", tree(Fraction(n, k)), mul(n, k)),
        *wrong("digit", *map(tree, transposed(value, rng))),
        *wrong("sign", neg(value)),
    ]
    return Case(forms, changed)


IRRATIONAL_KINDS: dict[str, tuple[int, Kind]] = {
    "radical": (2, radicals),
    "sum with a root": (2, surd_sums),
    "pi and e": (2, constants),
    "complex number": (2, complex_numbers),
    "logarithm": (2, logarithms),
    "binomial": (1, combinations),
}
"""The kinds, each with its weight."""
