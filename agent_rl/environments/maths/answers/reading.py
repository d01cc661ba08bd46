r"""The answer that a piece of notation states: a value, list, set, tuple, interval, matrix, equation, inequality or
words.

Which of two readings of a bracket holds, ``(1, 2)`` a point or an interval, is left open until it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from agent_rl.environments.maths.answers.amounts import marked, measured, money
from agent_rl.environments.maths.answers.evaluation import Undefined, closed_value, rounds_to, same
from agent_rl.environments.maths.answers.formulas import (
    CONSTANTS,
    ONE,
    Apply,
    Formula,
    Name,
    Number,
    names_in,
    neg,
    signs_of,
)
from agent_rl.environments.maths.answers.grammar import FUNCTIONS, formula_of, parse_formula
from agent_rl.environments.maths.answers.notation import (
    DECORATIONS,
    GREEK,
    MAX_CHARACTERS,
    UPRIGHT,
    Token,
    Unreadable,
    cleaned,
    enclosed,
    end_of,
    split,
    squeezed,
    tokens_of,
    words,
)
from agent_rl.environments.maths.answers.statements import (
    EMPTY,
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
    all_named,
)
from agent_rl.environments.maths.rewards import MAYBE_LIST

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
_CALCULUS = words(r"\lim \sum \prod \int \iint \iiint \oint")
_SEPARATORS = frozenset({",", "and", "or"})
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_DECIMAL_COMMA = re.compile(r"[^0-9,()\[\]]*(?:[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})|0,[0-9]+)[^0-9,()\[\]]*")
_TWO_INTEGERS = re.compile(r"-?[0-9]+,[0-9]")
"""As a gold it is a list, as golds have it: one number of it is wrong, whatever it means as an answer."""
_OPTION = re.compile(r"\(\s*(?:\\(?:text|math)(?:bf|rm)?\s*\{)?\s*([A-Z])\s*\}?\s*\)")
_ORDINAL = re.compile(
    r"(?:\\text\s*\{)?(?=[0-9]*?(?:(?<!1)(?:1\D*st|2\D*nd|3\D*rd)|(?:1[0-9]|[04-9])\D*th)\W*$)([0-9]+)"
    r"(?:\^?\s*\{?\s*\\(?:text|textrm|mathrm)\s*\{\s*[a-z]{2}\s*\}\s*\}?|\^?\{?th\}?|(?<=[0-9])[a-z]{2}\})"
)
"""``12\\text{th}``, ``3^{\\text{rd}}``. Where the suffix is not upright, ``2^{nd}`` may be a formula."""
_TIME = re.compile(r"(?i)[0-9]\s*[ap]\.?\s*m\b")
"""A time of day, which is compared as a text and is no ratio."""
_MATRIX = re.compile(r"[pbB]?(?:small)?matrix|array")
_TRANSPOSED = re.compile(r"\^\s*\{?\s*(?:\\top|\\(?:mathsf|text)\s*\{T\}|T)\s*\}?")

_EMPTY_IN_WORDS = words("nosolution nosolutions norealsolution norealsolutions emptyset")
_REALS_IN_WORDS = words("allrealnumbers allreals realnumbers")
_SHORT_WORDS = words("yes no odd")
"""Words of up to three letters that are answers; others of this length are products of variables."""
_PLAIN_WORDS = re.compile(r"""[^\W\d_]+(?:[ ,.'"()!?:-]+[^\W\d_]+)*[ .'")!?]*""")
_NUMBERED_WORDS = re.compile(r"(?=.*[A-Za-z])(?:[A-Za-z]+|[0-9]+)(?:[ .:']+(?:[A-Za-z]+|[0-9]+)){1,7}\.?")

_INDEX = r"(?:\s*_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\?\w+)|\s*')*"
_LETTER = (
    rf"(?:[a-zA-Z]|(?:{'|'.join(map(re.escape, sorted(GREEK)))})(?![a-zA-Z])"
    rf"|(?:{'|'.join(map(re.escape, sorted(DECORATIONS)))})\s*\{{[^{{}}]*\}})"
)
_VARIABLE = _LETTER + _INDEX
_POINTS = (
    r"(?:m?\s*\\angle|\\triangle|\\(?:overline|vec|overrightarrow|bar|widehat|hat)(?![a-zA-Z])"
    r"|\{|\}|\s|[A-Z](?:_\{?\w\}?|')*)+"
)
_NAME = re.compile(
    rf"{_VARIABLE}|\(\s*{_VARIABLE}(?:\s*,\s*{_VARIABLE})+\s*\)|{_POINTS}"
    r"|\\begin\s*\{vmatrix\}.*\\end\s*\{vmatrix\}"
    rf"|(?:{_VARIABLE}|{_POINTS}):\s*(?:{_VARIABLE}|{_POINTS})"
    rf"|\\(?:max|min|sup|inf|det|deg|dim)(?![a-zA-Z])\s*(?:{_VARIABLE}(?:\s*\([^()]*\))?)?"
    rf"|\\?(?:sin|cos|tan|cot|sec|csc)(?:\s*\(\s*{_VARIABLE}\s*\)|(?![a-z])\s*(?:\\angle\s*[A-Z]+|{_VARIABLE}))"
    r"|\|\s*(?:[A-Z]{1,2}|\\(?:overline|vec|overrightarrow)\s*\{[^{}]*\})\s*\||\\\|[^|=<>]+\\\||\[\s*[A-Z]{3,}\s*\]"
)
"""What an equation may name: a variable, a tuple of them, ``AB``, ``|AB|``, a ratio, determinant, ``\\max f``."""
_FUNCTION = re.compile(
    rf"(?:[fghpquvFGHPQRSTEVCNdDLWM]|n(?=\s*\(\s*[A-Z])|\\(?:phi|varphi|psi|Phi|Psi|Gamma|zeta|mu|sigma|tau|det|dim|deg"
    rf"|Pr)(?![a-zA-Z])|\\mathbb\s*\{{[EPV]\}}|(?:Var|Cov|Area|area|Pr|det|dim|rank|tr|deg))"
    rf"{_INDEX}(?:\s*\^\s*(?:\{{-1\}}|-1))?\s*(?=[(\[])"
)
_QUANTITIES = words(
    """the a an of in for its is number total sum area perimeter volume length width height radius diameter angle
    distance speed time cost price age probability average mean median mode product quotient difference ratio
    remainder slope answer value result function maximum minimum max min circumference side base triangle"""
)
"""Words that name what a number is; other words, as ``not``, may change it."""
_DEFINED = re.compile(r"((?:[a-zA-Z]|\\[a-zA-Z]+)[^()]*)\(([a-z](?:,[a-z])*)\)")
_INDEXED = re.compile(r"([a-zA-Z]_)([a-z])")


def readings(text: str, *, trusted: bool = False) -> list[Answer]:
    r"""What a text may state: usually one answer, more where a comma between digits is ambiguous. May be empty.

    ``trusted``: upright words behind a number that are no unit say what is counted, as in golds: ``5\text{ ways}``.
    """
    found: list[Answer] = []
    if len(text) > MAX_CHARACTERS:
        return found
    text = cleaned(text)
    if text.endswith("?"):  # a question is no answer
        return found
    unclear = trusted and MAYBE_LIST.fullmatch(text)
    ordinal = _ORDINAL.fullmatch(text)
    for reading in (
        None if unclear else _without_thousands(text),
        text,
        None if trusted and _TWO_INTEGERS.fullmatch(text) else _with_decimal_point(text),
        ordinal and ordinal[1],
    ):
        for lenient in (False, True)[: 1 + trusted]:
            try:
                answer = _joined(_Reader(reading, trusted=lenient).answer(tokens_of(reading))) if reading else None
            except Unreadable:
                continue
            if answer and answer not in found:
                found.append(answer)
    return found


def may_be_left_out(name: str) -> bool:
    """Whether "name = 5" says 5. Words must be those of a quantity: "not x = 5" does not say 5."""
    if re.search(r"[a-z]{2}", name) is None or re.search(r"[\\(_]", name):
        return True
    return all(word.isupper() or word.lower() in _QUANTITIES for word in re.findall(r"[A-Za-z-]+", name))


def _without_thousands(text: str) -> str | None:
    """The text with commas between groups of three digits removed, but not within brackets; None if there are none."""
    depth, position, parts = 0, 0, []
    for match in re.finditer(r"\\[{}]|[()\[\]]|" + _THOUSANDS.pattern, text):
        if match[0][-1] in "([{":
            depth += 1
        elif match[0][-1] in ")]}":
            depth -= 1
        elif not depth:
            parts += [text[position : match.start()], match[0].replace(",", "")]
            position = match.end()
    return "".join([*parts, text[position:]]) if parts else None


def _with_decimal_point(text: str) -> str | None:
    """The text with its only comma, between digits, as a decimal point; not where it would be one of thousands."""
    in_set = text.startswith("{") or r"\{" in text
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) and not in_set else None


class _Reader:
    """Reads token slices of one text."""

    def __init__(self, text: str, *, trusted: bool) -> None:
        self.text, self.trusted = text, trusted

    def source(self, tokens: Sequence[Token]) -> str:
        return self.text[tokens[0].start : tokens[-1].end].strip() if tokens else ""

    def answer(self, tokens: Sequence[Token]) -> Answer:
        """Separators bind weakest, then relations, then unions, then brackets."""
        if not tokens:
            raise Unreadable("empty")
        if enclosed(tokens, "{"):
            return self.in_braces(tokens[1:-1])
        parts, found = split(tokens, {";"})
        if found:
            return self.listing(parts)
        parts, found = split(tokens, _SEPARATORS)
        if found:
            return self.alternatives(tokens, found) or self.listing(parts, _joint(found))
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
            return self.listing(parts, braces=True)
        answer = self.answer(inner)
        return Listing((answer,), braces=True) if enclosed(inner, "{") and isinstance(answer, Listing) else answer

    def alternatives(self, tokens: Sequence[Token], separators: Sequence[str]) -> Answer | None:
        """``x = 1, y = 2 or x = 2, y = 1``: solutions of several variables; None where "or" only ends a list."""
        if "or" not in separators or len(set(separators)) == 1:
            return None
        parts = [[part for part in split(each, _SEPARATORS)[0] if part] for each in split(tokens, {"or"})[0]]
        answers = [self.listing(part) for part in parts if part]
        if all(isinstance(answer, Listing) and answer.items and all_named(answer.items) for answer in answers):
            return Listing(tuple(answers), joint="or")
        return None

    def listing(
        self, parts: Sequence[Sequence[Token]], joint: Literal["", "and", "or"] = "", *, braces: bool = False
    ) -> Answer:
        items: list[Answer] = []
        for part in filter(None, parts):
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
            sets = tuple(map(self.answer, parts))
            return Region(sets[:-1], sets[-1:]) if operators[-1] == r"\setminus" else Region(sets)
        source = self.source(tokens)
        if source == r"\reals":
            return REALS
        parts, colons = split(tokens, {":", "to"})
        if colons:
            return self.ratio(parts)
        if upright := UPRIGHT.fullmatch(source):
            return self.upright(upright[1].strip(), font=source.startswith(r"\text"))
        if option := _OPTION.fullmatch(source):
            return Value(Name(option[1]), letters=option[1])
        return self.matrix(tokens) or self.bracketed(tokens) or self.value(tokens)

    def ratio(self, parts: Sequence[Sequence[Token]]) -> Answer:
        """``3:4`` is a quotient, ``3:4:5`` a tuple of quotients; a quantity before a colon names what follows."""
        if _TIME.search(self.text):
            return _in_words(self.text)
        name = self.name(parts[0])
        if len(parts) == 2 and name and re.search(r"[a-z]{3}", name) and may_be_left_out(name):
            return Named(name, self.answer(parts[1]))
        try:
            first, *others = map(self.formula, parts)
        except Unreadable:
            return _in_words(self.text)
        quotients = [Value(Apply("div", pair)) for pair in ((first, other) for other in others)]
        return quotients[0] if len(others) == 1 else Bracketed("::", tuple(quotients))

    def upright(self, inner: str, *, font: bool) -> Answer:
        """What is set in another font as a whole."""
        if font and inner.isalpha() and len(inner) > 1:
            return Words(squeezed(inner))
        reader = _Reader(inner, trusted=self.trusted)
        return reader.answer(tokens_of(inner))

    def matrix(self, tokens: Sequence[Token]) -> Answer | None:
        """An environment of TeX, in brackets or not, with a factor before it or transposed."""
        begin = next((place for place, token in enumerate(tokens) if token.text == r"\begin"), None)
        if begin is None or split(tokens[:begin], _RELATIONS.keys() | {",", "&"})[1]:
            return None
        before = begin - (begin > 0 and tokens[begin - 1].text in ("(", "["))
        end = end_of(tokens, before)
        last = end if before < begin else end + 3
        kind = tokens[begin + 2].text if len(tokens) > begin + 2 else ""
        if end < 0 or _MATRIX.fullmatch(kind) is None:
            return None
        body = tokens[begin + 4 : end - 4 if before < begin else end]
        if kind == "array" and body and body[0].text == "{":
            body = body[end_of(body, 0) + 1 :]
        body = [token for token in body if token.text != r"\hline"]
        rows = [split(row, {"&"})[0] for row in split(body, {r"\\"})[0] if row]
        if len({len(row) for row in rows}) != 1:
            raise Unreadable("a matrix with rows of several lengths")
        found = Matrix(tuple(tuple(map(self.answer, row)) for row in rows))
        if rest := self.source(tokens[last + 1 :]):
            if not _TRANSPOSED.fullmatch(rest) or len(found.rows) > 1 < len(found.rows[0]):
                return None
            found = Matrix(tuple(zip(*found.rows, strict=True)))
        factor = self.source(tokens[:before])
        if not factor:
            return found
        scale = formula_of(factor + "1" if factor in ("-", "+") else re.sub(r"\s*(?:\\cdot|\\times|\*)$", "", factor))
        return Matrix(tuple(tuple(_times(entry, scale) for entry in row) for row in found.rows))

    def bracketed(self, tokens: Sequence[Token]) -> Answer | None:
        """What stands in one pair of brackets, unless they only group a formula. Raises Unreadable."""
        opening, closing = tokens[0].text, tokens[-1].text
        inner = tokens[1:-1]
        if len(tokens) > 3 and opening + closing in ("][", "]]", "[["):  # ]0,1[ leaves its ends out
            parts, found = split(inner, {",", ";"})
            if len(found) == 1:
                brackets = ("(" if opening == "]" else "[") + (")" if closing == "[" else "]")
                return Bracketed(brackets, tuple(map(self.answer, parts)))
        if opening not in ("(", "[", r"\{", r"\langle") or end_of(tokens, 0) != len(tokens) - 1:
            return None
        parts, found = split(inner, {",", ";"})
        if opening == r"\{":
            bar, bars = split(inner, {"|", ":"})
            return self.set_builder(*bar) if len(bars) == 1 else self.listing(parts, braces=True)
        rows = split(inner, {";"})[0] if opening == "[" and "," in found and ";" in found else []
        if rows:  # [1, 2; 3, 4]
            return Matrix(tuple(tuple(map(self.answer, split(row, {","})[0])) for row in rows))
        nested = opening == "[" and all(enclosed(part, "[") for part in parts)
        if not found and opening != r"\langle" and not nested:
            return None
        if nested:
            return Matrix(tuple(tuple(map(self.answer, split(part[1:-1], {","})[0])) for part in parts), nested=True)
        return Bracketed("()" if opening == r"\langle" else opening + closing, tuple(map(self.answer, parts)))

    def set_builder(self, element: Sequence[Token], condition: Sequence[Token]) -> Answer:
        parts, _ = split(element, {r"\in"})
        name = self.source(parts[0])
        answer = self.answer(condition)
        about: set[str] = set()
        if isinstance(answer, Comparison):
            about = names_in(answer.sides[1]) if len(answer.sides) == 3 else set().union(*map(names_in, answer.sides))
        elif isinstance(answer, Named):
            about = {answer.name}
        if about != {name} or len(name) != 1 or (len(parts) > 1 and self.source(parts[1]) != r"\reals"):
            raise Unreadable("a set in a notation that is not read, or of other numbers than real ones")
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
        formulas = tuple(map(self.formula, sides))
        directions = {relation[0] for relation in relations}
        if len(formulas) > 3 or len(directions) > 1 or (len(formulas) == 3 and directions & {"!", "="}):
            raise Unreadable("a chain of relations in several directions")
        return Comparison(formulas, tuple(relations))

    def approximation(self, sides: Sequence[Sequence[Token]], relations: Sequence[str]) -> Answer:
        r"""``x \approx 11`` states the number; ``x = \pi \approx 3.14`` the exact value, if that is rounded right."""
        decimal = self.formula(sides[-1])
        if relations.index("~") != len(relations) - 1 or not isinstance(decimal, Number) or not decimal.value:
            raise Unreadable("an approximation of something else than a number")
        if len(sides) == 2 and self.name(sides[0]):
            return self.named(*sides)
        exact = self.relation(sides[:-1], relations[:-1]) if len(sides) > 2 else self.answer(sides[0])
        value = exact.answer if isinstance(exact, Named) else exact
        try:
            if not isinstance(value, Value) or not rounds_to(
                decimal.value, max(decimal.digits, 1), closed_value(value.formula)
            ):
                raise Unreadable("an approximation that contradicts what it approximates")
        except Undefined as error:
            raise Unreadable(str(error)) from None
        return exact

    def equation(self, sides: Sequence[Sequence[Token]]) -> Answer:
        """Something named and its value, a true statement about closed formulas, or an equation between the sides."""
        if not _CALCULUS & {token.text for token in sides[-1]}:  # what a sum or limit comes to is not looked at
            sides = [side for side in sides if not _CALCULUS & {token.text for token in side}]
        if len(sides) == 1:
            return self.answer(sides[0])
        named = [side for side in sides[:-1] if self.name(side) is not None]
        if named and named[0] is sides[0]:
            if len(named) == len(sides) - 1 > 1:  # a = b = 0
                return Listing(tuple(self.named(side, sides[-1]) for side in named))
            if len(sides) > 2:
                self.require_equal(list(map(self.formula, sides[1:])))
            return self.named(sides[0], sides[-1])
        if len(sides) == 2 and self.name(sides[1]) is not None:
            return self.named(sides[1], sides[0])
        formulas = [self.formula(side) for side in sides[:-1]]
        formulas.append(self.formula(sides[-1], bare=not any(map(names_in, formulas))))
        first, last = formulas[0], formulas[-1]
        if len(formulas) > 2 or not names_in(first) | names_in(last):
            self.require_equal(formulas)
        if names_in(first) == names_in(last) and same(first, last):
            return self.answer(sides[-1])
        return Comparison((first, last), ("=",))

    def require_equal(self, formulas: Sequence[Formula]) -> None:
        """A chain states its last side, unless another side in the same variables contradicts it."""
        last = formulas[-1]
        if not all(same(last, each) for each in formulas[:-1] if names_in(each) == names_in(last)):
            raise Unreadable("a false equation")

    def name(self, tokens: Sequence[Token]) -> str | None:
        """The name that a left side is, spelt in one way; None if it is a formula, whose value is asked for."""
        source = self.source(tokens)
        plain = re.sub(r"\s+", " ", UPRIGHT.sub(r"\1", source)).strip()
        if plain in CONSTANTS or not re.search(r"[^\W\d_]", plain) or len(plain) > 200:
            return None
        if _NAME.fullmatch(plain):
            return re.sub(r"_\{(\w+)\}", r"_\1", plain.replace(" ", ""))
        spoken = re.findall(r"[A-Za-z-]+", re.sub(r"\\[a-zA-Z]+", "", plain))
        longest = max(map(len, re.findall(r"[a-z]+", " ".join(spoken))), default=0)
        if _PLAIN_WORDS.fullmatch(plain) and (longest > 3 or (longest == 3 and may_be_left_out(plain))):
            return " ".join(word if word.isupper() else word.lower() for word in spoken)
        bracket = next((at for at, token in enumerate(tokens) if token.text in ("(", "[")), 0)
        closes = bracket and end_of(tokens, bracket) == len(tokens) - 1
        head = _FUNCTION.match(plain)
        return plain.replace(" ", "") if closes and head and plain[head.end()] in "([" else None

    def named(self, left: Sequence[Token], right: Sequence[Token]) -> Answer:
        name = self.name(left)
        if name is None:
            raise Unreadable("something without a name is said to be in a set")
        parameters: tuple[str, ...] = ()
        answer = _joined(self.answer(right))
        if (match := _DEFINED.fullmatch(name)) and match[1].lstrip("\\") not in FUNCTIONS:
            name, parameters = match[1], tuple(match[2].split(","))
        elif (match := _INDEXED.fullmatch(name)) and isinstance(answer, Value) and match[2] in names_in(answer.formula):
            name, parameters = match[1], (match[2],)
        if isinstance(answer, Listing) and answer.items:
            return replace(answer, items=tuple(_with_name(name, item, parameters) for item in answer.items))
        return _with_name(name, answer, parameters)

    def formula(self, tokens: Sequence[Token], *, bare: bool = False) -> Formula:
        """A side of a relation, with its unit as a factor unless it is to be ``bare``."""
        value = self.value(tokens)
        if not isinstance(value, Value):
            raise Unreadable("a relation between words")
        if value.unit is None or value.marked:
            return value.in_base
        return value.formula if bare else Apply("mul", (value.in_base, Name(f"1 {value.unit.dimension}")))

    def value(self, tokens: Sequence[Token]) -> Answer:
        """A formula with its unit, or words. Raises Unreadable."""
        source = self.source(tokens)
        if not tokens:
            raise Unreadable("empty")
        if source == "∅" or squeezed(source) in _EMPTY_IN_WORDS:
            return EMPTY
        if squeezed(source) in _REALS_IN_WORDS:
            return REALS
        if source.casefold() in _SHORT_WORDS:
            return Words(source.casefold())
        found = money(source) or marked(tokens, source) or measured(source, trusted=self.trusted)
        if found is not None:
            return found
        try:
            return Value(parse_formula(tokens), letters=source if source.isalpha() else "")
        except Unreadable:
            return _in_words(source)


def _in_words(source: str) -> Answer:
    """Words, compared by their letters; with figures among them, ``June 20``, as they are spelt. Raises Unreadable."""
    if _PLAIN_WORDS.fullmatch(source) and (not source.isalpha() or len(source) > 2):
        return Words(squeezed(source))
    spelt = " ".join(UPRIGHT.sub(r" \1 ", source).split())
    if _NUMBERED_WORDS.fullmatch(spelt):
        named = re.search(r":|[A-Za-z]{3}", spelt)  # 1:51 PM, June 20, but not 5 MW
        return Words((spelt.casefold() if named else spelt).rstrip("."))
    raise Unreadable("neither a formula nor words")


def _times(entry: Answer, factor: Formula) -> Answer:
    """The product, still to be worked out; but a fraction before a matrix is the denominator of each entry."""
    if not isinstance(entry, Value) or entry.unit:
        raise Unreadable("a factor before what is no matrix of numbers")
    if not isinstance(factor, Apply) or factor.function != "div":
        return Value(neg(entry.formula) if factor == neg(ONE) else Apply("mul", (factor, entry.formula)))
    above, below = factor.arguments
    return Value(Apply("div", (entry.formula if above == ONE else Apply("mul", (above, entry.formula)), below)))


def _with_name(name: str, answer: Answer, parameters: tuple[str, ...]) -> Answer:
    """A named answer; ``(x, y) = (1, 2)`` as ``x = 1, y = 2``."""
    names = name[1:-1].split(",") if name.startswith("(") else []
    if isinstance(answer, Bracketed) and len(names) == len(answer.items):
        return Listing(tuple(map(Named, names, answer.items)))
    return Named(name, answer, parameters)


def _joint(separators: Sequence[str]) -> Literal["", "and", "or"]:
    """The word between the items of a list; none where there are two."""
    if {"and", "or"} <= set(separators):
        return ""
    return "or" if "or" in separators else "and" if "and" in separators else ""


def _joined(answer: Answer) -> Answer:
    """The answer, or the list of those it stands for."""
    signed = _signs(answer)
    return signed[0] if len(signed) == 1 else Listing(tuple(signed))


def _signs(answer: Answer) -> list[Answer]:
    r"""The answers that a value with ``\pm`` stands for."""
    if not isinstance(answer, Value):
        return [answer]
    return [replace(answer, formula=formula) for formula in signs_of(answer.formula)]
