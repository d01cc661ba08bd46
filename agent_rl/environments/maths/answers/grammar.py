r"""The grammar that reads a formula from LaTeX or plain notation. No text is evaluated as code.

The grammar is small and strict: what has two readings (``1/2x``, ``2 3``) or an unknown command is Unreadable, and so
not equal to anything; a reading that drops part of the text could make a wrong answer right.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from agent_rl.environments.maths.answers.formulas import CALL, INFINITY, ONE, PI, Apply, Formula, Name, Number, neg
from agent_rl.environments.maths.answers.notation import DECORATIONS, FONTS, GREEK, Token, Unreadable, tokens_of, words

MAX_DIGITS = 1000
"""Of one literal number."""
FUNCTIONS = words(
    """sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh ln log lg exp sqrt abs gcd lcm max min
    floor ceil"""
)
_UNKNOWN_FUNCTIONS = frozenset("fghFGH")
"""Letters that name a function when a parenthesis follows; any other letter is a factor before it."""
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "ln": "log", "lg": "log"}
_SEVERAL_ARGUMENTS = frozenset({"gcd", "lcm", "max", "min", "log"})
_SIGNS = {"+": "", "-": "neg", r"\pm": "pm", r"\mp": "mp"}
_OPERATORS = {
    **dict.fromkeys(("*", r"\cdot", r"\times", r"\ast"), "mul"),
    **dict.fromkeys(("/", r"\div"), "div"),
    **dict.fromkeys((r"\bmod", r"\mod", "mod"), "mod"),
}
_BETWEEN = {r"\over": "div", r"\choose": "binomial"}
"""TeX's commands between two parts."""
_BRACKETS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_ROUNDED = {r"\lfloor": "floor", r"\lceil": "ceil"}
_INFINITIES = frozenset({"∞", r"\infty", "oo", "inf", "infinity"})
_FACTOR_COMMANDS = GREEK | FONTS | DECORATIONS | words(r"\frac \pi \binom \lfloor \lceil \infty")


def formula_of(text: str) -> Formula:
    """Read all of a cleaned text as one expression. Raises Unreadable."""
    return parse_formula(tokens_of(text))


def parse_formula(tokens: Sequence[Token]) -> Formula:
    """Read all of ``tokens`` as one expression. Raises Unreadable."""
    if not tokens:
        raise Unreadable("empty")
    parser = _Parser(list(tokens))
    formula = parser.whole()
    if parser.peek():
        raise Unreadable(f"unexpected {parser.peek()}")
    return formula


def number_of(text: str) -> Number:
    """The number that a token spells, a decimal with its significant digits. Raises Unreadable."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or "0")) > MAX_DIGITS:
        raise Unreadable("a number is too long")
    value = Fraction(mantissa) * Fraction(10) ** int(exponent or "0")
    if "." not in text and not exponent:
        return Number(value)
    return Number(value, len(mantissa.replace(".", "").lstrip("0")))


class _Parser:
    """Recursive descent; the precedences are sum, product, sign, power."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.bars = 0
        self.power_end = -1

    def peek(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def take(self) -> Token:
        if self.position >= len(self.tokens):
            raise Unreadable("it ends too early")
        self.position += 1
        return self.tokens[self.position - 1]

    def took(self, *texts: str) -> bool:
        """Take the next token if it is one of these."""
        found = self.peek() in texts and self.peek() != ""
        self.position += found
        return found

    def expect(self, text: str) -> None:
        if self.take().text != text:
            raise Unreadable(f"{text} is missing")

    def replace_last(self, token: Token, taken: int) -> None:
        """Put back what follows the first ``taken`` characters of the token that was taken last."""
        self.position -= 1
        self.tokens[self.position] = token._replace(text=token.text[taken:], start=token.start + taken)

    def whole(self) -> Formula:
        r"""All that a pair of braces encloses: ``{15 \over 17}``, ``{8 \choose 4}``, or a sum."""
        left = self.sum()
        if self.peek() not in _BETWEEN:
            return left
        return Apply(_BETWEEN[self.take().text], (left, self.sum()))

    def sum(self) -> Formula:
        terms = [self.product()]
        while (sign := self.peek()) in _SIGNS:
            self.take()
            terms.append(_signed(sign, self.product()))
        return terms[0] if len(terms) == 1 else Apply("add", tuple(terms))

    def product(self) -> Formula:
        result = self.sign()
        slash = False
        while True:
            operation = _OPERATORS.get(self.peek())
            if operation:
                self.take()
                result, slash = Apply(operation, (result, self.sign())), operation != "mul"
            elif self.starts_factor():
                if slash:
                    raise Unreadable("what follows a quotient could belong to its denominator or not")
                numbers = self.tokens[self.position].kind == self.tokens[self.position - 1].kind == "number"
                numbers = numbers and not self.after_power()
                mixed = self.mixed_number(result)
                if numbers and mixed is None:
                    raise Unreadable("two numbers side by side")
                result = mixed or Apply("mul", (result, self.power()))
            else:
                return result

    def sign(self) -> Formula:
        if (sign := self.peek()) in _SIGNS:
            self.take()
            return _signed(sign, self.power())
        return self.power()

    def mixed_number(self, whole: Formula) -> Formula | None:
        r"""``2\frac{1}{3}`` and ``2 1/3`` are sums, as everywhere in school notation.

        An improper fraction there, or another factor before, could be meant as a product: Unreadable.
        """
        sign, factors = 1, False
        if isinstance(whole, Apply) and whole.function in ("mul", "div"):
            whole, factors = whole.arguments[-1], True
        if isinstance(whole, Apply) and whole.function == "neg":
            whole, sign = whole.arguments[0], -1
        if not isinstance(whole, Number) or whole.digits or whole.value.denominator != 1:
            return None
        if self.tokens[self.position - 1].kind != "number":
            return None
        start = self.position
        if self.tokens[start].kind == "number":
            upper = self.atom()
            self.expect("/")
            part: Formula = Apply("div", (upper, self.atom()))
        elif self.peek() == r"\frac":
            part = self.atom()
        else:
            return None
        numerator, denominator = part.arguments if isinstance(part, Apply) else (part, part)
        if isinstance(numerator, Number) and isinstance(denominator, Number):
            proper = 0 < numerator.value < denominator.value and not numerator.digits and not denominator.digits
            if not proper or factors:
                raise Unreadable("a mixed number or a product")
            return Number(sign * (whole.value + numerator.value / denominator.value))
        self.position = start
        return None

    def starts_factor(self) -> bool:
        """Whether a factor follows without a sign of multiplication; a number can't, but for mixed numbers."""
        if self.position >= len(self.tokens):
            return False
        token = self.tokens[self.position]
        if token.kind == "letters" or token.text in ("(", "[", "{", "∞"):
            return True
        if token.kind == "number":
            previous, following = self.tokens[self.position - 1], self.peek(1)
            if previous.text in (")", "!") or (previous.kind == "number" and following == "/") or self.after_power():
                return True
            raise Unreadable("two numbers side by side")
        if token.text == "|":
            return not self.bars
        return token.kind == "command" and (token.text in _FACTOR_COMMANDS or token.text[1:] in FUNCTIONS)

    def after_power(self) -> bool:
        """Whether a number follows a power as its factor: ``2^{3}5``, ``2^3 3^2``. Without braces a space tells it
        apart.
        """
        if self.position != self.power_end:
            return False
        apart = self.tokens[self.position].start > self.tokens[self.position - 1].end
        return self.tokens[self.position - 1].text == "}" or (apart and self.peek(1) != "/")

    def power(self) -> Formula:
        base = self.atom()
        while self.peek() in ("!", "%", "°"):
            mark = self.take().text
            if mark == "!" and self.peek() == "!":
                raise Unreadable("double factorial")
            base = {
                "!": Apply("factorial", (base,)),
                "%": Apply("div", (base, Number(Fraction(100)))),
                "°": Apply("div", (Apply("mul", (base, PI)), Number(Fraction(180)))),
            }[mark]
        if not self.took("^", "**"):
            return base
        exponent = self.exponent()
        self.power_end = self.position
        if self.peek() == "!":
            raise Unreadable("the factorial of a power, or a power of a factorial")
        return Apply("pow", (base, exponent))

    def exponent(self) -> Formula:
        if self.peek() == "{":
            return self.group()
        if (sign := self.peek()) in ("+", "-"):
            self.take()
            return _signed(sign, self.exponent())
        return self.power()

    def group(self) -> Formula:
        """What TeX takes as one argument: braces, or one token (of a number, one digit)."""
        if self.took("{"):
            inner = self.whole()
            self.expect("}")
            return inner
        token = self.take()
        if token.kind == "number":
            if not token.text.isdigit():
                raise Unreadable("a decimal without braces")
            if len(token.text) > 1:
                self.replace_last(token, 1)
            return Number(Fraction(token.text[0]))
        self.position -= 1
        return self.atom()

    def atom(self) -> Formula:
        token = self.take()
        if token.kind == "number":
            return self.literal(token)
        if token.text == "(" and self.peek(1) == ")" and self.peek(2) == "_" and self.peek().isdigit():  # (1011)_2
            digits = self.take()
            self.take()
            return self.literal(digits)
        if token.text in _BRACKETS and token.text != r"\{":
            inner = self.whole() if token.text == "{" else self.sum()
            self.expect(_BRACKETS[token.text])
            return Apply(_ROUNDED[token.text], (inner,)) if token.text in _ROUNDED else inner
        if token.text == "|":
            self.bars += 1
            inner = self.sum()
            self.expect("|")
            self.bars -= 1
            return Apply("abs", (inner,))
        if token.text in _INFINITIES:
            return INFINITY
        if token.text in ("pi", r"\pi"):
            return PI
        if token.kind in ("letters", "command") and token.text.lstrip("\\") in FUNCTIONS:
            return self.function(token.text.lstrip("\\"))
        if token.kind == "letters":
            return self.letters(token)
        if token.text in GREEK:
            return self.named(token.text)
        if token.text in (r"\frac", r"\binom"):
            return Apply("div" if token.text == r"\frac" else "binomial", (self.group(), self.group()))
        if token.text in FONTS:
            return self.upright()
        if token.text in DECORATIONS:
            return Name(f"{token.text}{{{self.raw_group()}}}{self.subscript()}")
        raise Unreadable(f"unknown {token.text}")

    def literal(self, token: Token) -> Formula:
        number = number_of(token.text)
        if "." in token.text and self.took(r"\overline", r"\bar", r"\dot"):
            block = self.raw_group()
            if not block.isdigit():
                raise Unreadable("a repeating block that is no number")
            shift = Fraction(10) ** len(token.text.partition(".")[2])
            return Number(number.value + Fraction(int(block), 10 ** len(block) - 1) / shift)
        if self.took("_"):
            try:
                base = int(self.group_text())
                return Apply("plain base", (Number(Fraction(int(token.text, base))), Number(Fraction(base))))
            except ValueError:
                raise Unreadable("a number with a subscript that is no base") from None
        return number

    def function(self, name: str) -> Formula:
        if name == "sqrt":
            return self.root()
        base = self.group() if self.took("_") else None
        exponent: Formula | None = None
        if self.took("^", "**"):
            exponent = self.exponent()
            if base is None and self.took("_"):
                base = self.group()
        arguments = self.arguments()
        if exponent == neg(ONE) and name in ("sin", "cos", "tan"):
            name, exponent = f"arc{name}", None
        if base is not None and (name != "log" or len(arguments) != 1):
            raise Unreadable(f"a subscript of {name}")
        if base is not None or name == "lg":
            arguments = (*arguments, base or Number(Fraction(10)))
        name = _ALIASES.get(name, name)
        if len(arguments) > 1 and name not in _SEVERAL_ARGUMENTS:
            raise Unreadable(f"{name} of several arguments")
        result = Apply(name, arguments)
        return result if exponent is None else Apply("pow", (result, exponent))

    def arguments(self) -> tuple[Formula, ...]:
        """In parentheses, or else the product of what follows up to the next sign, function or parenthesis."""
        if self.peek() in ("(", "[", "{", r"\{"):
            closing = _BRACKETS[self.take().text]
            found = [self.sum()]
            while self.took(","):
                found.append(self.sum())
            self.expect(closing)
            return tuple(found)
        result = self.power()
        while self.starts_factor() and self.peek() not in ("(", "[", "|") and self.peek().lstrip("\\") not in FUNCTIONS:
            result = Apply("mul", (result, self.power()))
        return (result,)

    def root(self) -> Formula:
        index: Formula = Number(Fraction(2))
        if self.took("["):
            index = self.sum()
            self.expect("]")
        if self.peek() == "(":
            return Apply("root", (self.atom(), index))
        token = self.tokens[self.position] if self.position < len(self.tokens) else None
        if token is not None and token.kind == "number" and len(token.text) > 1:
            raise Unreadable("a root without braces over several digits")
        return Apply("root", (self.group(), index))

    def letters(self, token: Token) -> Formula:
        """Letters side by side are a product, up to three of them; more are a word, unless a function comes first."""
        word = token.text
        if len(word) == 1:
            return self.named(word)
        if word[:-1] in FUNCTIONS:
            self.replace_last(token, len(word) - 1)
            return self.function(word[:-1])
        if len(word) > 3:
            raise Unreadable(f"the word {word}")
        self.replace_last(token, 1)
        return Name(word[0])

    def named(self, letter: str) -> Formula:
        text = letter + self.subscript()
        while self.took("'"):
            text += "'"
        if self.peek() == "(" and (text[0] in _UNKNOWN_FUNCTIONS or "'" in text):
            return Apply(CALL + text, self.arguments())
        return Name(text)

    def upright(self) -> Formula:
        """One letter in another font is that letter; a known function's name is that function."""
        text = self.raw_group()
        if text in FUNCTIONS:
            return self.function(text)
        if len(text) == 1 and text.isalpha():
            return self.named(text)
        if text.isascii() and text.replace(".", "", 1).isdigit():
            return number_of(text)
        raise Unreadable(f"the words {text}")

    def subscript(self) -> str:
        return f"_{self.group_text()}" if self.took("_") else ""

    def group_text(self) -> str:
        """The text of a braced group or of one token."""
        return self.raw_group() if self.peek() == "{" else self.take().text

    def raw_group(self) -> str:
        """The tokens of a braced group, joined, without fonts and braces."""
        self.expect("{")
        parts: list[str] = []
        open_braces = 1
        while open_braces:
            text = self.take().text
            open_braces += (text == "{") - (text == "}")
            if text not in FONTS and text not in "{}":
                parts.append(text)
        return "".join(parts)


def _signed(sign: str, term: Formula) -> Formula:
    return Apply(_SIGNS[sign], (term,)) if _SIGNS[sign] else term
