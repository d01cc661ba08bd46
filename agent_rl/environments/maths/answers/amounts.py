r"""Numbers with what they count or measure: a currency, a mark, a unit, a word that scales them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_rl.environments.maths.answers.formulas import Apply, Formula, names_in, neg
from agent_rl.environments.maths.answers.grammar import FUNCTIONS, formula_of
from agent_rl.environments.maths.answers.notation import Token, Unreadable
from agent_rl.environments.maths.answers.statements import (
    CURRENCY_SIGNS,
    MARKS,
    Answer,
    Unit,
    Value,
    is_abbreviation,
    same_dimension,
    scaled,
    unit_of,
)

_SIGN = "".join(CURRENCY_SIGNS)
_CURRENCY_FIRST = re.compile(
    rf"([-+]?)\s*(?:\\text\s*\{{)?\s*(?:([{_SIGN}])|(USD|EUR|GBP|INR|Rs)\.?(?![A-Za-z]))\s*\}}?\s*([-+]?)(.*)"
)
_CURRENCY_LAST = re.compile(rf"(.*?)\s*(?:\\text\s*\{{)?\s*([{_SIGN}])\s*\}}?")
_FONT = r"\\(?:text|textrm|textbf|textnormal|mathrm|mbox|textit|mathit|operatorname|rm)"
_PIECE = rf"(?:{_FONT}\s*\{{[^{{}}]*\}}|[A-Za-z]+(?![A-Za-z])\.?)(?:\s*\^\s*(?:\{{\s*-?[0-9]\s*\}}|-?[0-9]))?"
_TAIL = re.compile(
    rf"(?P<tail>(?<![\\A-Za-z])(?:°\s*)?{_PIECE}(?:(?:\s*(?:/|\\cdot(?![a-zA-Z]))\s*|\s*){_PIECE}){{0,7}})\s*$"
)
"""Words and units behind a number."""
_COUNTED = re.compile(r"(?:[a-z]+[ -])*(?!halves|thirds|quarters|[a-z]*ths)[a-z]+s\.?")
"""What a gold may count: ``ways``, ``right triangles``; parts, as ``tenths``, change the number."""
_BRACED = re.compile(rf"{_FONT}\s*\{{([^{{}}]*)\}}")


def money(source: str) -> Answer | None:
    """An amount with the sign or code of its currency before or behind it: ``¤5 million``, ``USD 5``, ``5 €``, ``¤5
    per hour``.
    """
    first, last = _CURRENCY_FIRST.fullmatch(source), _CURRENCY_LAST.fullmatch(source)
    if first:
        currency, amount, signs = CURRENCY_SIGNS.get(first[2] or "", first[3]), first[5], first[1] + first[4]
    elif last:
        currency, amount, signs = CURRENCY_SIGNS[last[2]], last[1], ""
    else:
        return None
    number, label = _cut(amount)
    factor, label = scaled(label)
    unit, other = unit_of(currency), unit_of(label) if label else None
    if label and not (other and unit and same_dimension(unit, other)):
        unit = unit_of(f"{currency} {label}")
    formula = _number(number)
    if len(signs) > 1 or unit is None or formula is None or names_in(formula):
        raise Unreadable("an amount of something else, or with two signs")
    formula = _multiplied(formula, factor)
    return Value(neg(formula) if signs == "-" else formula, unit)


def marked(tokens: Sequence[Token], source: str) -> Answer | None:
    r"""A formula with a percent sign or degree sign at its end that belongs to the whole of it, not to an operand as in
    ``1 + 5%`` and ``\sin 30°``.
    """
    mark = tokens[-1].text
    if len(tokens) < 2 or mark not in MARKS:
        return None
    if any(token.text.lstrip("\\") in FUNCTIONS - {"sqrt"} for token in tokens):
        return None
    if any(token.text in ("+", "-", r"\pm", r"\mp") for token in tokens[1:]):
        return None
    formula = _number(source[: -len(mark)])
    if formula is None:
        raise Unreadable("a mark on something that is no number")
    return Value(formula, Unit(mark, MARKS[mark]))


def measured(source: str, *, trusted: bool) -> Answer | None:
    r"""A number and the words that scale or measure it: ``5 cm``, ``5\text{ m}``, ``5° C``, ``5 million``."""
    tail = _TAIL.search(source)
    if tail is None or not tail.start():
        return None
    number, label = _cut(source)
    factor, label = scaled(label)
    upright = "\\" in tail["tail"]
    plain = not upright and tail["tail"][0] != "°" and factor is None
    if plain and not is_abbreviation(source[: tail.start()], label) and not re.search(r"[A-Za-z]{4}", label):
        return None
    formula, unit = _number(number), unit_of(label) if label else None
    if formula is None or (names_in(formula) and not upright):
        return None
    if label and unit is None and not (trusted and upright and _COUNTED.fullmatch(label)):
        return None
    return Value(_multiplied(formula, factor), unit)


def _cut(source: str) -> tuple[str, str]:
    """A number in figures and the words behind it, fonts removed."""
    tail = _TAIL.search(source)
    if tail is None:
        return source.strip(), ""
    return source[: tail.start()].strip(), " ".join(_BRACED.sub(r" \1 ", tail["tail"]).split())


def _number(text: str) -> Formula | None:
    """The formula of a text; None if it is none."""
    try:
        return formula_of(text)
    except Unreadable:
        return None


def _multiplied(formula: Formula, factor: Formula | None) -> Formula:
    return formula if factor is None else Apply("mul", (formula, factor))
