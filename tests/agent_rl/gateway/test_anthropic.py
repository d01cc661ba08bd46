from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent_rl.gateway.anthropic import SIGNATURE, Anthropic
from agent_rl.messages import Said, SaidCall
from tests.agent_rl.gateway.turns import (
    COUNT,
    MESSAGES,
    PROMPT,
    choice,
    events,
    given,
    part,
    refused,
    replied,
    streamed,
)

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
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "2"}]},
            ],
        },
        {"role": "system", "content": "later"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
    ) == (
        Said("user", "ab"),
        Said("assistant", "so", "hm", (SaidCall("f", '{"a": "é"}', "t1"), SaidCall("g", "{}", "t2"))),
        Said("tool", "1", call_id="t1"),
        Said("tool", "2", call_id="t2"),
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


@pytest.mark.parametrize(
    ("body", "says", "field"),
    [
        ({"messages": []}, "messages must have at least one message", "messages"),
        ({"messages": [{"role": "user"}]}, "must be text or a list of parts", "messages[0].content"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            "must be one of user, assistant, system",
            "messages[0].role",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "images are not supported",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "documents are",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            "images are not supported: leave messages[0].content[0].content[0] out",
            "messages[0].content[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "'server_tool_use'",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": "{}"}]}]},
            "must be an object; it is text",
            "messages[0].content[0].input",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "'web_search_20250305' is not",
            "tools[0]",
        ),
        ({"tool_choice": "auto "}, "must be one of auto, none, required", "tool_choice"),
        ({"tool_choice": {}}, "must be text; it is missing", "tool_choice.type"),
        ({"output_config": {"format": {}}}, "output_config.format is not supported", "output_config.format"),
        ({"mcp_servers": [{}]}, "give their tools as functions", "mcp_servers"),
        ({"system": 3}, "system must be text or a list of parts", "system"),
        ({"n": 2}, "unknown key 'n'", "n"),
        ({"max_tokens": "9"}, "must be a whole number", "max_tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body, says, field) -> None:
    message, at = refused(MESSAGES, {"messages": HELLO, **body})
    assert says in message
    assert at == field


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


@pytest.mark.parametrize(("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens")])
def test_why_a_turn_ended(finish, reason) -> None:
    assert replied(MESSAGES, {"messages": HELLO}, given(choice("a", finish=finish)))["stop_reason"] == reason


def test_a_turn_that_a_stop_sequence_ends_names_it() -> None:
    cut = replace(choice("a", finish="stop"), cut_at="STOP")
    body = replied(MESSAGES, {"messages": HELLO}, given(cut))
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "STOP")
    calling = replied(MESSAGES, {"messages": HELLO}, given(replace(cut, finish="tool_calls")))
    assert (calling["stop_reason"], calling["stop_sequence"]) == ("tool_use", None)


def test_the_reply_comes_back_as_the_same_turn() -> None:
    (turn,) = said({"role": "assistant", "content": replied(MESSAGES, {"messages": HELLO})["content"]})
    assert (turn.content, turn.reasoning) == ("Hello world", "let me see")
    assert [json.loads(call.arguments) for call in turn.calls] == [{"at": "é", "deep": True}] * 2


def test_token_ids_stand_on_the_top_level() -> None:
    body = replied(MESSAGES, {"messages": HELLO, "return_token_ids": True})
    assert (body["prompt_token_ids"], body["token_ids"]) == ([1, 2, 3], [10, 11, 12, 13, 14])
    assert len(body["logprobs"]["content"]) == 5


@pytest.mark.parametrize("known", [PROMPT, ()])
def test_a_stream_adds_up_to_the_reply(known) -> None:
    asked = {"messages": HELLO, "return_token_ids": True}
    start, *blocks, ending, stop = events(streamed(MESSAGES, asked, prompt=known))
    whole = replied(MESSAGES, asked)
    assert start["message"]["content"] == []
    assert start["message"]["usage"] == {"input_tokens": len(known), "output_tokens": 0}
    assert (ending["type"], stop) == ("message_delta", {"type": "message_stop"})
    assert ending["usage"] == whole["usage"]
    assert {key: ending[key] for key in ("token_ids", "prompt_token_ids", "logprobs")} == {
        key: whole[key] for key in ("token_ids", "prompt_token_ids", "logprobs")
    }
    assert ending["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    for index, block in enumerate(whole["content"]):
        own = [each for each in blocks if each["index"] == index]
        assert [own[0]["type"], own[-1]["type"]] == ["content_block_start", "content_block_stop"]
        deltas = [each["delta"] for each in own[1:-1]]
        kind = deltas[0]["type"]
        if kind == "input_json_delta":
            assert own[0]["content_block"] == block | {"input": {}}
            assert json.loads("".join(each["partial_json"] for each in deltas)) == block["input"]
        else:
            key = kind.removesuffix("_delta")
            begun = block | {key: ""}
            if key == "thinking":
                assert deltas.pop() == {"type": "signature_delta", "signature": SIGNATURE}
                begun["signature"] = ""
            assert own[0]["content_block"] == begun
            assert "".join(each[key] for each in deltas) == block[key]


def test_thinking_after_text_is_a_block_of_its_own() -> None:
    parts = (part("a"), part("", "b"), part("c"))
    found = events(streamed(MESSAGES, {"messages": HELLO}, parts, given(choice("ac", "b"))))
    started = [each["content_block"]["type"] for each in found if each["type"] == "content_block_start"]
    assert started == ["text", "thinking", "text"]


@pytest.mark.parametrize(
    ("refusal", "status", "kind", "says"),
    [
        ("key", 401, "authentication_error", "so"),
        ("ended", 409, "invalid_request_error", "rollout concluded: so"),
        ("overflow", 400, "invalid_request_error", "prompt is too long: so"),
        ("request", 400, "invalid_request_error", "so"),
        ("busy", 429, "rate_limit_error", "so"),
        ("failed", 503, "api_error", "so"),
        ("", 503, "api_error", "so"),
    ],
)
def test_errors_have_the_shape_of_the_provider(refusal, status, kind, says) -> None:
    wanted = {"type": "error", "error": {"type": kind, "message": says}}
    assert Anthropic().error(refusal, "so", "messages") == (status, wanted)
    assert events(Anthropic().stream(read(), "x", 7).failed(refusal, "so")) == [wanted]
