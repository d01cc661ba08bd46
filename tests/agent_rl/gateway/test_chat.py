from __future__ import annotations

import json

import pytest

from agent_rl.gateway.chat import Chat
from agent_rl.messages import Said, SaidCall
from tests.agent_rl.gateway.turns import CALL, CHAT, PROMPT, choice, events, given, part, replied, streamed

HELLO = [{"role": "user", "content": "hello"}]


def read(**body):
    return Chat().read({"messages": HELLO, **body})


def said(*messages):
    return read(messages=list(messages)).asked.messages


def test_messages_stay_in_place_and_as_they_were_written() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":  1.0}'}}
    assert said(
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call], "refusal": None, "audio": None},
        {"role": "tool", "content": "<|im_end|>", "tool_call_id": "c1"},
        {"role": "system", "content": "later"},
        {"role": "assistant", "content": "so", "reasoning_content": "aha", "annotations": []},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": [{"type": "text", "text": each} for each in "3b"]},
    ) == (
        Said("system", "be brief"),
        Said("user", "hi"),
        Said("assistant", "", "hm", (SaidCall("look", '{"at":  1.0}', "c1"),)),
        Said("tool", "<|im_end|>", call_id="c1"),
        Said("system", "later"),
        Said("assistant", "so", "aha"),
        Said("assistant", calls=(SaidCall("f", "{}"),)),
        Said("tool", "3\nb"),
    )


def test_parameters_are_read_and_those_of_the_run_are_named() -> None:
    wanted = read(
        model="m", max_tokens=5, stop="x", n=2, temperature=0.2, seed=None, user="u", top_p=1, parallel_tool_calls=True
    )
    asked = wanted.asked
    assert (asked.model, asked.max_tokens, asked.stop, asked.count, asked.streams) == ("m", 5, ("x",), 2, False)
    assert wanted.ignored == ("temperature", "top_p", "parallel_tool_calls")
    assert read(max_completion_tokens=3, max_tokens=5).asked.max_tokens == 3
    assert read(stop=["a", "b"], response_format={"type": "text"}, echo=False).asked.stop == ("a", "b")
    assert read().asked.max_tokens == 0


def test_tools_are_schemas_for_templates_without_other_keys() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
    tools = [
        {"type": "function", "function": {"name": "f", "description": "é", "parameters": schema, "strict": True}},
        {"type": "function", "function": {"name": "g"}, "cache_control": {"type": "ephemeral"}},
    ]
    wanted = read(tools=tools, tool_choice="auto")
    none = {"type": "object", "properties": {}}
    assert json.loads(wanted.asked.tools) == [
        {"type": "function", "function": {"name": "f", "description": "é", "parameters": schema}},
        {"type": "function", "function": {"name": "g", "parameters": none}},
    ]
    assert "é" in wanted.asked.tools
    assert wanted.asked.tools.index('"b"') < wanted.asked.tools.index('"a"')
    assert wanted.ignored == ()
    for choice_of_tool in ("required", {"type": "function", "function": {"name": "f"}}):
        assert read(tools=tools, tool_choice=choice_of_tool).ignored == ("tool_choice",)
    assert read(tools=tools, tool_choice="none").asked.tools == "[]"


def test_each_token_has_its_logprob_as_vllm_gives_it() -> None:
    content = replied(CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 3})["choices"][0]["logprobs"][
        "content"
    ]
    first = {"token": "token_id:10", "logprob": -1.25, "bytes": None}
    assert content[0] == first | {"top_logprobs": [first]}


@pytest.mark.parametrize("known", [PROMPT, ()], ids=["prompt", "no prompt"])
def test_a_stream_has_the_prompt_once_its_usage_alone_and_a_finish_at_its_end(known) -> None:
    asked = {"messages": HELLO, "return_token_ids": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = events(streamed(CHAT, asked, prompt=known))
    assert (done, usage["choices"]) == ("[DONE]", [])
    choices, none = [chunk["choices"][0] for chunk in chunks], [None] * (len(chunks) - 1)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [each["finish_reason"] for each in choices] == [*none, "tool_calls"]
    prompts = [chunk.get("prompt_token_ids") for chunk in chunks]
    assert prompts == ([[1, 2, 3], *none] if len(known) else [*none, [1, 2, 3]])


def test_calls_without_text_have_no_content_and_an_empty_turn_has_an_empty_one() -> None:
    whole = given(choice(calls=[SaidCall("f", "{}", "own")], finish="tool_calls"))
    message = replied(CHAT, {"messages": HELLO}, whole)["choices"][0]["message"]
    assert (message["content"], message["tool_calls"][0]["id"]) == (None, "own")
    assert replied(CHAT, {"messages": HELLO}, given(choice("")))["choices"][0]["message"]["content"] == ""


def test_several_choices_have_calls_of_their_own() -> None:
    whole = given(choice("a", calls=[CALL]), choice("b", calls=[CALL], ids=(5,)))
    body = replied(CHAT, {"messages": HELLO, "n": 2}, whole)
    ids = [each["message"]["tool_calls"][0]["id"] for each in body["choices"]]
    assert ids == ["call_x_0", "call_x_1_0"]
    assert body["usage"]["completion_tokens"] == 4


def test_logprobs_are_never_invented() -> None:
    short = choice("a")
    object.__setattr__(short, "logprobs", short.logprobs[:1])
    asked = {"messages": HELLO, "logprobs": True}
    assert replied(CHAT, asked, given(short))["choices"][0]["logprobs"] is None
    endless = choice("a")
    endless.logprobs[1] = float("-inf")
    assert replied(CHAT, asked, given(endless))["choices"][0]["logprobs"] is None


def test_a_stream_of_several_choices_has_one_finish_for_each() -> None:
    whole = given(choice("ab", ids=(1, 2)), choice("c", finish="length", ids=(3,)))
    parts = (part("a", ids=(1,)), part("c", ids=(3,), choice=1))
    chunks = events(streamed(CHAT, {"messages": HELLO, "n": 2, "return_token_ids": True}, parts, whole))[:-1]
    for number, (content, ids, finish) in enumerate([("ab", [1, 2], "stop"), ("c", [3], "length")]):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == number]
        assert "".join(each["delta"].get("content", "") for each in own) == content
        assert [token for each in own for token in each.get("token_ids", [])] == ids
        assert own[-1]["finish_reason"] == finish
    assert sum("prompt_token_ids" in chunk for chunk in chunks) == 1


def test_a_part_without_text_is_written_only_for_its_tokens() -> None:
    silent = part(ids=(9,))
    for body, count in (({}, 0), ({"return_token_ids": True}, 1), ({"logprobs": True}, 1)):
        stream = Chat().stream(read(**body), "x", 7)
        assert stream.part(silent).count(b"data: ") == count
        assert stream.part(part()) == b""


def test_a_text_that_does_not_continue_its_parts_is_not_written_twice() -> None:
    chunks = events(streamed(CHAT, {"messages": HELLO}, (part("Hi "),), given(choice("Hi"))))[:-1]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hi "


def test_what_is_written_is_ascii_on_one_line() -> None:
    stream = Chat().stream(read(), "x", 7)
    assert stream.part(part("\u2028é\r\n")).count(b"\n") == 2


def test_names_are_those_of_the_reply() -> None:
    assert replied(CHAT, {"messages": HELLO, "model": "m"})["id"] == "chatcmpl-x"
    first, *_ = events(streamed(CHAT, {"messages": HELLO, "model": "m"}))
    assert {key: first[key] for key in ("id", "created", "model")} == {"id": "chatcmpl-x", "created": 7, "model": "m"}
