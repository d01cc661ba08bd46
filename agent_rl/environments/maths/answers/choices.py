"""The option of a multiple choice that a text chooses by its label."""

from __future__ import annotations

import re

from agent_rl.environments.maths.answers.text import located

_OPTION = re.compile(
    r"\W*(?:\\text(?:bf)?\s*\{)?\s*(?:\(([A-J])\)[\s}~\\]+(?=\S)|([A-J])[.):][\s}~\\]+(?=\S)|([A-J]), (?=[a-z]{2})"
    r"|([A-J])\s+(?=[A-Z][a-z]))"
)
"""A choice, as the label of what is chosen: ``(C) 12``, ``D. none of these``, ``D, since ...``, ``A Peter``."""
_OTHER_OPTION = re.compile(r"\s*(?:or|and|,|/|&|[A-J]\b)|.*(?:\([A-J]\)|\b[A-J][.):])", re.DOTALL)
_NAMED_OPTION = re.compile(r"(?:[Oo]ption|[Cc]hoice)\s*\(?([A-J])\)?\.?")
_FINAL_OPTION = re.compile(r"(?:\bis|'s|(?<![A-J]):)\s+\(?([A-J])\)?[\s.!]*$")
"""A choice at the end of a sentence: ``so it's B``."""


def chosen_option(text: str) -> str | None:
    """The option that a text chooses by its label; None if it has no such form, or labels others too."""
    part, _ = located(text)
    option = _OPTION.match(part)
    if option and not _OTHER_OPTION.match(part, option.end()):
        if option[4] and re.search(r"\b(?:or|and|not)\b", part):
            return None
        return option[1] or option[2] or option[3] or option[4]
    final = _FINAL_OPTION.search(part) or _NAMED_OPTION.fullmatch(part)
    return final[1] if final else None
