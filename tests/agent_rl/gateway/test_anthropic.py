from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent_rl.gateway.anthropic import SIGNATURE, Anthropic
from agent_rl.messages import Said, SaidCall
from tests.agent_rl.gateway.turns import COUNT, MESSAGES, PROMPT, choice, events, given, part, replied, streamed

HELLO = [{"role": "user", "content": "hello"}]
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=9f;"


def read(**body):
    return Anthropic().read({"messages": HELLO, **body})


def said(*messages, **body):
    return read(messages=list(messages), **body).asked.messages


def test_blocks_become_messages_and_results_come_before_the_text() -> None:
    image_free = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert said(
        {"role": "user", "content": image_free},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "é"}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "now"},
                {"type": "tool_result", "tool_use_id": "t1", "content": "1", "is_error": True},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "b"}],
                },
            ],
        },
        {"role": "system", "content": "later"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
    ) == (
        Said("user", "ab"),
        Said("assistant", "so", "hm", (SaidCall("f", '{"a": "é"}', "t1"), SaidCall("g", "{}", "t2"))),
        Said("tool", "Error: 1", call_id="t1"),
        Said("tool", "2\nb", call_id="t2"),
        Said("user", "now"),
        Said("system", "later"),
        Said("assistant", "done"),
        Said("tool", "", call_id="t3"),
    )


@pytest.mark.parametrize(
    ("system", "left"),
    [
        ("be brief", "be brief"),
        (
            [{"type": "text", "text": BILLING}, {"type": "text", "text": "be"}, {"type": "text", "text": " brief"}],
            "be brief",
        ),
        (f"{BILLING}\nbe brief", "be brief"),
        (f"be brief\n{BILLING}", "be brief\n"),
        (f"say {BILLING}", f"say {BILLING}"),
    ],
)
def test_the_system_text_is_the_first_message_without_the_line_of_the_request(system, left) -> None:
    assert said(*HELLO, system=system)[0] == Said("system", left)


@pytest.mark.parametrize("system", [None, "", [], BILLING, [{"type": "text", "text": BILLING}]])
def test_an_empty_system_text_is_no_message(system) -> None:
    assert said(*HELLO, system=system) == (Said("user", "hello"),)


def test_parameters_and_tools() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    wanted = read(
        model="m",
        max_tokens=9,
        stop_sequences=["x"],
        stream=True,
        tools=[tool, {**tool, "type": "custom"}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "low"},
        metadata={"user_id": "u"},
        temperature=1.0,
    )
    asked = wanted.asked
    assert (asked.model, asked.max_tokens, asked.stop, asked.streams, asked.counts) == ("m", 9, ("x",), True, False)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert json.loads(asked.tools) == [{"type": "function", "function": function}] * 2
    assert wanted.ignored == ("temperature", "thinking", "output_config")
    assert read(tools=[tool], tool_choice={"type": "any"}).ignored == ("tool_choice",)
    assert read(tools=[tool], tool_choice={"type": "none"}).asked.tools == "[]"


def test_tokens_are_counted_without_a_turn() -> None:
    wanted = Anthropic(counts_only=True).read({"messages": HELLO, "stream": True})
    assert (wanted.asked.counts, wanted.asked.streams) == (True, False)
    assert replied(COUNT, {"messages": HELLO}, given()) == {"input_tokens": 3}


def test_a_reply_has_blocks_in_order_and_real_counts() -> None:
    body = replied(MESSAGES, {"messages": HELLO, "model": "m"})
    use = {"type": "tool_use", "name": "look", "input": {"at": "é", "deep": True}}
    assert body["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": SIGNATURE},
        {"type": "text", "text": "Hello world"},
        use | {"id": "toolu_x_0"},
        use | {"id": "toolu_x_1"},
    ]
    assert (body["stop_reason"], body["stop_sequence"], body["model"]) == ("tool_use", None, "m")
    assert body["usage"] == {"input_tokens": 3, "output_tokens": 5}
    assert "token_ids" not in body


@pytest.mark.parametrize(
    ("finish", "cut_at", "reason", "sequence"),
    [
        ("stop", "", "end_turn", None),
        ("length", "", "max_tokens", None),
        ("stop", "STOP", "stop_sequence", "STOP"),
        ("tool_calls", "STOP", "tool_use", None),
    ],
)
def test_why_a_turn_ended(finish, cut_at, reason, sequence) -> None:
    body = replied(MESSAGES, {"messages": HELLO}, given(replace(choice("a", finish=finish), cut_at=cut_at)))
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("known", [PROMPT, ()], ids=["prompt", "no prompt"])
def test_a_stream_begins_with_no_content_and_its_blocks_are_empty(known) -> None:
    start, *blocks, _, _ = events(streamed(MESSAGES, {"messages": HELLO}, prompt=known))
    assert (start["message"]["content"], start["message"]["usage"]["input_tokens"]) == ([], len(known))
    begun = [each["content_block"] for each in blocks if each["type"] == "content_block_start"]
    assert [each.get("thinking", each.get("text", each.get("input"))) for each in begun] == ["", "", {}, {}]
    signed = [each["delta"] for each in blocks if each.get("delta", {}).get("type") == "signature_delta"]
    assert signed == [{"type": "signature_delta", "signature": SIGNATURE}]


def test_thinking_after_text_is_a_block_of_its_own() -> None:
    parts = (part("a"), part("", "b"), part("c"))
    found = events(streamed(MESSAGES, {"messages": HELLO}, parts, given(choice("ac", "b"))))
    started = [each["content_block"]["type"] for each in found if each["type"] == "content_block_start"]
    assert started == ["text", "thinking", "text"]
