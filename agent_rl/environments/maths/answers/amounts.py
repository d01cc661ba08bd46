"""Words that are numbers or change one: ``twenty-three``, ``two thirds``, ``5 million``, ``2 dozen``, ``5 tenths``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_UP_TO_NINETEEN = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen"""
_UP_TO_NINETY = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: Fraction(value) for value, word in enumerate(_UP_TO_NINETEEN.split())}
_TENS = {word: Fraction(10 * place) for place, word in enumerate(_UP_TO_NINETY.split(), 2)}
_THOUSANDS = {
    "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "quadrillion": 10**15, "lakh": 10**5,
    "lac": 10**5, "crore": 10**7,
}  # fmt: skip
_COLLECTIVES = {
    "hundred": 100,
    "dozen": 12,
    "score": 20,
    "gross": 144,
    "pair": 2,
    "couple": 2,
    "ten": 10,
    "myriad": 10**4,
}
_PARTS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "eleventh": 11, "twelfth": 12, "fifteenth": 15, "sixteenth": 16, "twentieth": 20, "hundredth": 100,
    "thousandth": 1000, "millionth": 10**6, "billionth": 10**9,
}  # fmt: skip
_RATES = {
    "ppm": 10**6, "ppb": 10**9, "bps": 10**4, "parts per million": 10**6, "parts per billion": 10**9, "per mille": 1000,
    "permille": 1000, "‰": 1000, "basis points": 10**4, "basis point": 10**4, "per cent": 100, "percent": 100, "%": 100,
}  # fmt: skip
MULTIPLIERS: dict[str, Fraction] = {
    **{plural: Fraction(value) for word, value in (_THOUSANDS | _COLLECTIVES).items() for plural in (word, f"{word}s")},
    **{plural: Fraction(1, value) for word, value in _PARTS.items() for plural in (word, f"{word}s")},
    "halves": Fraction(1, 2),
    **{word: Fraction(1, value) for word, value in _RATES.items()},
}
"""What a word behind a number multiplies it by."""
_PHRASE = re.compile("|".join(rf"{re.escape(word)}(?![A-Za-z])" for word in sorted(MULTIPLIERS, key=len, reverse=True)))
_NUMBER_WORD = re.compile(r"(?:minus |negative )?[a-z]+(?:[ -][a-z]+)*")
_LONGEST = 80
"""Characters of a number in words."""


def multiplied(label: str) -> tuple[Fraction, str]:
    """What the words behind a number multiply it by (1 where they don't), and the words left: ``million dollars``."""
    factor, rest = Fraction(1), label.strip().removeprefix("-").strip()
    while match := _PHRASE.match(rest.lower()):
        factor *= MULTIPLIERS[match[0]]
        rest = rest[match.end() :].strip()
    if factor != 1:
        rest = re.sub(r"^of(?:\s+an?|\s+the)?\s+", "", rest)
    return factor, rest


def spelt_number(text: str) -> Fraction | None:
    """The number that words spell, fractions included; None if they spell none."""
    text = text.strip().lower()
    if len(text) > _LONGEST or not _NUMBER_WORD.fullmatch(text):
        return None
    sign = 1
    for word in ("minus ", "negative "):
        if text.startswith(word):
            sign, text = -1, text.removeprefix(word)
    words = text.replace("-", " ").split()
    if len(words) > 3 and words[-3] == "and" and words[-1] in MULTIPLIERS:  # two and a half
        whole, part = _whole(words[:-3]), _with_parts(words[-2:])
        if part is not None and whole is not None and part < 1:
            return sign * (whole + part)
    value = _with_parts(words)
    return None if value is None else sign * value


def _with_parts(words: Sequence[str]) -> Fraction | None:
    """``two thirds``, ``half``, ``a dozen``; else a whole number. A single ``third`` is an ordinal."""
    *count, last = words
    if last in ("a", "an"):
        return None
    if last in ("half", "hundred", "thousand", "million") and not count:
        return MULTIPLIERS[last]
    if last in MULTIPLIERS and last not in _THOUSANDS and last not in ("hundred", "ten") and count:
        number = Fraction(1) if count in (["a"], ["an"]) else _whole(count)
        return None if number is None else number * MULTIPLIERS[last]
    return _whole(["one", *words[1:]] if words[0] == "a" else words)


def _whole(words: Sequence[str]) -> Fraction | None:
    """A whole number, its groups in descending order: ``two million three hundred and five``."""
    total = group = Fraction(0)
    least = Fraction(10**30)
    room = Fraction(1000)  # what the next word of the group must be less than
    for place, word in enumerate(words):
        if word == "and" and 0 < place < len(words) - 1 and words[place - 1] in ("hundred", *_THOUSANDS):
            continue
        value = _SMALL.get(word, _TENS.get(word))
        if value is not None and value < room and (value or len(words) == 1):
            group += value
            room = Fraction(10) if word in _TENS else Fraction(0)
        elif word == "hundred" and 0 < group < 100:
            group *= 100
            room = Fraction(100)
        elif word in _THOUSANDS and group and _THOUSANDS[word] < least:
            least = Fraction(_THOUSANDS[word])
            total += group * least
            group, room = Fraction(0), Fraction(1000)
        else:
            return None
    return total + group
