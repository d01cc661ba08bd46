"""Conversations with tool calls for supervised training: one format on disk, converted from the layouts of public sets.

The format: ``{"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}`` with the roles system (at most one,
first), user, assistant and tool. Calls are in the assistant's text as ``<tool_call>{"name": ..., "arguments":
{...}}</tool_call>``, thoughts beside it as ``reasoning_content``; a turn with ``train`` false is not trained. Training
adds the text about ``tools``, JSON schemas, and no other prompt. The loss covers the assistant's turns only.

A row's columns say its layout (`LAYOUTS`). The layout's reader returns the row's turns as messages (``role``,
``content``, where the layout has them ``tool_calls``), its system text, and its tools.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agent_rl.data.rows import DataError, Placed, Row
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import read_rows, resolve
from agent_rl.files.reading_json import JsonError, parse_json
from agent_rl.rollout.parsing import OPENING, ParsedCall, parse_calls
from agent_rl.rollout.prompts import THOUGHTS, ChatFormat, PromptError

Message = dict[str, Any]
"""``role``, ``content``, and where the row has them ``thought`` and ``train`` (False)."""
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


# Layouts of public sets -----------------------------------------------------------------------------------------------


class Chat(NamedTuple):
    """The parts of a row: its turns as the layout writes them, its system text, and its tools (JSON schemas)."""

    turns: Sequence[Any]
    system: Any = None
    tools: Any = None


Reader: TypeAlias = Callable[[Row], Chat]


class Layout(NamedTuple):
    """A layout: the columns that a row of it has, the public sets that use it, what becomes of them, its reader."""

    columns: tuple[str, ...]
    sets: str
    becomes: str
    read: Reader
    also: tuple[str, ...] = ()
    """Further columns that the reader reads, where a row has them."""

    def fits(self, row: Row) -> bool:
        """Whether the row has the columns."""
        return all(row.get(column) is not None for column in self.columns)

    @property
    def row(self) -> str:
        """The layout's row of the table in `docs/data.md`."""
        columns = ", ".join(f"`{column}`" for column in (*self.columns, *self.also))
        return f"| {columns} | {self.sets} | {self.becomes} |"


def read_chat(row: Row) -> Chat:
    """The parts of a row of any layout. Raises NoConversation for an unknown layout, and for calls or tools that cannot
    be read.
    """
    for layout in LAYOUTS:
        if layout.fits(row):
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


def _two_columns(question: str, answer: str, more: str = "") -> Reader:
    def read(row: Row) -> Chat:
        asked = row[question]
        if isinstance(asked, str) and isinstance(row.get(more), str) and row[more].strip():
            asked = f"{asked}\n\n{row[more]}"
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": row[answer]}]
        return Chat(turns, row.get("system"))

    return read


LAYOUTS = (
    Layout(
        ("messages",),
        "OpenAI, Tulu 3, Nemotron v1 and v2",
        "`tool_calls` go into the assistant's text; tools may also stand in `metadata`",
        _messages,
        ("metadata",),
    ),
    Layout(
        ("conversations",),
        "ShareGPT, APIGen-MT; ToolACE",
        "turns of `function_call` become turns of the assistant; where `system` lists functions and asks for "
        "`[Name(key=value)]`, these become calls, and of the system text only the functions stay",
        _sharegpt,
    ),
    Layout(
        ("system", "chat"),
        "Glaive v2",
        "`chat` is cut into turns; `<functioncall>` becomes a call, `FUNCTION RESPONSE` a tool's response",
        _glaive,
    ),
    Layout(("query", "answers"), "APIGen, xlam-function-calling-60k", "the answers become calls", _apigen),
    Layout(
        ("instruction", "output"),
        "Alpaca",
        "the input follows the instruction",
        _two_columns("instruction", "output", "input"),
        ("input",),
    ),
    Layout(("input", "output"), "Llama-Nemotron", "`output` is the last turn of the assistant", _nemotron),
    Layout(
        ("problem", "solution"),
        "Magicoder OSS-Instruct",
        "a question and its answer",
        _two_columns("problem", "solution"),
    ),
    Layout(
        ("instruction", "response"),
        "Dolly, Magicoder Evol-Instruct",
        "the context follows the instruction",
        _two_columns("instruction", "response", "context"),
        ("context",),
    ),
)
"""All layouts, in the order in which a row is compared with them."""
WEIGHTS = ("weight", "loss", "loss_mask", "train", "trainable")
"""Keys of a turn by which a row says that it is not to be trained."""
READ = frozenset({"system", "system_prompt", "tools"})
"""Columns that are read in every layout."""
READ_OF_TURNS = frozenset(
    {"role", "from", "content", "value", "tool_calls", "function_call", "name", "tool_call_id", *THOUGHTS, *WEIGHTS}
)
LABELS = frozenset(
    {
        "id",
        "uuid",
        "uid",
        "conversation_id",
        "prompt_id",
        "index",
        "hash",
        "url",
        "source",
        "dataset",
        "subset",
        "split",
    }
    | {"category", "task", "domain", "difficulty", "tags", "license", "language", "version", "generator", "model"}
    | {"created", "date"}
)
"""Fields that say where a row is from, in every layout."""
