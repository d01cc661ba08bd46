"""Conversations with tool calls for supervised training: one format on disk, converted from the layouts of public sets.

The format: ``{"messages": [{"role": ..., "content": ...}, ...]}`` with the roles system (at most one, first), user,
assistant and tool. Calls are in the assistant's text as ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
Training adds no prompt to a conversation. The loss covers the assistant's turns only.

A row's columns say its layout (`LAYOUTS`). The layout's reader returns the row's turns as messages (``role``,
``content``, where the layout has them ``tool_calls``), its system text, and its tools.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agent_rl.data.rows import DataError, Placed, Row
from agent_rl.environments.base import Environment, TaskError
from agent_rl.environments.task_files import read_rows, resolve
from agent_rl.files.reading_json import JsonError, parse_json
from agent_rl.rollout.parsing import OPENING, ParsedCall, parse_calls
from agent_rl.rollout.prompts import EMPTY, SYSTEM_TOOLS, ChatFormat, PromptError

Message = dict[str, str]
UNKNOWN_LAYOUT = "unknown_layout"

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


def first_rows(patterns: Sequence[str], base: Path, most: int) -> Iterator[Placed]:
    """The first rows of every file: ``most`` in all, but at least one of each file. Raises TaskError."""
    files = [file for pattern in patterns for file in resolve(pattern, base)]
    for name, path in files:
        yield from islice(read_rows(name, path), max(1, most // len(files)))


def spells_out(chat: ChatFormat, row: Row) -> bool:
    """Whether a row's conversation holds the text of a control token; False where the row has none."""
    try:
        return chat.spells_out(conversation(row))
    except NoConversation:
        return False


def try_conversations(patterns: Sequence[str], base: Path, most: int) -> None:
    """Read the first rows of every file: ``most`` in all, but at least one of each file.

    Raises TaskError, which names the row, for what is no conversation, and for files without any row.
    """
    empty = True
    for where, row in first_rows(patterns, base, most):
        empty = False
        try:
            if sampled_tokens(row) is None:
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
        chat = ChatFormat(
            AutoTokenizer.from_pretrained(directory, trust_remote_code=False),
            environments,
            compact=not environments or None,
        )
    except (OSError, ValueError, PromptError) as error:
        raise DataError(f"--model {model}: {' '.join(str(error).split())[:300]}") from error
    try:
        return chat, ModelFiles.read(directory).length
    except Unreadable:  # a tokenizer alone
        return chat, None


# Layouts of public sets -----------------------------------------------------------------------------------------------


class Chat(NamedTuple):
    """The parts of a row: its turns as the layout writes them, its system text, and its tools (JSON schemas)."""

    turns: Sequence[Any]
    system: Any = None
    tools: Any = None


Reader: TypeAlias = Callable[[Row], Chat]


class Layout(NamedTuple):
    """A layout: the columns that a row of it has, the public sets that use it, and its reader."""

    columns: tuple[str, ...]
    sets: str
    read: Reader


def read_chat(row: Row) -> Chat:
    """The parts of a row of any layout. Raises NoConversation for an unknown layout, and for calls or tools that cannot
    be read.
    """
    for layout in LAYOUTS:
        if all(row.get(column) is not None for column in layout.columns):
            return layout.read(row)
    raise NoConversation(UNKNOWN_LAYOUT)


def known_layouts() -> str:
    """The layouts in words, for a message."""
    return "; ".join(f"{' and '.join(layout.columns)} ({layout.sets})" for layout in LAYOUTS)


def call_text(call: Any) -> str:
    """A call as an assistant's turn holds it. ``call``: an object with name and arguments, or OpenAI's around one."""
    if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
        call = call["function"]
    name = call.get("name") if isinstance(call, Mapping) else None
    if not isinstance(name, str) or not name:
        raise NoConversation("unreadable_call")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = parsed(arguments or "{}", "unreadable_call")
    if not isinstance(arguments, Mapping):
        raise NoConversation("unreadable_call")
    text = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>{text}</tool_call>"


def call_texts(text: Any) -> str:
    """The calls of a JSON object or of an array of objects, one a line."""
    calls = parsed(text, "unreadable_call") if isinstance(text, str) else text
    return "\n".join(call_text(call) for call in (calls if isinstance(calls, list) else [calls]))


def parsed(text: str, reason: str) -> Any:
    """The value of a JSON text. Raises NoConversation with the reason for what is no JSON."""
    try:
        return parse_json(text)
    except JsonError as error:
        raise NoConversation(reason) from error


def _messages(row: Row) -> Chat:
    """OpenAI's layout. The tools stand in their own column, or within ``metadata`` (JSON text)."""
    tools, metadata = row.get("tools"), row.get("metadata")
    if tools is None and isinstance(metadata, str) and '"tools"' in metadata:
        metadata = parsed(metadata, "unreadable_tools")
    if tools is None and isinstance(metadata, Mapping):
        tools = metadata.get("tools")
    return Chat(_turns(row["messages"]), row.get("system"), tools)


def _turns(turns: Any) -> Sequence[Any]:
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise NoConversation("no_messages")
    return turns


def _sharegpt(row: Row) -> Chat:
    """ShareGPT's layout, and ToolACE's: there the system text holds the tools and asks for calls in brackets."""
    turns, system = _turns(row["conversations"]), row.get("system")
    tools = _toolace_tools(system) if row.get("tools") is None and isinstance(system, str) else None
    if tools is None:
        return Chat(turns, system, row.get("tools"))
    return Chat([_toolace_turn(turn) for turn in turns], None, tools)


def _toolace_tools(system: str) -> list[Any] | None:
    """The array of tools in a system text that asks for ``[func(name=value)]``; None for another text."""
    if not re.search(r"\[\s*func\w*\(", system):
        return None
    for start in re.finditer(r"\[\s*\{", system):
        try:
            tools, _ = json.JSONDecoder().raw_decode(system, start.start())
        except (ValueError, RecursionError):
            continue
        if all(isinstance(tool, Mapping) and "name" in tool for tool in tools):
            return list(tools)
    raise NoConversation("unreadable_tools")


def _toolace_turn(turn: Any) -> Any:
    """A turn whose calls in brackets are written as ours. A text that is no list of calls stays."""
    if not isinstance(turn, Mapping) or turn.get("from") not in ("assistant", "gpt"):
        return turn
    text = turn.get("value")
    calls = bracket_calls(text) if isinstance(text, str) else None
    return {**turn, "value": "\n".join(map(call_text, calls))} if calls else turn


def bracket_calls(text: str) -> list[dict[str, Any]] | None:
    """The calls of ``[Name(key=value, ...), ...]``; None for any other text.

    A name may hold blanks, dots and slashes, and a key may be a keyword of Python. A value is a literal of JSON or
    Python.
    """
    text = text.strip()
    try:
        pieces, end = _pieces(text, 1) if text.startswith("[") else ([], 0)
        if end != len(text):
            return None
        return [_bracket_call(piece.strip()) for piece in pieces if piece.strip()]
    except ValueError:
        return None


def _bracket_call(text: str) -> dict[str, Any]:
    name, opening, _ = text.partition("(")
    pieces, end = _pieces(text, len(name) + 1)
    if not opening or end != len(text) or not name.strip():
        raise ValueError(f"{text!r:.80} is no call")
    arguments = [piece.partition("=") for piece in pieces if piece.strip()]
    return {"name": name.strip(), "arguments": {key.strip(): _literal(key, value) for key, _, value in arguments}}


def _literal(key: str, text: str) -> Any:
    """A value of JSON or of Python. Raises ValueError."""
    if not re.fullmatch(r"\s*[^\s()\[\]{}\"',]+\s*", key):
        raise ValueError(f"{key!r:.80} is no name of an argument")
    try:
        return parse_json(text)
    except JsonError:
        pass
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r:.80} is no literal") from error
    return value


def _pieces(text: str, start: int) -> tuple[list[str], int]:
    """The parts between the outer commas from ``start`` to the bracket that closes, and the position after it.

    Raises ValueError when no bracket closes.
    """
    pieces: list[str] = []
    depth, quote, begin, position = 0, "", start, start
    while position < len(text):
        sign = text[position]
        if quote:
            position += sign == "\\"  # the next character is escaped
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            if not depth:
                return [*pieces, text[begin:position]], position + 1
            depth -= 1
        elif sign == "," and not depth:
            pieces.append(text[begin:position])
            begin = position + 1
        position += 1
    raise ValueError("a bracket is not closed")


_GLAIVE_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_GLAIVE_TURN = re.compile(r"(?:^|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_GLAIVE_CALL = re.compile(
    r"\{\s*\"name\":\s*(\"[^\"]+\")\s*(?:,\s*\"arguments\":\s*(?:'(.*)'|(\{.*\}))\s*)?\}", re.DOTALL
)


def _glaive(row: Row) -> Chat:
    """Glaive's layout: one text ``chat``, in which ``USER:``, ``ASSISTANT:`` and ``FUNCTION RESPONSE:`` begin turns."""
    if not isinstance(row["chat"], str):
        raise NoConversation("no_messages")
    _, *parts = _GLAIVE_TURN.split(row["chat"])
    turns = [
        {"role": _GLAIVE_ROLES[role], "content": _glaive_text(text.replace("<|endoftext|>", "").strip())}
        for role, text in zip(parts[::2], parts[1::2], strict=True)
    ]
    system = str(row.get("system") or "").strip().removeprefix("SYSTEM:").strip()
    head, brace, _ = system.partition("{")
    tools = list(_objects(system, len(head))) if brace else []
    # What follows names Glaive's own way to call tools.
    head = re.sub(r",? with access to the following functions\..*", ".", head, flags=re.DOTALL)
    return Chat(_turns(turns), head.strip(), tools)


def _glaive_text(text: str) -> str:
    before, tag, call = text.partition("<functioncall>")
    if not tag:
        return text
    match = _GLAIVE_CALL.fullmatch(call.strip())
    if match is None:
        raise NoConversation("unreadable_call")
    name, quoted, plain = match.groups()
    arguments = parsed(plain or (quoted or "{}").replace("\\'", "'"), "unreadable_call")
    return f"{before.strip()}\n{call_text({'name': json.loads(name), 'arguments': arguments})}".strip()


def _objects(text: str, position: int) -> Iterator[Any]:
    """The JSON objects that follow each other in a text."""
    while position >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise NoConversation("unreadable_tools") from error
        yield value
        position = text.find("{", end)


def _apigen(row: Row) -> Chat:
    """APIGen's layout: a question and the calls that answer it."""
    turns = [{"role": "user", "content": row["query"]}, {"role": "assistant", "content": call_texts(row["answers"])}]
    return Chat(turns, None, row.get("tools"))


def _nemotron(row: Row) -> Chat:
    """Llama-Nemotron's layout: the messages (or the text) before the response, and the response."""
    before = row["input"] if not isinstance(row["input"], str) else [{"role": "user", "content": row["input"]}]
    return Chat([*_turns(before), {"role": "assistant", "content": row["output"]}], row.get("system_prompt"))


def _two_columns(question: str, answer: str) -> Reader:
    def read(row: Row) -> Chat:
        turns = [{"role": "user", "content": row[question]}, {"role": "assistant", "content": row[answer]}]
        return Chat(turns, row.get("system"))

    return read


LAYOUTS = (
    Layout(("messages",), "OpenAI, Tulu 3, Nemotron v1 and v2", _messages),
    Layout(("conversations",), "ShareGPT, ToolACE, APIGen-MT", _sharegpt),
    Layout(("system", "chat"), "Glaive v2", _glaive),
    Layout(("query", "answers"), "APIGen, xlam-function-calling-60k", _apigen),
    Layout(("input", "output"), "Llama-Nemotron", _nemotron),
    Layout(("problem", "solution"), "Magicoder OSS-Instruct", _two_columns("problem", "solution")),
    Layout(("instruction", "response"), "Magicoder Evol-Instruct", _two_columns("instruction", "response")),
)
"""All layouts, in the order in which a row is compared with them."""
