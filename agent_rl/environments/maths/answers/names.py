r"""What a left side of an equation names: a variable, ``f(2)``, ``AB``, ``\angle ABC``, ``P(A)``, words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_rl.environments.maths.answers.formulas import CONSTANTS
from agent_rl.environments.maths.answers.labels import is_quantity
from agent_rl.environments.maths.answers.slices import UPRIGHT, end_of
from agent_rl.environments.maths.answers.tokens import Token
from agent_rl.environments.maths.answers.vocabulary import DECORATIONS, GREEK

_GREEK = "|".join(re.escape(letter) for letter in sorted(GREEK))
_DECORATED = "|".join(re.escape(command) for command in sorted(DECORATIONS))
_INDEX = r"(?:\s*_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\?\w+)|\s*')*"
_LETTER = rf"(?:[a-zA-Z]|(?:{_GREEK})(?![a-zA-Z])|(?:{_DECORATED})\s*\{{[^{{}}]*\}})"
_VARIABLE = re.compile(rf"{_LETTER}{_INDEX}")
_FUNCTION = re.compile(
    rf"(?:[fghpquvFGHPQRSTEVCNdDLWM]|\\(?:phi|varphi|psi|Phi|Psi|Gamma|zeta|mu|sigma|tau|det|dim|deg|Pr)(?![a-zA-Z])"
    rf"|\\mathbb\s*\{{[EPV]\}}|(?:Var|Cov|Area|area|Pr|det|dim|rank|tr|deg){_INDEX})"
    rf"{_INDEX}(?:\s*\^\s*(?:\{{-1\}}|-1))?\s*"
)
_TRIGONOMETRIC = re.compile(
    rf"\\?(?:sin|cos|tan|cot|sec|csc)(?:\s*\(\s*{_LETTER}{_INDEX}\s*\)"
    rf"|(?![a-z])\s*(?:\\angle\s*)?{_LETTER}{_INDEX}|\s*\\angle\s*[A-Z]+)"
)
_EXTREME = re.compile(rf"\\(?:max|min|sup|inf|det|deg|dim)(?![a-zA-Z])\s*(?:{_LETTER}{_INDEX}(?:\s*\([^()]*\))?)?")
_OF_SETS = re.compile(r"n\s*")
_POINTS = re.compile(
    r"(?:m?\s*\\angle|\\triangle|\\(?:overline|vec|overrightarrow|bar|widehat|hat)(?![a-zA-Z])"
    r"|\{|\}|\s|[A-Z](?:_\{?\w\}?|')*)+"
)
_NORM = re.compile(
    r"\|\s*[A-Z]{2}\s*\||\|\s*\\(?:overline|vec|overrightarrow)\s*\{[^{}]*\}\s*\||\\\|[^|=<>]+\\\||\[\s*[A-Z]{3,}\s*\]"
)
_TUPLE = re.compile(rf"\(\s*{_LETTER}{_INDEX}(?:\s*,\s*{_LETTER}{_INDEX})+\s*\)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,.'-]*(?:\([A-Za-z ]+\)|\s*\\(?:triangle|angle)\s*[A-Z]+\s*)?[ .]*")


def name_of(tokens: Sequence[Token], source: str) -> str | None:
    """The name that a left side is, spelt in one way; None if it is a formula, whose value an equation may ask for."""
    if not tokens:
        return None
    source = source.strip()
    plain = re.sub(r"\s+", " ", UPRIGHT.sub(r"\1", source)).strip()
    if plain in CONSTANTS or not re.search(r"[^\W\d_]", plain) or len(plain) > 200:
        return None
    if (
        _VARIABLE.fullmatch(plain)
        or _TUPLE.fullmatch(plain)
        or _EXTREME.fullmatch(plain)
        or _TRIGONOMETRIC.fullmatch(plain)
        or _NORM.fullmatch(plain)
        or _POINTS.fullmatch(plain)
    ):
        return re.sub(r"_\{(\w+)\}", r"_\1", plain.replace(" ", ""))
    longest = max(re.findall(r"[a-z]+", re.sub(r"\\[a-zA-Z]+", "", plain)), key=len, default="")
    if _WORDS.fullmatch(plain) and (len(longest) > 3 or (len(longest) == 3 and is_quantity(plain))):
        return " ".join(word if word.isupper() else word.lower() for word in re.findall(r"[A-Za-z'-]+", plain))
    bracket = next((at for at, token in enumerate(tokens) if token.text in ("(", "[")), 0)
    if bracket and end_of(tokens, bracket) == len(tokens) - 1:
        head = UPRIGHT.sub(r"\1", source[: tokens[bracket].start - tokens[0].start])
        inner = tokens[bracket + 1 : -1]
        if _FUNCTION.fullmatch(head) or (_OF_SETS.fullmatch(head) and inner and inner[0].text[0].isupper()):
            return plain.replace(" ", "")
    ratio = plain.split(":")
    if len(ratio) == 2 and all(_VARIABLE.fullmatch(part.strip()) or _POINTS.fullmatch(part.strip()) for part in ratio):
        return re.sub(r"_\{(\w+)\}", r"_\1", plain.replace(" ", ""))
    return None


def may_be_left_out(name: str) -> bool:
    """Whether "name = 5" says 5. Words must be those of a quantity: "not x = 5" does not say 5."""
    return re.search(r"[a-z]{2}", name) is None or "\\" in name or "(" in name or "_" in name or is_quantity(name)


def place(name: str) -> tuple[object, ...]:
    """A key that sorts names as variables are sorted in a tuple: by letters, then by the numbers of their indices."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name.lstrip("\\")))
