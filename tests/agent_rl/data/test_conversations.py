"""Conversations of the forms that are about, in the one form that is trained on; and how they become tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from agent_rl.data.conversations import conversation, try_conversations, unread_fields, written
from agent_rl.data.layouts import NoConversation
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
