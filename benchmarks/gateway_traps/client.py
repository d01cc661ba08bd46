"""A small HTTP client of the three dialects. A `Reply` is the same whether it came whole or as a stream.

::

    Talk.ask, Talk.stream --Dialect.body--> Client --HTTP--> body, or events --Dialect.gathered--> body
                                                                              `--Dialect.read--> Reply
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from benchmarks.gateway_traps.say import Mode, say

MOST = 400
"""Tokens that a turn may have, where a check says nothing."""
OPENING = "<think>\n"
Json = dict[str, Any]


class Failed(Exception):  # noqa: N818 - a result, not an error of the kit
    """The gateway does not do what the check wants; the message says what it did instead."""


class NotApplicable(Exception):  # noqa: N818 - the same
    """The check cannot be made at this gateway; the message says why."""


class Call(NamedTuple):
    """A tool call of a reply. ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class Reply:
    """A turn of the model as a client reads it.

    ``turn``: the messages that the client sends back. ``prompt``, ``tokens``, ``logprobs``: None if the reply has none.
    ``usage``: tokens of prompt and turn. ``deltas`` of a stream: seconds since the request, and the text that came.
    ``silence``: the longest time without a byte, in seconds.
    """

    id: str
    text: str
    reasoning: str
    calls: list[Call]
    finish: str
    turn: list[Json]
    prompt: list[int] | None
    tokens: list[int] | None
    logprobs: list[Any] | None
    usage: tuple[int, int] | None
    deltas: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    silence: float = 0.0


class Answer(NamedTuple):
    """A whole answer to a request. ``body``: None if it is no JSON."""

    status: int
    content: str
    body: Any


class Event(NamedTuple):
    """A server-sent event, ``seconds`` after its request. A comment has no ``data``."""

    seconds: float
    data: str


class Client:
    """Sends requests to one gateway, each on a connection of its own."""

    def __init__(self, url: str, seconds: float = 120.0) -> None:
        """``url``: with or without ``/v1``. ``seconds``: how long the gateway may send nothing."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._seconds = seconds

    @contextmanager
    def _response(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        given = {"Content-Type": "application/json", **headers}
        with closing(self._kind(self._host, self._port, timeout=self._seconds)) as connection:
            connection.request(method, self._base + path, content or None, given)
            with connection.getresponse() as response:
                yield response

    def send(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request, and wait for all of the answer."""
        with self._response(method, path, content, headers) as response:
            text = response.read().decode(errors="replace")
        try:
            return Answer(response.status, text, json.loads(text))
        except ValueError:
            return Answer(response.status, text, None)

    @contextmanager
    def events(self, path: str, content: bytes, headers: Mapping[str, str]) -> Iterator[Iterator[Event]]:
        """The events of a stream. At the end of this block the connection is closed, whatever has come."""
        began = time.monotonic()
        with self._response("POST", path, content, headers) as response:
            if response.status != 200:
                raise Failed(f"status {response.status}: {response.read(300).decode(errors='replace')}")
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise Failed(f"a stream was asked for; the answer has the type {kind}")
            yield _events(response, began)


def _events(response: http.client.HTTPResponse, began: float) -> Iterator[Event]:
    data: list[str] = []
    for line in iter(response.readline, b""):
        text = line.decode().rstrip("\r\n")
        if text.startswith(":"):
            yield Event(time.monotonic() - began, "")
        elif text.startswith("data:"):
            data.append(text.removeprefix("data:").removeprefix(" "))
        elif not text and data:
            yield Event(time.monotonic() - began, "\n".join(data))
            data = []


def _tokens(body: Mapping[str, Any], choice: Mapping[str, Any]) -> Json:
    """The token ids and log-probabilities of a choice."""
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, Mapping):
        logprobs = [each["logprob"] for each in logprobs["content"] or ()]
    prompt = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return {"prompt": prompt, "tokens": choice.get("token_ids"), "logprobs": logprobs}


def _usage(body: Mapping[str, Any], prompt: str, written: str) -> tuple[int, int] | None:
    usage = body.get("usage")
    return (usage[prompt], usage[written]) if usage else None


# A dialect: `body` makes a request of messages and tools, which `said`, `results`, `image` and `tool` make. `read`
# gives the choices of a whole reply, and `gathered` the whole reply that the events of a stream add up to. `delta` is
# the text in an event. `without_reasoning` and `with_arguments` change a turn as clients do before they send it back.
# `message` is that of an error. `gathered` and `message` raise Failed for what does not have the provider's shape.


class _Common:
    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def message(self, body: Any) -> str:
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict) or not all(isinstance(error.get(key), str) for key in ("message", "type")):
            raise Failed(f'the error is not {{"error": {{"message": ..., "type": ...}}}}: {json.dumps(body):.200}')
        return f"{error['message']} {error.get('code') or ''}"


class _Chat(_Common):
    """OpenAI's Chat Completions."""

    name, path = "chat", "/v1/chat/completions"

    def body(self, messages: Sequence[Json], system: str, tools: Sequence[Json], most: int) -> Json:
        told = self.said("system", system) if system else []
        return {"messages": [*told, *messages], "max_tokens": most, **({"tools": list(tools)} if tools else {})}

    def said(self, role: str, text: str) -> list[Json]:
        return [{"role": role, "content": text}]

    def results(self, results: Sequence[tuple[Call, str]]) -> list[Json]:
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in results]

    def tool(self, name: str, description: str, parameters: Json) -> Json:
        function = {"name": name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}

    def image(self, url: str) -> list[Json]:
        parts = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": url}}]
        return [{"role": "user", "content": parts}]

    def without_reasoning(self, turn: Sequence[Json]) -> list[Json]:
        return [{key: each[key] for key in each if key not in {"reasoning_content", "reasoning"}} for each in turn]

    def with_arguments(self, turn: Sequence[Json], change: Callable[[str], str]) -> list[Json]:
        turn = json.loads(json.dumps(turn))
        for call in turn[0]["tool_calls"]:
            call["function"]["arguments"] = change(call["function"]["arguments"])
        return list(turn)

    def read(self, body: Json) -> list[Reply]:
        return [self._choice(body, each) for each in body["choices"]]

    def _choice(self, body: Json, choice: Json) -> Reply:
        message = choice["message"]
        functions = [(each["id"], each["function"]) for each in message.get("tool_calls") or ()]
        return Reply(
            body["id"],
            message.get("content") or "",
            message.get("reasoning_content") or message.get("reasoning") or "",
            [Call(own, function["name"], function["arguments"]) for own, function in functions],
            choice["finish_reason"],
            [message],
            usage=_usage(body, "prompt_tokens", "completion_tokens"),
            **_tokens(body, choice),
        )

    def gathered(self, parts: Sequence[Json]) -> Json:
        choices: list[Json] = []
        body: Json = {"choices": choices}
        for part in parts:
            body |= {key: value for key, value in part.items() if key != "choices" and value is not None}
            for piece in part["choices"]:
                while len(choices) <= piece["index"]:
                    choices.append({"message": {"role": "assistant", "content": ""}, "finish_reason": None})
                self._add(choices[piece["index"]], piece)
        if not choices or any(each["finish_reason"] is None for each in choices):
            raise Failed("the stream ended without a finish_reason")
        return body

    def _add(self, choice: Json, piece: Json) -> None:
        message, delta = choice["message"], piece["delta"]
        for key in ("content", "reasoning_content", "reasoning"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for each in delta.get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if each["index"] == len(calls):
                calls.append({"id": each["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            for key, text in each.get("function", {}).items():
                calls[each["index"]]["function"][key] += text or ""
        if piece.get("token_ids"):
            choice["token_ids"] = choice.get("token_ids", []) + piece["token_ids"]
        if piece.get("logprobs"):
            choice.setdefault("logprobs", {"content": []})["content"] += piece["logprobs"]["content"] or []
        choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]

    def delta(self, part: Json) -> str:
        deltas = [each["delta"] for each in part["choices"]]
        return "".join(
            each.get("reasoning_content") or each.get("reasoning") or each.get("content") or "" for each in deltas
        )


class _Responses(_Common):
    """OpenAI's Responses."""

    name, path = "responses", "/v1/responses"

    def body(self, messages: Sequence[Json], system: str, tools: Sequence[Json], most: int) -> Json:
        body = {"input": list(messages), "max_output_tokens": most, "store": False}
        return body | ({"instructions": system} if system else {}) | ({"tools": list(tools)} if tools else {})

    def said(self, role: str, text: str) -> list[Json]:
        return [{"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}]

    def results(self, results: Sequence[tuple[Call, str]]) -> list[Json]:
        return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in results]

    def tool(self, name: str, description: str, parameters: Json) -> Json:
        return {"type": "function", "name": name, "description": description, "parameters": parameters}

    def image(self, url: str) -> list[Json]:
        return [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}]

    def without_reasoning(self, turn: Sequence[Json]) -> list[Json]:
        return [each for each in turn if each["type"] != "reasoning"]

    def with_arguments(self, turn: Sequence[Json], change: Callable[[str], str]) -> list[Json]:
        return [{**each, "arguments": change(each["arguments"])} if "arguments" in each else each for each in turn]

    def read(self, body: Json) -> list[Reply]:
        texts: dict[str, str] = {"message": "", "reasoning": ""}
        calls = []
        for item in body["output"]:
            if item["type"] == "function_call":
                calls.append(Call(item["call_id"], item["name"], item["arguments"]))
            else:
                parts = item.get("content") or item.get("summary") or ()
                texts[item["type"]] += "".join(each["text"] for each in parts)
        cut = body["status"] == "incomplete" and body["incomplete_details"]["reason"] == "max_output_tokens"
        finish = "length" if cut else "tool_calls" if calls else "stop"
        if body["status"] not in {"completed", "incomplete"}:
            raise Failed(f"the response has the status {body['status']}")
        tokens = {"usage": _usage(body, "input_tokens", "output_tokens"), **_tokens(body, body)}
        return [Reply(body["id"], texts["message"], texts["reasoning"], calls, finish, body["output"], **tokens)]

    def gathered(self, parts: Sequence[Json]) -> Json:
        if [each["sequence_number"] for each in parts] != list(range(len(parts))):
            raise Failed("sequence_number does not count the events from 0")
        if parts[-1]["type"] not in {"response.completed", "response.incomplete"}:
            raise Failed(f"the stream ended with {parts[-1]['type']}")
        body: Json = parts[-1]["response"]
        done = [each["item"] for each in parts if each["type"] == "response.output_item.done"]
        if [each["id"] for each in done] != [each["id"] for each in body["output"]]:
            raise Failed("the items of response.output_item.done are not those of the response")
        told = "".join(each["delta"] for each in parts if each["type"] == "response.output_text.delta")
        if told != self.read(body)[0].text:
            raise Failed(f"the deltas add up to {told!r:.80}, and the response has {self.read(body)[0].text!r:.80}")
        return body

    def delta(self, part: Json) -> str:
        kinds = {"response.output_text.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta"}
        return str(part["delta"]) if part["type"] in kinds else ""


class _Anthropic(_Common):
    """Anthropic's Messages."""

    name, path = "anthropic", "/v1/messages"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def body(self, messages: Sequence[Json], system: str, tools: Sequence[Json], most: int) -> Json:
        body = {"messages": list(messages), "max_tokens": most}
        return body | ({"system": system} if system else {}) | ({"tools": list(tools)} if tools else {})

    def said(self, role: str, text: str) -> list[Json]:
        return [{"role": role, "content": text}]

    def results(self, results: Sequence[tuple[Call, str]]) -> list[Json]:
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
        return [{"role": "user", "content": blocks}]

    def tool(self, name: str, description: str, parameters: Json) -> Json:
        return {"name": name, "description": description, "input_schema": parameters}

    def image(self, url: str) -> list[Json]:
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        return [{"role": "user", "content": [{"type": "image", "source": source}]}]

    def without_reasoning(self, turn: Sequence[Json]) -> list[Json]:
        kept = [[part for part in each["content"] if part["type"] != "thinking"] for each in turn]
        return [{**each, "content": parts} for each, parts in zip(turn, kept, strict=True)]

    def with_arguments(self, turn: Sequence[Json], change: Callable[[str], str]) -> list[Json]:
        turn = json.loads(json.dumps(turn))
        for block in turn[0]["content"]:
            if block["type"] == "tool_use":
                block["input"] = json.loads(change(json.dumps(block["input"])))
        return list(turn)

    def read(self, body: Json) -> list[Reply]:
        blocks: list[Json] = body["content"]
        calls = [Call(each["id"], each["name"], json.dumps(each["input"])) for each in blocks if "input" in each]
        finish = {"max_tokens": "length", "tool_use": "tool_calls", "end_turn": "stop", "stop_sequence": "stop"}
        return [
            Reply(
                body["id"],
                "".join(each.get("text", "") for each in blocks),
                "".join(each.get("thinking", "") for each in blocks),
                calls,
                finish[body["stop_reason"]],
                [{"role": "assistant", "content": blocks}],
                usage=_usage(body, "input_tokens", "output_tokens"),
                **_tokens(body, body),
            )
        ]

    def gathered(self, parts: Sequence[Json]) -> Json:
        if parts[0]["type"] != "message_start" or parts[-1]["type"] != "message_stop":
            raise Failed(f"the stream began with {parts[0]['type']} and ended with {parts[-1]['type']}")
        blocks: list[Json] = []
        written: list[list[str]] = []
        body: Json = {**parts[0]["message"], "content": blocks}
        for part in parts[1:]:
            kind = part["type"]
            if kind == "content_block_start":
                if part["index"] != len(blocks):
                    raise Failed(f"block {part['index']} came after {len(blocks)} blocks")
                blocks.append(part["content_block"])
                written.append([])
            elif kind == "content_block_delta" and part["delta"]["type"] != "signature_delta":
                written[part["index"]].append(self._text(part["delta"]))
            elif kind == "content_block_stop":
                block, text = blocks[part["index"]], "".join(written[part["index"]])
                key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
                block[key] = json.loads(text or "{}") if key == "input" else text
            elif kind == "message_delta":
                body |= {"usage": {**body.get("usage", {}), **part.get("usage", {})}, **part["delta"]}
            body |= {key: part[key] for key in ("prompt_token_ids", "token_ids", "logprobs") if key in part}
        return body

    @staticmethod
    def _text(delta: Json) -> str:
        return "".join(delta.get(key, "") for key in ("text", "thinking", "partial_json"))

    def delta(self, part: Json) -> str:
        delta = part["delta"] if part["type"] == "content_block_delta" else {}
        return str(delta.get("text") or delta.get("thinking") or "")

    def message(self, body: Any) -> str:
        if not isinstance(body, dict) or body.get("type") != "error":
            raise Failed(f'the error is not {{"type": "error", "error": ...}}: {json.dumps(body):.200}')
        return super().message(body)


Dialect: TypeAlias = _Chat | _Responses | _Anthropic
DIALECTS: tuple[Dialect, ...] = (_Chat(), _Responses(), _Anthropic())
EXTRAS: tuple[Json, ...] = ({"return_token_ids": True, "logprobs": True}, {"return_token_ids": True}, {})
"""What requests have beside the dialect's own keys: the first of these that the gateway takes in this dialect."""


@dataclass
class Talk:
    """One dialect of a gateway, with one rollout's key. What a check works with.

    ``extras``: keys of each request. ``thinks``: the chat template begins the model's turn with ``<think>``.
    ``silence``: seconds that a stream may send nothing. ``context``: tokens that the model reads at most; 0: not known.
    ``end``: ends the rollout; None: nothing here can.
    """

    client: Client
    dialect: Dialect
    key: str
    model: str
    extras: Json
    thinks: bool = False
    silence: float = 10.0
    context: int = 0
    end: Callable[[], None] | None = None

    def user(self, text: str, mode: Mode = "plain", pace: int = 0, *, before: str = "") -> list[Json]:
        """A user's message by which the model writes ``text``. ``before`` stands in front of the directive."""
        return self.dialect.said("user", self._told(text, mode, pace, before))

    def results(self, calls: Sequence[Call], text: str, mode: Mode = "plain", *, before: str = "") -> list[Json]:
        """Results of all calls, by which the model writes ``text``."""
        told = self._told(text, mode, 0, before)
        return self.dialect.results([*((call, "a.txt") for call in calls[:-1]), (calls[-1], told)])

    def _told(self, text: str, mode: Mode, pace: int, before: str) -> str:
        if self.thinks and mode in {"plain", "chars"}:
            text = text.removeprefix(OPENING) if text.startswith(OPENING) else f"</think>\n\n{text}"
        return f"{before} ({secrets.token_hex(6)}) {say(text, mode, pace)}"

    def tool(self, name: str, parameters: Json) -> Json:
        """A tool in this dialect."""
        return self.dialect.tool(name, f"The tool {name}.", parameters)

    def body(
        self, messages: Sequence[Json], *, system: str = "", tools: Sequence[Json] = (), most: int = MOST, **more: Any
    ) -> Json:
        """A request. ``more``: further keys, or others."""
        return {"model": self.model, **self.dialect.body(messages, system, tools, most), **self.extras, **more}

    def send(
        self, body: Json | bytes, path: str = "", *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a body, and take any answer. With ``key`` empty the request has none."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        key = self.key if key is None else key
        given = {**(self.dialect.headers(key) if key else {}), **(headers or {})}
        return self.client.send("POST", path or self.dialect.path, content, given)

    def refused(self, answer: Answer, status: int = 400) -> str:
        """The message of an error. Raises Failed for another status or shape."""
        if answer.status != status:
            raise Failed(f"status {answer.status} in place of {status}: {answer.content:.200}")
        return self.dialect.message(answer.body)

    def asks(self, messages: Sequence[Json], headers: Mapping[str, str] | None = None, **options: Any) -> list[Reply]:
        """Ask for turns, and wait for them. Raises Failed."""
        answer = self.send(self.body(messages, **options), headers=headers)
        if answer.status != 200:
            raise Failed(f"status {answer.status}: {answer.content:.200}")
        found: list[Reply] = self._read(lambda: self.dialect.read(answer.body))
        return found

    def ask(self, messages: Sequence[Json], **options: Any) -> Reply:
        """Ask for one turn."""
        return self.asks(messages, **options)[0]

    @contextmanager
    def events(
        self, messages: Sequence[Json], headers: Mapping[str, str] | None = None, **options: Any
    ) -> Iterator[Iterator[Event]]:
        """The events of a turn that is streamed. The end of this block closes the connection."""
        body = json.dumps(self.body(messages, stream=True, **options)).encode()
        with self.client.events(
            self.dialect.path, body, {**self.dialect.headers(self.key), **(headers or {})}
        ) as events:
            yield events

    def stream(self, messages: Sequence[Json], headers: Mapping[str, str] | None = None, **options: Any) -> Reply:
        """Ask for one turn as a stream, and wait for its end. Raises Failed."""
        with self.events(messages, headers, **options) as coming:
            events = list(coming)
        parts = [self.part(each) for each in events if each.data and each.data != "[DONE]"]
        if self.dialect.name == "chat" and (not events or events[-1].data != "[DONE]"):
            raise Failed("the stream ended without [DONE]")
        if not parts:
            raise Failed("the stream has no events")
        found: list[Reply] = self._read(
            lambda: self.dialect.read(self.dialect.gathered([each for each in parts if each.get("type") != "ping"]))
        )
        reply = found[0]
        reply.deltas = [(each.seconds, text) for each in events if (text := self.delta(each))]
        times = [0.0, *(each.seconds for each in events)]
        reply.seconds = times[-1]
        reply.silence = max(later - earlier for earlier, later in pairwise(times))
        return reply

    def part(self, event: Event) -> Json:
        """An event's object. Raises Failed for errors."""
        part: Json = self._read(lambda: json.loads(event.data))
        if part.get("error") or part.get("type") in {"error", "response.failed"}:
            raise Failed(f"the stream failed: {event.data:.200}")
        return part

    def delta(self, event: Event) -> str:
        """The text in an event."""
        if not event.data or event.data == "[DONE]":
            return ""
        return str(self._read(lambda: self.dialect.delta(self.part(event))))

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"the reply has not the shape of {self.dialect.path}: {error!r:.150}") from error
