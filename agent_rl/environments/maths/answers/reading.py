r"""The answer that a piece of notation states: a value, list, set, tuple, interval, matrix, equation, inequality or
words.

Which of two readings of a bracket holds, ``(1, 2)`` a point or an interval, is left open until it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from agent_rl.environments.maths.answers.amounts import spelt_number
from agent_rl.environments.maths.answers.clocks import clock_of
from agent_rl.environments.maths.answers.evaluation import Undefined, variables_of
from agent_rl.environments.maths.answers.formulas import Apply, Formula, Name, Number, Unreadable, names_in, signs_of
from agent_rl.environments.maths.answers.grammar import parse_formula
from agent_rl.environments.maths.answers.matrices import matrix_of
from agent_rl.environments.maths.answers.names import may_be_left_out, name_of
from agent_rl.environments.maths.answers.numbers import closed_value, rounds_to, same
from agent_rl.environments.maths.answers.slices import UPRIGHT, end_of, split, squeezed, trimmed, wrapped
from agent_rl.environments.maths.answers.statements import (
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
from agent_rl.environments.maths.answers.text import cleaned
from agent_rl.environments.maths.answers.tokens import MAX_CHARACTERS, Token, tokens_of
from agent_rl.environments.maths.answers.values import read_value

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
_SEPARATORS = frozenset({",", "and", "or"})
_OPTION = re.compile(r"\(\s*(?:\\(?:text|math)(?:bf|rm)?\s*\{)?\s*([A-Z])\s*\}?\s*\)")
_DEFINED = re.compile(r"((?:[a-zA-Z]|\\[a-zA-Z]+)[^()]*)\(([a-z](?:,[a-z])*)\)")
_INDEXED = re.compile(r"([a-zA-Z]_)([a-z])")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_DECIMAL_COMMA = re.compile(r"[^0-9,()\[\]]*(?:[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})|0,[0-9]+)[^0-9,()\[\]]*")


def readings(text: str) -> list[Answer]:
    """What a text may state: usually one answer, more where a comma between digits is ambiguous. May be empty."""
    found: list[Answer] = []
    if len(text) > MAX_CHARACTERS:
        return found
    text = cleaned(text)
    if text.endswith("?"):  # a question is no answer
        return found
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
    in_set = text.startswith("{") or r"\{" in text
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) and not in_set else None


class _Reader:
    """Reads token slices of one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def source(self, tokens: Sequence[Token]) -> str:
        return self.text[tokens[0].start : tokens[-1].end] if tokens else ""

    def answer(self, tokens: Sequence[Token]) -> Answer:
        """Separators bind weakest, then relations, then unions, then brackets."""
        if not tokens:
            raise Unreadable("empty")
        if wrapped(tokens):
            return self.in_braces(tokens[1:-1])
        parts, found = split(tokens, {";"})
        if found:
            return self.listing([part for part in parts if part], "")
        parts, found = split(tokens, _SEPARATORS)
        if found:
            return self.alternatives(tokens, found) or self.listing([part for part in parts if part], _joint(found))
        parts, found = split(tokens, {r"\mapsto"})
        if len(found) == 1:
            return self.mapping(*parts)
        if any(token.text in (r"\ldots", r"\cdots", r"\dots", "...") for token in tokens):
            raise Unreadable("something is left out")
        sides, relations = split(tokens, _RELATIONS.keys())
        if relations:
            return self.relation(sides, [_RELATIONS[relation] for relation in relations])
        return self.single(tokens)

    def in_braces(self, inner: Sequence[Token]) -> Answer:
        """What stands in braces of TeX: a set if it is a list or again such a set, else what the braces group."""
        parts, found = split(inner, {",", ";"})
        if found:
            return self.listing([part for part in parts if part], "", braces=True)
        answer = self.answer(inner)
        return Listing((answer,), braces=True) if wrapped(inner) and isinstance(answer, Listing) else answer

    def alternatives(self, tokens: Sequence[Token], separators: Sequence[str]) -> Answer | None:
        """``x = 1, y = 2 or x = 2, y = 1``: solutions of several variables; None where "or" only ends a list."""
        if "or" not in separators or len(set(separators)) == 1:
            return None
        parts = [trimmed(part, _SEPARATORS) for part in split(tokens, {"or"})[0]]
        answers = [self.answer(part) for part in parts if part]
        if all(isinstance(answer, Listing) and answer.items for answer in answers) and all(
            isinstance(item, Named) for answer in answers if isinstance(answer, Listing) for item in answer.items
        ):
            return Listing(tuple(answers), joint="or")
        return None

    def mapping(self, left: Sequence[Token], right: Sequence[Token]) -> Answer:
        r"""``f: x \mapsto x^2``, with or without its name."""
        match = re.fullmatch(r"(?:([a-zA-Z])\s*:\s*)?([a-z])", self.source(left).strip())
        if match is None:
            raise Unreadable("a mapping in a notation that is not read")
        return Named(match[1] or "f", self.answer(right), (match[2],))

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
        source = self.source(tokens).strip()
        if source == r"\reals":
            return REALS
        if (clock := clock_of(source)) is not None:
            return clock
        ratio, colons = split(tokens, {":", "to"})
        if colons:
            return self.ratio(ratio)
        if upright := UPRIGHT.fullmatch(source):
            return self.upright(upright[1].strip(), font=source.startswith(r"\text"))
        if option := _OPTION.fullmatch(source):
            return Value(Name(option[1]), letters=option[1])
        if (matrix := matrix_of(source, _read, _number)) is not None:
            return matrix
        bracketed = self.bracketed(tokens)
        return bracketed if bracketed is not None else self.value(tokens, source)

    def ratio(self, parts: Sequence[Sequence[Token]]) -> Answer:
        """``3:4`` is a quotient, ``3:4:5`` a tuple of quotients; words before a colon name what follows."""
        name = name_of(parts[0], self.source(parts[0])) if len(parts) == 2 else None
        if name is not None and re.search(r"[a-z]{3}", name) and may_be_left_out(name):
            return Named(name, self.answer(parts[1]))
        first, *others = map(self.formula, parts)
        if len(others) == 1:
            return Value(Apply("div", (first, others[0])))
        return Bracketed(":", tuple(Value(Apply("div", (other, first))) for other in others), ":")

    def upright(self, inner: str, *, font: bool) -> Answer:
        """What is set in another font as a whole."""
        inner = re.sub(r"\\[,; ]", " ", inner).strip()
        if not inner:
            raise Unreadable("empty")
        if font and inner.isalpha() and len(inner) > 1 and spelt_number(inner) is None:
            return Words(squeezed(inner))
        option = re.fullmatch(r"\(([A-Z])\)", inner)
        return _read(option[1] if option else inner)

    def bracketed(self, tokens: Sequence[Token]) -> Answer | None:
        """What stands in one pair of brackets, unless they only group a formula. Raises Unreadable."""
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
        if not found and opening != r"\langle" and not (opening == "[" and len(inner) > 2 and inner[0].text == "["):
            return None
        if opening == "[" and all(part[0].text == "[" and end_of(part, 0) == len(part) - 1 for part in parts if part):
            return Matrix(
                tuple(tuple(map(self.answer, split(part[1:-1], {","})[0])) for part in parts if part), nested=True
            )
        brackets = ("(", ")") if opening == r"\langle" else (opening, closing)
        return Bracketed(brackets[0], tuple(map(self.answer, parts)), brackets[1])

    def set_builder(self, element: Sequence[Token], condition: Sequence[Token]) -> Answer:
        parts, _ = split(element, {r"\in"})
        name = self.source(parts[0]).strip()
        if len(parts) > 1 and self.source(parts[1]).strip() != r"\reals":
            raise Unreadable("a set of other numbers than real ones")
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
        if not sides[0] and relations[0] == "=":  # = 5
            sides, relations = sides[1:], relations[1:]
            if not relations:
                return self.answer(sides[0])
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
        if (
            len(sides) == 2
            and isinstance(decimal, Number)
            and decimal.digits
            and name_of(sides[0], self.source(sides[0]))
        ):
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
                self.require_equal(list(map(self.formula, sides[1:])))
            return self.named(sides[0], sides[-1])
        if len(sides) == 2 and name_of(sides[1], self.source(sides[1])) is not None:
            return self.named(sides[1], sides[0])
        formulas = [self.formula(side) for side in sides[:-1]]
        formulas.append(self.formula(sides[-1], bare=not any(map(self.variables, formulas))))
        first, last = formulas[0], formulas[-1]
        if len(formulas) > 2 or not self.variables(first) | self.variables(last):
            self.require_equal(formulas)
        if self.variables(first) == self.variables(last) and same(first, last):
            return self.answer(sides[-1])
        return Comparison((first, last), ("=",))

    def variables(self, formula: Formula) -> set[str]:
        try:
            return variables_of(formula)
        except Undefined as error:
            raise Unreadable(str(error)) from None

    def require_equal(self, formulas: Sequence[Formula]) -> None:
        """A chain states its last side, unless another side in the same variables contradicts it."""
        last = formulas[-1]
        if not all(same(last, each) for each in formulas[:-1] if self.variables(each) == self.variables(last)):
            raise Unreadable("a false equation")

    def named(self, left: Sequence[Token], right: Sequence[Token]) -> Answer:
        source = self.source(left)
        name = name_of(left, source)
        if name is None:
            raise Unreadable("something without a name is said to be in a set")
        parameters: tuple[str, ...] = ()
        answer = _joined(self.answer(right))
        if match := _DEFINED.fullmatch(name):
            name, parameters = match[1], tuple(match[2].split(","))
        elif (match := _INDEXED.fullmatch(name)) and isinstance(answer, Value) and match[2] in names_in(answer.formula):
            name, parameters = match[1], (match[2],)
        if isinstance(answer, Listing) and answer.items:
            return replace(answer, items=tuple(Named(name, item, parameters) for item in answer.items))
        return Named(name, answer, parameters)

    def formula(self, tokens: Sequence[Token], *, bare: bool = False) -> Formula:
        """A side of a relation, with its unit as a factor unless it is to be ``bare``."""
        value = self.value(tokens, self.source(tokens))
        if not isinstance(value, Value):
            raise Unreadable("a relation between words")
        measured = value.unit is not None and value.unit.dimension not in MARKS
        measure = value.unit.dimension if value.unit and measured else " ".join(sorted(value.label))
        if measure and bare:
            return value.formula
        return Apply("mul", (in_base(value), Name(f"1 {measure}"))) if measure else in_base(value)

    def value(self, tokens: Sequence[Token], source: str) -> Answer:
        return read_value(tokens, source, self.text)


def _number(text: str) -> Formula:
    return parse_formula(tokens_of(text), text)


def _joint(separators: Sequence[str]) -> Literal["", "and", "or"]:
    """The word between the items of a list; none where there are two."""
    return (
        "" if {"and", "or"} <= set(separators) else "or" if "or" in separators else "and" if "and" in separators else ""
    )


def _read(text: str) -> Answer:
    """One reading of cleaned text. Raises Unreadable."""
    if (spelt := spelt_number(text)) is not None:
        return Value(Number(spelt))
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
