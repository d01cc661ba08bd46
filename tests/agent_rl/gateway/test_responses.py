from __future__ import annotations

import json

import pytest

from agent_rl.gateway.responses import Responses
from agent_rl.messages import Said, SaidCall
from tests.agent_rl.gateway.turns import (
    CALL,
    PROMPT,
    RESPONSES,
    choice,
    events,
    given,
    part,
    refused,
    replied,
    streamed,
)


def read(given_input="hello", **body):
    return Responses().read({"input": given_input, **body})


def said(*items, **body):
    return read(list(items), **body).asked.messages


def test_a_text_is_one_message_of_the_user() -> None:
    assert read().asked.messages == (Said("user", "hello"),)
    assert read(instructions="be brief").asked.messages == (Said("system", "be brief"), Said("user", "hello"))


def test_items_become_messages_and_what_the_model_wrote_one_turn() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert said(
        {"role": "developer", "content": "be brief"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}],
        },
        thought,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":  1}', "id": "fc_1"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "then"}], "encrypted_content": "xx"},
        {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
        {"role": "system", "content": "later"},
    ) == (
        Said("system", "be brief"),
        Said("user", "hi"),
        Said("assistant", "so", "hm", (SaidCall("f", '{"a":  1}', "c1"), SaidCall("g", "{}", "c2"))),
        Said("tool", "1", call_id="c1"),
        Said("tool", "2", call_id="c2"),
        Said("assistant", "", "then", (SaidCall("f", "{}", "c3"),)),
        Said("system", "later"),
    )


def test_the_output_comes_back_as_the_same_turn() -> None:
    body = replied(RESPONSES, {"input": "hi"})
    (turn,) = said(*body["output"])
    calls = tuple(SaidCall(CALL.name, CALL.arguments, f"call_x_{number}") for number in (0, 1))
    assert turn == Said("assistant", "Hello world", "let me see", calls)


def test_parameters_and_tools() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"}
    wanted = read(
        model="m", tools=[tool], max_output_tokens=9, reasoning={"effort": "low"}, include=[], store=False, stream=True
    )
    asked = wanted.asked
    assert (asked.model, asked.max_tokens, asked.streams, asked.count) == ("m", 9, True, 1)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert json.loads(asked.tools) == [{"type": "function", "function": function}]
    assert wanted.ignored == ("reasoning",)
    chosen = {"type": "function", "name": "f"}
    assert read(tools=[tool], tool_choice=chosen).ignored == ("tool_choice",)


@pytest.mark.parametrize(
    ("body", "says", "field"),
    [
        ({"input": []}, "input must have at least one message", "input"),
        ({}, "input must have at least one message", "input"),
        ({"input": 3}, "input must be a list; it is a number", "input"),
        ({"input": "a", "previous_response_id": "r"}, "send the whole conversation as input", "previous_response_id"),
        ({"input": "a", "conversation": {"id": "c"}}, "keeps no responses", "conversation"),
        ({"input": "a", "background": True}, "leave it out", "background"),
        ({"input": "a", "prompt": {"id": "p"}}, "no stored prompts", "prompt"),
        ({"input": "a", "stop": ["x"]}, "unknown key 'stop'", "stop"),
        (
            {"input": "a", "text": {"format": {"type": "json_schema"}}},
            "text.format 'json_schema' is not supported",
            "text.format",
        ),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "'web_search' is not supported", "tools[0]"),
        ({"input": "a", "tools": [{"type": "custom", "name": "p"}]}, "'custom' is not supported", "tools[0]"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "refers to a stored item", "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "the type 'computer_call' is not supported", "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "images are not", "input[0].content[0]"),
        ({"input": [{"role": "tool", "content": "a"}]}, "must be one of user, assistant", "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "must be text; it is missing", "input[0].name"),
        ({"input": "a", "metadata": []}, "metadata must be an object", "metadata"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body, says, field) -> None:
    message, at = refused(RESPONSES, body)
    assert says in message
    assert at == field


def test_a_reply_has_items_in_order_real_counts_and_the_request() -> None:
    body = replied(RESPONSES, {"input": "hi", "model": "m", "instructions": "be", "metadata": {"a": "b"}})
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["status"] for item in body["output"]] == ["completed"] * 4
    assert body["output"][1]["content"][0]["text"] == "Hello world"
    assert body["output"][2] | {"id": ""} == {
        "id": "",
        "type": "function_call",
        "call_id": "call_x_0",
        "name": "look",
        "arguments": CALL.arguments,
        "status": "completed",
    }
    assert (body["status"], body["incomplete_details"]) == ("completed", None)
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["usage"]["total_tokens"]) == (3, 5, 8)
    assert (body["instructions"], body["metadata"], body["tools"], body["tool_choice"]) == (
        "be",
        {"a": "b"},
        [],
        "auto",
    )
    assert "token_ids" not in body


def test_a_turn_that_was_cut_is_incomplete() -> None:
    body = replied(RESPONSES, {"input": "hi"}, given(choice("Hel", finish="length")))
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][-1]["status"] == "incomplete"
    assert replied(RESPONSES, {"input": "hi"}, given(choice("")))["output"] == []


def test_token_ids_stand_on_the_top_level() -> None:
    body = replied(RESPONSES, {"input": "hi", "return_token_ids": True})
    assert (body["prompt_token_ids"], body["token_ids"]) == ([1, 2, 3], [10, 11, 12, 13, 14])
    assert [entry["logprob"] for entry in body["logprobs"]["content"]][:2] == [-1.25, -1.375]
    short = choice("a")
    object.__setattr__(short, "logprobs", short.logprobs[:1])
    assert "logprobs" not in replied(RESPONSES, {"input": "hi", "return_token_ids": True}, given(short))


@pytest.mark.parametrize("known", [PROMPT, ()])
def test_a_stream_adds_up_to_the_reply(known) -> None:
    asked = {"input": "hi", "return_token_ids": True}
    found = events(streamed(RESPONSES, asked, prompt=known))
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert [each["type"] for each in found[:2]] == ["response.created", "response.in_progress"]
    assert found[0]["response"]["output"] == []
    last = found[-1]
    assert (last["type"], last["response"]) == ("response.completed", replied(RESPONSES, asked))
    for number, item in enumerate(last["response"]["output"]):
        own = [each for each in found if each.get("output_index") == number]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1]["type"] == "response.output_item.done"
        assert own[-1]["item"] == item
        assert {each.get("item_id", item["id"]) for each in own} == {item["id"]}
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(each["delta"] for each in own if each["type"].endswith(".delta")) == text


def test_reasoning_after_text_is_an_item_of_its_own() -> None:
    parts = (part("a"), part("", "b"), part("c"))
    found = events(streamed(RESPONSES, {"input": "hi"}, parts, given(choice("ac", "b"))))
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["message", "reasoning", "message"]
    assert len({item["id"] for item in found[-1]["response"]["output"]}) == 3


@pytest.mark.parametrize(
    ("refusal", "code"),
    [("failed", "server_error"), ("overflow", "context_length_exceeded"), ("request", "invalid_prompt")],
)
def test_a_stream_that_breaks_off_fails(refusal, code) -> None:
    stream = Responses().stream(read(), "x", 7)
    (*_, last) = events(stream.opened() + stream.part(part("a")) + stream.failed(refusal, "it is so"))
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == code
    assert "it is so" in last["response"]["error"]["message"]
