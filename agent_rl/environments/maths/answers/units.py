"""Units: what may stand behind a number, the dimension it measures, and how many base units it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from agent_rl.environments.maths.answers.vocabulary import words


@dataclass(frozen=True, slots=True)
class Unit:
    """A dimension, such as ``length^2*time^-1``, and how many of its base unit this unit is."""

    dimension: str
    factor: Fraction


_NAMES = {
    "length": """1 m meter metre; 254/10000 in inch inches; 3048/10000 ft foot feet; 9144/10000 yd yard;
        1609344/1000 mi mile; 9460730472580800 light-year lightyear; 1852 nmi""",
    "mass": """1/1000 g gm gram gramme; 1000 t ton tonne; 45359237/100000000 lb lbs pound;
        28349523125/1000000000000 oz ounce""",
    "time": """1 s sec second; 60 min minute; 3600 h hr hour; 86400 day; 604800 week; 1209600 fortnight""",
    "month": "1 month; 12 yr year; 120 decade; 1200 century centuries; 12000 millennium millennia",
    "length^3": """1/1000 L l liter litre; 3785411784/1000000000000 gal gallon; 946352946/1000000000000 qt quart;
        473176473/1000000000000 pt pint; 2365882365/10000000000000 cup; 295735295625/10000000000000000 floz;
        147867647812500/10000000000000000000 tbsp tablespoon; 49289215937500/10000000000000000000 tsp teaspoon""",
    "length^2": "40468564224/10000000 acre; 10000 ha hectare",
    "dollar": "1 dollar USD buck; 1/100 cent ¢",
    "euro": "1 euro EUR €",
    "sterling": "1 sterling GBP £ quid; 1/100 pence",
    "yen": "1 yen JPY",
    "yuan": "1 yuan RMB CNY",
    "¥": "1 ¥",
    "rupee": "1 rupee INR Rs ₹; 1/100 paise paisa",
    "won": "1 KRW ₩",
    "ruble": "1 ruble rouble RUB ₽",
    "peso": "1 peso",
    "franc": "1 franc CHF",
    "krona": "1 krona kronor krone SEK",
    "current": "1 A amp ampere",
    "temperature": "1 kelvin",
    "amount": "1 mol mole",
    "light": "1 lumen lm",
    "mass*length*time^-2": "1 N newton",
    "mass*length^2*time^-2": "1 J joule; 3600000 kWh; 4184/1000 cal; 4184 kcal kilocalorie; "
    "1602176634/10000000000000000000000000000 eV",
    "mass*length^2*time^-3": "1 W watt; 7457/10 hp horsepower",
    "mass*length^-1*time^-2": "1 Pa pascal; 100000 bar; 101325 atm atmosphere",
    "time^-1": "1 Hz hertz; 1/60 rpm",
    "length*time^-1": "1609344/3600000 mph; 10/36 kph kmh kmph; 1852/3600 knot",
    "current*time": "1 C coulomb",
    "mass*length^2*time^-3*current^-1": "1 V volt",
    "mass*length^2*time^-3*current^-2": "1 ohm Ω",
    "radian": "1 rad radian",
    "degree Celsius": "1 celsius",
    "degree Fahrenheit": "1 fahrenheit",
    "byte": "1 B byte; 1/8 bit",
    "unit": "1 unit u",
}
"""Of each dimension: the base units that a unit is worth, and its names. Months and seconds do not convert."""
_PREFIXES = {"n nano": "1/1000000000", "µ μ micro": "1/1000000", "m milli": "1/1000", "c centi": "1/100",
             "d deci": "1/10", "k kilo": "1000", "M mega": "1000000", "G giga": "1000000000",
             "T tera": "1000000000000"}  # fmt: skip
_PREFIXED = {"m": "meter metre", "g": "gram gramme", "s": "second", "L": "liter litre", "l": "", "Hz": "hertz",
             "W": "watt", "J": "joule", "N": "newton", "V": "volt", "A": "ampere amp",
             "Pa": "pascal", "B": "byte", "eV": "", "mol": "mole", "bit": "bit", "ohm": "ohm", "Ω": ""}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_CASELESS = words("km cm mm kg ft in lb hr kmh kph mph gm sec yd min oz usd ml mi inch rs")
"""Abbreviations that are also met in capitals."""
_FACTOR = re.compile(r"([A-Za-zµμΩ€£¥₹₩₽¢]+(?:-year)?)\.?(?:\s*\^?\s*\{?\s*\(?(-?[0-9])\)?\s*\}?)?")
_SEPARATOR = re.compile(r"\s*(?:\\cdot|\\times|[*·/]|\bper\b)\s*|\s+")


def _all_units() -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for dimension, entries in _NAMES.items():
        for entry in entries.split(";"):
            factor, *names = entry.split()
            found |= {name: Unit(dimension, Fraction(factor)) for name in names}
    for prefixes, multiple in _PREFIXES.items():
        *short, spelt = prefixes.split()
        for symbol, long_names in _PREFIXED.items():
            base = found[symbol]
            prefixed = Unit(base.dimension, base.factor * Fraction(multiple))
            names = [prefix + symbol for prefix in short] + [spelt + name for name in long_names.split()]
            for name in names:
                found.setdefault(name, prefixed)
    return found


_UNITS = _all_units()
CURRENCY_SIGNS = {
    "¤": "dollar",
    "€": "euro",
    "£": "sterling",
    "¥": "¥",
    "₹": "rupee",
    "₩": "won",
    "₽": "ruble",
}


@lru_cache(maxsize=1024)
def unit_of(label: str) -> Unit | None:
    """The unit that ``label`` names, if it is known: ``cm^2``, ``square feet``, ``km/h``, ``m s^{-1}``, ``meters per
    second``.
    """
    label = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", label.strip())
    label = re.sub(
        r"^(?:°|degrees?)\s*(C|F|Celsius|Fahrenheit)\.?$", lambda m: {"C": "celsius", "F": "fahrenheit"}[m[1][0]], label
    )
    label = re.sub(r"^(pounds?) sterling$", "sterling", label)
    label = re.sub(r"^(?:fl\.? ?oz\.?|fluid ounces?)$", "floz", label)
    total: dict[str, int] = {}
    factor, position, sign, pending = Fraction(1), 0, 1, 1
    while position < len(label):
        match = _FACTOR.match(label, position)
        if match is None:
            return None
        position = match.end()
        if match[1].lower() in ("square", "sq", "cubic", "cu") and not match[2]:
            pending = _POWERS[match[1].lower()]
        else:
            after = re.compile(r"\s+(squared|cubed)\b").match(label, position)
            unit = _named(match[1])
            if unit is None or (after and match[2]):
                return None
            position = after.end() if after else position
            if match[2] == "0":
                return None
            power = int(match[2] or "1") * sign * pending * (_POWERS[after[1]] if after else 1)
            factor *= unit.factor**power
            for base, exponent in _exponents(unit.dimension):
                total[base] = total.get(base, 0) + exponent * power
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
    """Whether letters behind a number are a unit rather than variables: known, and not one letter.

    Without a space between, only those that are never met as a product.
    """
    if len(label.strip()) < 2 or unit_of(label) is None:
        return False
    return number[-1:].isspace() or label.strip() in {
        "cm",
        "mm",
        "km",
        "kg",
        "ft",
        "mg",
        "lb",
        "hr",
        "Hz",
        "mph",
        "mL",
        "ml",
    }


def same_dimension(first: Unit, second: Unit) -> bool:
    """Whether two units measure the same; the sign of yen is also that of yuan."""
    both = {first.dimension, second.dimension}
    return len(both) == 1 or both in ({"¥^1", "yen^1"}, {"¥^1", "yuan^1"})


def _exponents(dimension: str) -> list[tuple[str, int]]:
    parts = [part.partition("^") for part in dimension.split("*")]
    return [(base, int(exponent or 1)) for base, _, exponent in parts]


def _named(name: str) -> Unit | None:
    """The unit of one name, in the plural too; names that are spelt out may begin with a capital."""
    for form in (name, name.lower() if len(name) > 3 or name.lower() in _CASELESS else name):
        unit = _UNITS.get(form)
        if unit is None and form.endswith("s") and len(form) > 2:
            unit = _UNITS.get(form[:-1]) or (_UNITS.get(form[:-2]) if form.endswith("es") else None)
        if unit is not None:
            return unit
    return None
