"""The directive by which a request decides what the model writes. Engines under test obey it; they need no model.

::

    say("Two files.", "chars", pace=20) --> "[[say:chars@20:VHdvIGZpbGVzLg==]]" in a message
    told(decoded prompt) --> Told("chars", 20, "Two files.") --written--> tokens, one every 20 ms
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast

Mode: TypeAlias = Literal["plain", "chars", "long", "empty"]
"""``plain``: as the tokenizer encodes the text. ``chars``: each character encoded alone, which gives the same text in
other tokens. ``long``: the text again and again, without an end. ``empty``: no text, only the stop token."""
RANDOM = "{random}"
"""Stands in a text for 16 characters that differ in each turn."""
_DIRECTIVE = re.compile(r"\[\[say:(plain|chars|long|empty)(?:@(\d{1,6}))?:([A-Za-z0-9_=-]*)\]\]")


class Told(NamedTuple):
    """What the model shall write. ``pace``: milliseconds for each token."""

    mode: Mode
    pace: int
    text: str


def say(text: str, mode: Mode = "plain", pace: int = 0) -> str:
    """The directive, to be put anywhere in the newest message of the user or of a tool."""
    coded = base64.urlsafe_b64encode(text.encode()).decode()
    return f"[[say:{mode}{f'@{pace}' if pace else ''}:{coded}]]"


def told(prompt: str) -> Told | None:
    """The last directive in the text of a prompt, or None. Call it once a turn: `RANDOM` becomes another text."""
    found = _DIRECTIVE.findall(prompt)
    if not found:
        return None
    mode, pace, coded = found[-1]
    try:
        text = base64.urlsafe_b64decode(coded).decode()
    except ValueError:
        return None
    return Told(cast("Mode", mode), int(pace or 0), text.replace(RANDOM, secrets.token_hex(8)))


def written(
    what: Told, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str], stop: int, most: int
) -> list[int]:
    """The tokens of the turn: at most ``most``. ``encode`` adds no special tokens; ``stop`` ends a turn."""
    tokens = list(encode(what.text))
    if what.mode == "empty":
        tokens = []
    elif what.mode == "chars":
        single = [token for character in what.text for token in encode(character)]
        tokens = single if decode(single) == what.text else tokens
    elif what.mode == "long":
        return (tokens * most)[:most]
    return [*tokens, stop][:most]
