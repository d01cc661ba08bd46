"""A number with what stands beside it: units, currencies, scale words, labels, marks; a time of day; or words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from agent_rl.environments.maths.answers.amounts import multiplied, spelt_number
from agent_rl.environments.maths.answers.clocks import clock_of
from agent_rl.environments.maths.answers.formulas import Apply, Formula, Number, Unreadable, names_in
from agent_rl.environments.maths.answers.grammar import parse_formula
from agent_rl.environments.maths.answers.labels import label_words
from agent_rl.environments.maths.answers.slices import squeezed
from agent_rl.environments.maths.answers.statements import MARKS, REALS, Answer, Listing, Value, Words
from agent_rl.environments.maths.answers.tokens import Token, tokens_of
from agent_rl.environments.maths.answers.units import CURRENCY_SIGNS, Unit, is_abbreviation, same_dimension, unit_of
from agent_rl.environments.maths.answers.vocabulary import FUNCTIONS, words

_SIGNS = "".join(CURRENCY_SIGNS)
_CURRENCY_FIRST = re.compile(
    rf"([-+]?)\s*(?:\\text\s*\{{)?\s*(?:([{_SIGNS}])|(USD|EUR|GBP|INR|Rs\.?)(?![A-Za-z]))\s*\}}?\s*([-+]?)(.*)",
    re.DOTALL,
)
_CURRENCY_LAST = re.compile(rf"(.*?)\s*(?:\\text\s*\{{)?\s*([{_SIGNS}])\s*\}}?", re.DOTALL)
_WORDS = re.compile(r"""[^\W\d_]+(?:[ ,.'"()!?:-]+[^\W\d_]+)*[ .'")!?]*""")
_NUMBERED = re.compile(r"(?=.*(?:[a-z]{3}|May\b))(?:[A-Za-z]+|[0-9]+)(?:[ .:']+(?:[A-Za-z]+|[0-9]+)){1,5}")
_REALS_IN_WORDS = frozenset({"allrealnumbers", "allreals", "realnumbers"})
_EMPTY_IN_WORDS = frozenset({"nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset"})
_SHORT_WORDS = frozenset({"yes", "no", "odd"})
"""Words of up to three letters that are answers; others of this length are products of variables."""
_SUMS = frozenset({"+", "-", r"\pm", r"\mp"})
_FONT = r"\\(?:text|textrm|textbf|textnormal|mathrm|mbox|textit|mathit|operatorname|rm)"
_PIECE = rf"(?:{_FONT}\s*\{{[^{{}}]*\}}|[A-Za-zµμΩ]+(?![A-Za-zµμΩ])\.?)(?:\s*\^\s*(?:\{{\s*-?[0-9]\s*\}}|-?[0-9]))?"
_TAIL = re.compile(
    rf"(?P<tail>(?<![\\A-Za-z])(?:-\s?)?(?:°\s*)?{_PIECE}"
    rf"(?:(?:\s*(?:/|\\cdot(?![a-zA-Z])|-)\s*|\s*){_PIECE}){{0,7}})\s*$"
)
_LONG_TIMES = words("decade decades century centuries millennium millennia fortnight fortnights")
"""Units that are met as words for numbers."""
_BRACED = re.compile(rf"{_FONT}\s*\{{([^{{}}]*)\}}")
_COMPOUND = re.compile(r"([0-9.]+)\s*([A-Za-z]+)\.?(?:\s*,?\s*(?:and\s+)?)([0-9.]+)\s*([A-Za-z]+)\.?")


def read_value(tokens: Sequence[Token], source: str, text: str) -> Answer:
    """A formula with its unit, a time of day, or words. Raises Unreadable.

    ``source`` is the part of ``text`` that the tokens were cut from.
    """
    if not tokens:
        raise Unreadable("empty")
    found = _in_words(source) or clock_of(source) or _money(source) or _marked(tokens, source) or _counted(source)
    if found is not None:
        return found
    try:
        return Value(parse_formula(tokens, text), letters=source if source.isalpha() else "")
    except Unreadable:
        pass
    if (found := _labelled(source)) is not None:
        return found
    if _WORDS.fullmatch(source) and (not source.isalpha() or len(source) > 2):
        return Words(squeezed(source))
    source = " ".join(_BRACED.sub(r" \1 ", source).split())
    if _NUMBERED.fullmatch(source) and not re.search(r"\b(?:is|are|was|were|be|equals?)\b", source):
        return Words(source.casefold())  # June 20
    raise Unreadable("neither a formula nor words")


def _in_words(source: str) -> Answer | None:
    """The empty set, the reals and short words."""
    if source == "∅" or squeezed(source) in _EMPTY_IN_WORDS:
        return Listing((), braces=True)
    if squeezed(source) in _REALS_IN_WORDS:
        return REALS
    return Words(source.casefold()) if source.casefold() in _SHORT_WORDS else None


def _money(source: str) -> Answer | None:
    """An amount with the sign or code of its currency before or behind it: ``¤5 million``, ``USD 5``, ``5 €``, ``¤5
    per hour``.
    """
    first, last = _CURRENCY_FIRST.fullmatch(source), _CURRENCY_LAST.fullmatch(source)
    if first:
        currency, amount = CURRENCY_SIGNS.get(first[2] or "", "") or first[3].rstrip("."), first[5]
        signs = first[1] + first[4]
        if len(signs) > 1:
            raise Unreadable("an amount with two signs")
    elif last:
        currency, amount, signs = CURRENCY_SIGNS[last[2]], last[1], ""
    else:
        return None
    number, label = _cut(amount)
    factor, label = multiplied(label)
    unit, other = unit_of(currency), unit_of(label) if label else None
    if label and not (other and unit and same_dimension(unit, other)):
        unit = unit_of(f"{currency} {label}")
    formula = _number(number)
    if unit is None or formula is None or names_in(formula):
        raise Unreadable("an amount of something else")
    formula = _scaled(formula, factor)
    return Value(Apply("neg", (formula,)) if signs == "-" else formula, unit)


def _marked(tokens: Sequence[Token], source: str) -> Answer | None:
    """A formula with a percent sign or degree sign at its end that belongs to the whole of it."""
    mark = tokens[-1].text
    if len(tokens) < 2 or mark not in MARKS or _is_looser(tokens):
        return None
    formula = _number(source[: -len(mark)])
    if formula is None:
        raise Unreadable("a mark on something that is no number")
    return Value(formula, Unit(mark, MARKS[mark]))


def _is_looser(tokens: Sequence[Token]) -> bool:
    r"""Whether a mark at the end belongs to an operand rather than to the whole: ``1 + 5%``, ``\sin 30°``."""
    functions = FUNCTIONS - {"sqrt"}
    return any(token.text.lstrip("\\") in functions for token in tokens) or any(
        token.text in _SUMS for token in tokens[1:]
    )


def _cut(source: str) -> tuple[str, str]:
    """A number in figures and the words behind it, fonts removed."""
    tail = _TAIL.search(source)
    if tail is None:
        return source.strip(), ""
    return source[: tail.start()].strip(), " ".join(_BRACED.sub(r" \1 ", tail["tail"]).split())


def _number(text: str) -> Formula | None:
    """The formula of a text, in figures or in words; None if it is none."""
    if (spelt := spelt_number(text)) is not None:
        return Number(spelt)
    try:
        return parse_formula(tokens_of(text), text)
    except Unreadable:
        return None


def _scaled(formula: Formula, factor: Fraction) -> Formula:
    return formula if factor == 1 else Apply("mul", (formula, Number(factor)))


def _counted(source: str) -> Answer | None:
    r"""What must be told from a product of letters before the formula is read: ``5 cm``, ``5 ppm``, ``5\text{ m}``,
    ``5° C``.
    """
    if not source[-1:].isalpha() and source[-1:] not in "}.23":
        return None
    tail = _TAIL.search(source)
    if tail is None or not tail.start():
        return _labelled(source) if source[0].isalpha() or source[0] == "-" else None
    number, label = _cut(source)
    upright = "\\" in tail["tail"]
    if compound := _compound(source):
        return compound
    known = (
        upright or tail["tail"][0] == "°" or is_abbreviation(source[: tail.start()], label) or multiplied(label)[0] != 1
    )
    return _labelled(source) if known and number else None


def _compound(source: str) -> Answer | None:
    """``2 hours 30 minutes``: a larger and a smaller unit of one dimension."""
    match = _COMPOUND.fullmatch(_BRACED.sub(r" \1 ", source).strip())
    if match is None:
        return None
    units = unit_of(match[2]), unit_of(match[4])
    numbers = _number(match[1]), _number(match[3])
    if units[0] is None or units[1] is None or units[0].dimension != units[1].dimension or None in numbers:
        return None
    if units[0].factor <= units[1].factor:
        return None
    smaller = _scaled(numbers[1], units[1].factor / units[0].factor)  # type: ignore[arg-type]
    return Value(Apply("add", (numbers[0], smaller)), units[0])  # type: ignore[arg-type]


def _labelled(source: str) -> Answer | None:
    """A number, in figures or in words, and the words that scale it, measure it or say what is counted."""
    number, label = _cut(source)
    if not number:
        said = label.split()
        cut = next((at for at in range(len(said), 0, -1) if spelt_number(" ".join(said[:at])) is not None), 0)
        number, label = " ".join(said[:cut]), " ".join(said[cut:])
    formula = _number(number) if number else None
    if formula is None:
        return None
    factor, label = multiplied(label)
    scaled = _scaled(formula, factor)
    unit = unit_of(label) if label else None
    counted = frozenset[str]()
    if label and unit is None:
        found = label_words(label, one=formula == Number(Fraction(1)))
        if found is None:
            return None
        counted = found
    if names_in(formula) and "\\" not in source[len(number) :]:
        return None
    return Value(scaled, unit, counted, lax_unit=label.lower() in _LONG_TIMES)
