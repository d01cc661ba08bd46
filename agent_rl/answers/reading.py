r"""The answer that a piece of notation states: a value, list, set, tuple, interval, matrix, equation, inequality or words.

Which of two readings of a bracket holds, ``(1, 2)`` a point or an interval, is left open until it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from agent_rl.answers.evaluation import Undefined, variables_of
from agent_rl.answers.formulas import Apply, Formula, Name, Number, Unreadable, names_in, signs_of
from agent_rl.answers.grammar import MAX_CHARACTERS, Token, parse_formula, tokens_of
from agent_rl.answers.numbers import closed_value, rounds_to, same
from agent_rl.answers.slices import UPRIGHT, end_of, name_of, split, squeezed, unwrapped
from agent_rl.answers.statements import (
    MARKS,
    REALS,
    Answer,
    Bracketed,
    Comparison,
    Listing,
    Matrix,
    Named,
    Region,
    Value,
    Words,
    in_base,
)
from agent_rl.answers.text import cleaned
from agent_rl.answers.units import Unit, is_abbreviation, is_label, label_words, unit_of
from agent_rl.answers.vocabulary import FUNCTIONS, GREEK

MAX_ITEMS = 100


_RELATIONS = {
    "=": "=",
    ":=": "=",
    "<": "<",
    ">": ">",
    r"\le": "<=",
    r"\ge": ">=",
    r"\ne": "!=",
    r"\in": "in",
    r"\approx": "~",
}
_MATRIX = re.compile(
    r"(?:[(\[]\s*)?\\begin\s*\{([pb]?matrix|array)\}(?:\s*\{[lcr|\s]*\})?(.*)\\end\s*\{\1\}(?:\s*[)\]])?", re.DOTALL
)
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_DECIMAL_COMMA = re.compile(r"[^0-9,()\[\]]*(?:[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})|0,[0-9]+)[^0-9,()\[\]]*")
_CURRENCY = re.compile(r"[¤€£¥₹]|\bUSD\b|\bRs\.?(?=\s*[0-9])")
_WORDS = re.compile(r"""[^\W\d_]+(?:[ ,.'"()!?:-]+[^\W\d_]+)*[ .'")!?]*""")
_NUMBERED = re.compile(r"(?=.*[a-z]{3})(?:[A-Za-z]+|[0-9]+)(?:[ .:']+(?:[A-Za-z]+|[0-9]+)){1,2}")
_REALS_IN_WORDS = frozenset({"allrealnumbers", "allreals", "realnumbers"})
_EMPTY_IN_WORDS = frozenset({"nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset"})
_SHORT_WORDS = frozenset({"yes", "no", "odd"})
"""Words of up to three letters that are answers; others of this length are products of variables."""
_SUMS = frozenset({"+", "-", r"\pm", r"\mp"})
_TAIL = re.compile(
    r"(?:\\(?:text|textrm|textbf|textnormal|mathrm|mbox|textit|mathit|operatorname)\s*\{(?P<text>[^{}]*)\}"
    r"|(?<![\\A-Za-z])(?P<plain>[A-Za-z]+\.?(?:[\s/-]+[A-Za-z]+\.?)*))\s*(?:\^\s*\{?\s*(?P<power>[2-4])\s*\}?)?\s*$"
)


def readings(text: str) -> list[Answer]:
    """What a text may state: usually one answer, more where a comma between digits has several meanings. May be empty."""
    found: list[Answer] = []
    if len(text) > MAX_CHARACTERS:
        return found
    text = cleaned(text)
    for reading in (_without_thousands(text), text, _with_decimal_point(text)):
        if reading is None:
            continue
        try:
            answer = _read(reading)
        except Unreadable:
            continue
        if answer not in found:
            found.append(answer)
    return found


def _without_thousands(text: str) -> str | None:
    """The text with commas between groups of three digits removed, but not within brackets; None if there are none."""
    depth, position, parts = 0, 0, []
    for match in re.finditer(r"\\?[()\[\]{}]|" + _THOUSANDS.pattern, text):
        if match[0][-1] in "([":
            depth += 1
        elif match[0][-1] in ")]":
            depth -= 1
        elif match[0] in (r"\{", r"\}"):
            depth += 1 if match[0] == r"\{" else -1
        elif match[0] not in "{}" and not depth:
            parts += [text[position : match.start()], match[0].replace(",", "")]
            position = match.end()
    return "".join([*parts, text[position:]]) if parts else None


def _with_decimal_point(text: str) -> str | None:
    """The text with its only comma, between digits, as a decimal point; not where it would be one of thousands."""
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else None


class _Reader:
    """Reads token slices of one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def source(self, tokens: Sequence[Token]) -> str:
        return self.text[tokens[0].start : tokens[-1].end] if tokens else ""

    def answer(self, tokens: Sequence[Token]) -> Answer:
        """Separators bind weakest, then relations, then unions, then brackets."""
        tokens = unwrapped(tokens)
        for separators in (frozenset({";"}), frozenset({",", "and", "or"})):
            parts, found = split(tokens, separators)
            if found:
                joint: Literal["", "and", "or"] = "or" if "or" in found else "and" if "and" in found else ""
                return self.listing([part for part in parts if part], joint)
        if not tokens:
            raise Unreadable("empty")
        if any(token.text in (r"\ldots", r"\cdots", r"\dots", "...") for token in tokens):
            raise Unreadable("something is left out")
        sides, relations = split(tokens, _RELATIONS.keys())
        if relations:
            return self.relation(sides, [_RELATIONS[relation] for relation in relations])
        return self.single(tokens)

    def listing(
        self, parts: Sequence[Sequence[Token]], joint: Literal["", "and", "or"], *, braces: bool = False
    ) -> Answer:
        items: list[Answer] = []
        for part in parts:
            found = self.answer(part)
            before = items[-1] if items else None
            if isinstance(before, Named) and isinstance(found, Value):  # n = 2, 3, 4
                found = Named(before.name, found, before.parameters)
            items.extend(_signs(found))
        if len(items) > MAX_ITEMS or not items:
            raise Unreadable("too many or too few answers")
        return items[0] if len(items) == 1 and not braces else Listing(tuple(items), braces, joint)

    def single(self, tokens: Sequence[Token]) -> Answer:
        parts, operators = split(tokens, {r"\cup", r"\cap", r"\setminus"})
        if operators:
            if r"\cap" in operators or r"\setminus" in operators[:-1]:
                raise Unreadable("sets in a notation that is not read")
            sets = [self.answer(part) for part in parts]
            less = operators[-1] == r"\setminus"
            return Region(tuple(sets[:-1]), (sets[-1],)) if less else Region(tuple(sets))
        ratio, colons = split(tokens, {":"})
        if len(colons) == 1:
            return Value(Apply("div", (self.formula(ratio[0]), self.formula(ratio[1]))))
        source = self.source(tokens).strip()
        if source == r"\reals":
            return REALS
        matrix = _MATRIX.fullmatch(source)
        if matrix:
            rows = [row for row in re.split(r"\\\\", matrix[2]) if row.strip()]
            return Matrix(tuple(tuple(_read(cell) for cell in row.split("&")) for row in rows))
        bracketed = self.bracketed(tokens)
        return bracketed if bracketed is not None else self.value(tokens, source)

    def bracketed(self, tokens: Sequence[Token]) -> Answer | None:
        """What stands in one pair of brackets, unless they only group a formula."""
        opening, closing = tokens[0].text, tokens[-1].text
        french = {"]": "(", "[": "["}.get(opening), {"[": ")", "]": "]"}.get(closing)
        if len(tokens) > 3 and all(french) and (opening == "]" or closing == "["):
            parts, found = split(tokens[1:-1], {",", ";"})
            if len(found) == 1:
                return Bracketed(str(french[0]), tuple(map(self.answer, parts)), str(french[1]))
        if opening not in ("(", "[", r"\{", r"\langle") or end_of(tokens, 0) != len(tokens) - 1:
            return None
        inner = tokens[1:-1]
        parts, found = split(inner, {",", ";"})
        if opening == r"\{":
            bar, bars = split(inner, {"|", ":"})
            if len(bars) == 1:
                return self.set_builder(bar[0], bar[1])
            return self.listing([part for part in parts if part], "", braces=True)
        if not found and opening != r"\langle":
            return None
        if opening == "[" and all(part and part[0].text == "[" for part in parts):
            rows = [self.bracketed(part) for part in parts]
            if all(isinstance(row, Bracketed) for row in rows):
                return Matrix(tuple(row.items for row in rows if isinstance(row, Bracketed)))
        brackets = ("(", ")") if opening == r"\langle" else (opening, closing)
        return Bracketed(brackets[0], tuple(map(self.answer, parts)), brackets[1])

    def set_builder(self, element: Sequence[Token], condition: Sequence[Token]) -> Answer:
        name = self.source(split(element, {r"\in"})[0][0]).strip()
        answer = self.answer(condition)
        named = names_in(answer.sides[0]) | names_in(answer.sides[-1]) if isinstance(answer, Comparison) else {name}
        if isinstance(answer, Comparison) and len(answer.sides) == 3:
            named = names_in(answer.sides[1])
        if isinstance(answer, Named):
            named = {answer.name}
        if len(name) != 1 or named != {name}:
            raise Unreadable("a set in a notation that is not read")
        return answer

    def relation(self, sides: Sequence[Sequence[Token]], relations: Sequence[str]) -> Answer:
        if not all(sides):
            raise Unreadable("a relation without a side")
        if "~" in relations:
            return self.approximation(sides, relations)
        if relations == ["in"]:
            return self.named(sides[0], sides[1])
        if set(relations) == {"="}:
            return self.equation(sides)
        if "in" in relations:
            raise Unreadable("a membership among other relations")
        formulas = [self.formula(side) for side in sides]
        directions = {relation[0] for relation in relations}
        if len(formulas) > 3 or len(directions) > 1 or (len(formulas) == 3 and directions & {"!", "="}):
            raise Unreadable("a chain of relations in several directions")
        return Comparison(tuple(formulas), tuple(relations))

    def approximation(self, sides: Sequence[Sequence[Token]], relations: Sequence[str]) -> Answer:
        r"""``x = \pi \approx 3.14`` states the exact value, if the decimal is that value rounded."""
        if relations[-1] != "~" or "~" in relations[:-1]:
            raise Unreadable("an approximation before the end")
        decimal = self.formula(sides[-1])
        if len(sides) == 2 and name_of(sides[0], self.source(sides[0])):
            return self.named(sides[0], sides[1])
        exact = self.relation(sides[:-1], relations[:-1]) if len(sides) > 2 else self.answer(sides[0])
        value = exact.answer if isinstance(exact, Named) else exact
        if not isinstance(value, Value) or not isinstance(decimal, Number) or not decimal.value:
            raise Unreadable("an approximation of something else than a number")
        try:
            right = rounds_to(decimal.value, max(decimal.digits, 1), closed_value(value.formula))
        except (Undefined, KeyError):
            right = False
        if not right:
            raise Unreadable("an approximation that contradicts what it approximates")
        return exact

    def equation(self, sides: Sequence[Sequence[Token]]) -> Answer:
        """Something named and its value, a true statement about closed formulas, or an equation between the sides."""
        name = name_of(sides[0], self.source(sides[0]))
        if name is not None:
            named = [side for side in sides[:-1] if name_of(side, self.source(side)) is not None]
            if len(named) == len(sides) - 1 > 1:  # a = b = 0
                return Listing(tuple(self.named(side, sides[-1]) for side in named))
            if len(sides) > 2:
                self.require_equal([formula for formula in map(self.formula, sides[1:]) if self.closed([formula])])
            return self.named(sides[0], sides[-1])
        if len(sides) == 2 and name_of(sides[1], self.source(sides[1])) is not None:
            return self.named(sides[1], sides[0])
        formulas = [self.formula(side) for side in sides]
        if self.closed(formulas):
            self.require_equal(formulas)
            return self.answer(sides[-1])
        if len(formulas) != 2:
            raise Unreadable("a chain of equations")
        return Comparison(tuple(formulas), ("=",))

    def closed(self, formulas: Sequence[Formula]) -> bool:
        try:
            return not any(variables_of(formula) for formula in formulas)
        except Undefined as error:
            raise Unreadable(str(error)) from None

    def require_equal(self, formulas: Sequence[Formula]) -> None:
        """A chain whose links contradict each other states nothing."""
        if not all(same(formulas[-1], formula) for formula in formulas[:-1]):
            raise Unreadable("a false equation")

    def named(self, left: Sequence[Token], right: Sequence[Token]) -> Answer:
        source = self.source(left)
        name = name_of(left, source)
        if name is None:
            raise Unreadable("something without a name is said to be in a set")
        parameters: tuple[str, ...] = ()
        match = re.fullmatch(r"((?:[a-zA-Z]|(\\[a-zA-Z]+))[^()]*)\(([a-zA-Z](?:,[a-zA-Z])*)\)", name)
        if match and (not match[2] or match[2] in GREEK):
            name, parameters = match[1], tuple(match[3].split(","))
        answer = _joined(self.answer(right))
        if isinstance(answer, Listing) and answer.items:
            return replace(answer, items=tuple(Named(name, item, parameters) for item in answer.items))
        return Named(name, answer, parameters)

    def formula(self, tokens: Sequence[Token]) -> Formula:
        """A side of a relation."""
        value = self.value(tokens, self.source(tokens))
        if not isinstance(value, Value):
            raise Unreadable("a relation between words")
        return value.formula if value.unit is None or value.unit.dimension not in MARKS else in_base(value)

    def value(self, tokens: Sequence[Token], source: str) -> Answer:
        """A formula with its unit, or words."""
        if source == "∅" or squeezed(source) in _EMPTY_IN_WORDS:
            return Listing((), braces=True)
        if squeezed(source) in _REALS_IN_WORDS:
            return REALS
        if source.casefold() in _SHORT_WORDS:
            return Words(source.casefold())
        upright = UPRIGHT.fullmatch(source)
        if upright and upright[1].strip() and upright[1] != source:
            inner = re.sub(r"\\[,; ]", " ", upright[1]).strip()
            if inner.isalpha() and len(inner) > 1 and source.startswith(r"\text"):
                return Words(squeezed(inner))
            option = re.fullmatch(r"\(([A-Z])\)", inner)
            return _read(option[1] if option else inner)
        option = re.fullmatch(r"\(\s*(?:\\text(?:bf)?\s*\{)?\s*([A-Z])\s*\}?\s*\)", source)
        if option:
            return Value(Name(option[1]), letters=option[1])
        currency = _CURRENCY.sub("", source).strip()
        if currency != source:
            money = _read(currency)
            if isinstance(money, Value) and money.unit is None:
                return Value(money.formula, unit_of("dollar") if source.startswith("¤") else None)
            raise Unreadable("an amount of something else")
        if len(tokens) > 1 and tokens[-1].text in MARKS and not _is_looser(tokens):
            return Value(parse_formula(tokens[:-1], self.text), Unit(tokens[-1].text, MARKS[tokens[-1].text]))
        label = _TAIL.search(source)
        if label and label.start() and label["plain"] and is_abbreviation(source[: label.start()], label["plain"]):
            amount = _labelled(source[: label.start()], label)
            if amount is not None:
                return amount
        try:
            return Value(parse_formula(tokens, self.text), letters=source if source.isalpha() else "")
        except Unreadable:
            pass
        if label and label.start():
            found = _labelled(source[: label.start()], label)
            if found is not None:
                return found
        if _WORDS.fullmatch(source) and (not source.isalpha() or len(source) > 2):
            return Words(squeezed(source))
        if _NUMBERED.fullmatch(source) and not re.search(r"\b(?:is|are|was|were|be|equals?)\b", source):
            return Words(source.casefold())  # June 20
        raise Unreadable("neither a formula nor words")


def _is_looser(tokens: Sequence[Token]) -> bool:
    r"""Whether a mark at the end belongs to an operand rather than to the whole: ``1 + 5%``, ``\sin 30°``."""
    functions = FUNCTIONS - {"sqrt"}
    return any(token.text.lstrip("\\") in functions for token in tokens) or any(
        token.text in _SUMS for token in tokens[1:]
    )


def _labelled(number: str, label: re.Match[str]) -> Answer | None:
    """A number and what is counted, if the label is a unit or says nothing about the number."""
    words = label["text"] if label["text"] is not None else label["plain"]
    power = f"^{label['power']}" if label["power"] else ""
    words = re.sub(r"\\[,;: ]|~", " ", words).strip()
    unit = unit_of(words + power)
    spelt_out = (len(word) > 3 or unit_of(word) or word.lower() == "per" for word in re.findall(r"[A-Za-z]+", words))
    if label["text"] is None and unit is None and not all(spelt_out):
        return None
    if unit is None and words and not is_label(words):
        return None
    try:
        value = _read(number)
    except Unreadable:
        return None
    if not isinstance(value, Value) or value.unit or value.label:
        return None
    if label["text"] is None and names_in(value.formula):
        return None
    return Value(value.formula, unit, frozenset() if unit else label_words(words))


def _read(text: str) -> Answer:
    """One reading of cleaned text. Raises Unreadable."""
    text = re.sub(r"(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])|(?<=[0-9)])(and|or)(?=[a-zA-Z](?![a-zA-Z]))", r" \1\2 ", text)
    text = re.sub(r"(?<=[)\]}])\s*U\s*(?=[(\[\\])", r"\\cup ", text)
    return _joined(_Reader(text).answer(tokens_of(text)))


def _joined(answer: Answer) -> Answer:
    """The answer, or the list of those it stands for."""
    signed = _signs(answer)
    return signed[0] if len(signed) == 1 else Listing(tuple(signed))


def _signs(answer: Answer) -> list[Answer]:
    r"""The answers that a value with ``\pm`` stands for."""
    if not isinstance(answer, Value):
        return [answer]
    return [replace(answer, formula=formula) for formula in signs_of(answer.formula)]
