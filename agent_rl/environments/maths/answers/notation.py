r"""The notation of an answer: delimiters and type-setting removed, synonyms spelt alike, cut into tokens.

``cleaned`` spells a text in one way, ``tokens_of`` cuts it, ``split`` finds what no bracket encloses.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

MAX_CHARACTERS = 1500


class Unreadable(Exception):  # noqa: N818  it is an outcome of reading, not a fault
    """The text is no formula or answer, none with one meaning, or one that is too large."""


def words(text: str) -> frozenset[str]:
    """A vocabulary."""
    return frozenset(text.split())


GREEK = words(
    r"""\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi
    \rho \varrho \sigma \varsigma \tau \upsilon \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi
    \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar \aleph"""
)
FONTS = words(
    r"""\text \textrm \textbf \textit \textnormal \textsf \texttt \mathrm \mathbf \mathit \mathsf \mathnormal
    \operatorname \boldsymbol \bm \mbox \hbox \emph \underline"""
)
DECORATIONS = words(
    r"""\hat \widehat \bar \overline \vec \overrightarrow \tilde \widetilde \dot \ddot \mathcal \mathscr \mathfrak
    \mathbb"""
)
UPRIGHT = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(FONTS)))})\s*\{{([^{{}}]*)\}}")
"""One group in a font."""

_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_FINAL_MARKS = re.compile(r"(?<![.,;])[.,;。]$|\\+[,;!: ]?$|~$|\\q?quad$")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_DOLLAR = re.compile(r"(?<!\\)\$")
_DOLLARS = re.compile(r"(?<!\\)\$\s*([-+]?[0-9.,]+.*)|([-+]?[0-9.,]+)\s*\$", re.DOTALL)
_AROUND = (("**", "**"), ("`", "`"), ('"', '"'), (r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$"))
"""What may stand around an answer without being part of it."""

_TRANSLATION = str.maketrans({
    **dict.fromkeys("−–—﹣－", "-"),
    **dict.fromkeys("×∙·⋅∗✕", r" \cdot "),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u200a\u3000", " "),
    "÷": r" \div ", "≤": r" \le ", "≥": r" \ge ", "⩽": r" \le ", "⩾": r" \ge ", "≠": r" \ne ", "≈": r" \approx ",
    "±": r" \pm ", "∓": r" \mp ", "π": r"\pi ", "√": r"\sqrt ", "∪": r" \cup ", "∩": r" \cap ", "∈": r" \in ",
    "∖": r" \setminus ", "²": "^{2}", "³": "^{3}", "⁴": "^{4}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "，": ", ", "、": ", ", "；": "; ", "（": "(", "）": ")", "＝": "=", "：": ":",
    "。": ".", "％": "%", "‰": r"\text{ permille}", "º": "°", "⟨": r"\langle ", "⟩": r"\rangle ", "′": "'",
    "’": "'", "＋": "+", "＜": "<", "＞": ">", "\u200b": "",
})  # fmt: skip
_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\{\s*\\rm(?![a-zA-Z])([^{}]*)\}", r"\\text{\1}"),
        (r"^\\boxed\s*\{((?:(?!\\boxed).)*?)\}?$", r"\1"),
        (r"\\boxed\s*(?=\{)", ""),
        (r"\s([-+*=_])\1{2,}\s", ", "),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])(?:\.(?![0-9]))?", ""),
        (r"\\(?:(?:display|text)style|(?:no)?limits|rm|bf|it|therefore)(?![a-zA-Z])", ""),
        (r"(?<=[0-9])(?:\{,\}|,\s*\\!|\\,|\\!)\s*(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<=[0-9])\{[,.]\}(?=[0-9])", "."),
        (r"(?<![0-9])\.(?=\\(?:overline|bar|dot)(?![a-zA-Z]))", "0."),
        (r"(?<=[0-9]\.)\(([0-9]+)\)", r"\\overline{\1}"),
        (r"(?<!\\)\\(?:[,;: ]|q?quad|hfill(?![a-zA-Z]))|~", " "),
        (r"\\!|\\mathstrut|\\phantom\s*(?:\{[^{}]*\}|.)", ""),
        (r"\\hspace\s*\{[^{}]*\}", " "),
        (r"\\(?:[dtc]|nice|s)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:textcolor|color)\s*\{[a-zA-Z]+\}|\\fbox(?![a-zA-Z])", ""),
        (
            r"\\frac\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*\}\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*\}",
            r"\\text{\1/\2}",
        ),
        (r"(\\\\)\s*\[-?[0-9.]+\s*(?:pt|em|ex|mm|cm)\]", r"\1"),
        (r"^(?:negative|minus)\s+(?=[0-9\\])", "-"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:leqslant|leq)(?![a-zA-Z])|<=|=<", r"\\le "),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|!=|\\not\s*=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])|\\circ\s*$", "°"),
        (r"\\text\s*\{\s*degrees?\s*\}|\bdegrees?\b", "°"),
        (r"\^\s*(?:\\prime|\{\s*\\prime\s*\})", "'"),
        (r"\\[lr]?vert(?![a-zA-Z])|\\mid(?![a-zA-Z])", "|"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\lbrack(?![a-zA-Z])", "["),
        (r"\\rbrack(?![a-zA-Z])", "]"),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\\(?:R|reals)(?![a-zA-Z])|\\mathbb\s*\{?R\}?|\\mathbf\s*\{R\}|ℝ", r"\\reals "),
        (r"\\(?:emptyset|varnothing)(?![a-zA-Z])|\\\{\s*\\\}|ø", "∅"),
        (r"\\infty(?![a-zA-Z])|\binfinity\b", "∞"),
        (r"\\backslash(?![a-zA-Z])|\\smallsetminus(?![a-zA-Z])", r"\\setminus "),
        (r"\\%|\\text\s*\{\s*(?:\\?%|percent)\s*\}|\s*\b(?:per ?cent|percentage|pct)\b", "%"),
        (r"\\text\s*\{\s*,?\s*(and|or|to)\s*\}", r" \1 "),
        (r"^\\approx(?![a-zA-Z])", ""),
        (r"\\(?:lor|vee)(?![a-zA-Z])", " or "),
        (r"\\(?:land|wedge)(?![a-zA-Z])", " and "),
        (r"^(?:([a-zA-Z])\s*:\s*)?([a-z])\s*\\mapsto(?![a-zA-Z])", r"f(\2) ="),
        (r"\b(?:(?:np|numpy|sympy)\.)?(?:Matrix|array)\s*\((\[.*\])\)", r"\1"),
        (r"\\\$", "¤"),
        (r"\$", " "),
        (r"(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])|(?<=[0-9)])(and|or)(?=[a-zA-Z](?![a-zA-Z]))", r" \1\2 "),
        (r"(?<=[)\]}])\s*U\s*(?=[(\[\\])", r"\\cup "),
        (r"\s+", " "),
    )
)
"""Each notation, and how it is spelt here; in this order."""


def cleaned(text: str) -> str:
    """The text without what only sets type, its synonyms spelt alike, digits of any script in ASCII."""
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _bare(text).translate(_TRANSLATION)
    if not text.isascii():
        text = "".join(map(_in_ascii, text))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)
    return _FINAL_MARKS.sub("", text.strip()).strip()


def _in_ascii(character: str) -> str:
    """A digit of any script as a digit, a Greek letter as its command, any other character as it is."""
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.digit(character))
    script, _, name = unicodedata.name(character, "").partition(" LETTER ")
    if script in ("GREEK SMALL", "GREEK CAPITAL"):
        name = name.lower().replace("lamda", "lambda")
        command = f"\\{name.capitalize() if script == 'GREEK CAPITAL' else name}"
        return f"{command} " if command in GREEK else character
    return character


def _bare(text: str) -> str:
    """The text without delimiters of mathematics around it."""
    text = _without_marks(text)
    if len(_DOLLAR.findall(text)) % 2:  # the sign of an amount, or one delimiter too many
        text = _DOLLARS.sub(lambda match: f"¤{match[1] or match[2]}", text)
    for opening, closing in _AROUND:
        if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if opening not in inner:
                text = _without_marks(inner)
    return text


def _without_marks(text: str) -> str:
    """The text without the marks that end a sentence or a line of TeX."""
    text = text.strip()
    while (shorter := _FINAL_MARKS.sub("", text).strip()) != text:
        text = shorter
    return text


class Token(NamedTuple):
    """A piece of text at ``start``; ``kind`` is number, letters, command or symbol."""

    kind: str
    text: str
    start: int
    end: int


_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+(?![0-9]*\.))?)|(?P<letters>[A-Za-z]+)"
    r"|(?P<command>\\[A-Za-z]+|\\.)|(?P<symbol>\*\*|<=|>=|!=|:=|\.\.\.|\S)"
)
_FRACTION = re.compile(r"\\frac\s*([0-9]?)")
_OPENING = frozenset({"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin"})
_CLOSING = frozenset({")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil", r"\end"})


def tokens_of(text: str) -> list[Token]:
    """Cut cleaned text into tokens; space only separates."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable("too long")
    return [Token(m.lastgroup or "", m[0], m.start(), m.end()) for m in _TOKEN.finditer(text)]


def end_of(tokens: Sequence[Token], start: int) -> int:
    """Where the bracket at ``start`` closes; -1 if it does not."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index].text in _OPENING) - (tokens[index].text in _CLOSING)
        if not depth:
            return index
    return -1


def enclosed(tokens: Sequence[Token], opening: str) -> bool:
    """Whether one pair of brackets, of this kind, stands around all of the tokens."""
    return len(tokens) > 1 and tokens[0].text == opening and end_of(tokens, 0) == len(tokens) - 1


def split(tokens: Sequence[Token], separators: AbstractSet[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """The slices between separating tokens that no bracket or environment encloses, and those tokens."""
    parts: list[Sequence[Token]] = []
    found: list[str] = []
    depth = begin = 0
    for index, token in enumerate(tokens):
        if token.text in _OPENING:
            depth += 1
        elif token.text in _CLOSING:
            depth -= 1
        elif depth == 0 and token.text in separators:
            parts.append(tokens[begin:index])
            found.append(token.text)
            begin = index + 1
    parts.append(tokens[begin:])
    return parts, found


def spelt(text: str) -> str:
    """The tokens of a text of any length between spaces, without fonts, what groups them, and signs of division."""
    pieces = (match[0].rstrip(".") for match in _TOKEN.finditer(_FRACTION.sub(r"\1 ", cleaned(text))))
    return " ".join(piece for piece in pieces if piece not in FONTS and piece not in "()[]{}/")


def squeezed(text: str) -> str:
    """Letters and digits only, in lower case, fonts removed."""
    return "".join(filter(str.isalnum, UPRIGHT.sub(r"\1", text).casefold()))
