"""Conversations of the forms and the public sets that are about, in the one form that is trained on; and their tokens."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from actors.cli.main import main
from agent_rl.data.conversations import (
    conversation,
    tool_turn_without_call,
    try_conversations,
    unread_fields,
    written,
)
from agent_rl.data.layouts import LAYOUTS, NoConversation, bracket_calls, call_text
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import read_rows
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.rollout.parsing import ParsedCall, parse_calls
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.supervised import sequences
from tests.agent_rl.data.test_data_command import write_rows

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
OPENAI = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]
}
SHAREGPT = {
    "conversations": [
        {"from": "human", "value": "1 + 1?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "It is 2."},
    ]
}
ONE_FORM = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": CALL},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]


@pytest.mark.parametrize("row", [OPENAI, SHAREGPT, {"messages": ONE_FORM}])
def test_three_ways_to_write_one_conversation(row: dict[str, Any]) -> None:
    assert conversation(row) == (ONE_FORM, [])


def test_tools_and_system_text_stand_in_one_system_message() -> None:
    row = {**SHAREGPT, "system": "Be brief.", "tools": json.dumps([{"name": "add"}])}
    said = conversation(row)
    assert said == ([{"role": "system", "content": "Be brief."}, *ONE_FORM], [{"name": "add"}])
    assert conversation(said._asdict()) == said  # the one form stays what it is
    chat = ChatFormat(build_tokenizer())
    ((tokens, _),) = sequences(chat, *said)
    assert chat.decode(tokens).startswith(f"<|system|>Be brief.\n\n{chat.listing(said.tools)}<|end|>")


def turns(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "x"} for role in roles]}


def asked(*said: str, **more: Any) -> list[dict[str, Any]]:
    """A question, and the answer with what the last message has beside its text."""
    roles = ("system", "user", "assistant")[-len(said) :]
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    messages[-1] |= more
    return messages


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "unknown_layout"),
        ({"messages": "x"}, "no_messages"),
        ({"messages": ["x"]}, "a_message_is_no_object"),
        (turns("user", "wizard"), "unknown_role"),
        (turns("assistant"), "roles_do_not_take_turns"),
        (turns("system", "assistant"), "roles_do_not_take_turns"),
        (turns("user", "user", "assistant"), "roles_do_not_take_turns"),
        (turns("user", "tool", "assistant"), "roles_do_not_take_turns"),
        (turns("user", "assistant", "user"), "does_not_end_with_the_assistant"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]}, "empty_turn_of_the_assistant"),
        ({"messages": [{"role": "user", "content": 3}]}, "content_is_no_text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "unreadable_call"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}]}, "unreadable_call"),
        ({"conversations": [{"from": "function_call", "value": "not json"}]}, "unreadable_call"),
        ({**turns("user", "assistant"), "tools": "{"}, "unreadable_tools"),
        ({"messages": asked("Q", "A", weight=0.5)}, "a_turn_has_a_weight_other_than_0_and_1"),
        ({"messages": asked(" ", "A")}, "empty_turn_of_the_user"),
    ],
)
def test_what_is_no_conversation_has_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoConversation) as found:
        conversation(row)
    assert str(found.value) == reason


def test_the_loss_is_on_what_the_assistant_writes_alone() -> None:
    chat = ChatFormat(build_tokenizer())
    messages = [{"role": "system", "content": "S"}, *ONE_FORM, {"role": "user", "content": "why?"}, ONE_FORM[-1]]
    ((tokens, mask),) = sequences(chat, messages)
    trained = chat.decode([token for token, on in zip(tokens, mask, strict=True) if on])
    assert trained == f"{CALL}<|end|>It is 2.<|end|>It is 2.<|end|>"
    assert chat.decode(tokens) == (
        f"<|system|>S<|end|><|user|>1 + 1?<|end|><|assistant|>{CALL}<|end|>"
        "<|user|><tool_response>\n2\n</tool_response><|end|><|assistant|>It is 2.<|end|>"
        "<|user|>why?<|end|><|assistant|>It is 2.<|end|>"
    )


def test_responses_to_one_turn_stand_together() -> None:
    chat = ChatFormat(build_tokenizer(), compact=True)
    two = [ONE_FORM[0], {"role": "assistant", "content": CALL + CALL}, ONE_FORM[2], {"role": "tool", "content": "3"}]
    text = chat.decode(sequences(chat, [*two, ONE_FORM[3]])[0][0])
    assert "<|user|><tool_response>2</tool_response><tool_response>3</tool_response><|end|>" in text


def test_a_row_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(OPENAI) + "\n" + json.dumps(turns("user")) + "\n")
    with pytest.raises(TaskError, match=r"chats\.jsonl:2: no conversation .*does not end with the assistant.*data sft"):
        try_conversations(["chats.jsonl"], tmp_path, 1000)
    try_conversations(["chats.jsonl"], tmp_path, 1)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="no conversation to train on"):
        try_conversations(["empty.jsonl"], tmp_path, 1)


READ_WHOLE = {
    "instructions with an input": ({"instruction": "Translate.", "input": "cheese", "output": "fromage"}, asked("Translate.\n\ncheese", "fromage")),
    "instructions with an empty one": ({"instruction": "Say hello.", "input": None, "output": "Hello."}, asked("Say hello.", "Hello.")),
    "a question about a text": ({"instruction": "When?", "context": "It began in 1999.", "response": "In 1999."}, asked("When?\n\nIt began in 1999.", "In 1999.")),
    "a system prompt": ({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "system_prompt": "S"}, asked("S", "Q", "A")),
    **{
        f"a thought as {key}": ({"messages": asked("Q", "A", **{key: " T "})}, asked("Q", "A", thought="T"))
        for key in ("reasoning_content", "thinking", "reasoning")
    },
    "a thought in parts": ({"messages": asked("Q", [{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "A"}])}, asked("Q", "A", thought="T")),
    "a thought beside a call": ({"messages": asked("Q", "", reasoning="T", tool_calls=OPENAI["messages"][1]["tool_calls"])}, asked("Q", CALL, thought="T")),
    **{
        f"a turn with {key} {value}": ({"messages": asked("Q", "A", **{key: value})}, asked("Q", "A", **trained))
        for key in ("weight", "loss", "loss_mask", "train", "trainable")
        for value, trained in ((0, {"train": False}), (False, {"train": False}), (1, {}), (None, {}))
    },
}  # fmt: skip


@pytest.mark.parametrize(("row", "messages"), READ_WHOLE.values(), ids=READ_WHOLE)
def test_every_field_of_a_row_that_says_something_is_read(row: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    assert conversation(row).messages == messages
    assert unread_fields(row) == {}
    assert conversation({"messages": [*map(written, messages)]}).messages == messages


def test_text_that_no_layout_reads_is_named_and_refused_where_it_is_most(tmp_path: Path) -> None:
    row = {
        "messages": asked("Why is it so?", "A", note="n" * 9),
        "prompt": "Why is it so?",
        "source": "x" * 99,
        "hint": "zz",
    }
    assert unread_fields(row) == {"hint": "zz", "turn.note": "n" * 9}
    twice = {"messages": [*asked("Q", "A", note="zz")] * 2}
    assert unread_fields(twice) == {"turn.note": "zzzz"}
    write_rows(tmp_path / "a.jsonl", [row])
    try_conversations(["a.jsonl"], tmp_path, 10)
    write_rows(tmp_path / "a.jsonl", [{**row, "hint": "z" * 9}])
    with pytest.raises(
        TaskError, match=r"a\.jsonl: most of the text is in fields that no layout reads: hint, turn\.note"
    ):
        try_conversations(["a.jsonl"], tmp_path, 10)


def test_nulls_that_fill_the_structs_of_parquet_are_no_arguments(tmp_path: Path) -> None:
    called = [
        {"function": {"name": name, "arguments": given}}
        for name, given in (("add", {"a": 2}), ("find", {"city": "Rome"}))
    ]
    rows = [{"messages": asked("Q", "", tool_calls=[each])} for each in called]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    read = [conversation(row).messages[1]["content"] for _, row in read_rows("a.parquet", tmp_path / "a.parquet")]
    assert [parse_calls(text) for text in read] == [
        (ParsedCall("add", {"a": 2}),),
        (ParsedCall("find", {"city": "Rome"}),),
    ]


# Layouts of public sets: rows that we wrote ourselves in each of them --------------------------------------------------

ROWS = json.loads(Path(__file__).with_name("public_rows.json").read_text(encoding="utf-8"))
"""A row of our own in the layout of each set, the roles of its conversation, and the tools that are called there."""
TOOLACE, GLAIVE, LLAMA_NEMOTRON, TULU = (ROWS[name]["row"] for name in ("ToolACE", "Glaive", "Llama-Nemotron", "Tulu"))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_public_set_becomes_a_conversation(name: str) -> None:
    row, roles, names = ROWS[name].values()
    messages, tools = said = conversation(row)
    assert [message["role"] for message in messages] == roles.split()
    calls = [call for message in messages if message["role"] == "assistant" for call in parse_calls(message["content"])]
    assert [call.name for call in calls if isinstance(call, ParsedCall)] == names
    assert len(calls) == len(names)  # none of them is malformed
    assert not tool_turn_without_call(messages)
    assert conversation({"messages": [*map(written, messages)], "tools": tools}) == said
    assert {tool.get("function", tool)["name"] for tool in tools} >= {*names}
    system = messages[0]["content"] if names else ""
    assert "params_name" not in system  # the set's own way to call tools is not asked for any more
    assert "Use them if required" not in system


def test_the_table_of_the_documents_is_that_of_the_code() -> None:
    lines = (Path(__file__).parents[3] / "docs/data.md").read_text(encoding="utf-8").splitlines()
    first = lines.index("| columns | sets | what becomes of them |") + 2
    assert lines[first : first + len(LAYOUTS) + 1] == [*(layout.row for layout in LAYOUTS), ""]


def test_arguments_keep_their_types_whatever_python_thinks_of_their_names() -> None:
    first, second = parse_calls(conversation(TOOLACE).messages[1]["content"])
    assert first == ParsedCall("Tide Table/at", {"port": "Brest", "days": ["Mon", "Tue"], "from": 3})
    assert second == ParsedCall("Tide Table/at", {"port": "St Malo", "in": None})
    (call,) = parse_calls(conversation(GLAIVE).messages[2]["content"])
    assert call == ParsedCall("add", {"a": 1, "note": "it's 2"})
    assert conversation(GLAIVE).messages[2]["content"].startswith("Let me see.\n<tool_call>")
    assert conversation(GLAIVE).messages[0]["content"] == "You are a helpful assistant."
    assert conversation(LLAMA_NEMOTRON).messages[0]["content"] == "detailed thinking on"
    assert conversation({**LLAMA_NEMOTRON, "input": "Why?"}) == conversation(LLAMA_NEMOTRON)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAME = st.from_regex(r"[A-Za-z][A-Za-z0-9 ./_-]{0,12}[A-Za-z0-9]", fullmatch=True)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": NAME, "arguments": st.dictionaries(st.from_regex(r"[a-z_-]{1,6}", fullmatch=True), JSON, max_size=3)}
    ),
    min_size=1,
    max_size=3,
)


@given(CALLS, st.sampled_from([json.dumps, repr]))
def test_calls_in_brackets_are_read_as_they_were_written(calls: list[dict[str, Any]], write: Any) -> None:
    called = [
        f"{call['name']}({', '.join(f'{key}={write(value)}' for key, value in call['arguments'].items())})"
        for call in calls
    ]
    assert bracket_calls(f"[{', '.join(called)}]") == calls
    assert all(isinstance(parse_calls(call_text(call))[0], ParsedCall) for call in calls)


@pytest.mark.parametrize(
    "text", ["", "[", "[1] and [2]", "[f(1)]", "[f(a=open(x))]", "[f(a=1]", "[a, b]", "[f(a={1})]"]
)
def test_another_text_in_brackets_is_no_call(text: str) -> None:
    assert not bracket_calls(text)


@given(st.dictionaries(st.sampled_from([key for layout in LAYOUTS for key in layout.columns]), JSON | st.just([{}])))
def test_no_row_of_any_values_raises_anything_else(row: dict[str, Any]) -> None:
    with suppress(NoConversation):
        conversation(row)


def tool_row(text: str, *, answered: bool) -> dict[str, Any]:
    after = [{"role": "tool", "content": "2"}, {"role": "assistant", "content": "2"}] if answered else []
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}, *after]}


def test_tool_turns_without_a_call_are_refused_counted_and_named(tmp_path: Path, capsys: Any) -> None:
    valid = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    rows = [
        tool_row(valid, answered=True),
        tool_row("add(1)", answered=True),
        tool_row("<tool_call>add(1)</tool_call>", answered=False),
        tool_row(f"{valid}<tool_call>add(1)</tool_call>", answered=True),
        tool_row("no tool", answered=False),
        *[tool_row("print(1)", answered=True)] * 5,
        {"text": "x"},
    ]
    file, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert main(["data", "sft", file, "--out", str(out)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    counts = json.loads(last)
    assert (counts["read"], counts["kept"]) == (11, 3)
    assert counts["dropped_tool_turn_without_a_call"] == 7
    assert counts["dropped_unknown_layout"] == 1
    first = ", ".join(f"{file}:{line}" for line in (2, 3, 6, 7, 8))
    assert f"note: 7 rows left out (tool turn without a call): {first}, ..." in lines
    assert f"note: 1 row left out (unknown layout): {file}:11" in lines
    assert len(out.read_text().splitlines()) == 3


def test_a_file_of_an_unknown_layout_is_one_message_with_the_known_ones(tmp_path: Path, capsys: Any) -> None:
    sound = write_rows(tmp_path / "a.jsonl", [TULU])
    file = write_rows(tmp_path / "b.jsonl", [{"text": "User: hi", "meta": 1}])
    assert main(["data", "sft", sound, file, "--out", str(tmp_path / "out.jsonl")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}:1: unknown layout of conversations; its columns are text, meta; known are messages (OpenAI" in line
    assert all(name in line for name in ("ToolACE", "Glaive v2", "Magicoder", "Nemotron", "xlam", "Tulu 3"))
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(TaskError, match=r"b\.jsonl:1: unknown layout .*its columns are text, meta; known are messages"):
        try_conversations(["a.jsonl", "b.jsonl"], tmp_path, 1000)
