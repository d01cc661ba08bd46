"""Read tool calls from a turn of the model, and write tool results for the model (paper, Prompt and format).

Both are text. A call that is not valid becomes an error message for the model. The tags of the conversation are escaped
in tool results.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from agent_rl.messages.rollouts import THOUGHT_CLOSING, THOUGHT_OPENING

OPENING, CLOSING = "<tool_call>", "</tool_call>"
MAX_DEPTH = 32
"""How deep lists and objects may be nested in a call's arguments. Messages between actors have a limit too."""

_SPACE = re.compile(r"\s*")
_FRAMING = re.compile(
    r"<(?=\|"  # chat control tokens, <|...|>
    r"|\uff5c"  # those of tokenizers that use the full-width bar
    r"|\s*(?:/\s*)?(?:tool_call|tool_response|tools|answer|reason|think)\s*>)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call as the model wrote it. The executor finds out whether the tool exists and takes the arguments.

    ``id``: the call's name, in layouts in which the model writes one.
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that is not valid. The model reads ``error``."""

    error: str


AnyCall: TypeAlias = ParsedCall | MalformedCall


class _Malformed(Exception):  # noqa: N818 - caught in this file
    """Why a call is not valid, in words for the model."""


ID_LENGTH = 9
"""Mistral's templates refuse call ids of other lengths."""


def place_id(place: int) -> str:
    """The id of the call at this place of a turn, where nobody has given one that every template takes."""
    return f"call{place:0{ID_LENGTH - 4}d}"


def parse_calls(text: str) -> tuple[AnyCall, ...]:
    """The calls of a turn in order: every ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

    A tag inside a JSON string of a call belongs to this string. Any other text after an opening tag, up to the next
    closing tag or the end of the turn, is a MalformedCall. What stands in a thought, ``<think>...</think>``, is a draft
    and no call; a thought that is not closed has cut the turn, and goes to its end.
    """
    calls: list[AnyCall] = []
    position = next_call(text, 0)
    while position >= 0:
        call, end = _parse_call(text, position + len(OPENING))
        calls.append(call)
        position = next_call(text, end)
    return tuple(calls)


def next_call(text: str, position: int, opening: str = OPENING) -> int:
    """Where the next call begins that no thought holds; -1 where there is none."""
    start = text.find(opening, position)
    while start >= 0 and (thought := text.find(THOUGHT_OPENING, position, start)) >= 0:
        closed = text.find(THOUGHT_CLOSING, thought)
        if closed < 0:
            return -1
        position = closed + len(THOUGHT_CLOSING)
        if position > start:
            start = text.find(opening, position)
    return start


def parts_of(text: str) -> Iterator[str | ParsedCall]:
    """The valid calls of a turn, as `parse_calls` finds them, and the texts around them, in order."""
    kept = position = 0
    while (start := next_call(text, position)) >= 0:
        call, position = _parse_call(text, start + len(OPENING))
        if isinstance(call, ParsedCall):
            yield from (text[kept:start], call)
            kept = position
    yield text[kept:]


def without_calls(text: str) -> str:
    """The text of a turn without its valid calls."""
    return "".join(part for part in parts_of(text) if isinstance(part, str))


def certain(text: str, opening: str = OPENING) -> int:
    """How many characters of a turn that is being written come before any call, whatever follows."""
    start = next_call(text, 0, opening)
    if start >= 0:
        return start
    return len(text) - begun(text, opening)


def begun(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of ``tag``."""
    start = max(0, len(text) - len(tag) + 1)
    while (start := text.find(tag[0], start)) >= 0:
        if tag.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0


def harmless(text: str) -> str:
    """``text`` with the tags and control tokens of the conversation escaped to ``&lt;...``."""
    return _FRAMING.sub("&lt;", text)


def cut_middle(text: str, max_chars: int) -> str:
    """``text`` in at most ``max_chars`` characters: its beginning, how many characters are cut, and its end."""
    if len(text) <= max_chars:
        return text
    mark = f"\n... [{len(text) - max_chars} or more characters cut] ...\n"
    room = max_chars - len(mark)
    if room <= 0:
        return text[:max_chars]
    tail = room // 2
    return text[: room - tail] + mark + text[len(text) - tail :]


def _parse_call(text: str, start: int) -> tuple[AnyCall, int]:
    """The call whose content begins at ``start``, and the position after it."""
    try:
        start = _skip_space(text, start)
        content, length = _decode(text[start:])  # a copy: positions in errors count from the call's start
        end = _skip_space(text, start + length)
        _require_end(closed=text.startswith(CLOSING, end))
        return _call(content), end + len(CLOSING)
    except _Malformed as error:
        closing = text.find(CLOSING, start)
        if closing < 0:
            return MalformedCall("Error: the tool call is not closed."), len(text)
        return MalformedCall(f"Error: {error}."), closing + len(CLOSING)


def _decode(text: str) -> tuple[object, int]:
    """The JSON value at the beginning of ``text``, and its length."""
    try:
        return _DECODER.raw_decode(text)
    except ValueError as error:
        raise _Malformed(f"the tool call is not valid JSON: {error}") from None
    except RecursionError:
        raise _Malformed("the tool call is nested too deeply") from None


def _require_end(*, closed: bool) -> None:
    if not closed:
        raise _Malformed("unexpected text after the JSON of the tool call")


def _decode_whole(text: str) -> object:
    content, length = _decode(text)
    _require_end(closed=length == len(text))
    return content


def _call(content: object, key: str = "arguments") -> ParsedCall:
    """The call of a JSON object with its arguments under ``key``."""
    if not isinstance(content, dict):
        raise _Malformed(f'the tool call is not a JSON object with "name" and "{key}"')
    name, arguments, call_id = content.get("name"), content.get(key), content.get("id")
    if not isinstance(name, str) or not name:
        raise _Malformed('"name" is missing in the tool call, or is not a string')
    if not isinstance(arguments, dict):
        raise _Malformed(f'"{key}" is missing in the tool call, or is not a JSON object')
    _require_portable(name, 0)
    _require_portable(arguments, 0)
    return ParsedCall(name, arguments, call_id if isinstance(call_id, str) and call_id.isascii() else "")


def parse_list(text: str, opening: str) -> tuple[AnyCall, ...]:
    """The calls of a turn in order: a JSON list of objects after ``opening``. Without ``opening`` there are none."""
    start = next_call(text, 0, opening)
    if start < 0:
        return ()
    try:
        content = _decode_whole(text[start + len(opening) :].strip())
    except _Malformed as error:
        return (MalformedCall(f"Error: {error}."),)
    if not isinstance(content, list):
        return (MalformedCall(f"Error: {opening} is not followed by a JSON list of tool calls."),)
    return tuple(_call_or_error(each) for each in content)


def parse_object(text: str, key: str) -> tuple[AnyCall, ...]:
    """The call of a turn that is one JSON object with "name", its arguments under ``key``. Other turns have none."""
    stripped = text.strip()
    while stripped.startswith(THOUGHT_OPENING):
        stripped = stripped.partition(THOUGHT_CLOSING)[2].lstrip()
    if not stripped.startswith("{") or '"name"' not in stripped:
        return ()
    try:
        return (_call(_decode_whole(stripped), key),)
    except _Malformed as error:
        return (MalformedCall(f"Error: {error}."),)


def _call_or_error(content: object, key: str = "arguments") -> AnyCall:
    try:
        return _call(content, key)
    except _Malformed as error:
        return MalformedCall(f"Error: {error}.")


def _require_portable(value: object, depth: int) -> None:
    """Refuse JSON values that messages between actors cannot carry."""
    if depth > MAX_DEPTH:
        raise _Malformed("the arguments are nested too deeply")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Malformed("the arguments hold an unpaired surrogate (\\ud800 to \\udfff)") from None
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _Malformed("the arguments hold an integer beyond 64 bits; write it as a string")
    elif isinstance(value, float) and not math.isfinite(value):
        raise _Malformed("the arguments hold a number that is too large")
    elif isinstance(value, dict):
        for key, item in value.items():
            _require_portable(key, depth + 1)
            _require_portable(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _require_portable(item, depth + 1)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
