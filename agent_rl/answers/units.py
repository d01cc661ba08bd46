"""Units: what may stand behind a number, and what it multiplies it by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from agent_rl.answers.vocabulary import words


@dataclass(frozen=True, slots=True)
class Unit:
    """A dimension such as ``length^2/time``, and how many of its base unit this one is."""

    dimension: str
    factor: Fraction


_KNOWN: dict[str, tuple[str, str]] = {
    "m meter metre": ("length", "1"),
    "km kilometer kilometre": ("length", "1000"),
    "cm centimeter centimetre": ("length", "1/100"),
    "mm millimeter millimetre": ("length", "1/1000"),
    "inch inches in": ("length", "254/10000"),
    "foot feet ft": ("length", "3048/10000"),
    "yard yd": ("length", "9144/10000"),
    "mile mi": ("length", "1609344/1000"),
    "kg kilogram": ("mass", "1"),
    "g gm gram": ("mass", "1/1000"),
    "mg milligram": ("mass", "1/1000000"),
    "lb pound": ("mass", "45359237/100000000"),
    "s sec second": ("time", "1"),
    "min minute": ("time", "60"),
    "h hr hour": ("time", "3600"),
    "day": ("time", "86400"),
    "week": ("time", "604800"),
    "l L liter litre": ("volume", "1"),
    "ml mL milliliter millilitre": ("volume", "1/1000"),
    "dollar": ("dollar", "1"),
    "cent": ("dollar", "1/100"),
    "N newton": ("newton", "1"),
    "J joule": ("joule", "1"),
    "W watt": ("watt", "1"),
    "V volt": ("volt", "1"),
    "A ampere": ("ampere", "1"),
    "K kelvin": ("kelvin", "1"),
    "Hz hertz": ("hertz", "1"),
    "Pa pascal": ("pascal", "1"),
    "mol mole": ("mole", "1"),
    "rad radian": ("", "1"),
    "month": ("month", "1"),
    "year yr": ("month", "12"),
}
_BY_NAME = {name: Unit(kind, Fraction(factor)) for names, (kind, factor) in _KNOWN.items() for name in names.split()}
_ABBREVIATED = {"mph": "mile/hour", "kmh": "km/h", "kmph": "km/h", "kph": "km/h"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_EXCLUDED = words(
    """a an the not no none nor or and but of either neither both except without times minus plus over more less than
    most least about between approximately roughly through thousand million billion trillion hundred dozen half third
    quarter double twice thrice squared cubed percent one two three four five six seven eight nine ten eleven twelve
    twenty thirty forty fifty zero infinity pi sqrt mod modulo base factorial if for when where is are was any all real"""
)
"""Words that change what a number says: no label of what is counted."""
_PART = re.compile(r"([A-Za-z]+)\.?\s*(?:\^?\s*\{?([0-9])\}?)?$")


def unit_of(label: str) -> Unit | None:
    """The unit of ``label``, if it is known. ``cm^2``, ``square feet``, ``km/h``, ``meters per second``."""
    label = _ABBREVIATED.get(label.strip(), label.strip())
    upper, _, lower = re.sub(r"\s+per\s+", "/", label).partition("/")
    above = _power_of(upper)
    if above is None or not lower:
        return above
    below = _power_of(lower)
    return None if below is None else Unit(f"{above.dimension}/{below.dimension}", above.factor / below.factor)


def is_label(words: str) -> bool:
    """Whether words may stand behind a number without saying anything about it: what is counted, a unit spelt out."""
    found = re.findall(r"[A-Za-z]+", words)
    return (
        0 < len(found) <= 5
        and re.fullmatch(r"[A-Za-z\s./^{}2-4\-]*", words) is not None
        and not any(word.lower() in _EXCLUDED for word in found)
        and all(len(word) > 1 or word in _BY_NAME for word in found)
    )


def is_abbreviation(number: str, label: str) -> bool:
    """Whether letters behind a number are a unit rather than variables: known, and not one letter.

    Without a space between, only those that are never met as a product.
    """
    if unit_of(label) is None or len(label.strip()) < 2:
        return False
    return number[-1:].isspace() or label.strip() in {"cm", "mm", "km", "kg", "ft", "mg", "lb", "hr", "Hz", "mph"}


def label_words(words: str) -> frozenset[str]:
    """The words of a label in lower case, without the s of a plural."""
    found = {word.lower() for word in re.findall(r"[A-Za-z]+", words)}
    return frozenset({"sq": "square", "cu": "cubic"}.get(word, word.removesuffix("s")) for word in found)


def _power_of(label: str) -> Unit | None:
    words = label.split()
    power = 1
    if len(words) > 1 and words[0].lower() in _POWERS:
        power = _POWERS[words.pop(0).lower()]
    elif len(words) > 1 and words[-1].lower() in _POWERS:
        power = _POWERS[words.pop().lower()]
    match = _PART.fullmatch(" ".join(words))
    if match is None:
        return None
    name = match[1]
    unit = _BY_NAME.get(name) or _BY_NAME.get(name.lower()) if len(name) > 1 else _BY_NAME.get(name)
    if unit is None and name.endswith("s"):
        unit = _BY_NAME.get(name[:-1].lower()) if len(name) > 2 else None
    if unit is None:
        return None
    power *= int(match[2] or 1)
    dimension = unit.dimension if power == 1 else f"{unit.dimension}^{power}"
    return Unit(dimension, unit.factor**power)
