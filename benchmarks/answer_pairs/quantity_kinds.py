"""Kinds of answers with a unit, and answers in words: lengths, money, clock times, angles, choices, dates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from benchmarks.answer_pairs.forms import Case, Form, Kind, form, mutated, said, words
from benchmarks.answer_pairs.meanings import Meaning
from benchmarks.answer_pairs.number_kinds import attached
from benchmarks.answer_pairs.trees import PI, decimal_text, mul, tree

UNITS: dict[str, dict[str, tuple[str, Fraction]]] = {
    "length": {
        "mm": ("millimeter", Fraction(1, 1000)),
        "cm": ("centimeter", Fraction(1, 100)),
        "m": ("meter", Fraction(1)),
        "km": ("kilometer", Fraction(1000)),
    },
    "mass": {
        "g": ("gram", Fraction(1, 1000)),
        "kg": ("kilogram", Fraction(1)),
        "mg": ("milligram", Fraction(1, 10**6)),
    },
    "time": {"s": ("second", Fraction(1)), "min": ("minute", Fraction(60)), "h": ("hour", Fraction(3600))},
    "volume": {"mL": ("milliliter", Fraction(1, 1000)), "L": ("liter", Fraction(1))},
}
"""By dimension: the short and long names of units, and how many of the base unit they are."""


def spelt_with(number: str, short: str, long: str) -> list[str]:
    """A number with its unit, short and long."""
    texts = [f"{number}\\text{{ {short}}}", f"{number} \\text{{ {short}}}", f"{number}\\ \\mathrm{{{short}}}"]
    texts += [f"{number}\\,\\text{{{short}}}", f"{number} {long}s", f"{number}\\text{{ {long}s}}"]
    return texts + ([f"{number} {short}"] if len(short) > 1 else [])


def quantities(rng: Random) -> Case:
    """Amounts with a unit of length, mass, time or volume."""
    dimension = rng.choice(list(UNITS))
    units = UNITS[dimension]
    short = rng.choice(list(units))
    long, factor = units[short]
    n = Fraction(rng.randint(2, 400), rng.choice((1, 1, 1, 2, 4, 10)))
    meaning: Meaning = ("quantity", dimension, tree(n * factor))

    def spelt(value: Fraction, unit: str, dimension: str = dimension) -> list[Form]:
        name, factor = UNITS[dimension][unit]
        return said(("quantity", dimension, tree(value * factor)), *spelt_with(decimal_text(value), unit, name))

    forms = spelt(n, short)
    for other, (_, size) in units.items():
        converted = n * factor / size
        if other != short and 10**4 % converted.denominator == 0 and converted < 10**6:
            forms += rng.sample(spelt(converted, other), 2)
    another = rng.choice([name for name in UNITS if name != dimension])
    number = decimal_text(n)
    changed = mutated("unit", [rng.choice(spelt(n, other)) for other in units if other != short])
    changed += mutated("unit", [rng.choice(spelt(n, other, another)) for other in UNITS[another]])
    changed += mutated(
        "unit",
        [words(f"{number}\\text{{ {short}}}^2"), words(f"{number} square {long}s"), words(f"{number} cubic {long}s")],
    )
    changed += mutated(
        "unit", [words(f"{number} {long}s per second"), words(f"\\frac{{{number}}}{{\\text{{{short}}}}}")]
    )
    changed += mutated("off by one", [rng.choice(spelt(n + 1, short))])
    changed += mutated(
        "scale",
        [rng.choice(spelt(n * 10, short)), words(f"{number} dozen {long}s"), words(f"{number} million {long}s")],
    )
    changed += mutated("sign", [words(f"-{number}\\text{{ {short}}}")])
    changed += mutated("denial", [words(f"not {number} {long}s"), words(f"more than {number} {long}s")])
    assert meaning
    return Case(forms, changed)


def areas_and_speeds(rng: Random) -> Case:
    """Amounts with a compound unit."""
    n = rng.randint(2, 900)
    groups: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        ((r"\text{ cm}^2", r" \text{ cm}^{2}", " square centimeters",
          r"\text{ square centimeters}", r"\ \mathrm{cm}^2", " cm^2"),
         (r"\text{ cm}", r"\text{ cm}^3", r"\text{ m}^2", " cubic centimeters", " square meters", r"\text{ cm}^{-2}")),
        ((r"\text{ m}^3", r" \text{ m}^{3}", " cubic meters", r"\text{ cubic meters}", r"\ \mathrm{m}^3"),
         (r"\text{ m}^2", r"\text{ cm}^3", " meters", " square meters", " liters")),
        ((r"\text{ km/h}", " km/h", " kilometers per hour", r"\text{ kilometers per hour}", r"\ \mathrm{km/h}"),
         (r"\text{ m/s}", r"\text{ km}", " hours per kilometer", r"\text{ km/h}^2",
           " miles per hour", r"\text{ km}\cdot\text{h}")),
        ((r"\text{ m/s}", " m/s", " meters per second", r"\ \mathrm{m/s}"),
         (r"\text{ m/s}^2", r"\text{ km/h}", " meters", " seconds", " meters per minute", " centimeters per second")),
        ((r"\text{ square feet}", " square feet", r"\text{ ft}^2", " ft^2", " sq ft"),
         (" feet", " cubic feet", " square inches", " square yards", r"\text{ ft}^3")),
    ]  # fmt: skip
    right, others = rng.choice(groups)
    meaning: Meaning = ("quantity", right[0], tree(n))
    changed = mutated("unit", [words(f"{n}{unit}") for unit in others])
    changed += mutated(
        "off by one", said(("quantity", right[0], tree(n + 1)), *(f"{n + 1}{unit}" for unit in right[:2]))
    )
    changed += mutated("scale", said(("quantity", right[0], tree(n * 10)), f"{n * 10}{right[0]}"))
    changed += mutated("sign", [words(f"-{n}{right[0]}")])
    return Case(said(meaning, *(f"{n}{unit}" for unit in right)), changed)


def money(rng: Random) -> Case:
    """Amounts of a currency."""
    cents = rng.choice((100 * rng.randint(1, 400), rng.randint(101, 99999)))

    def dollars(cents: int) -> list[Form]:
        value = decimal_text(Fraction(cents, 100)) if cents % 100 == 0 else f"{cents / 100:.2f}"
        texts = [
            f"\\${value}",
            f"{value} dollars",
            f"{value}\\text{{ dollars}}",
            f"\\$ {value}",
            f"\\${cents / 100:.2f}",
        ]
        return said(("quantity", "dollar", tree(cents)), *texts)

    value = decimal_text(Fraction(cents, 100)) if cents % 100 == 0 else f"{cents / 100:.2f}"
    foreign = (
        f"€{value}",
        f"£{value}",
        f"{value} euros",
        f"{value} pounds",
        f"₹{value}",
        f"{value}\\text{{ yen}}",
        f"¥{value}",
        f"{value} rupees",
    )
    changed = mutated("unit", [words(spelt) for spelt in foreign])
    changed += mutated(
        "unit", said(("quantity", "dollar", tree(Fraction(cents, 100))), f"{value} cents", f"{value}\\text{{ cents}}")
    )
    changed += mutated("unit", [words(f"{value} kilograms"), words(f"{value}\\%")])
    changed += mutated(
        "scale", [rng.choice(dollars(cents * 10)), words(f"\\${value} million"), words(f"\\${value} thousand")]
    )
    changed += mutated("off by one", [rng.choice(dollars(cents + 1)), rng.choice(dollars(cents + 100))])
    changed += mutated("sign", [words(f"-\\${value}")])
    return Case(dollars(cents), changed)


def clock_times(rng: Random) -> Case:
    """Times of the day."""
    hour, minute = rng.randint(1, 11), rng.choice((rng.randint(1, 59), rng.choice((10, 15, 20, 30, 45))))
    noon = rng.choice(("AM", "PM"))

    def at(hour: int, minute: int, noon: str) -> list[Form]:
        low, dotted, clock = noon.lower(), f"{noon[0].lower()}.m.", f"{hour}:{minute:02d}"
        texts = [f"{clock} {noon}", f"{clock} {dotted}", f"{clock}\\text{{ {noon}}}", f"{clock}{low}", f"{clock} {low}"]
        texts += [f"{clock}\\ \\text{{{dotted}}}", f"\\text{{{clock} {noon}}}", f"{clock} \\text{{ {dotted}}}"]
        return said(("time", tree(60 * (hour + 12 * (noon == "PM")) + minute)), *texts)

    changed = mutated("am or pm", [rng.choice(at(hour, minute, "PM" if noon == "AM" else "AM"))])
    changed += mutated(
        "off by one", [rng.choice(at(hour % 11 + 1, minute, noon)), rng.choice(at(hour, (minute + 1) % 60, noon))]
    )
    changed += mutated("order", [rng.choice(at(minute, hour, noon))] if 0 < minute < 12 and minute != hour else [])
    changed += mutated(
        "scale", [rng.choice(at(hour, minute // 10 if minute % 10 == 0 else minute % 10, noon))] if minute > 9 else []
    )
    changed += mutated(
        "unit",
        [words(f"{hour}.{minute:02d}"), words(f"{hour}/{minute}")],
    )
    return Case(at(hour, minute, noon), changed)


def angles(rng: Random) -> Case:
    """Angles in degrees and in radians."""
    n = rng.choice((15, 18, 20, 30, 36, 40, 45, 60, 72, 75, 80, 105, 110, 120, 135, 150, 165, 240, 300, 315))

    def degrees(n: int) -> list[Form]:
        texts = [f"{n}^\\circ", f"{n}^{{\\circ}}", f"{n}°", f"{n} degrees", f"{n}\\text{{ degrees}}", f"{n} ^\\circ"]
        return said(mul(Fraction(n, 180), PI), *texts)

    radians = mul(Fraction(n, 180), PI)
    changed = mutated(
        "unit", [words(f"{n}\\text{{ radians}}"), words(f"{n} radians"), words(f"{n}'"), words(f"{n}\\text{{ rad}}")]
    )
    changed += mutated("unit", [words(f"{n}\\pi"), words(f"{n}^\\circ \\text{{ C}}"), words(f"{n} minutes")])
    changed += mutated("off by one", [rng.choice(degrees(n + 1)), rng.choice(degrees(n + 10))])
    changed += mutated(
        "complement",
        [rng.choice(degrees(180 - n)), rng.choice(degrees(360 - n)), rng.choice(degrees(abs(90 - n) or 7))],
    )
    changed += mutated(
        "scale", [rng.choice(degrees(10 * n)), rng.choice(degrees(2 * n)), form(mul(Fraction(n, 90), PI))]
    )
    changed += mutated("sign", [words(f"-{n}^\\circ")])
    return Case([*degrees(n), form(radians)], changed)


def ratios(rng: Random) -> Case:
    """Ratios of two numbers."""
    a, b = rng.sample((2, 3, 5, 7, 8, 9, 11, 13, 16, 25), 2)
    if a * b in {16, 128}:
        a, b = 3, 8

    def ratio(a: int, b: int) -> list[Form]:
        return said(
            ("ratio", tree(Fraction(a, b))),
            f"{a}:{b}",
            f"{a} : {b}",
            f"{a}\\colon {b}",
            f"{a} \\text{{ to }} {b}",
            f"{a} to {b}",
        )

    changed = mutated("order", ratio(b, a)[:3]) + mutated(
        "off by one", [rng.choice(ratio(a + 17, b)), rng.choice(ratio(a, b + 19))]
    )
    changed += mutated("extra part", [words(f"{a}:{b}:1"), words(f"{a}:{b}:{a}")])
    changed += mutated("sign", [words(f"-{a}:{b}")]) + mutated("scale", [rng.choice(ratio(10 * a, b))])
    changed += mutated("dropped part", [words(str(a)), words(str(a + b))])
    return Case(ratio(a, b), changed)


def counts(rng: Random) -> Case:
    """Amounts of what is counted."""
    n, thing = rng.randint(2, 300), rng.choice(("apples", "students", "marbles", "ways", "integers", "books", "coins"))
    meaning: Meaning = ("count", thing, tree(n))
    texts = [
        f"{n} {thing}",
        f"{n}\\text{{ {thing}}}",
        f"{n} \\text{{ {thing}}}",
        f"{n}\\ \\text{{{thing}}}",
        f"{n}~\\text{{{thing}}}",
    ]
    changed = mutated("off by one", said(("count", thing, tree(n + 1)), f"{n + 1} {thing}"))
    changed += mutated(
        "scale word",
        [
            words(f"{n} {scale} {thing}")
            for scale in ("dozen", "hundred", "million", "pairs of", "thirds of", "percent of")
        ],
    )
    changed += mutated(
        "unknown word",
        [
            words(f"{n} fewer {thing}"),
            words(f"{n} more {thing}"),
            words(f"{n} wrong {thing}"),
            words(f"not {n} {thing}"),
        ],
    )
    changed += mutated("unit", [words(f"{n} {other}") for other in ("meters", "dollars", "oranges", "hours")])
    changed += mutated("sign", [words(f"-{n} {thing}")]) + [
        pair for pair in attached(str(n), rng) if pair[0] == "denial"
    ]
    return Case(said(meaning, *texts), changed)


def choices(rng: Random) -> Case:
    """Letters of choices."""
    letter, other = rng.sample("ABCDE", 2)

    def choice(letter: str) -> list[Form]:
        texts = [
            letter,
            f"({letter})",
            f"\\text{{({letter})}}",
            f"\\text{{{letter}}}",
            f"\\textbf{{({letter})}}",
            f"\\mathrm{{{letter}}}",
        ]
        return said(
            ("choice", letter), *texts, f"(\\text{{{letter}}})", f"{letter}.", f"\\textbf{{{letter}}}", f"({letter})."
        )

    changed = mutated("other choice", choice(other))
    texts = [
        f"{letter} or {other}",
        f"{letter}, {other}",
        f"({letter}), ({other})",
        f"{letter}\\text{{ and }}{other}",
        f"({letter})({other})",
    ]
    changed += mutated(
        "extra choice", [words(spelt) for spelt in (*texts, f"{letter}{other}", f"\\{{{letter}, {other}\\}}")]
    )
    changed += mutated("denial", [words(f"not {letter}"), words(f"\\text{{not ({letter})}}"), words(f"\\neg {letter}")])
    changed += mutated(
        "changed letter",
        [
            words(spelt)
            for spelt in (
                f"+{letter}",
                f"-{letter}",
                f"2{letter}",
                f"{letter}^2",
                f"{letter}'",
                f"{letter}_1",
                f"\\frac{{1}}{{{letter}}}",
                f"{letter} + 1",
            )
        ],
    )
    return Case(choice(letter), changed)


WORDS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("even", ("odd", "neither", "even and odd", "unevenly")),
    ("odd", ("even", "neither", "odd or even")),
    ("yes", ("no", "maybe", "yes and no")),
    ("no", ("yes", "none", "no or yes")),
    ("true", ("false", "untrue")),
    ("false", ("true", "falsely")),
    ("increasing", ("decreasing", "nonincreasing", "increasing then decreasing")),
    ("convergent", ("divergent", "conditionally convergent", "nonconvergent")),
    ("isosceles", ("scalene", "equilateral", "isosceles right")),
    ("parallelogram", ("rectangle", "rhombus", "parallel")),
    ("Tuesday", ("Thursday", "Monday", "Tuesday or Wednesday")),
    ("hyperbola", ("parabola", "ellipse", "hyperbolas or ellipses")),
    ("rational", ("irrational", "natural")),
    ("Alice", ("Bob", "Alice and Bob", "Alicia")),
)


def plain_words(rng: Random) -> Case:
    """Answers that are a word."""
    word, others = rng.choice(WORDS)
    texts = [
        word,
        f"\\text{{{word}}}",
        f"\\text{{{word.capitalize()}}}",
        word.capitalize(),
        f"\\textbf{{{word}}}",
        f"\\mathrm{{{word}}}",
    ]
    changed = mutated("other word", [words(spelt) for other in others for spelt in (other, f"\\text{{{other}}}")])
    changed += mutated(
        "denial",
        [
            words(f"not {word}"),
            words(f"\\text{{not {word}}}"),
            words(f"never {word}"),
            words(f"\\text{{neither {word} nor another}}"),
        ],
    )
    return Case(said(("word", word), *texts, f"\\text{{ {word} }}"), changed)


MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def dates(rng: Random) -> Case:
    """Days of the year."""
    month, day = rng.choice(MONTHS), rng.randint(1, 28)
    other = rng.choice([name for name in MONTHS if name != month])

    def date(month: str, day: int) -> list[Form]:
        return said(
            ("date", month, tree(day)),
            f"{month} {day}",
            f"\\text{{{month} {day}}}",
            f"\\text{{{month} }}{day}",
            f"{month}~{day}",
        )

    changed = mutated("off by one", [rng.choice(date(month, day % 28 + 1))]) + mutated(
        "other month", [rng.choice(date(other, day))]
    )
    changed += mutated(
        "digit", [rng.choice(date(month, next(d for d in (10 * (day % 10) + day // 10, day + 10) if d != day)))]
    )
    changed += mutated("dropped part", [words(month), words(str(day))])
    return Case(date(month, day), changed)


QUANTITY_KINDS: dict[str, tuple[int, Kind]] = {
    "quantity": (3, quantities),
    "area or speed": (2, areas_and_speeds),
    "money": (2, money),
    "clock time": (2, clock_times),
    "angle": (2, angles),
    "ratio": (1, ratios),
    "count": (2, counts),
    "choice": (2, choices),
    "word": (1, plain_words),
    "date": (1, dates),
}
"""The kinds, each with its weight."""
