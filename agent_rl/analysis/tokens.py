"""Forking tokens and reflection tokens of a rollout. Pure; arrays have one entry a token.

The paper (section Analysis of Agentic Reasoning Behaviors) looks at the 20 % of a rollout's tokens with the highest
entropy, and finds two kinds. Forking tokens begin doubt or exploration. Reflection tokens follow a tool response: the
model checks the response, diagnoses an error or corrects itself. The paper gives no rule that tells the two apart, and
reads examples. The rule here is a place: a reflection token is a high-entropy token among the first tokens after a tool
response, outside a tool call. All other high-entropy tokens are forking tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from agent_rl.rollout.parsing import CLOSING, OPENING

Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

GIVEN, TEXT, AFTER_TOOL, CALL, COMMENT = "given", "text", "after_tool", "call", "comment"
"""A token's kind: given by tools or environment; reasoning and answer; the first tokens after a tool response; a tool
call; a comment in the code of a tool call."""
KINDS = (TEXT, AFTER_TOOL, CALL, COMMENT)
"""The kinds of tokens that the model wrote."""

_CALL = re.compile(f"{re.escape(OPENING)}.*?(?:{re.escape(CLOSING)}|\\Z)", re.DOTALL)
_COMMENT = re.compile(r'(?:(?<=\\n)|(?<=[\s"]))#(?:[^"\\\n]|\\[^n])*')
"""A Python comment within JSON: from a ``#`` after a blank, a quote or an escaped line end, to the end of its line."""
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
LONGEST = 8
"""Tokens that together may make one character."""


class Token(NamedTuple):
    """A token of a response: its text, the word that it stands in (else its text), and its kind.

    ``since`` counts the tokens of the turn before it where the turn follows a tool response; else it is -1.
    """

    text: str
    word: str
    kind: str
    since: int = -1


def texts(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds. Where several tokens make one character, the last of them has its text.

    ``decode`` is the tokenizer's. Decoders may drop a blank before the first token, so each token is decoded together
    with the tokens before it.
    """
    found = []
    start = shown = 0  # tokens from `start` to `shown` are text already, and tokens from `shown` on are not
    for end in range(1, len(tokens) + 1):
        whole = decode(tokens[start:end])
        if whole.endswith("\ufffd") and end - shown < LONGEST and end < len(tokens):
            found.append("")
            continue
        before = decode(tokens[start:shown])  # may end with bytes that were given up, and make a character after all
        differs = (at for at, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other)
        found.append(whole[next(differs, len(before)) :])
        start, shown = shown, end
    return found


def read_tokens(pieces: Sequence[str], mask: Flags, turns_with_calls: set[int], window: int) -> list[Token]:
    """The tokens of a rollout's response, from the texts that they add.

    ``mask`` says which tokens the model wrote. ``turns_with_calls`` are the turns, from 1, whose calls a tool answered.
    The first ``window`` tokens of the turn after such a turn are of the kind ``after_tool`` unless they are in a call.
    """
    found: list[Token] = []
    turn = 0
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)] if len(mask) else []
    for start, end in pairwise(edges):
        part = pieces[start:end]
        if not mask[start]:
            found += [Token(piece, "", GIVEN) for piece in part]
            continue
        text = "".join(part)
        kinds, words = _kinds_of_characters(text), _words_of_characters(text)
        after_tool = turn in turns_with_calls
        turn += 1
        at = 0
        for index, piece in enumerate(part):
            # the first character that is no blank says where the token stands
            place = min(at + len(piece) - len(piece.lstrip()), max(at, at + len(piece) - 1), len(text) - 1)
            kind = kinds.get(place, TEXT)
            if kind == TEXT and after_tool and index < window:
                kind = AFTER_TOOL
            word = words.get(place) or piece.strip() or repr(piece)[1:-1]
            found.append(Token(piece, word, kind, index if after_tool else -1))
            at += len(piece)
    return found


def _kinds_of_characters(text: str) -> dict[int, str]:
    kinds: dict[int, str] = {}
    for call in _CALL.finditer(text):
        kinds |= dict.fromkeys(range(call.start(), call.end()), CALL)
        for comment in _COMMENT.finditer(text, call.start() + len(OPENING), call.end()):
            kinds |= dict.fromkeys(range(comment.start(), comment.end()), COMMENT)
    return kinds


def _words_of_characters(text: str) -> dict[int, str]:
    return {at: match.group().lower() for match in _WORD.finditer(text) for at in range(match.start(), match.end())}


def highest(entropy: Floats, share: float) -> Flags:
    """Flags the share of the tokens with the highest entropy, at least one token; of equal ones, the earlier.

    The number is rounded up. NaN is never flagged.
    """
    known = np.flatnonzero(np.isfinite(entropy))
    count = max(1, int(np.ceil(share * len(known) - 1e-9)))
    flags = np.zeros(len(entropy), dtype=np.bool_)
    flags[known[np.argsort(-entropy[known], kind="stable")[:count]]] = True
    return flags
