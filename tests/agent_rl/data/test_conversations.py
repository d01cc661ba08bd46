"""Conversations of the forms that are about, in the one form that is trained on; and how they become tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rl.data.conversations import NoConversation, conversation, try_conversations
from agent_rl.environments.base import TaskError
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.supervised import sequences

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
