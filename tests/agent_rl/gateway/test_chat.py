from __future__ import annotations

import json

import pytest

from agent_rl.gateway.chat import Chat
from agent_rl.messages import Said, SaidCall
from tests.agent_rl.gateway.turns import (
    CALL,
    CHAT,
    PARTS,
    WHOLE,
    choice,
    events,
    given,
    part,
    refused,
    replied,
    streamed,
)

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
        {"role": "function", "name": "f", "content": "3"},
    ) == (
        Said("system", "be brief"),
        Said("user", "hi"),
        Said("assistant", "", "hm", (SaidCall("look", '{"at":  1.0}', "c1"),)),
        Said("tool", "<|im_end|>", call_id="c1"),
        Said("system", "later"),
        Said("assistant", "so", "aha"),
        Said("assistant", calls=(SaidCall("f", "{}"),)),
        Said("tool", "3"),
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


@pytest.mark.parametrize(
    ("body", "says", "field"),
    [
        ({"temprature": 1}, "the body has the unknown key 'temprature'; did you mean 'temperature'?", "temprature"),
        ({"zzzz": 1}, "unknown key 'zzzz'; leave it out", "zzzz"),
        ({"messages": []}, "messages must have at least one message", "messages"),
        ({"messages": None}, "messages must have at least one", "messages"),
        ({"messages": {}}, "messages must be a list; it is an object", "messages"),
        ({"messages": ["hi"]}, "messages[0] must be an object; it is text", "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role must be text; it is missing", "messages[0].role"),
        ({"messages": [{"role": "boss"}]}, "messages[0].role is 'boss'; it must be one of system", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "must be text or a list of parts; it is missing", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "it is a number", "messages[0].content"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "is not supported", "messages[0].audio"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "'custom'",
            "messages[0].tool_calls[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "the type 'web_search' is not supported: leave tools[0] out", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "must be an object; it is missing", "tools[0].function"),
        ({"tools": [{"function": {"name": 1}}]}, "must be text; it is a number", "tools[0].function.name"),
        ({"tool_choice": "maybe"}, "must be one of auto, none, required", "tool_choice"),
        ({"tool_choice": 3}, "must be an object; it is a number", "tool_choice"),
        ({"max_tokens": 0}, "must be a whole number from 1 to 2147483647", "max_tokens"),
        ({"max_tokens": True}, "must be a whole number", "max_tokens"),
        ({"max_tokens": 1.5}, "must be a whole number", "max_tokens"),
        ({"n": 129}, "from 1 to 128", "n"),
        ({"stop": [""]}, "must hold texts that are not empty", "stop"),
        ({"stream": "yes"}, "must be true or false; it is text", "stream"),
        ({"stream_options": []}, "must be an object; it is a list", "stream_options"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format 'json_schema' is not supported",
            "response_format",
        ),
        ({"functions": [{}]}, "functions is not supported: give them as tools", "functions"),
        ({"continue_final_message": True}, "the model writes whole turns", "continue_final_message"),
        ({"temperature": float("inf")}, "temperature is a number that is too large", "temperature"),
        ({"model": "\ud800"}, "model holds half of a surrogate pair", "model"),
        ({"metadata": {"a\udfff": 1}}, "metadata holds half of a surrogate pair", "metadata"),
        ({"model": 3}, "model must be text", "model"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body, says, field) -> None:
    message, at = refused(CHAT, {"messages": HELLO, **body})
    assert says in message
    assert at == field


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("image_url", "images are"),
        ("input_audio", "sounds are"),
        ("file", "files are"),
        ("thing", "the type 'thing' is"),
    ],
)
def test_parts_that_are_no_text_are_refused_where_they_are(kind, named) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind}]}
    says, field = refused(CHAT, {"messages": [*HELLO, message]})
    assert says.startswith(f"{named} not supported: leave messages[1].content[1] out")
    assert field == "messages[1].content[1]"


def test_a_body_nested_too_deeply_is_refused() -> None:
    deep = {}
    for _ in range(100):
        deep = {"a": deep}
    assert "nested deeper than 64 levels" in refused(CHAT, {"messages": HELLO, "metadata": deep})[0]


def test_a_reply_has_text_reasoning_calls_and_real_counts() -> None:
    body = replied(CHAT, {"model": "m", "messages": HELLO})
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello world", "let me see")
    function = {"name": "look", "arguments": CALL.arguments}
    assert message["tool_calls"] == [{"id": f"call_x_{n}", "type": "function", "function": function} for n in (0, 1)]
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert "token_ids" not in body["choices"][0]
    assert "prompt_token_ids" not in body
    assert body["choices"][0]["logprobs"] is None


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


def test_token_ids_and_logprobs_as_vllm_gives_them() -> None:
    asked = {"messages": HELLO, "return_token_ids": True, "logprobs": True, "top_logprobs": 3}
    body = replied(CHAT, asked)
    assert body["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"][0]["token_ids"] == [10, 11, 12, 13, 14]
    first = {"token": "token_id:10", "logprob": -1.25, "bytes": None}
    content = body["choices"][0]["logprobs"]["content"]
    assert content[0] == first | {"top_logprobs": [first]}
    assert len(content) == 5


def test_logprobs_are_never_invented() -> None:
    short = choice("a")
    object.__setattr__(short, "logprobs", short.logprobs[:1])
    asked = {"messages": HELLO, "logprobs": True}
    assert replied(CHAT, asked, given(short))["choices"][0]["logprobs"] is None
    endless = choice("a")
    endless.logprobs[1] = float("-inf")
    assert replied(CHAT, asked, given(endless))["choices"][0]["logprobs"] is None


def test_a_stream_adds_up_to_the_reply() -> None:
    asked = {"messages": HELLO, "return_token_ids": True, "logprobs": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = events(streamed(CHAT, asked))
    whole = replied(CHAT, asked)
    assert done == "[DONE]"
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [each["delta"] for each in choices]
    message = whole["choices"][0]["message"]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(each.get("content", "") for each in deltas) == message["content"]
    assert "".join(each.get("reasoning_content", "") for each in deltas) == message["reasoning_content"]
    calls = [call for each in deltas for call in each.get("tool_calls", [])]
    assert calls == [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    assert [token for each in choices for token in each.get("token_ids", [])] == whole["choices"][0]["token_ids"]
    entries = [entry for each in choices for entry in (each["logprobs"] or {"content": []})["content"]]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[1, 2, 3]] + [None] * (len(chunks) - 1)


def test_the_prompt_comes_with_the_finish_if_it_was_not_known_before() -> None:
    body = {"messages": HELLO, "return_token_ids": True}
    *chunks, _ = events(streamed(CHAT, body, prompt=()))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [None] * (len(chunks) - 1) + [[1, 2, 3]]


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


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        ("key", 401, "invalid_api_key"),
        ("ended", 409, "rollout_concluded"),
        ("overflow", 400, "context_length_exceeded"),
        ("request", 400, None),
        ("busy", 429, "rate_limit_exceeded"),
        ("failed", 503, "server_error"),
        ("", 503, "server_error"),
    ],
)
def test_errors_have_the_shape_of_the_provider(refusal, status, code) -> None:
    got, body = Chat().error(refusal, "it is so", "messages")
    assert (got, body["error"]["code"], body["error"]["param"]) == (status, code, "messages")
    assert body["error"]["message"].endswith("it is so")
    assert Chat().error(refusal, "")[1]["error"]["message"]
    (broken,) = events(Chat().stream(read(), "x", 7).failed(refusal, "it is so"))
    assert broken["error"] == body["error"] | {"param": None}


def test_a_rollout_that_ended_is_named_so() -> None:
    assert Chat().error("ended", "")[1]["error"]["message"] == "rollout concluded"
    assert "maximum context length" in Chat().error("overflow", "9 > 8")[1]["error"]["message"]


def test_names_are_those_of_the_reply() -> None:
    assert replied(CHAT, {"messages": HELLO, "model": "m"})["id"] == "chatcmpl-x"
    first, *_ = events(streamed(CHAT, {"messages": HELLO, "model": "m"}, PARTS, WHOLE))
    assert {key: first[key] for key in ("id", "created", "model")} == {"id": "chatcmpl-x", "created": 7, "model": "m"}
