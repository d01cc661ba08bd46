"""Conversations of files as sequences to train on: each turn as the chat template renders it, where it stands.

::

    messages before the turn --template, with its prompt for a turn--> what the model reads
    the same and the turn    --template--> what it reads, and what it writes with the end of the turn: this is trained

As long as a template repeats what it has rendered before, all turns are in one sequence. One that renders earlier turns
in another way, as many do that leave out earlier thoughts, begins a new sequence with the next turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from agent_rl.messages.rollouts import THOUGHT_CLOSING, THOUGHT_OPENING
from agent_rl.rollout.parsing import ParsedCall
from agent_rl.rollout.prompts import PromptError

if TYPE_CHECKING:
    from agent_rl.environments.base import Demonstration
    from agent_rl.rollout.prompts import ChatFormat

Masked: TypeAlias = tuple[list[int], list[int]]
"""A sequence's tokens and its loss mask."""
_RESPONSES = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)
_BETWEEN = re.compile(r"\n?</tool_response>\s*<tool_response>\n?")
"""In a demonstration, responses of tools stand in the user's role."""


def sequences(
    chat: ChatFormat, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> list[Masked]:
    """The sequences of a conversation (`agent_rl.data.conversations`) with these tools, JSON schemas.

    The loss covers what the assistant writes, except turns with ``train`` False. Raises PromptError, which counts the
    assistant's turns from 1, where the template cannot render the conversation, leaves out a thought, or writes calls
    that the format does not read again.
    """
    return _trained(chat, *chat.put(messages, tools))


def demonstrated(chat: ChatFormat, shown: Demonstration) -> list[Masked]:
    """The sequences of a demonstration, whose problem is put as in rollouts. Raises PromptError as `sequences` does."""
    messages: list[dict[str, str]] = []
    for message in shown.messages:
        inside = _RESPONSES.fullmatch(message["content"]) if message["role"] == "user" and messages else None
        texts = [] if inside is None else _BETWEEN.split(inside[1])
        messages += [{"role": "tool", "content": text} for text in texts] or [message]
    put, _ = chat.put(messages, ())
    return _trained(chat, [*chat.messages(shown.problem), *put[1:]], chat.offered(shown.problem))


def _trained(chat: ChatFormat, put: Sequence[Mapping[str, Any]], listed: Sequence[Mapping[str, Any]]) -> list[Masked]:
    made: list[Masked] = []
    text, number = "", 0
    for at, message in enumerate(put):
        if message["role"] != "assistant":
            continue
        number += 1
        begun, turn, end = _rendered(chat, put[:at], message, listed, number)
        _require_calls(chat, message, turn, number)
        if not made or not begun.startswith(text):
            made.append(([], []))
            text = ""
        for piece, trained in ((begun[len(text) :], 0), (turn + end, int(message.get("train", True)))):
            tokens = chat.encode(piece)
            made[-1][0].extend(tokens)
            made[-1][1].extend([trained] * len(tokens))
        text = begun + turn + end
    return [each for each in made if any(each[1])]


def _rendered(
    chat: ChatFormat,
    before: Sequence[Mapping[str, Any]],
    message: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    number: int,
) -> tuple[str, str, str]:
    """What the model reads before a turn, the turn, and its end."""
    try:
        prompt = chat.render(before, generate=True, tools=tools)
        whole = chat.render([*before, message], generate=False, tools=tools)
    except Exception as error:  # templates raise arbitrary errors
        raise PromptError(f"the chat template cannot render turn {number} of the assistant: {error}") from error
    pairs = enumerate(zip(prompt, whole, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(prompt), len(whole)))
    tag = prompt.rfind("<", 0, same)
    if same < len(prompt) and ">" not in prompt[tag:same]:
        same = tag if tag >= 0 else same  # they part within a tag
    begun, rest, (turn, end) = prompt[:same], prompt[same:], chat.ended(whole[same:])
    if chat.holds_control(rest):
        raise PromptError(f"with turn {number} of the assistant the chat template renders earlier messages differently")
    thought = message.get("thought") or _thought(message["content"])
    if not thought or thought in turn:
        return begun, turn, end
    if rest.strip() == THOUGHT_OPENING:  # the prompt for a turn begins a thought, and turns are rendered without it
        return prompt, f"{thought}\n{THOUGHT_CLOSING}\n\n{turn.lstrip()}", end
    raise PromptError(
        f"the chat template leaves out the thought of turn {number} of the assistant; write thoughts into the content, "
        "or leave such rows out"
    )


def _thought(content: str) -> str:
    """What stands between tags at the beginning of a turn."""
    head, closed, _ = content.partition(THOUGHT_CLOSING)
    return head.strip().removeprefix(THOUGHT_OPENING).strip() if closed else ""


def _require_calls(chat: ChatFormat, message: Mapping[str, Any], turn: str, number: int) -> None:
    wanted = [_solid(call) for call in message.get("calls", ())]
    found = [_solid(call) for call in chat.sound_calls(turn) if isinstance(call, ParsedCall)]
    if wanted and found != wanted:
        raise PromptError(
            f"the calls of turn {number} of the assistant are not read again: {len(wanted)} stand in the row, and the "
            f"format reads {found!r:.200} in {turn[:200]!r}"
        )


def _solid(call: ParsedCall) -> tuple[str, dict[str, Any]]:
    """A call without what formats in plain text leave out: empty arguments, and blanks around one."""
    stripped = {key: each.strip() if isinstance(each, str) else each for key, each in call.arguments.items()}
    return call.name, {key: each for key, each in stripped.items() if each not in ("", None)}
