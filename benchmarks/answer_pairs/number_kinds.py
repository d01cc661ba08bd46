"""Kinds of answers that are one rational number, each in many notations, and what makes them wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from random import Random

from benchmarks.answer_pairs.forms import Case, Form, Kind, form, mutated, said, words, wrong
from benchmarks.answer_pairs.trees import (
    IMAGINARY,
    PI,
    Tree,
    add,
    decimal_text,
    div,
    mul,
    neg,
    power,
    root,
    tree,
)

SCALES = [
    "tenths",
    "hundredths",
    "thousandths",
    "halves",
    "thirds",
    "dozen",
    "dozens",
    "pairs",
    "gross",
    "hundred",
    "thousand",
    "million",
    "billion",
    "trillion",
    "lakh",
    "crore",
    "ppm",
    "ppb",
    "permille",
]
STRANGERS = [
    "wrong",
    "negative",
    "inverse",
    "reciprocal",
    "incorrect",
    "undefined",
    "squared",
    "cubed",
    "factorial",
    "opposite",
    "minus",
    "double",
    "twice",
    "half",
    "complement",
    "imaginary",
    "less",
    "more",
    "fewer",
    "short",
    "off",
]
DENIALS = ("not {}", "anything but {}", "less than {}", "more than {}", "at least {}", "at most {}", "{} or more")


def attached(number: str, rng: Random) -> list[tuple[str, Form]]:
    """A number with a word that changes it, or denies it, or means nothing."""
    scale, stranger = rng.choice(SCALES), rng.choice(STRANGERS)
    texts = [
        ("scale word", f"{number} {scale}"),
        ("scale word", f"{number}\\text{{ {scale}}}"),
        ("unknown word", f"{number} {stranger}"),
        ("unknown word", f"{number} \\text{{ {stranger}}}"),
        ("unknown word", f"\\text{{{stranger} }}{number}"),
        ("denial", rng.choice(DENIALS).format(number)),
        ("denial", rng.choice(DENIALS).format(f"}}{number}\\text{{").join((r"\text{", "}"))),
    ]
    return [(mutation, words(spelt)) for mutation, spelt in texts]


def transposed(n: int, rng: Random) -> Iterator[int]:
    """The number with two neighbouring digits exchanged, if that makes another."""
    digits = list(str(abs(n)))
    places = [k for k in range(len(digits) - 1) if digits[k] != digits[k + 1] and (k or digits[1] != "0")]
    if places:
        k = rng.choice(places)
        digits[k], digits[k + 1] = digits[k + 1], digits[k]
        yield int("".join(digits)) * (-1 if n < 0 else 1)


def grouped(n: int, separator: str) -> str:
    """A whole number with its thousands separated."""
    return f"{n:,}".replace(",", separator)


def integers(rng: Random) -> Case:
    """Whole numbers: signs, separators of thousands, a fraction of zeros."""
    n = rng.choice((1, 1, 1, -1)) * rng.choice((rng.randint(2, 99), rng.randint(100, 9999), rng.randint(10**4, 10**9)))
    number = tree(n)
    texts = [str(n), f"{n}.0", f"{n}.", f"{{{n}}}", f"\\mathbf{{{n}}}", str(n).replace("-", "−"), f"\\text{{{n}}}"]
    texts += [grouped(n, separator) for separator in (",", "{,}", r"\,", r",\!")] if abs(n) > 9999 else []
    texts += [f"+{n}"] if n > 0 else [f"- {-n}", f"-{{{-n}}}"]
    changed = [
        *wrong("sign", tree(-n)),
        *wrong("off by one", tree(n + rng.choice((-1, 1)))),
        *wrong("scale", tree(10 * n), tree(100 * n), tree(Fraction(n, 10))),
        *wrong("digit", *map(tree, transposed(n, rng)), tree(n + 10 ** rng.randrange(len(str(abs(n)))))),
        *wrong("reciprocal", tree(Fraction(1, n))),
        *wrong("root or power", root(abs(n)), power(n, 2), mul(n, PI), mul(n, IMAGINARY)),
        *attached(str(n), rng),
        *mutated("factorial", said(("words", f"{n}!"), f"{abs(n)}!")),
    ]
    return Case(said(number, *texts), changed)


def fractions(rng: Random) -> Case:
    """Fractions in lowest terms and not, as quotients and as decimals where these end."""
    lower = rng.randint(2, 30)
    upper = rng.choice([n for n in range(1, 60) if math.gcd(n, lower) == 1 and n != lower])
    value = rng.choice((1, 1, -1)) * Fraction(upper, lower)
    sign, k = "-" if value < 0 else "", rng.randint(2, 5)
    number = tree(value)
    forms = [form(number), form(number), *said(number, f"{sign}{{{upper} \\over {lower}}}", f"{sign}{upper}/{lower}")]
    forms += said(number, f"{sign}\\frac{{{k * upper}}}{{{k * lower}}}", f"\\frac{{{sign}{upper}}}{{{lower}}}")
    if 10**6 % lower == 0:
        forms += said(number, sign + f"{Fraction(upper, lower).numerator / lower:.6f}".rstrip("0"))
    changed = [
        *wrong("sign", neg(number)),
        *wrong("reciprocal", tree(1 / value)),
        *wrong("off by one", tree(value + Fraction(1, lower)), tree(value / upper * (upper + 1))),
        *wrong("off by one", tree(value * lower / (lower + 1))),
        *wrong("scale", tree(10 * value), tree(value / 100), tree(2 * value)),
        *wrong("dropped part", tree(value.numerator), mul(value.numerator, lower)),
        *attached(f"{sign}\\frac{{{upper}}}{{{lower}}}", rng),
    ]
    return Case(forms, changed)


def decimals(rng: Random) -> Case:
    """Decimals that end; every digit counts."""
    places = rng.randint(1, 5)
    value = Fraction(rng.choice((1, 1, -1)) * (10 * rng.randint(1, 10 ** rng.randint(1, 4)) + rng.randint(1, 9)))
    value /= 10**places
    spelt, number = decimal_text(value), tree(value)
    texts = [spelt, spelt + "0", spelt.replace(".", "{.}"), spelt.replace("-", "−")]
    texts += [spelt.replace("0.", ".", 1)] if abs(value) < 1 else []
    texts += [f"{value.numerator}/{value.denominator}"]
    texts += [f"{decimal_text(value * 10)} \\times 10^{{-1}}", f"{decimal_text(value / 100)} \\cdot 10^{{2}}"]
    shifted = [value * 10, value / 10, value * 100, value / 1000]
    last = Fraction(1, 10**places)
    changed = [
        *wrong("sign", neg(number)),
        *mutated("scale", [one for v in shifted for one in said(tree(v), decimal_text(v))]),
        *mutated("digit", [one for v in (value + last, value - last) for one in said(tree(v), decimal_text(v))]),
        *mutated("percent or number", said(tree(value / 100), spelt + r"\%") if abs(value) <= 1 else []),
        *mutated("digit", said(tree(value + last / 100), f"{spelt}01") if value > 0 else []),
        *attached(spelt, rng),
    ]
    golds = [*said(number, *texts), form(number)]
    percent = said(number, decimal_text(100 * value) + r"\%")  # no gold: 50% is also taken for 50
    return Case([*golds, *percent], changed, golds)


def percentages(rng: Random) -> Case:
    """Shares with a percent sign, as decimals and as fractions."""
    value = Fraction(rng.choice((rng.randint(2, 99), rng.randint(101, 400), Fraction(rng.randint(11, 999), 10))))
    share, spelt = tree(value / 100), decimal_text(value)
    texts = [f"{spelt}\\%", f"{spelt} \\%", f"{spelt}%", f"{spelt} percent", f"{spelt}\\text{{ percent}}"]
    texts += [f"{spelt}\\text{{\\%}}", decimal_text(value / 100), f"{spelt}\\,\\%"]
    others = [
        ("scale", value * 10),
        ("scale", min(value, Fraction(100)) / 100),
        ("off by one", value + 1),
        ("sign", -value),
    ]
    changed = [(mutation, one) for mutation, v in others for one in said(tree(v / 100), f"{decimal_text(v)}\\%")]
    changed += mutated("scale word", [words(f"{spelt}{u}") for u in (" ppm", "‰", " permille", " basis points")])
    changed += wrong("percent or number", tree(value / 1000), tree(value / 10))
    return Case([*said(share, *texts), form(share)], changed)


def mixed_numbers(rng: Random) -> Case:
    """Whole numbers with a proper fraction."""
    whole, lower = rng.randint(1, 20), rng.randint(2, 12)
    upper = rng.choice([n for n in range(1, lower) if math.gcd(n, lower) == 1])
    sign = rng.choice(("", "", "-"))
    value = Fraction(whole * lower + upper, lower) * (-1 if sign else 1)
    number, fraction = tree(value), f"{{{upper}}}{{{lower}}}"
    texts = [f"{sign}{whole}\\{size}{fraction}" for size in ("frac", "dfrac", "tfrac")]
    texts += [f"{sign}{whole} \\frac{fraction}", f"{sign}{whole}\\,\\frac{fraction}", f"{sign}{whole} {upper}/{lower}"]

    def spelt(a: int, b: int, c: int) -> list[Form]:
        return said(tree((a + Fraction(b, c)) * (-1 if sign else 1)), f"{sign}{a}\\frac{{{b}}}{{{c}}}")

    changed = [
        *wrong("sign", neg(number)),
        *mutated("off by one", spelt(whole + 1, upper, lower) + spelt(whole, upper, lower + 1)),
        *wrong("product for sum", tree(value / abs(value) * whole * Fraction(upper, lower))),
        *mutated("reciprocal", said(tree(1 / value), f"{value.denominator}/{value.numerator}")),
        *wrong("dropped part", tree(Fraction(upper, lower)), tree(whole)),
    ]
    return Case([*said(number, *texts), form(number)], changed)


def powers(rng: Random) -> Case:
    """Powers and products of powers, written out and in digits."""
    a, b = rng.sample((2, 3, 5, 7, 11, 13), 2)
    m, n = rng.randint(2, 9), rng.randint(2, 6)
    value, product = a**m * b**n, mul(power(a, m), power(b, n))
    texts = [f"{a}^{{{m}}} {b}^{{{n}}}", f"{a}^{{{m}}}{b}^{{{n}}}", f"{b}^{n} \\cdot {a}^{m}", f"{a}^{m}*{b}^{n}"]
    forms = [form(product), *said(product, *texts), form(tree(value)), form(mul(a, power(a, m - 1), power(b, n)))]
    changed = [
        *wrong("exponent", mul(power(a, m + 1), power(b, n)), mul(power(a, m), power(b, n - 1))),
        *wrong("base", mul(power(a + 1, m), power(b, n)), power(a * b, m + n)),
        *wrong("order", mul(power(a, n), power(b, m)), mul(power(m, a), power(n, b))),
        *wrong("sign", neg(value), mul(power(a, -m), power(b, n))),
        *wrong("reciprocal", div(1, product)),
        *wrong("product for power", tree(a * m * b * n)),
        *wrong("sum for product", add(power(a, m), power(b, n))),
        *wrong("digit", *map(tree, transposed(value, rng)), tree(value + 1)),
        *wrong("dropped part", power(a, m), power(b, n)),
    ]
    return Case(forms, changed)


def scientific(rng: Random) -> Case:
    """A mantissa and a power of ten."""
    digits = rng.choice([d for d in range(11, 999) if d % 10])
    mantissa = Fraction(digits, 10 ** (len(str(digits)) - 1))
    exponent = rng.choice((rng.randint(3, 12), rng.randint(-7, -2)))
    value, m = mantissa * Fraction(10) ** exponent, decimal_text(mantissa)
    number = tree(value)

    def spelt(mantissa: str, exponent: int) -> str:
        return rng.choice((r"{} \times 10^{{{}}}", r"{} \cdot 10^{{{}}}", r"{}×10^{{{}}}")).format(mantissa, exponent)

    texts = [spelt(m, exponent), spelt(m, exponent), f"{m} * 10^({exponent})", f"{m}\\times 10^{{{exponent}}}"]
    texts += [decimal_text(value), spelt(decimal_text(10 * mantissa), exponent - 1)]
    texts += [grouped(int(value), ",")] if value >= 1000 and value.denominator == 1 else []
    others = [("exponent", exponent + 1), ("exponent", exponent - 1), ("sign", -exponent)]
    changed = [
        (mutation, one) for mutation, e in others for one in said(tree(mantissa * Fraction(10) ** e), spelt(m, e))
    ]
    changed += mutated(
        "digit", said(tree(value / mantissa * (mantissa + 1)), spelt(decimal_text(mantissa + 1), exponent))
    )
    changed += mutated("sign", said(tree(-value), spelt(f"-{m}", exponent)))
    changed += mutated("dropped part", said(tree(mantissa), m)) + mutated("dropped part", [form(power(10, exponent))])
    return Case(said(number, *texts), changed)


def scale_words(rng: Random) -> Case:
    """Amounts in words: digits and a scale word, or a number word."""
    names = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    tens = dict(
        zip(
            ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"],
            range(20, 100, 10),
            strict=True,
        )
    )
    scales = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
    scale = rng.choice(list(scales))
    if rng.random() < 0.4:
        word = rng.choice(names)
        value = 2 + names.index(word)
        texts = [word, word.capitalize(), f"\\text{{{word}}}", str(value)]
        wrongs = [words(f"minus {word}"), words(f"{word} {scale}"), words(f"not {word}"), words(f"{word} halves")]
        changed = [*mutated("number word", wrongs), *wrong("off by one", tree(value + 1))]
        other = rng.choice(list(tens))
        changed += mutated(
            "number word", said(tree(tens[other]), other) + said(tree(value % 11 + 2), names[value % 11])
        )
        return Case(said(tree(value), *texts), changed)
    digits = Fraction(rng.choice([d for d in range(11, 999) if d % 10]), rng.choice((1, 10)))
    value_of = {name: tree(digits * 10**places) for name, places in scales.items()}
    spelt = decimal_text(digits)
    texts = [f"{spelt} {scale}", f"{spelt}\\text{{ {scale}}}", f"{spelt} \\text{{ {scale}}}"]
    texts += [str(value_of[scale].value), f"{int(value_of[scale].value):,}"]
    changed = [
        ("scale word", one)
        for name in scales
        if name != scale
        for one in said(
            value_of[name], f"{spelt} {name}", f"{spelt}\\text{{ {name}}}", f"{int(value_of[name].value):,}"
        )
    ]
    changed += mutated("dropped part", said(tree(digits), spelt)) + mutated(
        "sign", said(neg(value_of[scale]), f"-{spelt} {scale}")
    )
    return Case(said(value_of[scale], *texts), changed)


def repeating(rng: Random) -> Case:
    """Decimals that repeat."""
    block = rng.choice([d for d in range(1, 99) if d % 11 and d not in {9, 99}])
    size = len(str(block))
    value = Fraction(block, 10**size - 1)
    number = tree(value)
    texts = [f"0.\\overline{{{block}}}", f"0.\\overline{{{block}{block}}}", f".\\overline{{{block}}}"]
    texts += [f"0.{block}\\overline{{{block}}}", f"\\frac{{{value.numerator}}}{{{value.denominator}}}"]
    shifted = value / 10
    changed = [
        *mutated("dropped bar", said(tree(Fraction(block, 10**size)), f"0.{block}")),
        *mutated(
            "dropped bar",
            said(tree(Fraction(block * 1001**2 % 10**6 or 1, 10**6)), f"0.{block * 1001**2 % 10**6 or 1:06d}"),
        ),
        *mutated("scale", said(tree(shifted), f"0.0\\overline{{{block}}}") if size == 1 else []),
        *mutated(
            "digit",
            said(tree(Fraction(block + 1, 10**size - 1)), f"0.\\overline{{{block + 1:0{size}d}}}")
            if block not in {8, 98}
            else [],
        ),
        *wrong("reciprocal", tree(1 / value)),
        *wrong("sign", neg(number)),
    ]
    return Case([*said(number, *texts), form(number)], changed)


def in_bases(rng: Random) -> Case:
    """Whole numbers in a base, which stays what it is."""
    base = rng.randint(2, 9)
    n = rng.randint(base**2, base**6)
    digits = _in_base(n, base)
    number: tuple[str, Tree, Tree] = ("base", tree(base), tree(n))
    texts = [f"{digits}_{base}", f"{digits}_{{{base}}}", f"{digits}_{{\\text{{{base}}}}}", f"({digits})_{{{base}}}"]

    def spelt(base: int, n: int) -> list[Form]:
        return said(("base", tree(base), tree(n)), f"{_in_base(n, base)}_{{{base}}}")

    higher = said(("base", tree(base + 1), tree(int(digits, base + 1))), f"{digits}_{{{base + 1}}}")
    changed = [
        *mutated("base", higher),
        *mutated("off by one", spelt(base, n + 1)),
        *mutated("scale", spelt(base, n * base)),
    ]
    changed += mutated("digit", spelt(base, n + base)) + mutated("sign", [words(f"-{digits}_{{{base}}}")])
    return Case(said(number, *texts), changed)


def _in_base(n: int, base: int) -> str:
    digits = ""
    while n:
        n, digit = divmod(n, base)
        digits = str(digit) + digits
    return digits


NUMBER_KINDS: dict[str, tuple[int, Kind]] = {
    "integer": (5, integers),
    "fraction": (3, fractions),
    "decimal": (2, decimals),
    "percentage": (2, percentages),
    "mixed number": (1, mixed_numbers),
    "powers": (2, powers),
    "scientific notation": (2, scientific),
    "number words": (1, scale_words),
    "repeating decimal": (1, repeating),
    "number in a base": (1, in_bases),
}
"""The kinds, each with its weight."""
