from __future__ import annotations

import json

import pytest

from agent_rl.gateway.responses import Responses
from agent_rl.messages import Said, SaidCall
from tests.agent_rl.gateway.turns import CALL, PROMPT, RESPONSES, choice, events, given, part, replied, streamed


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
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": each} for each in "2b"],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "then"}], "encrypted_content": "xx"},
        {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
        {"role": "system", "content": "later"},
    ) == (
        Said("system", "be brief"),
        Said("user", "hi"),
        Said("assistant", "so", "hm", (SaidCall("f", '{"a":  1}', "c1"), SaidCall("g", "{}", "c2"))),
        Said("tool", "1", call_id="c1"),
        Said("tool", "2\nb", call_id="c2"),
        Said("assistant", "", "then", (SaidCall("f", "{}", "c3"),)),
        Said("system", "later"),
    )


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
    (empty,) = replied(RESPONSES, {"input": "hi"}, given(choice("")))["output"]
    assert (empty["type"], empty["content"][0]["text"]) == ("message", "")  # so that it comes back
    short = choice("a")
    object.__setattr__(short, "logprobs", short.logprobs[:1])
    assert "logprobs" not in replied(RESPONSES, {"input": "hi", "return_token_ids": True}, given(short))


@pytest.mark.parametrize("known", [PROMPT, ()], ids=["prompt", "no prompt"])
def test_the_events_of_each_item_add_up_to_it(known) -> None:
    asked = {"input": "hi", "return_token_ids": True}
    begun, goes_on, *found = events(streamed(RESPONSES, asked, prompt=known))
    assert (begun["type"], goes_on["type"]) == ("response.created", "response.in_progress")
    assert begun["response"]["output"] == []
    assert found[-1]["response"] == replied(RESPONSES, asked)
    for number, item in enumerate(found[-1]["response"]["output"]):
        first, *own, last = [each for each in found if each.get("output_index") == number]
        assert (first["type"], last["type"]) == ("response.output_item.added", "response.output_item.done")
        assert {each["item_id"] for each in own} | {first["item"]["id"]} == {item["id"]}
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert (last["item"], "".join(each.get("delta", "") for each in own)) == (item, text)


def test_reasoning_after_text_is_an_item_of_its_own() -> None:
    parts = (part("a"), part("", "b"), part("c"))
    found = events(streamed(RESPONSES, {"input": "hi"}, parts, given(choice("ac", "b"))))
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["message", "reasoning", "message"]
    assert len({item["id"] for item in found[-1]["response"]["output"]}) == 3
