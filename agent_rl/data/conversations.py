"""Conversations with tool calls for supervised training: one format on disk, converted from the layouts of public sets.

The format: ``{"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}`` with the roles system (at most one,
first), user, assistant and tool. Calls are in the assistant's text as ``<tool_call>{"name": ..., "arguments":
{...}}</tool_call>``, thoughts beside it as ``reasoning_content``; a turn with ``train`` false is not trained. Training
adds the text about ``tools``, JSON schemas, and no other prompt. The loss covers the assistant's turns only.

A row's columns say its layout (`layouts.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.data.layouts import (
    LABELS,
    LAYOUTS,
    READ,
    READ_OF_TURNS,
    UNKNOWN_LAYOUT,
    WEIGHTS,
    NoConversation,
    call_text,
    call_texts,
    known_layouts,
    parsed,
    read_chat,
)
from agent_rl.data.rows import DataError, Placed, Row
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import read_rows, resolve
from agent_rl.rollout.parsing import OPENING, ParsedCall, parse_calls
from agent_rl.rollout.prompts import THOUGHTS, ChatFormat, PromptError

Message = dict[str, Any]
"""``role``, ``content``, and where the row has them ``thought`` and ``train`` (False)."""

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


class Conversation(NamedTuple):
    """What a row says: messages, and the JSON schemas of the tools that it lists."""

    messages: list[Message]
    tools: list[Any]


def conversation(row: Mapping[str, Any]) -> Conversation:
    """The conversation in a row of any layout.

    Raises NoConversation for a row without one, an unknown role, content that is no text, a call that cannot be read,
    or roles that do not take turns from the user's to the assistant's.
    """
    chat = read_chat(row)
    messages = [_message(turn) for turn in _answers_in_order(chat.turns)]
    system = chat.system if chat.system is not None else row.get("system_prompt")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    check_turns(messages)
    return Conversation(messages, _tools(chat.tools))


def unread_fields(row: Row) -> dict[str, str]:
    """The fields of a conversation's row whose text is not trained, by name, each with its text.

    Names of fields of turns begin with ``turn.``, and have the text of all turns. Labels are left out, and what stands
    in the conversation too.
    """
    layout = next(each for each in LAYOUTS if each.fits(row))
    messages, tools = conversation(row)
    read = "\n".join([json.dumps(tools), *(f"{each['content']}\n{each.get('thought', '')}" for each in messages)])
    fields = [(name, value) for name, value in row.items() if name not in {*layout.columns, *layout.also, *READ}]
    for column in {"messages", "conversations"} & {*layout.columns}:
        fields += [
            (f"turn.{name}", value) for turn in row[column] for name, value in turn.items() if name not in READ_OF_TURNS
        ]
    texts: dict[str, str] = {}
    for name, value in fields:
        if value and isinstance(value, str | list | dict) and name.rpartition(".")[2] not in LABELS:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if text.strip() not in read:
                texts[name] = texts.get(name, "") + text
    return texts


def written(message: Message) -> dict[str, Any]:
    """A message as a file holds it."""
    return {("reasoning_content" if key == "thought" else key): value for key, value in message.items()}


def sampled_tokens(row: Mapping[str, Any]) -> tuple[list[int], list[int]] | None:
    """Tokens [n] and loss mask [n] of a row of `agent-rl export`, to train on as sampled; None for another row.

    Raises NoConversation for lists that do not fit each other.
    """
    prompt, response, mask = (row.get(name) for name in ("prompt_tokens", "tokens", "loss_mask"))
    if prompt is None or response is None or mask is None:
        return None
    lists = all(isinstance(each, list) and all(type(item) is int for item in each) for each in (prompt, response, mask))
    if not lists or not prompt or len(response) != len(mask) or not set(mask) <= {0, 1} or not any(mask):
        raise NoConversation("tokens_and_mask_do_not_fit")
    return [*prompt, *response], [0] * len(prompt) + mask


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
    if any(message["role"] == "user" and not message["content"].strip() for message in messages):
        raise NoConversation("empty_turn_of_the_user")


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


def called_tools(messages: Sequence[Message]) -> set[str]:
    """The names in the calls that the parser of rollouts reads."""
    calls = (call for message in messages if message["role"] == "assistant" for call in parse_calls(message["content"]))
    return {call.name for call in calls if isinstance(call, ParsedCall)}


def _answers_in_order(turns: Sequence[Any]) -> Iterator[Any]:
    """The turns, with results that name their calls in the order of these. Raises NoConversation for an unknown id."""
    places: dict[Any, int] = {}
    for answers, group in groupby(turns, key=lambda turn: isinstance(turn, Mapping) and "tool_call_id" in turn):
        given = list(group)
        if answers and places and all(turn["tool_call_id"] for turn in given):
            if any(turn["tool_call_id"] not in places for turn in given):
                raise NoConversation("a_result_names_no_call_of_the_turn_before")
            given.sort(key=lambda turn: places[turn["tool_call_id"]])
        yield from given
        calls = given[-1].get("tool_calls") if isinstance(given[-1], Mapping) else None
        named = calls if isinstance(calls, list) and all(isinstance(each, Mapping) for each in calls) else []
        places = {call.get("id"): place for place, call in enumerate(named) if isinstance(call.get("id"), str)}


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise NoConversation("a_message_is_no_object")
    name = turn.get("role") or turn.get("from")
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise NoConversation("unknown_role")
    content, thought = _text(turn["content"] if "content" in turn else turn.get("value"))
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
    message: Message = {"role": role, "content": content}
    if role == "assistant":
        thoughts = [thought, *(turn.get(key) for key in THOUGHTS)]
        if thought := next((each for each in thoughts if isinstance(each, str) and each.strip()), ""):
            message["thought"] = thought.strip()
        if not _trains(turn):
            message["train"] = False
    return message


def _trains(turn: Mapping[str, Any]) -> bool:
    weights = [turn[key] for key in WEIGHTS if turn.get(key) is not None]
    if any(weight not in (0, 1) for weight in weights):
        raise NoConversation("a_turn_has_a_weight_other_than_0_and_1")
    return all(weights)


def _text(content: Any) -> tuple[str, str]:
    """Text and thought: of a text, of nothing, or of OpenAI's list of parts that are all texts or thoughts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if isinstance(content, Sequence):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        texts = [part.get("text", "" if "thinking" in part else None) for part in parts]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts), "\n".join(str(part["thinking"]) for part in parts if part.get("thinking"))
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


def first_rows(patterns: Sequence[str], base: Path, most: int) -> Iterator[Placed]:
    """The first rows of every file: ``most`` in all, but at least one of each file. Raises TaskError."""
    files = [file for pattern in patterns for file in resolve(pattern, base)]
    for name, path in files:
        yield from islice(read_rows(name, path), max(1, most // len(files)))


def spells_out(chat: ChatFormat, row: Row) -> bool:
    """Whether a row's conversation holds the text of a control token; False where the row has none."""
    try:
        messages, tools = conversation(row)
        return chat.spells_out([*messages, {"role": "system", "content": json.dumps(tools, ensure_ascii=False)}])
    except NoConversation:
        return False


def try_conversations(patterns: Sequence[str], base: Path, most: int) -> None:
    """Read the first rows of every file: ``most`` in all, but at least one of each file.

    Raises TaskError, which names the row, for what is no conversation, and for files without any row.
    """
    empty, read = True, 0
    left: dict[str, int] = {}
    for where, row in first_rows(patterns, base, most):
        empty = False
        try:
            if sampled_tokens(row) is None:
                read += sum(len(message["content"]) for message in conversation(row).messages)
                for name, text in unread_fields(row).items():
                    left[name] = left.get(name, 0) + len(text)
        except NoConversation as error:
            raise TaskError(row_fault(error, row, where)) from error
    if empty:
        raise TaskError(f"{', '.join(patterns)}: there is no conversation to train on")
    if sum(left.values()) > read:
        raise TaskError(
            f"{', '.join(patterns)}: most of the text is in fields that no layout reads: {', '.join(sorted(left))}; "
            f"rename them, or leave them out; known are {known_layouts()}"
        )


def chat_format_of(model: str) -> ChatFormat:
    """How the model's tokenizer writes conversations. Raises DataError."""
    from transformers import AutoTokenizer

    from agent_rl.models.hub import HubError, is_hub_name, metadata

    try:
        directory = metadata(model) if is_hub_name(model) else Path(model).expanduser()
    except HubError as error:
        raise DataError(f"--model {model}: {error}") from error
    if not directory.is_dir():
        raise DataError(f"--model {model}: there is no such directory; name that of a Hugging Face model")
    try:
        return ChatFormat(AutoTokenizer.from_pretrained(directory, trust_remote_code=False), compact=True)
    except (OSError, ValueError, PromptError) as error:
        raise DataError(f"--model {model}: {' '.join(str(error).split())[:300]}") from error
