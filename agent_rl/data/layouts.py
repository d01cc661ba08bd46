"""The layouts of public sets of conversations: a row's columns say which it has (`LAYOUTS`).

A layout's reader returns the row's turns as messages (``role``, ``content``, where the layout has them
``tool_calls``), its system text, and its tools.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from agent_rl.data.rows import Row
from agent_rl.files.reading_json import JsonError, parse_json
from agent_rl.rollout.prompts import THOUGHTS

UNKNOWN_LAYOUT = "unknown_layout"


class NoConversation(Exception):  # noqa: N818 - named for what it is
    """A row is not a conversation to train on; the text is the reason under which the row is counted."""


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
