r"""The outcome reward: the answer a rollout gives, and whether it equals the ground truth (paper, section GRPO-RoC).

What a rollout wrote is untrusted. ``final_answer`` and ``answer_tags`` only scan, in time linear in the text. What
follows them, ``answers_equal``, computes with numbers of the model's choice (``9^{9^9}``). It is bounded in its parts,
but sets no alarm: call it only in a process that can be killed, such as a child of a sandbox that is a checker.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from agent_rl.messages.rollouts import beyond_thoughts

OPENING, CLOSING = "<answer>", "</answer>"

_MARKUP = re.compile(r"\\(?:left|right|displaystyle|bigl?|bigr?)(?![a-zA-Z])")
_SEPARATOR = r"(?:,|\{,\}|\\[,!;: ]|,\\!|~|\s|\u00a0|\u2009|\u202f)"
"""What may stand between groups of three digits: commas, TeX's and Unicode's thin spaces, a space."""
_INTEGER = rf"[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+"
_NUMBER = re.compile(rf"([+-]?)\s*(?:({_INTEGER})(?:\.([0-9]*))?|\.([0-9]+))")
MAYBE_LIST = re.compile(r"[1-9][0-9]{2},[1-9][0-9]{2}")
"""A gold that may be one number or two."""
_FULL_STOP = re.compile(r"(?<!\.)\.$")
_BOX_OR_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\boxed\s*(?=\{)")
_NOTHING = re.compile(r"[\s$]*")
_DELIMITERS = (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$"))


def final_answer(*turns: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` with balanced braces in the last well-formed ``<answer>...</answer>``.

    ``turns`` is what the model wrote, turn by turn. Well-formed is an opening tag whose closing tag comes in the same
    turn and before the next opening one. What stands in a thought (`beyond_thoughts`) is no answer. A box that holds
    but another box is that box. None when there is no such answer, or no such box in it. Linear in the length of the
    turns.
    """
    answers = map(_last_answer, map(beyond_thoughts, reversed(turns)))
    answer = next((found for found in answers if found is not None), None)
    boxes = [] if answer is None else boxes_in(answer)
    return boxes[-1][2] if boxes else None


def answer_tags(text: str) -> int:
    """The number of opening answer tags in the model's own ``text`` (tool responses left out by the caller)."""
    return text.count(OPENING)


def exactly_equal(gold: str, prediction: str) -> bool | None:
    """Decide on normalised text; None where that does not settle it.

    Two integers are always settled, however they are written: sign, leading zeros, separators of thousands, a fraction
    of zeros; but the gold ``100,200`` may be a list. Two decimals or two other texts are settled only when they are the
    same; nothing is equal to an empty text. Linear in the lengths.
    """
    ours, theirs = _normalised(gold), _normalised(prediction)
    if not ours or not theirs:
        return False
    if ours == theirs:
        return True
    numbers = _number(ours), _number(theirs)
    if numbers[0] is None or numbers[1] is None or MAYBE_LIST.fullmatch(ours):
        return None
    if numbers[0] == numbers[1]:
        return True
    return None if numbers[0][2] or numbers[1][2] else False


def answer_text(prediction: str) -> str:
    """The answer in a form in which those that are `exactly_equal` are the same text; empty for an empty answer."""
    text = _normalised(prediction)
    number = _number(text)
    if number is None:
        return text
    negative, digits, decimals = number
    return f"{'-' * negative}{digits or '0'}{'.' * bool(decimals)}{decimals}"


def is_integer(answer: str) -> bool:
    """Whether an answer is an integer, however it is written: sign, separators of thousands, a fraction of zeros."""
    number = _number(_normalised(answer))
    return number is not None and not number[2]


def is_read(gold: str) -> bool:
    """Whether the checker can read a gold, which is trusted; only the same text equals any other, as an integral."""
    from agent_rl.environments.maths.answers.reading import readings

    try:
        return is_integer(gold) or bool(readings(gold, trusted=True))
    except RecursionError:  # nested too deeply
        return False


def answers_equal(gold: str, prediction: str, problem: str = "") -> bool:
    """Whether ``prediction`` states the same answer as ``gold``; the rules are in docs/answer_checking.md.

    Exactly, or once both are read: as numbers, functions, lists, sets, intervals, matrices, relations or words. What
    can't be read, or has a meaning that depends on the reader, is not equal. With the text of the ``problem``, neither
    is what is copied from it. Takes milliseconds.
    """
    return check(gold, prediction, problem) == "equal"


def check(gold: str, prediction: str, problem: str = "") -> Literal["equal", "right by value", "different"]:
    """Whether answers are equal, as `answers_equal` says; "right by value" if only work is missing: 6/2 for 3."""
    decided = exactly_equal(gold, prediction)
    if decided is not None:
        return "equal" if decided else "different"
    from agent_rl.environments.maths.answers import comparing

    try:
        return comparing.check(gold, prediction, problem)
    except RecursionError:  # nested too deeply
        return "different"


def boxes_in(text: str) -> list[tuple[int, int, str]]:
    r"""Begin, end and content, stripped, of each ``\boxed{...}`` with balanced braces that no other such box encloses.

    In order; linear in the length of ``text``. An escaped brace is none, a stray one no obstacle. A box that holds but
    another box is that box; in any other the boxes are braces: ``\boxed{-\boxed{5}}`` is -5.
    """
    open_braces: list[tuple[int, int] | None] = []  # where a box and its content begin; None for another brace
    found: list[_Box] = []
    for token in _BOX_OR_BRACE.finditer(text):
        if token[0] == "{":
            open_braces.append(None)
        elif token[0].startswith(r"\boxed"):
            open_braces.append((token.start(), token.end()))
        elif token[0] == "}" and open_braces:
            box = open_braces.pop()
            if box:
                begin, content = box
                inner: list[_Box] = []
                while found and found[-1].begin > begin:
                    inner.append(found.pop())
                alone = len(inner) == 1 and _NOTHING.fullmatch(text, content, inner[0].begin)
                if alone and _NOTHING.fullmatch(text, inner[0].end, token.start()):
                    found.append(inner[0]._replace(begin=begin, end=token.end()))
                else:
                    found.append(_Box(begin, token.end(), content, token.start()))
    return [(box.begin, box.end, _BOX.sub("", text[box.first : box.last]).strip()) for box in found]


class _Box(NamedTuple):
    """Where a box begins and ends, and where its content does."""

    begin: int
    end: int
    first: int
    last: int


def _last_answer(text: str) -> str | None:
    """What the last well-formed pair of tags encloses."""
    next_opening = len(text)
    while (start := text.rfind(OPENING, 0, next_opening)) >= 0:
        end = text.find(CLOSING, start, next_opening)
        if end >= 0:
            return text[start + len(OPENING) : end]
        next_opening = start
    return None


def _normalised(text: str) -> str:
    """``text`` without what carries no meaning: delimiters around it, sizes, double spaces, a final full stop."""
    text = _MARKUP.sub("", text.strip()).replace("\N{MINUS SIGN}", "-")
    text = _FULL_STOP.sub("", text).strip()
    for opening, closing in _DELIMITERS:
        if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if "$" not in inner:
                text = _FULL_STOP.sub("", inner.strip()).strip()
    return " ".join(text.removeprefix("\\$").split())


def _number(text: str) -> tuple[bool, str, str] | None:
    """A plain decimal number as (negative, integer digits, fraction digits), zeros that say nothing removed."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, integer, fraction, bare_fraction = match.groups()
    digits = re.sub(r"[^0-9]", "", integer or "").lstrip("0")
    decimals = (fraction or bare_fraction or "").rstrip("0")
    return sign == "-" and bool(digits or decimals), digits, decimals


WARM_PAIRS = (("\\frac{1}{2}", "0.5"), ("x^2+2x+1", "(x+1)^2"), ("\\{1,2\\}", "(1, 2]"), ("3\\sqrt{2}", "\\sqrt{18}"))
"""Answers that need parser, formulas and sets."""


def warm_up() -> None:
    """Compare a few answers, so that every child of a checker inherits what parser and formulas build when they are
    first used.
    """
    for gold, prediction in WARM_PAIRS:
        check(gold, prediction)
