r"""The outcome reward: the answer a rollout gives, and whether it equals the ground truth (paper, section GRPO-RoC).

What a rollout wrote is untrusted. ``final_answer`` and ``answer_tags`` only scan, in time linear in the text. What
follows them, ``answers_equal``, hands the text to a LaTeX parser and to sympy, which may take any time and memory
(``10^{10^{10}}``), and sets no alarm: call it, and ``exactly_equal`` before it, only in a process that can be killed,
such as a child of a sandbox that is a checker.
"""

from __future__ import annotations

import re

OPENING, CLOSING = "<answer>", "</answer>"
_BOX_OR_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)

_MARKUP = re.compile(r"\\(?:left|right|displaystyle|bigl?|bigr?)(?![a-zA-Z])")
_SEPARATOR = r"(?:,|\{,\}|\\[,!;: ]|,\\!|~|\s|\u00a0|\u2009|\u202f)"
"""What may stand between groups of three digits: commas, TeX's and Unicode's thin spaces, a space."""
_INTEGER = rf"[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+"
_NUMBER = re.compile(rf"([+-]?)\s*(?:({_INTEGER})(?:\.([0-9]*))?|\.([0-9]+))")
_DELIMITERS = (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$"))
_ANCHOR = re.compile(r"\$|\\boxed|\\\(|\\\[")
"""Marks of a text that says itself where its mathematics is."""


def final_answer(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` with balanced braces in the last well-formed ``<answer>...</answer>``.

    Well-formed is an opening tag whose closing tag comes before the next opening one. Of nested boxes the inner one
    counts. None when there is no such answer, or no such box in it. Linear in the length of ``text``.
    """
    answer = _last_answer(text)
    return None if answer is None else _last_box(answer)


def answer_tags(text: str) -> int:
    """The number of opening answer tags in the model's own ``text`` (tool responses left out by the caller)."""
    return text.count(OPENING)


def exactly_equal(gold: str, prediction: str) -> bool | None:
    """Decide without sympy, on normalised text; None where that does not settle it.

    Two integers are always settled, however they are written: sign, leading zeros, separators of thousands, a fraction
    of zeros. Two decimals or two other texts are settled only when they are the same; nothing is equal to an empty
    text. Linear in the lengths.
    """
    ours, theirs = _normalised(gold), _normalised(prediction)
    if not ours or not theirs:
        return False
    if ours == theirs:
        return True
    numbers = _number(ours), _number(theirs)
    if numbers[0] is None or numbers[1] is None:
        return None
    if numbers[0] == numbers[1]:
        return True
    return None if numbers[0][2] or numbers[1][2] else False


def answers_equal(gold: str, prediction: str) -> bool:
    """Whether ``prediction`` means the same as ``gold``: exactly, or by Math-Verify's parser and sympy.

    What the parser can't read is not equal. May take any time and memory: see the module.
    """
    decided = exactly_equal(gold, prediction)
    if decided is not None:
        return decided
    from math_verify import parse, verify

    parsed = [
        # Bare text is read as a formula; one that marks its formulas is searched for them. No alarms: see the module.
        parse(text if _ANCHOR.search(text) else f"\\boxed{{{text}}}", parsing_timeout=None)
        for text in (gold, prediction)
    ]
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None))


def _last_answer(text: str) -> str | None:
    """What the last well-formed pair of tags encloses."""
    next_opening = len(text)
    while (start := text.rfind(OPENING, 0, next_opening)) >= 0:
        end = text.find(CLOSING, start, next_opening)
        if end >= 0:
            return text[start + len(OPENING) : end]
        next_opening = start
    return None


def _last_box(text: str) -> str | None:
    """The content, stripped, of the last box whose braces balance: last by where it begins."""
    open_braces: list[tuple[int, int] | None] = []  # where a box and its content begin; None for another brace
    last, content = -1, None
    for token in _BOX_OR_BRACE.finditer(text):
        if token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None and box[0] > last:
                last, content = box[0], text[box[1] : token.start()].strip()
        elif token[0].startswith("\\boxed"):
            open_braces.append((token.start(), token.end()))
    return content


def _normalised(text: str) -> str:
    """``text`` without what carries no meaning: delimiters around it, sizes, double spaces, a final full stop."""
    text = _MARKUP.sub("", text.strip()).replace("\N{MINUS SIGN}", "-").rstrip(".").strip()
    for opening, closing in _DELIMITERS:
        if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if "$" not in inner:
                text = inner.strip().rstrip(".").strip()
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
