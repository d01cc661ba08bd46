"""The real clients of the providers read what the dialects write, and what they send is read."""

from __future__ import annotations

import json
from functools import cache

import pytest

from agent_rl.gateway.base import RequestError
from agent_rl.gateway.bodies import read_body
from agent_rl.gateway.dialects import DIALECTS, models_body
from agent_rl.messages import TurnGiven
from tests.agent_rl.gateway.turns import CALL, PARTS, PROMPT, WHOLE, choice, events, given, part, replied, streamed

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
httpx = pytest.importorskip("httpx2")  # that of both clients
pydantic = pytest.importorskip("pydantic")

CHAT, RESPONSES, MESSAGES, *_ = DIALECTS
HELLO = [{"role": "user", "content": "hello"}]
ARGUMENTS = json.loads(CALL.arguments)
CUT = given(choice("Hello", finish="length"))


class Served:
    """A gateway without sockets: it gives one turn to any request."""

    def __init__(self, whole: TurnGiven = WHOLE, parts=PARTS, refusal="", headers=()) -> None:
        self.whole, self.parts, self.refusal, self.headers = whole, parts, refusal, dict(headers)
        self.wanted = None
        self.requests = 0
        transport = httpx.MockTransport(self.respond)
        self.openai = openai.OpenAI(
            base_url="http://gateway/v1", api_key="k", http_client=httpx.Client(transport=transport), max_retries=1
        )
        self.anthropic = anthropic.Anthropic(
            base_url="http://gateway", api_key="k", http_client=httpx.Client(transport=transport), max_retries=1
        )

    def respond(self, request):
        self.requests += 1
        if request.method == "GET":
            return httpx.Response(200, json=models_body("m", request.headers, 7))
        dialect = DIALECTS[request.url.path]
        try:
            self.wanted = dialect.read(read_body(request.content))
        except RequestError as error:
            status, body = dialect.error("request", str(error), error.field)
            return httpx.Response(status, json=body)
        if self.refusal and not self.wanted.asked.streams:
            status, body = dialect.error(self.refusal, "so")
            return httpx.Response(status, json=body, headers={"retry-after-ms": "1", **self.headers})
        if not self.wanted.asked.streams:
            return httpx.Response(200, json=dialect.reply(self.wanted, self.whole, "x", 7))
        stream = dialect.stream(self.wanted, "x", 7)
        written = [stream.opened()]
        for each in self.parts:
            written += [stream.keepalive, stream.part(each)]
        written.append(stream.failed(self.refusal, "so") if self.refusal else stream.ended(self.whole))
        return httpx.Response(200, content=b"".join(written), headers={"content-type": "text/event-stream"})


adapter = cache(pydantic.TypeAdapter)  # making one takes up to a second


def strictly(kind, data) -> None:
    adapter(kind).validate_json(json.dumps(data), strict=True)


WHOLES = [WHOLE, CUT, given(choice("")), given(choice("", "hm", [CALL], "tool_calls"))]


@pytest.mark.parametrize("extra", [{}, {"return_token_ids": True}])
@pytest.mark.parametrize("whole", WHOLES)
def test_replies_and_events_have_the_types_of_the_clients(whole, extra) -> None:
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent

    chat = {"messages": HELLO, "stream_options": {"include_usage": True}, **extra}
    if extra:
        chat |= {"logprobs": True, "top_logprobs": 1}
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    responses = {"input": "hi", "tools": [tool], "tool_choice": "auto", **extra}
    strictly(ChatCompletion, replied(CHAT, chat, whole))
    strictly(Response, replied(RESPONSES, responses, whole))
    strictly(Message, replied(MESSAGES, {"messages": HELLO, **extra}, whole))
    parts = (part("", "h", (10,)), part("Hel", "", (11,))) if whole is WHOLE else ()
    for each in events(streamed(CHAT, chat, parts, whole))[:-1]:
        strictly(ChatCompletionChunk, each)
    for each in events(streamed(RESPONSES, responses, parts, whole)):
        strictly(ResponseStreamEvent, each)
    for each in events(streamed(MESSAGES, {"messages": HELLO, **extra}, parts, whole)):
        strictly(RawMessageStreamEvent, each)


def test_errors_and_models_have_the_types_of_the_clients() -> None:
    from anthropic.types import ModelInfo
    from anthropic.types.shared import ErrorResponse
    from openai.types import Model
    from openai.types.responses import ResponseStreamEvent
    from openai.types.shared import ErrorObject

    for refusal in ("key", "ended", "overflow", "request", "busy", "failed"):
        strictly(ErrorResponse, DIALECTS[MESSAGES].error(refusal, "so")[1])
        strictly(ErrorObject, DIALECTS[CHAT].error(refusal, "so")[1]["error"])
    stream = DIALECTS[RESPONSES].stream(DIALECTS[RESPONSES].read({"input": "hi"}), "x", 7)
    for each in events(stream.failed("failed", "so")):
        strictly(ResponseStreamEvent, each)
    strictly(Model, models_body("m", {}, 7)["data"][0])
    strictly(ModelInfo, models_body("m", {"anthropic-version": "1"}, 7, 4096)["data"][0])


def test_chat_completions() -> None:
    served = Served()
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    whole = served.openai.chat.completions.create(
        model="m", messages=HELLO, tools=[tool], extra_body={"return_token_ids": True}
    )
    assert whole.choices[0].message.content == "Hello world"
    assert whole.choices[0].message.tool_calls[1].function.arguments == CALL.arguments
    assert (whole.prompt_token_ids, whole.choices[0].token_ids) == ([1, 2, 3], [10, 11, 12, 13, 14])
    back = served.openai.chat.completions.create(model="m", messages=[*HELLO, whole.choices[0].message])
    assert back.usage.total_tokens == 8
    assert served.wanted.asked.messages[1].reasoning == "let me see"
    with served.openai.chat.completions.stream(model="m", messages=HELLO, tools=[tool]) as stream:
        added = stream.get_final_completion()
    assert added.choices[0].message.content == whole.choices[0].message.content
    assert [each.id for each in added.choices[0].message.tool_calls] == ["call_x_0", "call_x_1"]
    assert [each.function.arguments for each in added.choices[0].message.tool_calls] == [CALL.arguments] * 2
    assert added.choices[0].finish_reason == "tool_calls"


def test_responses() -> None:
    served = Served()
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    whole = served.openai.responses.create(model="m", input="hi", tools=[tool], extra_body={"return_token_ids": True})
    assert (whole.output_text, whole.token_ids) == ("Hello world", [10, 11, 12, 13, 14])
    served.openai.responses.create(model="m", input=[*HELLO, *whole.output])
    (_, turn) = served.wanted.asked.messages
    assert (turn.content, turn.reasoning, turn.calls[1].id) == ("Hello world", "let me see", "call_x_1")
    with served.openai.responses.stream(model="m", input="hi", tools=[tool]) as stream:
        kinds = [each.type for each in stream]
        added = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert added.output_text == whole.output_text
    assert added.output[0].to_dict() == whole.output[0].to_dict()
    assert [json.loads(each.arguments) for each in added.output[2:]] == [ARGUMENTS] * 2
    cut = [each.type for each in Served(CUT, ()).openai.responses.create(model="m", input="hi", stream=True)]
    assert cut[-1] == "response.incomplete"


def test_messages() -> None:
    served = Served()
    tool = {"name": "look", "input_schema": {"type": "object"}}
    asked = {"model": "m", "max_tokens": 9, "messages": HELLO, "tools": [tool]}
    whole = served.anthropic.messages.create(**asked, extra_body={"return_token_ids": True})
    assert whole.token_ids == [10, 11, 12, 13, 14]
    back = [*HELLO, {"role": "assistant", "content": whole.content}]
    served.anthropic.messages.create(model="m", max_tokens=9, messages=back)
    turn = served.wanted.asked.messages[1]
    assert (turn.content, turn.reasoning, json.loads(turn.calls[0].arguments)) == (
        "Hello world",
        "let me see",
        ARGUMENTS,
    )
    with served.anthropic.messages.stream(**asked) as stream:
        added = stream.get_final_message()
    assert [each.to_dict() for each in added.content] == [each.to_dict() for each in whole.content]
    assert (added.stop_reason, added.usage.input_tokens, added.usage.output_tokens) == ("tool_use", 3, 5)
    counted = served.anthropic.messages.count_tokens(model="m", messages=HELLO, tools=[tool])
    assert counted.input_tokens == len(PROMPT)


CONCLUDED = ("ConflictError", "rollout concluded", "rollout concluded")


@pytest.mark.parametrize(
    ("refusal", "headers", "error", "requests"),
    [
        ("overflow", {}, ("BadRequestError", "maximum context length", "prompt is too long"), 2),
        ("busy", {}, ("APIStatusError", "so", "so"), 4),
        ("failed", {}, ("APIStatusError", "so", "so"), 4),
        ("ended", {}, CONCLUDED, 4),
        ("ended", {"x-should-retry": "false"}, CONCLUDED, 2),
    ],
)
def test_how_clients_take_a_refusal_and_whether_they_ask_again(refusal, headers, error, requests) -> None:
    served = Served(refusal=refusal, headers=headers)
    kind, of_openai, of_anthropic = error
    with pytest.raises(getattr(openai, kind), match=of_openai):
        served.openai.chat.completions.create(model="m", messages=HELLO)
    with pytest.raises(getattr(anthropic, kind), match=of_anthropic):
        served.anthropic.messages.create(model="m", max_tokens=9, messages=HELLO)
    assert served.requests == requests


def test_a_stream_that_breaks_off_is_an_error() -> None:
    served = Served(refusal="failed")
    with pytest.raises(openai.APIError, match="so"):
        list(served.openai.chat.completions.create(model="m", messages=HELLO, stream=True))
    with pytest.raises(anthropic.APIStatusError, match="so"):
        list(served.anthropic.messages.create(model="m", max_tokens=9, messages=HELLO, stream=True))
    last = list(served.openai.responses.create(model="m", input="hi", stream=True))[-1]
    assert (last.type, last.response.error.message) == ("response.failed", "so")
