r"""The kinds of answer there are, and the units that values have.

Which reading of a bracket holds, ``(1, 2)`` a point or an interval, is left open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Literal, TypeAlias

from agent_rl.environments.maths.answers.formulas import INFINITY, PI, Apply, Formula, Number, neg
from agent_rl.environments.maths.answers.notation import words


@dataclass(frozen=True, slots=True)
class Unit:
    """A dimension, such as ``length^2*time^-1``, and how many of its base unit this unit is."""

    dimension: str
    factor: Fraction


_TABLE = {
    "length": "1 m meter metre; 1/100 cm; 1/1000 mm; 1000 km; 254/10000 in inch inches; 3048/10000 ft foot feet; "
    "9144/10000 yd yard; 1609344/1000 mi mile",
    "mass": "1 kg; 1/1000 g gm gram; 1/1000000 mg; 1000 t ton tonne; 45359237/100000000 lb lbs pound; "
    "28349523125/1000000000000 oz ounce",
    "time": "1 s sec second; 60 min minute; 3600 h hr hour; 86400 day; 604800 week",
    "month": "1 month; 12 yr year",
    "length^3": "1/1000 L l liter litre; 1/1000000 mL ml; 3785411784/1000000000000 gal gallon; "
    "946352946/1000000000000 qt quart; 473176473/1000000000000 pt pint; 2365882365/10000000000000 cup",
    "length^2": "40468564224/10000000 acre; 10000 ha hectare",
    "length*time^-1": "1609344/3600000 mph; 10/36 kph kmh",
    "mass*length*time^-2": "1 N newton",
    "mass*length^2*time^-2": "1 J joule",
    "mass*length^2*time^-3": "1 W watt",
    "time^-1": "1 Hz hertz",
    "radian": "1 rad radian",
    "degree Celsius": "1 celsius",
    "degree Fahrenheit": "1 fahrenheit",
    "dollar": "1 dollar USD; 1/100 cent ¢",
    "euro": "1 euro EUR €",
    "sterling": "1 sterling GBP £; 1/100 pence",
    "yen": "1 yen JPY",
    "yuan": "1 yuan CNY",
    "¥": "1 ¥",
    "rupee": "1 rupee INR Rs ₹",
    "unit": "1 unit u",
}
"""Of each dimension: the base units that a unit is worth, and its names. Months and seconds do not convert."""
CURRENCY_SIGNS = {"¤": "dollar", "€": "euro", "£": "sterling", "¥": "¥", "₹": "rupee"}
_PREFIXES = {"milli": Fraction(1, 1000), "centi": Fraction(1, 100), "kilo": Fraction(1000)}
_PREFIXED = words("meter metre gram liter litre")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_POWERS_OF_TEN = {
    "hundred": 2,
    "thousand": 3,
    "million": 6,
    "billion": 9,
    "trillion": 12,
    "permille": -3,
    "tenth": -1,
    "hundredth": -2,
}
_SCALES: dict[str, Formula] = {
    **{word: Apply("pow", (Number(Fraction(10)), Number(Fraction(power)))) for word, power in _POWERS_OF_TEN.items()},
    "dozen": Number(Fraction(12)),
    "pair": Number(Fraction(2)),
}
"""What a word behind a number multiplies it by, before any unit: a power of ten is notation, another number work."""
_SCALE = re.compile(rf"\s*({'|'.join(_SCALES)})s?\b(?:\s+of\b)?\s*")
_CASELESS = words("km cm mm kg ft in lb hr kmh kph mph gm sec yd min oz usd ml mi inch rs")
"""Abbreviations that are also met in capitals."""
_CLEAR = words("cm mm km kg ft mg lb hr Hz mph mL ml")
"""Abbreviations that are never met as a product of variables, not even right behind a number."""
_FACTOR = re.compile(r"([A-Za-z€£¥₹¢]+)\.?(?:\s*\^?\s*\{?\s*\(?(-?[1-9])\)?\s*\}?)?(?:\s+(squared|cubed)\b)?")
_SEPARATOR = re.compile(r"\s*(?:\\cdot|\\times|[*·/]|\bper\b)\s*|\s+")
_PHRASES = (
    (re.compile(r"^(?:°|degrees?)\s*C(?:elsius)?\.?$"), "celsius"),
    (re.compile(r"^(?:°|degrees?)\s*F(?:ahrenheit)?\.?$"), "fahrenheit"),
    (re.compile(r"^pounds? sterling$"), "sterling"),
)


def _all_units() -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for dimension, entries in _TABLE.items():
        for entry in entries.split(";"):
            factor, *names = entry.split()
            found |= {name: Unit(dimension, Fraction(factor)) for name in names}
    for prefix, multiple in _PREFIXES.items():
        found |= {prefix + name: Unit(found[name].dimension, found[name].factor * multiple) for name in _PREFIXED}
    return found


_UNITS = _all_units()


def scaled(label: str) -> tuple[Formula | None, str]:
    """What a word behind a number multiplies it by, if there is one, and the words left: ``million dollars``."""
    match = _SCALE.match(label)
    return (_SCALES[match[1]], label[match.end() :]) if match else (None, label)


@lru_cache(maxsize=1024)
def unit_of(label: str) -> Unit | None:
    """The unit that ``label`` names, if it is known: ``cm^2``, ``square feet``, ``km/h``, ``meters per second``."""
    for phrase, name in _PHRASES:
        label = phrase.sub(name, label)
    total: dict[str, int] = {}
    factor, position, sign, pending = Fraction(1), 0, 1, 1
    while position < len(label):
        match = _FACTOR.match(label, position)
        if match is None:
            return None
        position = match.end()
        if match[1].lower() in _POWERS and not match[2]:
            pending = _POWERS[match[1].lower()]
        else:
            unit = _named(match[1])
            if unit is None or (match[2] and match[3]):
                return None
            power = int(match[2] or "1") * sign * pending * _POWERS.get(match[3], 1)
            factor *= unit.factor**power
            for part in unit.dimension.split("*"):
                base, _, exponent = part.partition("^")
                total[base] = total.get(base, 0) + int(exponent or 1) * power
            sign = pending = 1
        if position < len(label):
            separator = _SEPARATOR.match(label, position)
            if separator is None or separator.end() == len(label):
                return None
            position = separator.end()
            sign = -1 if separator[0].strip() in ("/", "per") else sign
    if pending != 1 or not any(total.values()):
        return None
    return Unit("*".join(f"{base}^{exponent}" for base, exponent in sorted(total.items()) if exponent), factor)


def is_abbreviation(number: str, label: str) -> bool:
    """Whether letters behind a number are a unit rather than variables: known, and not one letter."""
    return len(label) > 1 and unit_of(label) is not None and (number[-1:].isspace() or label in _CLEAR)


def same_dimension(first: Unit, second: Unit) -> bool:
    """Whether two units measure the same; the sign of yen is also that of yuan."""
    both = {first.dimension, second.dimension}
    return len(both) == 1 or both in ({"¥^1", "yen^1"}, {"¥^1", "yuan^1"}, {"°", "radian^1"})


def _named(name: str) -> Unit | None:
    """The unit of one name, in the plural too; names that are spelt out may begin with a capital."""
    for form in (name, name.lower() if len(name) > 3 or name.lower() in _CASELESS else name):
        plural = _UNITS.get(form[:-1]) if form.endswith("s") and len(form) > 2 else None
        if unit := _UNITS.get(form, plural):
            return unit
    return None


@dataclass(frozen=True, slots=True)
class Value:
    """A formula; its unit, if stated; its letters, if it is only letters."""

    formula: Formula
    unit: Unit | None = None
    letters: str = ""

    @property
    def marked(self) -> bool:
        """Whether its unit is percent or degree, which are numbers."""
        return self.unit is not None and self.unit.dimension in MARKS

    @property
    def in_base(self) -> Formula:
        """The value in the base unit of its dimension; percent and degrees as numbers."""
        if self.unit is None or self.unit.factor == 1:
            return self.formula
        scaled = Apply("mul", (self.formula, Number(self.unit.factor)))
        return Apply("mul", (scaled, PI)) if self.unit.dimension == "°" else scaled


@dataclass(frozen=True, slots=True)
class Words:
    """A text that is no formula, in lower case."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Answers side by side; ``braces``: an explicit set. ``joint`` is the word between them, if there is one."""

    items: tuple[Answer, ...]
    braces: bool = False
    joint: Literal["", "and", "or"] = ""


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A tuple, vector or interval; ``brackets`` is the opening and the closing one."""

    brackets: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A union of sets, less others."""

    parts: tuple[Answer, ...]
    without: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values; ``nested``: written as a list of lists, which is no tuple."""

    rows: tuple[tuple[Answer, ...], ...]
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A name, or tuple of names, and what it is said to be (or to be in); a function's name with its parameters."""

    name: str
    answer: Answer
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A chain of formulas and the relations between them: =, <, <=, >, >= or !=."""

    sides: tuple[Formula, ...]
    relations: tuple[str, ...]

    @property
    def ascending(self) -> Comparison:
        """The comparison without > and >=."""
        if self.relations[0][0] != ">":
            return self
        relations = tuple(relation.replace(">", "<") for relation in reversed(self.relations))
        return Comparison(tuple(reversed(self.sides)), relations)


Answer: TypeAlias = Value | Words | Listing | Bracketed | Region | Matrix | Named | Comparison

REALS = Bracketed("()", (Value(neg(INFINITY)), Value(INFINITY)))
EMPTY = Listing((), braces=True)
MARKS = {"%": Fraction(1, 100), "°": Fraction(1, 180)}
"""Percent, and degrees as multiples of pi."""


DEGREE = Unit("°", MARKS["°"])


def formulas_in(answer: Answer) -> Iterator[Formula]:
    """The formulas that an answer is built of, in order."""
    if isinstance(answer, Value):
        yield answer.formula
    elif isinstance(answer, Comparison):
        yield from answer.sides
    elif isinstance(answer, Named):
        yield from formulas_in(answer.answer)
    elif not isinstance(answer, Words):
        rows = answer.rows if isinstance(answer, Matrix) else (items_of(answer),)
        yield from chain.from_iterable(map(formulas_in, chain.from_iterable(rows)))


def items_of(answer: Answer) -> tuple[Answer, ...]:
    """The answers that a list, bracket or union is built of."""
    if isinstance(answer, Listing | Bracketed):
        return answer.items
    return answer.parts + answer.without if isinstance(answer, Region) else ()


def all_named(items: tuple[Answer, ...]) -> bool:
    """Whether each item has a name."""
    return all(isinstance(item, Named) for item in items)
