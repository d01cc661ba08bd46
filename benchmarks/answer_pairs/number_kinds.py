"""Kinds of answers that are one number, in many notations: with a unit or mark, irrational, complex; and choices."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.answer_pairs.forms import (
    Case,
    Form,
    Kind,
    Meaning,
    Wrong,
    altered,
    form,
    said,
    words,
    wrong,
)
from benchmarks.answer_pairs.trees import (
    EULER,
    IMAGINARY,
    PI,
    Tree,
    add,
    binomial,
    call,
    decimal_text,
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

VOCABULARY: dict[str, Any] = json.loads(Path(__file__).with_name("vocabulary.json").read_text(encoding="utf-8"))
"""Words, units and notations, right and wrong."""


def case(rng: Random, expressions: list[Tree], texts: list[str], *changed: list[Wrong]) -> Case:
    """An answer as expressions and in texts; each expression is also mutated."""
    mutated = [one for expression in expressions for one in altered(rng, expression)]
    forms = [*map(form, expressions), *said(expressions[0], *texts)]
    return Case(forms, [*mutated, *(one for more in changed for one in more)])


def spelt(name: str, value: object) -> list[str]:
    """A value in each of the notations of the vocabulary."""
    return [notation.format(value) for notation in VOCABULARY[name]]


def attached(number: str, rng: Random) -> list[Wrong]:
    """A number with a word that changes it, or denies it, or means nothing."""
    scale, stranger, denial = (rng.choice(VOCABULARY[name]) for name in ("scales", "strangers", "denials"))
    set_upright = denial.format(f"}}{number}\\text{{").join((r"\text{", "}"))
    return [
        *wrong("scale word", *words(f"{number} {scale}", f"{number}\\text{{ {scale}}}")),
        *wrong("unknown word", *words(f"{number} {stranger}", f"{number} \\text{{ {stranger}}}")),
        *wrong("unknown word", *words(f"\\text{{{stranger} }}{number}")),
        *wrong("denial", *words(denial.format(number), set_upright)),
    ]


def grouped(n: int, separator: str) -> str:
    """A whole number with its thousands separated."""
    return f"{n:,}".replace(",", separator)


def integers(rng: Random) -> Case:
    """Whole numbers: signs, separators of thousands, a fraction of zeros, scale words."""
    n = rng.choice((1, 1, 1, -1)) * rng.choice((rng.randint(2, 99), rng.randint(100, 9999), rng.randint(10**4, 10**9)))
    texts = [str(n), f"{n}.0", f"{n}.", f"{{{n}}}", f"\\mathbf{{{n}}}", str(n).replace("-", "−"), f"\\text{{{n}}}"]
    separators = ["{,}", r"\,", r",\!"] + [","] * (len(str(abs(n))) != 6)  # 100,200 could be a list
    texts += [grouped(n, separator) for separator in separators] if abs(n) > 9999 else []
    texts += [f"+{n}"] if n > 0 else [f"- {-n}", f"-{{{-n}}}"]
    digits = tree(n + 10 ** rng.randrange(len(str(abs(n)))))
    factorials = wrong("factorial", *words(f"{n}!"), *said(("words", f"{n}!"), f"{abs(n)}!")) if abs(n) > 2 else []
    changed = [*wrong("digit", digits), *wrong("reciprocal", tree(Fraction(1, n))), *attached(str(n), rng), *factorials]
    return case(rng, [tree(n)], texts, changed)


def scale_words(rng: Random) -> Case:
    """Amounts in digits and a scale word."""
    scales = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
    digits = Fraction(rng.choice([d for d in range(11, 999) if d % 10]), rng.choice((1, 10)))
    number, right = decimal_text(digits), rng.choice(list(scales))
    forms: dict[str, list[Form]] = {}
    for name, places in scales.items():
        value = digits * 10**places
        texts = [f"{number} {name}", f"{number}\\text{{ {name}}}", f"{number} \\text{{ {name}}}", f"{int(value):,}"]
        forms[name] = said(tree(value), *texts, str(value))
    changed = [one for name in scales if name != right for one in wrong("scale word", *forms[name])]
    changed += wrong("dropped part", *said(tree(digits), number))
    changed += wrong("sign", *said(tree(-digits * 10 ** scales[right]), f"-{number} {right}"))
    return Case(forms[right], changed)


def fractions(rng: Random) -> Case:
    """Fractions in lowest terms and not, as quotients and as decimals where these end."""
    lower = rng.randint(2, 30)
    upper = rng.choice([n for n in range(1, 60) if math.gcd(n, lower) == 1 and n != lower])
    value = rng.choice((1, 1, -1)) * Fraction(upper, lower)
    sign, k = "-" if value < 0 else "", rng.randint(2, 5)
    texts = [f"{sign}{{{upper} \\over {lower}}}", f"{sign}{upper}/{lower}", f"\\frac{{{sign}{upper}}}{{{lower}}}"]
    texts += [f"{sign}\\frac{{{k * upper}}}{{{k * lower}}}"]
    texts += [decimal_text(value)] if 10**6 % lower == 0 else []
    near = (value + Fraction(1, lower), value / upper * (upper + 1), value * lower / (lower + 1))
    changed = [*wrong("off by one", *map(tree, near)), *wrong("dropped part", mul(value.numerator, lower))]
    return case(rng, [tree(value)], texts, changed, attached(f"{sign}\\frac{{{upper}}}{{{lower}}}", rng))


def decimals(rng: Random) -> Case:
    """Decimals that end; every digit counts."""
    places = rng.randint(1, 5)
    value = Fraction(rng.choice((1, 1, -1)) * (10 * rng.randint(1, 10 ** rng.randint(1, 4)) + rng.randint(1, 9)))
    value /= 10**places
    number, last = decimal_text(value), Fraction(1, 10**places)
    texts = [number, number + "0", number.replace(".", "{.}"), number.replace("-", "−")]
    texts += [number.replace("0.", ".", 1)] if abs(value) < 1 else []
    texts += [f"{value.numerator}/{value.denominator}"]
    texts += [f"{decimal_text(value * 10)} \\times 10^{{-1}}", f"{decimal_text(value / 100)} \\cdot 10^{{2}}"]
    others = [("scale", value * factor) for factor in (10, Fraction(1, 10), 100, Fraction(1, 1000))]
    others += [("digit", value + last), ("digit", value - last), ("digit", value + last / 100)]
    changed = [one for name, v in others for one in wrong(name, *said(tree(v), decimal_text(v)))]
    changed += wrong("percent or number", *(said(tree(value / 100), number + r"\%") if abs(value) <= 1 else []))
    right = case(rng, [tree(value)], texts, changed, attached(number, rng))
    percent = said(tree(value), decimal_text(100 * value) + r"\%") if abs(value) <= 1 else []
    return Case([*right.forms, *percent], right.wrong, right.forms)  # no gold: 50% is also taken for 50


def percentages(rng: Random) -> Case:
    """Shares with a percent sign, as decimals and as fractions."""
    value = Fraction(rng.choice((rng.randint(2, 99), rng.randint(101, 400), Fraction(rng.randint(11, 999), 10))))
    others = [("scale", value * 10), ("scale", min(value, Fraction(100)) / 100), ("off by one", value + 1)]
    changed = [
        one
        for name, v in [*others, ("sign", -value)]
        for one in wrong(name, *said(tree(v / 100), f"{decimal_text(v)}\\%"))
    ]
    changed += wrong("scale word", *words(*spelt("not percent", decimal_text(value))))
    changed += wrong("percent or number", tree(value / 1000), tree(value / 10))
    percent = said(tree(value / 100), *spelt("percent", decimal_text(value)))
    number = [*said(tree(value / 100), decimal_text(value / 100)), form(tree(value / 100))] if value <= 100 else []
    return Case([*percent, *number], changed)


def mixed_numbers(rng: Random) -> Case:
    """Whole numbers with a proper fraction."""
    whole, lower = rng.randint(1, 20), rng.randint(2, 12)
    upper = rng.choice([n for n in range(1, lower) if math.gcd(n, lower) == 1])
    sign, fraction = rng.choice(("", "", "-")), f"{{{upper}}}{{{lower}}}"
    value = Fraction(whole * lower + upper, lower)
    texts = [f"{sign}{whole}\\{size}{fraction}" for size in ("frac", "dfrac", "tfrac")]
    texts += [f"{sign}{whole} \\frac{fraction}", f"{sign}{whole}\\,\\frac{fraction}", f"{sign}{whole} {upper}/{lower}"]
    near = [
        said(tree((a + Fraction(upper, c)) * (-1 if sign else 1)), f"{sign}{a}\\frac{{{upper}}}{{{c}}}")[0]
        for a, c in ((whole + 1, lower), (whole, lower + 1))
    ]
    changed = [*wrong("off by one", *near), *wrong("product for sum", tree(whole * Fraction(upper, lower)))]
    changed += wrong("dropped part", tree(Fraction(upper, lower)), tree(whole))
    return case(rng, [tree(value * (-1 if sign else 1))], texts, changed)


def powers(rng: Random) -> Case:
    """Powers and products of powers, written out and in digits."""
    a, b = rng.sample((2, 3, 5, 7, 11, 13), 2)
    m, n = rng.randint(2, 9), rng.randint(2, 6)
    product = mul(power(a, m), power(b, n))
    texts = [f"{a}^{{{m}}} {b}^{{{n}}}", f"{a}^{{{m}}}{b}^{{{n}}}", f"{b}^{n} \\cdot {a}^{m}", f"{a}^{m}*{b}^{n}"]
    others = [power(a * b, m + n), mul(power(a, n), power(b, m)), mul(power(m, a), power(n, b)), tree(a * m * b * n)]
    right = case(rng, [product, mul(a, power(a, m - 1), power(b, n))], texts, wrong("order", *others))
    return Case([*right.forms, form(tree(a**m * b**n))], right.wrong, right.forms)  # digits are worked out


def scientific(rng: Random) -> Case:
    """A mantissa and a power of ten."""
    digits = rng.choice([d for d in range(11, 999) if d % 10])
    mantissa = Fraction(digits, 10 ** (len(str(digits)) - 1))
    exponent = rng.choice((rng.randint(3, 12), rng.randint(-7, -2)))

    def amount(mantissa: Fraction, exponent: int) -> list[Form]:
        notations = (
            r"{} \times 10^{{{}}}",
            r"{} \cdot 10^{{{}}}",
            r"{}×10^{{{}}}",
            "{} * 10^({})",
            r"{}\times 10^{{{}}}",
        )
        texts = [notation.format(decimal_text(mantissa), exponent) for notation in notations]
        return said(tree(mantissa * Fraction(10) ** exponent), *texts)

    value = mantissa * Fraction(10) ** exponent
    texts = [decimal_text(value)]
    texts += [grouped(int(value), ",")] if value >= 1000 and value.denominator == 1 else []
    changed = [one for e in (exponent + 1, exponent - 1) for one in wrong("exponent", *amount(mantissa, e))]
    changed += wrong("sign", *amount(mantissa, -exponent), *amount(-mantissa, exponent))
    changed += wrong("digit", *amount(mantissa + 1, exponent), *amount(mantissa + Fraction(1, 10), exponent))
    changed += wrong("dropped part", *said(tree(mantissa), decimal_text(mantissa)), power(10, exponent))
    return Case(
        [*amount(mantissa, exponent), *amount(10 * mantissa, exponent - 1), *said(tree(value), *texts)], changed
    )


def repeating(rng: Random) -> Case:
    """Decimals that repeat."""
    block = rng.choice([d for d in range(1, 99) if d % 11 and d not in {9, 99}])
    size = len(str(block))
    value = Fraction(block, 10**size - 1)
    texts = [f"0.\\overline{{{block}}}", f"0.\\overline{{{block}{block}}}", f".\\overline{{{block}}}"]
    texts += [f"0.{block}\\overline{{{block}}}"]
    six = f"{block * 1001**2 % 10**6 or 1:06d}"
    changed = wrong("dropped bar", *said(tree(Fraction(block, 10**size)), f"0.{block}"))
    changed += wrong("dropped bar", *said(tree(Fraction(int(six), 10**6)), f"0.{six}"))
    changed += wrong("scale", *(said(tree(value / 10), f"0.0\\overline{{{block}}}") if size == 1 else []))
    if block not in {8, 98}:
        near = f"0.\\overline{{{block + 1:0{size}d}}}"
        changed += wrong("digit", *said(tree(Fraction(block + 1, 10**size - 1)), near))
    return case(rng, [tree(value)], texts, changed)


def in_bases(rng: Random) -> Case:
    """Whole numbers in a base, which stays what it is."""
    base = rng.randint(2, 9)
    n = rng.randint(base**2, base**6)

    def digits(n: int, base: int) -> str:
        return (digits(n // base, base) if n >= base else "") + str(n % base)

    def number(base: int, n: int, *notations: str) -> list[Form]:
        texts = [notation.format(digits(n, base), base) for notation in (*notations, "{}_{{{}}}")]
        return said(("base", tree(base), tree(n)), *texts)

    changed = wrong("base", *number(base + 1, int(digits(n, base), base + 1)))
    changed += wrong("off by one", *number(base, n + 1)) + wrong("scale", *number(base, n * base))
    changed += wrong("digit", *number(base, n + base)) + wrong("sign", *words(f"-{digits(n, base)}_{{{base}}}"))
    return Case(number(base, n, "{}_{}", "{}_{{\\text{{{}}}}}", "({})_{{{}}}"), changed)


def radicals(rng: Random) -> Case:
    """Multiples of square roots."""
    n = rng.choice([k for k in range(2, 40) if square_free(k)])
    scale = Fraction(rng.choice((1, -1, 1)) * rng.randint(2, 12), rng.choice((1, 1, rng.randint(2, 9))))
    sign = -1 if scale < 0 else 1
    whole = mul(scale.numerator, root(n))
    surd = div(whole, scale.denominator) if scale.denominator > 1 else whole
    expressions = [surd, mul(scale, root(n)), mul(sign, root(scale**2 * n)), div(scale * n, root(n))]
    changed = wrong("nesting", mul(sign, root(abs(scale) * n)), mul(scale, root(root(n))))
    changed += wrong("off by one", mul(scale, root(n + 1)), mul(scale + 1, root(n)))
    return case(rng, expressions, [], changed)


def surd_sums(rng: Random) -> Case:
    """A rational number and a root, over a denominator."""
    n = rng.choice([k for k in range(2, 30) if square_free(k)])
    p, q, r = rng.randint(1, 12) * rng.choice((1, -1)), rng.randint(1, 6) * rng.choice((1, -1)), rng.randint(2, 9)
    surd = mul(q, root(n))
    expressions = [div(add(p, surd), r), div(add(surd, p), r), add(Fraction(p, r), div(surd, r))]
    expressions += [add(mul(Fraction(q, r), root(n)), Fraction(p, r)), mul(Fraction(1, r), add(p, surd))]
    expressions += [div(p * p - q * q * n, mul(r, add(p, mul(-q, root(n)))))]
    changed = wrong("sign", div(add(p, mul(-q, root(n))), r), div(neg(add(p, surd)), r))
    changed += wrong("dropped part", add(Fraction(p, r), surd))
    return case(rng, expressions, [], changed, wrong("nesting", div(mul(q, root(abs(p) + n)), r)))


def constants(rng: Random) -> Case:
    """Rational multiples of pi, with or without a rational number beside, and powers of e."""
    scale = Fraction(rng.choice((1, -1, 1)) * rng.randint(1, 40), rng.choice((1, 2, 3, 4, 5, 6, 7, 12)))
    k = rng.randint(2, 9)
    constant, other = rng.choice(((PI, EULER), (EULER, PI), (power(EULER, k), power(EULER, -k))))
    whole = div(mul(scale.numerator, constant), scale.denominator)
    products = [mul(scale, constant), whole if scale.denominator > 1 else mul(constant, scale)]
    rest = rng.choice((0, rng.randint(1, 9)))
    expressions = [add(*pair) for t in products for pair in ((rest, t), (t, rest))] if rest else products
    changed = wrong("constant", add(rest, mul(scale, other)), add(rest, mul(scale, Fraction(314, 100))))
    changed += wrong("reciprocal", add(rest, mul(1 / scale, constant)), add(rest, div(scale, constant)))
    return case(rng, expressions, [], changed)


def complex_numbers(rng: Random) -> Case:
    """Complex numbers with integer or fractional parts."""
    a, b = (Fraction(rng.choice((1, -1)) * rng.randint(1, 15), rng.choice((1, 1, 1, 2, 3))) for _ in range(2))
    expressions = [add(a, mul(b, IMAGINARY)), add(mul(b, IMAGINARY), a)]
    texts = []
    if b.denominator == a.denominator == 1:
        number = f"{a}{'+' if b > 0 else '-'}{abs(b) if abs(b) != 1 else ''}"
        texts = [f"{number}i", f"{number}\\mathrm{{i}}", f"{number} i"]
    changed = [*wrong("order", add(b, mul(a, IMAGINARY))), *wrong("modulus", root(a * a + b * b), tree(a * a + b * b))]
    changed += wrong("sign", add(a, mul(-b, IMAGINARY)))  # its conjugate
    return case(rng, expressions, texts, changed, wrong("dropped part", add(a, b)))


def logarithms(rng: Random) -> Case:
    """Natural logarithms of products, and logarithms to a base."""
    a, b = rng.choice([(a, b) for a in range(2, 12) for b in range(2, 12) if math.gcd(a, b) == 1])
    k = rng.randint(2, 5)
    if rng.random() < 0.5:
        expressions = [log(a, b), div(call("ln", b), call("ln", a)), div(1, log(b, a))]
        texts = [f"\\log_{{{a}}} {b}", f"\\log_{{{a}}}{{{b}}}", f"\\frac{{\\ln {b}}}{{\\ln {a}}}"]
        changed = wrong("nesting", call("ln", Fraction(b, a)), mul(call("ln", b), call("ln", a)))
        return case(rng, expressions, texts, changed, wrong("base", call("ln", b), log(10, b)))
    expressions = [call("ln", a**k * b), add(mul(k, call("ln", a)), call("ln", b))]
    expressions += [call("ln", mul(power(a, k), b)), add(call("ln", a**k), call("ln", b))]
    texts = [f"\\ln {a**k * b}", f"\\ln({a**k * b})", f"{k}\\ln {a}+\\ln {b}"]
    changed = wrong("nesting", call("ln", a**k + b), mul(k, call("ln", a * b)))
    return case(rng, expressions, texts, changed, wrong("base", log(10, a**k * b), log(2, a**k * b)))


def combinations(rng: Random) -> Case:
    """Binomial coefficients and factorials."""
    n = rng.randint(5, 16)
    k = rng.randint(2, n - 2)
    expressions = [binomial(n, k), div(factorial(n), mul(factorial(k), factorial(n - k))), binomial(n, n - k)]
    changed = wrong("off by one", binomial(n + 1, k), binomial(n, k - 1))
    changed += wrong("quotient for choice", tree(Fraction(n, k)), mul(n, k), power(k, n))
    right = case(rng, expressions, [f"{{{n} \\choose {k}}}"], changed)
    return Case([*right.forms, form(tree(math.comb(n, k)))], right.wrong, right.forms)  # digits are worked out


def quantities(rng: Random) -> Case:
    """Amounts with a unit of length, mass, time or volume."""
    dimension = rng.choice(list(VOCABULARY["units"]))
    units = {short: (long, Fraction(factor)) for short, long, factor in VOCABULARY["units"][dimension]}
    short = rng.choice(list(units))
    long, factor = units[short]
    n = Fraction(rng.randint(2, 400), rng.choice((1, 1, 1, 2, 4, 10)))

    def amount(value: Fraction, unit: str) -> list[Form]:
        number, (long, factor) = decimal_text(value), units[unit]
        texts = [f"{number}\\text{{ {unit}}}", f"{number} \\text{{ {unit}}}", f"{number}\\ \\mathrm{{{unit}}}"]
        texts += [f"{number}\\,\\text{{{unit}}}", f"{number} {long}s", f"{number}\\text{{ {long}s}}"]
        texts += [f"{number} {unit}"] if len(unit) > 1 else []
        return said(("quantity", dimension, tree(value * factor)), *texts)

    forms, number = amount(n, short), decimal_text(n)
    for other, (_, size) in units.items():
        converted = n * factor / size
        if other != short and 10**4 % converted.denominator == 0 and converted < 10**6:
            forms += rng.sample(amount(converted, other), 2)
    changed = [one for other in units if other != short for one in wrong("unit", *amount(n, other))]
    foreign = [unit for name, others in VOCABULARY["units"].items() if name != dimension for unit in others]
    for symbol, name, _ in foreign:
        changed += wrong("unit", *words(f"{number}\\text{{ {symbol}}}", f"{number} {name}s"))
    changed += wrong("unit", *words(f"{number}\\text{{ {short}}}^2", f"\\frac{{{number}}}{{\\text{{{short}}}}}"))
    changed += wrong(
        "unit", *words(*(f"{number} {u}" for u in (f"square {long}s", f"cubic {long}s", f"{long}s per second")))
    )
    changed += wrong("off by one", *amount(n + 1, short)) + wrong("sign", *words(f"-{number}\\text{{ {short}}}"))
    changed += wrong("scale", *amount(n * 10, short), *words(f"{number} dozen {long}s", f"{number} million {long}s"))
    changed += wrong("denial", *words(f"not {number} {long}s", f"more than {number} {long}s"))
    return Case(forms, changed)


def listed(n: int, right: list[str], others: list[str], meaning: Meaning) -> Case:
    """A number in the right notations, of one meaning, and in other ones; the number itself is mutated as well."""
    changed = wrong("unit", *words(*(notation.format(n) for notation in others)))
    for mutation, other in (("off by one", n + 1), ("off by one", n - 1), ("scale", 10 * n), ("sign", -n)):
        changed += wrong(mutation, *words(*(notation.format(other) for notation in right)))
    return Case(said(meaning, *(notation.format(n) for notation in right)), changed)


def areas_and_speeds(rng: Random) -> Case:
    """Amounts with a compound unit."""
    units, n = rng.choice(VOCABULARY["compound units"]), rng.randint(2, 900)
    right, others = (
        ["{}" + unit.replace("{", "{{").replace("}", "}}") for unit in units[side]] for side in ("right", "wrong")
    )
    return listed(n, right, others, ("quantity", units["right"][0], tree(n)))


def money(rng: Random) -> Case:
    """Amounts of dollars, with and without cents."""
    cents = rng.choice((100 * rng.randint(1, 400), rng.randint(101, 99999)))

    def dollars(cents: int) -> list[Form]:
        value = str(cents // 100) if cents % 100 == 0 else f"{cents / 100:.2f}"
        return said(("quantity", "dollar", tree(cents)), *spelt("dollars", value), f"\\${cents / 100:.2f}")

    value = str(cents // 100) if cents % 100 == 0 else f"{cents / 100:.2f}"
    changed = wrong("unit", *words(*spelt("not dollars", value)))
    changed += wrong("scale", *dollars(cents * 10)) + wrong("off by one", *dollars(cents + 1), *dollars(cents + 100))
    return Case(dollars(cents), changed)


def angles(rng: Random) -> Case:
    """Angles in degrees and in radians."""
    n = rng.choice((15, 18, 20, 30, 36, 40, 45, 60, 72, 75, 80, 105, 110, 120, 135, 150, 165, 240, 300, 315))

    def degrees(n: int) -> list[Form]:
        return said(mul(Fraction(n, 180), PI), *spelt("degrees", n))

    changed = wrong("unit", *words(*spelt("not degrees", n)))
    for mutation, other in (("off by one", n + 1), ("complement", 180 - n), ("complement", 360 - n), ("scale", 10 * n)):
        changed += wrong(mutation, *degrees(other))
    changed += wrong("complement", *degrees(abs(90 - n) or 7)) + wrong(
        "scale", *degrees(2 * n), mul(Fraction(n, 90), PI)
    )
    return Case([*degrees(n), form(mul(Fraction(n, 180), PI))], changed)


def ratios(rng: Random) -> Case:
    """Ratios of two numbers."""
    a, b = rng.choice([(a, b) for a in range(2, 26) for b in range(2, 26) if math.gcd(a, b) == 1])

    def ratio(a: int, b: int) -> list[Form]:
        texts = [f"{a}:{b}", f"{a} : {b}", f"{a}\\colon {b}", f"{a} \\text{{ to }} {b}", f"{a} to {b}"]
        return said(("ratio", tree(Fraction(a, b))), *texts)

    changed = wrong("order", *ratio(b, a)) + wrong("off by one", *ratio(a + 1, b), *ratio(a, b + 1))
    changed += wrong("extra part", *words(f"{a}:{b}:1", f"{a}:{b}:{a}")) + wrong("scale", *ratio(10 * a, b))
    changed += wrong("sign", *words(f"-{a}:{b}")) + wrong("dropped part", *words(str(a), str(a + b)))
    return Case(ratio(a, b), changed)


def choices(rng: Random) -> Case:
    """Letters of choices."""
    letter, other = rng.sample("ABCDE", 2)
    changed = wrong("other choice", *said(("choice", other), *spelt("choices", other)))
    for mutation, notations in VOCABULARY["not choices"].items():
        changed += wrong(mutation, *words(*(notation.format(letter, other) for notation in notations)))
    return Case(said(("choice", letter), *spelt("choices", letter)), changed)


def plain_words(rng: Random) -> Case:
    """Answers that are a word."""
    word, others = rng.choice(list(VOCABULARY["words"].items()))
    fonts = ["{}", "\\text{{{}}}", "\\textbf{{{}}}", "\\mathrm{{{}}}", "\\text{{ {} }}"]
    texts = [font.format(spelling) for font in fonts for spelling in (word, word.capitalize())]
    changed = wrong("other word", *words(*(spelling for other in others for spelling in (other, f"\\text{{{other}}}"))))
    denials = (f"not {word}", f"\\text{{not {word}}}", f"never {word}", f"\\text{{neither {word} nor another}}")
    return Case(said(("word", word), *texts), [*changed, *wrong("denial", *words(*denials))])


NUMBER_KINDS: dict[str, tuple[int, Kind]] = {
    "integer": (5, integers),
    "scale words": (1, scale_words),
    "fraction": (3, fractions),
    "decimal": (2, decimals),
    "percentage": (2, percentages),
    "mixed number": (1, mixed_numbers),
    "powers": (2, powers),
    "scientific notation": (2, scientific),
    "repeating decimal": (1, repeating),
    "number in a base": (1, in_bases),
    "radical": (2, radicals),
    "sum with a root": (2, surd_sums),
    "pi and e": (2, constants),
    "complex number": (2, complex_numbers),
    "logarithm": (2, logarithms),
    "binomial": (1, combinations),
    "quantity": (3, quantities),
    "area or speed": (2, areas_and_speeds),
    "money": (2, money),
    "angle": (2, angles),
    "ratio": (1, ratios),
    "choice": (2, choices),
    "word": (1, plain_words),
}
"""The kinds, each with its weight."""
