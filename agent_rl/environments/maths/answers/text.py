r"""From a text to the notation of its answer: the part that counts, spelt in one way.

``located`` finds the part: the last box, or what follows the last "the answer is"; ``mentioned`` the last formula or
number of a sentence. ``cleaned`` removes what only sets type, and writes synonyms alike.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from agent_rl.environments.maths.answers.labels import label_words
from agent_rl.environments.maths.answers.units import CURRENCY_SIGNS
from agent_rl.environments.maths.answers.vocabulary import GREEK

MAX_SENTENCE = 5000
"""Characters at the end of a text in which a sentence that states the answer is looked for."""

SENTENCE_WORDS = 5
"""Before a number at the end; ``June 20`` is no sentence."""

_BOX_OR_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\boxed\s*(?=\{)")
_NOTHING = re.compile(r"[\s$]*")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;~]|([-+*=_])\1{2,}|\\[,;:!()\[\]]|\\q?quad(?![a-zA-Z])|\\text\s*\{|\}|\b(?:and|or)\b)*"
)
_LABELLED_BOX = re.compile(r"\s+[A-Za-z]+(?: [A-Za-z]+)?(?=\s+(?:and|or)\b|,)")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_MARK = re.compile(r"(?i)\banswers?(?:\s+is|\s+are|\s*:)(?:\s*:)?|\bsolutions?(?:\s+is|\s+are|\s*:)(?:\s*:)?|####")
_MARK_TAIL = re.compile(r"\.\s+(?=[A-Z])|\.?\s*\n\s*\n|\.?\s*<\||\.\s*$")
_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_PERCENT = r"(?:\s*(?:\\?%|per\s?cent(?:age)?\b|pct\b))?"
_PLAIN_NUMBER = rf"(?<![\w.^_/\\])[-+]?(?:[0-9]+(?:,[0-9]{{3}})*(?:[.,][0-9]+)?|\.[0-9]+)(?:/[0-9]+)?{_PERCENT}"
_CANDIDATE = re.compile(rf"{_MATHS.pattern}|({_PLAIN_NUMBER})", re.DOTALL)
_SEPARATOR = re.compile(r"[\s,;]*(?:\b(?:and|or)\b)?[\s,;]*")
_TRAILING_PERCENT = re.compile(r"\s*(?:\\?%|percent\b|percentage\b|pct\b)")
_DENIAL = re.compile(
    r"(?i)(?:\bnot|n't|\bneither|\bnor|\bexcept|\bwithout|\bunlike|\bthan|\bat\s+(?:least|most)|\bup\s+to|\bnever)"
    r"\W+(?:\w+\W+){0,2}$"
)
_DENIED = re.compile(r"(?i)\b(?:not|never|wrong|incorrect|false|untrue|doubt|neither|unless|cannot|no)\b|n't\b")
_WITHDRAWN = re.compile(r"(?i)\b(?:no|not|wait|actually|wrong|instead|rather|sorry|incorrect|correction)\b")
_BEFORE = re.compile(
    r"(?i)(?:^|[:=,;.!>\n({}\]-]|\b(?:is|are|be|was|were|equals?|gives?|get|gets|obtain|obtains|have|has|find|found"
    r"|that|therefore|thus|hence|so|then|answers?|results?|solutions?|conclude|say|write|and|or))"
    r"\s*(?:\**|\\text\s*\{)\s*$"
)
"""What may stand before a formula that a sentence states; ``half of`` and ``minus`` may not."""
_CLAUSE = re.compile(r"([^.,;:!?\n<(]*)(.?)")
_CONNECTIVE = re.compile(
    r"(?i)\b(?:because|since|so|which|hence|thus|therefore|ago|indeed"
    r"|(?:is|are) (?:the|our|an?) (?:solution|answer|result)s?)\b"
)
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_FINAL_MARKS = re.compile(r"(?<![.,;])[.,;。]$|\\+[,;!: ]?$|~$|\\q?quad$")
_DOLLAR = re.compile(r"(?<!\\)\$")
_DOLLARS = re.compile(r"(?<!\\)\$\s*([-+]?[0-9.,]+.*)|([-+]?[0-9.,]+)\s*\$", re.DOTALL)
_AROUND = (("**", "**"), ("`", "`"), ('"', '"'), (r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$"))
"""What may stand around an answer without being part of it."""
_VERB = re.compile(r"(?:\b(?:is|are|be|was|were|equals?|gives?|get|obtain)|'s|[=:])\s*[$€£¥]?$")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")

_TRANSLATED = {
    **dict.fromkeys("−–—﹣－", "-"),
    **dict.fromkeys("×∙·⋅∗✕", r" \cdot "),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u200a\u3000", " "),
    "÷": r" \div ", "≤": r" \le ", "≥": r" \ge ", "⩽": r" \le ", "⩾": r" \ge ", "≠": r" \ne ", "≈": r" \approx ",
    "±": r" \pm ", "∓": r" \mp ", "π": r"\pi ", "√": r"\sqrt ", "∪": r" \cup ", "∩": r" \cap ", "∈": r" \in ",
    "∖": r" \setminus ", "²": "^{2}", "³": "^{3}", "⁴": "^{4}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "，": ", ", "、": ", ", "；": "; ", "（": "(", "）": ")", "＝": "=", "：": ":",
    "。": ".", "％": "%",
    "‰": r"\text{ permille}", "º": "°", "⟨": r"\langle ", "⟩": r"\rangle ", "′": "'", "’": "'", "＋": "+",
    "＜": "<", "＞": ">", "\u200b": "",
}  # fmt: skip
_TRANSLATION = str.maketrans(_TRANSLATED)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\{\s*\\rm(?![a-zA-Z])([^{}]*)\}", r"\\text{\1}"),
        (
            r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|rm|bf|it|therefore)(?![a-zA-Z])\.?",
            "",
        ),
        (r"(?<=[0-9])(?:\{,\}|,\s*\\!|\\,|\\!)\s*(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<=[0-9])\{[,.]\}(?=[0-9])", "."),
        (r"(?<![0-9])\.(?=\\(?:overline|bar|dot)(?![a-zA-Z]))", "0."),
        (r"(?<=[0-9]\.)\(([0-9]+)\)", r"\\overline{\1}"),
        (r"(?<!\\)\\(?:[,;: ]|q?quad|hfill(?![a-zA-Z]))|~", " "),
        (r"\\!|\\hspace\s*\{[^{}]*\}|\\mathstrut|\\phantom\s*(?:\{[^{}]*\}|.)", ""),
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
        (
            (
                r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])|\\circ\s*$|(?:\\text\s*\{)\s*degrees?\s*\}"
                r"|\bdegrees?\b"
            ),
            "°",
        ),
        (r"\^\s*(?:\\prime|\{\s*\\prime\s*\})", "'"),
        (r"\\[lr]?vert(?![a-zA-Z])|\\mid(?![a-zA-Z])", "|"),
        (r"\\(?:lbrace)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace)(?![a-zA-Z])", r"\\}"),
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
        (r"(\\text\s*\{[^{}]*?)\s*:\s*\}", r"\1}: "),
        (r"\b(?:(?:np|numpy|sympy)\.)?(?:Matrix|array)\s*\((\[.*\])\)", r"\1"),
        (r"\\\$", "¤"),
        (r"\s+", " "),
    )
)


def located(text: str) -> tuple[str, bool]:
    """The part of ``text`` that is its answer, notation untouched, or all of it; whether words announce an answer."""
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    boxed = _boxed(text)
    if boxed is not None:
        return boxed, False
    marks = list(_MARK.finditer(text[-MAX_SENTENCE:]))
    if marks:
        before = text[-MAX_SENTENCE:][: marks[-1].start()]
        if _DENIED.search(re.split(r"[.,;:!?\n]", before)[-1]):
            return "", False
        tail = text[-MAX_SENTENCE:][marks[-1].end() :].strip().lstrip("}").strip()
        if tail:
            end = _MARK_TAIL.search(tail)
            if end and _WITHDRAWN.search(tail[end.end() : end.end() + 60]):
                return "", False
            return (tail[: end.start()] if end and end.start() else tail), True
    return text.strip(), False


def mentioned(text: str, *, announced: bool) -> str | None:
    """The last formula or number that a sentence states, with those joined to it by commas, "and" or "or".

    A number outside a formula must follow a verb or end a sentence, unless the whole text is announced as the answer.
    None where there is none, or where it is denied.
    """
    found: list[str] = []
    begin = end = -1
    text = text[-MAX_SENTENCE:]
    for match in _CANDIDATE.finditer(text):
        content = next((group for group in match.groups() if group is not None), "").strip()
        percent = _TRAILING_PERCENT.match(text, match.end())
        joined = begin >= 0 and _SEPARATOR.fullmatch(text, end, match.start()) is not None
        if match[5] and not (joined or announced or _is_stated(text, match.start(), match.end())):
            continue
        if (
            not match[5]
            and not joined
            and not announced
            and not _BEFORE.search(text[max(0, match.start() - 40) : match.start()])
        ):
            found, begin = [], -1  # what is said of this formula is not known, nor what an earlier one means beside it
            continue
        if not joined:
            found, begin = [], match.start()
        elif " or " in f" {text[end : match.start()]} ":
            found.append("or")
        found.append(f"{content}%" if percent else content)
        end = percent.end() if percent else match.end()
    if not found or _DENIAL.search(text[max(0, begin - 60) : begin]) or _DENIED.search(text[end : end + 60]):
        return None
    if announced and _DENIED.search(text[:begin]):
        return None
    behind = _CLAUSE.match(text, end)
    assert behind is not None
    if behind[2] == "?":
        return None
    words = _CONNECTIVE.split(behind[1])[0].replace("$", " ").replace("}", " ").strip()
    sign = text[end:].lstrip()[:1].replace("$", "¤")
    if sign in CURRENCY_SIGNS:
        found[-1] += sign + (words.lstrip(sign) if len(words.lstrip(sign)) > 1 else "")
    elif words:  # they may measure the number, scale it or deny it
        found[-1] += " " + re.sub(r"([A-Za-z]+)", r"\\text{ \1}", words.translate(_TRANSLATION))
    return ", ".join(found).replace(", or,", " or")


def _is_stated(text: str, start: int, end: int) -> bool:
    """Whether a verb stands before a number, or the number ends a text of several words."""
    if text[end : end + 1] in ("(", ")", "[", "]"):
        return False
    if _VERB.search(text[max(0, start - 20) : start]):
        return True
    return re.fullmatch(r"[\s.!]*", text[end:]) is not None and len(_WORD.findall(text[:start])) >= SENTENCE_WORDS


def is_sentence(text: str) -> bool:
    """Whether words stand around the formulas, and no notation of mathematics does."""
    prose = _MATHS.sub(" ", text[-MAX_SENTENCE:])
    return _WORD.search(prose) is not None and re.search(r"[\\{}^_]", prose) is None


def cleaned(text: str) -> str:
    """The text without what only sets type, its synonyms spelt alike, digits of any script in ASCII."""
    text = _bare(text).translate(_TRANSLATION)
    if not text.isascii():
        text = "".join(map(_in_ascii, text))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text.replace("$", " "))
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


def _boxed(text: str) -> str | None:
    """The content of the last box; with it those before it that only separators part from it."""
    boxes = boxes_in(text)
    if not boxes:
        start = re.search(r"\\boxed\s*\{", text)  # never closed: up to the end
        return text[start.end() :].rstrip("$ ") if start else None
    parts = [boxes[-1][2]]
    for (_, end, before), (begin, _, _) in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        words = _LABELLED_BOX.match(text, end, begin)  # \boxed{1} papers and \boxed{2} bins
        after = words.end() if words and label_words(words[0]) is not None else end
        if not _BETWEEN_BOXES.fullmatch(text, after, begin):
            break
        parts += [" or " if "or" in text[after:begin] else ", ", before]
    return "".join(reversed(parts)) + ("%" if _TRAILING_PERCENT.match(text, boxes[-1][1]) else "")
