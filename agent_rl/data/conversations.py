"""Conversations with tool calls for supervised training: one format on disk, converted from the common formats.

The format: ``{"messages": [{"role": ..., "content": ...}, ...]}`` with the roles system (at most one, first), user,
assistant and tool. Calls are in the assistant's text as ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
Training adds no prompt to a conversation. The loss covers the assistant's turns only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_rl.data.rows import DataError, rows_of
from agent_rl.environments.base import Environment, TaskError
from agent_rl.files.reading_json import JsonError, parse_json
from agent_rl.rollout.prompts import EMPTY, SYSTEM_TOOLS, ChatFormat, PromptError

Message = dict[str, str]

SHUFFLED = 4096
"""Conversations held at once while a pass over the files is mixed."""

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Roles by their names in OpenAI's form (``messages``, ``role``) and ShareGPT's (``conversations``, ``from``)."""

CALLS = frozenset({"function_call", "tool_call"})
FOLLOWERS = {
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"tool", "assistant"},
}


class NoConversation(Exception):  # noqa: N818 - named for what it is
    """A row is not a conversation to train on; the text is the reason under which the row is counted."""


def conversation(row: Mapping[str, Any]) -> list[Message]:
    """The conversation in a row of either form; its ``tools`` (JSON schemas) go into the system message.

    Raises NoConversation for a row without one, an unknown role, content that is no text, a call that cannot be read,
    or roles that do not take turns from the user's to the assistant's.
    """
    turns = row.get("messages") or row.get("conversations")
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise NoConversation("no_messages")
    messages = [_message(turn) for turn in turns]
    own = row.get("system")
    if isinstance(own, str) and own.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": own})
    tools = _tools(row.get("tools"))
    if tools:
        told = SYSTEM_TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if messages[0]["role"] == "system":
            told = f"{messages.pop(0)['content']}\n\n{told}"
        messages.insert(0, {"role": "system", "content": told})
    check_turns(messages)
    return messages


def check_turns(messages: Sequence[Message]) -> None:
    """Raise NoConversation unless the roles take turns, from the user's first to the assistant's last."""
    roles = [message["role"] for message in messages]
    begins = roles[0] == "user" or roles[:2] == ["system", "user"]
    if not begins or any(after not in FOLLOWERS[before] for before, after in pairwise(roles)):
        raise NoConversation("roles_do_not_take_turns")
    if roles[-1] != "assistant":
        raise NoConversation("does_not_end_with_the_assistant")
    if any(message["role"] == "assistant" and not message["content"].strip() for message in messages):
        raise NoConversation("empty_turn_of_the_assistant")


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise NoConversation("a_message_is_no_object")
    said = turn.get("role") or turn.get("from")
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise NoConversation("unknown_role")
    content = _text(turn["content"] if "content" in turn else turn.get("value"))
    if said in CALLS:
        content = "\n".join(_calls(content))
    calls = list(turn.get("tool_calls") or []) + ([turn["function_call"]] if turn.get("function_call") else [])
    if calls:
        if role != "assistant":
            raise NoConversation("unreadable_call")
        parts = ([content] if content.strip() else []) + [_call(call) for call in calls]
        content = "\n".join(parts)
    return {"role": role, "content": content}


def _text(content: Any) -> str:
    """Text, nothing, or OpenAI's list of parts that are all text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if all(isinstance(part, str) for part in parts):
            return "".join(part for part in parts if part)
    raise NoConversation("content_is_no_text")


def _calls(text: str) -> list[str]:
    """The calls a ShareGPT turn of calls consists of: a JSON object, or several in an array."""
    try:
        found = parse_json(text)
    except JsonError as error:
        raise NoConversation("unreadable_call") from error
    return [_call(call) for call in (found if isinstance(found, list) else [found])]


def _call(call: Any) -> str:
    if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
        call = call["function"]
    name = call.get("name") if isinstance(call, Mapping) else None
    if not isinstance(name, str) or not name:
        raise NoConversation("unreadable_call")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments or "{}")
        except JsonError as error:
            raise NoConversation("unreadable_call") from error
    if not isinstance(arguments, Mapping):
        raise NoConversation("unreadable_call")
    written = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>{written}</tool_call>"


def _tools(tools: Any) -> list[Any]:
    if isinstance(tools, str):
        try:
            tools = parse_json(tools) if tools.strip() else []
        except JsonError as error:
            raise NoConversation("unreadable_tools") from error
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise NoConversation("unreadable_tools")
    return tools


def conversations(patterns: Sequence[str], base: Path) -> Iterator[list[Message]]:
    """The conversations of files for training, once and in order.

    Raises TaskError, naming the row, for what is none.
    """
    for where, row in rows_of(patterns, base):
        try:
            yield conversation(row)
        except NoConversation as error:
            remedy = "`agent-rl data sft` leaves such rows out"
            raise TaskError(
                f"{where}: no conversation to train on ({str(error).replace('_', ' ')}); {remedy}"
            ) from error


def endless(patterns: Sequence[str], base: Path, rng: random.Random) -> Iterator[list[Message]]:
    """The conversations of files over and over, each pass mixed anew by ``rng``; ``SHUFFLED`` of them in memory.

    Raises TaskError for files without any, and for a row that is none.
    """
    while True:
        empty = True
        for messages in mixed(conversations(patterns, base), rng):
            empty = False
            yield messages
        if empty:
            raise TaskError(f"{', '.join(patterns)}: there is no conversation to train on")


def mixed(items: Iterable[list[Message]], rng: random.Random, held: int = SHUFFLED) -> Iterator[list[Message]]:
    """All items in another order: each comes out when chance names it among the ``held`` that are here."""
    here: list[list[Message]] = []
    for item in items:
        if len(here) < held:
            here.append(item)
            continue
        place = rng.randrange(held)
        here[place], item = item, here[place]  # noqa: PLW2901 - the two change places
        yield item
    rng.shuffle(here)
    yield from here


def chat_format_of(model: str, environments: Mapping[str, Environment] = EMPTY) -> tuple[ChatFormat, int | None]:
    """How the model's tokenizer writes conversations, and the tokens its sequences may have. Raises DataError.

    ``environments`` say how problems are put, where they are.
    """
    from transformers import AutoTokenizer

    from agent_rl.models.hub import HubError, is_hub_name, metadata
    from agent_rl.models.model_files import ModelFiles, Unreadable

    try:
        directory = metadata(model) if is_hub_name(model) else Path(model).expanduser()
    except HubError as error:
        raise DataError(f"--model {model}: {error}") from error
    if not directory.is_dir():
        raise DataError(f"--model {model}: there is no such directory; name that of a Hugging Face model")
    try:
        chat = ChatFormat(AutoTokenizer.from_pretrained(directory), environments, compact=not environments or None)
    except (OSError, ValueError, PromptError) as error:
        raise DataError(f"--model {model}: {' '.join(str(error).split())[:300]}") from error
    try:
        return chat, ModelFiles.read(directory).length
    except Unreadable:  # a tokenizer alone
        return chat, None
