"""Conversations with tool calls for supervised training: one format on disk, converted from the layouts of public sets.

The format: ``{"messages": [{"role": ..., "content": ...}, ...]}`` with the roles system (at most one, first), user,
assistant and tool. Calls are in the assistant's text as ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
Training adds no prompt to a conversation. The loss covers the assistant's turns only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from agent_rl.data.layouts import (
    UNKNOWN_LAYOUT,
    NoConversation,
    call_text,
    call_texts,
    known_layouts,
    parsed,
    read_chat,
)
from agent_rl.data.rows import DataError, Row
from agent_rl.environments.base import Environment, TaskError
from agent_rl.environments.task_files import read_rows, resolve
from agent_rl.rollout.parsing import OPENING, ParsedCall, parse_calls
from agent_rl.rollout.prompts import EMPTY, SYSTEM_TOOLS, ChatFormat, PromptError

Message = dict[str, str]

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


def conversation(row: Mapping[str, Any]) -> list[Message]:
    """The conversation in a row of any layout; its tools (JSON schemas) go into the system message.

    Raises NoConversation for a row without one, an unknown role, content that is no text, a call that cannot be read,
    or roles that do not take turns from the user's to the assistant's.
    """
    chat = read_chat(row)
    messages = [_message(turn) for turn in chat.turns]
    system = chat.system
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    tools = _tools(chat.tools)
    if tools:
        text = SYSTEM_TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if messages[0]["role"] == "system":
            text = f"{messages.pop(0)['content']}\n\n{text}"
        messages.insert(0, {"role": "system", "content": text})
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


def tool_turn_without_call(messages: Sequence[Message]) -> bool:
    """Whether the parser of rollouts finds no valid call in a turn of the assistant that opens one, or that a tool
    answers.
    """
    answered = [*(message["role"] == "tool" for message in messages[1:]), False]
    return any(
        message["role"] == "assistant"
        and (by_tool or OPENING in message["content"])
        and not any(isinstance(call, ParsedCall) for call in parse_calls(message["content"]))
        for message, by_tool in zip(messages, answered, strict=True)
    )


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise NoConversation("a_message_is_no_object")
    name = turn.get("role") or turn.get("from")
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise NoConversation("unknown_role")
    content = _text(turn["content"] if "content" in turn else turn.get("value"))
    if name in CALLS:
        content = call_texts(content)
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    if not isinstance(calls, list):
        raise NoConversation("unreadable_call")
    if calls:
        if role != "assistant":
            raise NoConversation("unreadable_call")
        parts = ([content] if content.strip() else []) + [call_text(call) for call in calls]
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


def _tools(tools: Any) -> list[Any]:
    if isinstance(tools, str):
        tools = parsed(tools, "unreadable_tools") if tools.strip() else []
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise NoConversation("unreadable_tools")
    return tools


def row_fault(error: NoConversation, row: Row, where: str) -> str:
    """The message about a row of a file for training that is no conversation."""
    if str(error) == UNKNOWN_LAYOUT:
        columns = ", ".join(map(str, row)) or "none"
        return f"{where}: unknown layout of conversations; its columns are {columns:.300}; known are {known_layouts()}"
    reason, remedy = str(error).replace("_", " "), "`agent-rl data sft` leaves such rows out"
    return f"{where}: no conversation to train on ({reason}); {remedy}"


def try_conversations(patterns: Sequence[str], base: Path, most: int) -> None:
    """Read the first rows of every file: ``most`` in all, but at least one of each file.

    Raises TaskError, which names the row, for what is no conversation, and for files without any row.
    """
    files = [file for pattern in patterns for file in resolve(pattern, base)]
    empty = True
    for name, path in files:
        for where, row in islice(read_rows(name, path), max(1, most // len(files))):
            empty = False
            try:
                conversation(row)
            except NoConversation as error:
                raise TaskError(row_fault(error, row, where)) from error
    if empty:
        raise TaskError(f"{', '.join(patterns)}: there is no conversation to train on")


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
