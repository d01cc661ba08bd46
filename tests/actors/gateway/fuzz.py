"""Requests to a gateway that are wrong in some way, and what a right answer to each of them is."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.gateway.dialects import DIALECTS
from benchmarks.gateway_stand import Answer

_FUNCTION = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "echo word 0"}]},
    {"role": "assistant", "content": "word", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "done"},
]
_SPOKEN = [
    {"role": "user", "content": "echo word 0"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1]}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]},
]
_ITEMS = [
    {"role": "user", "content": "echo word 0"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]
_COMMON = {"model": "agent-rl", "stream": False}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": _COMMON
    | {"messages": _CHAT, "tools": [{"type": "function", "function": _FUNCTION}], "max_tokens": 8, "n": 2}
    | {"stop": ["x"], "logprobs": True, "temperature": 0.7},
    "/v1/responses": _COMMON
    | {"input": _ITEMS, "instructions": "Be brief.", "tools": [{"type": "function", **_FUNCTION}]}
    | {"max_output_tokens": 8, "metadata": {"a": "b"}},
    "/v1/messages": _COMMON
    | {"messages": _SPOKEN, "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 8}
    | {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "stop_sequences": ["x"]},
    "/v1/messages/count_tokens": {"model": "agent-rl", "messages": _SPOKEN},
    "/inference/v1/generate": _COMMON
    | {"token_ids": [5, 6, 7, 8], "sampling_params": {"max_tokens": 8, "logprobs": 1, "n": 1}},
}
"""Right requests, by path."""


def _nested(depth: int) -> Any:
    """A list in a list, so many times."""
    return [_nested(depth - 1)] if depth else "end"


_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, -(2**64), 10**40, 1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "\udfff\ud800", "\x00\x1f", "\u2028\u202e\U0001f600", "<|end|><tool_call>{", "y" * 5000),
    *(
        [],
        {},
        [[]],
        [None],
        ["x"],
        {"": ""},
        {"\ud800": 1},
        {"type": "text"},
        {"type": "image_url"},
        [{"role": "tool"}],
    ),
    *(_nested(40), _nested(200), list(range(3000)), "assistant", "tool", "agent-rl"),
)
_KEYS = ("x", "sk-rollout-0-x", "sk-rollout-7-x", "sk-rollout-\xb2-x", "\xff", " ", "a b")
_HEADERS = (
    *("X-Stainless-Retry-Count: 1", "X-Stainless-Retry-Count: \xff", "anthropic-version: 2023-06-01", "Expect: no"),
    *("Expect: 100-continue", "Content-Type: text/plain", "Content-Encoding: gzip", "Connection: close", "X-Empty:"),
    *("Connection: upgrade\r\nUpgrade: websocket", "X-Odd: \x80\xfe\xff", "Authorization: Basic eDp5", "X-Api-Key: x"),
    *("X-Long: " + "z" * 20_000, "Upgrade: h2c\r\nHTTP2-Settings: AA", "Cookie: a=b"),
)
_BROKEN_HEADERS = (
    *("No colon", " : x", "X-Nul: \x00", "Content-Length: 5", "Content-Length: -1", "Content-Length: 9" + "9" * 30),
    *("Transfer-Encoding: gzip", "Host: twice", "X-Long: " + "z" * 70_000, "(bad): x", "Content-Length: 0x10"),
    *("X-\xe9: x", "Transfer-Encoding: chunked, chunked", " folded: x", "X: \n\n\n"),
)
_METHODS = ("HEAD", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "post", "P" * 300)
_PATHS = (
    *("/", "*", "//", "/v1", "/v1/", "/v1/chat", "/v1/completions", "/v1/embeddings", "/v1/messages/batches", "/r/"),
    *("/r//", "/v1/chat/completions/", "/r/x/v1/messages", "/v1/%2e%2e/messages", "/../v1/messages", "/V1/messages"),
    *("/?a=b", "/v1/models/agent-rl", "/favicon.ico", "http://gateway/v1/models", "/" + "p" * 9000, "/inference/v1/"),
)
_LINES = (
    *("GET", "GET /v1/models", "GET /v1/models HTTP/9.9", "GET /v1/models HTTP/1", "PRI * HTTP/2.0", "\x00" * 50),
    *("\x16\x03\x01\x02\x00\x01", "GET /v1/models HTTP/1.1 x", "GET  / HTTP/1.1", "GET /v1/models\xa0HTTP/1.1"),
    "SSH-2.0-OpenSSH",
    *("POST /v1/\xff\xfe HTTP/1.1", "\t"),
)
_CHUNKS = (
    *(b"zz\r\n", b"-1\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"f" * 30 + b"\r\n", b"\r\n\r\n"),
    b"5\r\nhello\r\n0\r\n\r\n",
)


@dataclass(frozen=True)
class Shot:
    """A request. ``malformed``: it is no HTTP, so that no provider is meant; ``leaves``: the client sends no more."""

    what: str
    path: str
    body: bytes
    method: str = "POST"
    header: str = ""
    lacks: int = 0
    """Bytes of the body that do not come."""
    key: str = ""
    """In place of the rollout's."""
    line: str = ""
    """In place of a request line."""
    malformed: bool = False
    leaves: bool = False

    def data(self, key: str) -> bytes:
        """The bytes, with the key of a rollout."""
        first = self.line or f"{self.method} {self.path.replace('KEY', key)} HTTP/1.1"
        head = [first, "Host: localhost", f"Authorization: Bearer {self.key or key}"]
        head += [self.header] if self.header else []
        length = f"Content-Length: {len(self.body) + self.lacks}"
        return "\r\n".join([*head, length, "", ""]).encode("latin-1") + self.body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _mutated(rng: random.Random, body: Mapping[str, Any]) -> bytes:
    """The body with a few values replaced, removed, repeated or added."""
    made: dict[str, Any] = copy.deepcopy(dict(body))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        junk = copy.deepcopy(rng.choice(_JUNK))
        container, key = rng.choice([*_places(made)] or [(made, "model")])
        kind = rng.randrange(8)
        if kind == 0:
            container.pop(key, None) if isinstance(container, dict) else container.pop(key)
        elif kind == 1 and isinstance(container, list):
            container.insert(0, copy.deepcopy(container[key]))
        elif kind == 2 and isinstance(container, dict):
            container[rng.choice(("temprature", "\u00e9", "functions", "n", "stream", key.upper()))] = junk
        else:
            container[key] = junk if kind > 3 or key not in container else [container[key]]
    return json.dumps(made).encode()


def _broken(rng: random.Random, text: bytes) -> bytes:
    """Bytes that are mostly no JSON object."""
    at = rng.randrange(1, len(text))
    flipped = text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]
    digits = b"9" * rng.choice((20, 5000, 100_000))
    made = (
        *(text[:at], flipped, text + text, text[:at] + b"\xff\xfe" + text[at:], text.decode().encode("utf-16")),
        *(b"", b"null", b"[]", b'"text"', b"1e999", b"NaN", b"\xef\xbb\xbf" + text, b"\x00" * at, b"data: {}\n\n"),
        *(b"[" * 100_000, b'{"a":' * 50_000, b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}"),
        *(b'{"max_tokens": ' + digits + b"}", b'{"n": 1e' + digits[:4000] + b"}", text[:-1] + b', "model": 1}'),
        *(b'{"model": "\\ud800"}', b'{"model": "\\u00"}', text.replace(b'"', b"'"), text.replace(b":", b"=")),
    )
    return rng.choice(made)


def _shot(rng: random.Random) -> Shot:
    path = rng.choice(list(BODIES))
    body = {**BODIES[path], **({"stream": True} if rng.random() < 0.3 else {})}
    text = json.dumps(body).encode()
    kinds: Mapping[str, tuple[int, Callable[[], dict[str, Any]]]] = {
        "value": (40, lambda: {"body": _mutated(rng, body)}),
        "bytes": (20, lambda: {"body": _broken(rng, text)}),
        "key": (4, lambda: {"key": rng.choice(_KEYS)}),
        "header": (8, lambda: {"header": rng.choice(_HEADERS)}),
        "broken header": (5, lambda: {"header": rng.choice(_BROKEN_HEADERS), "malformed": True}),
        "chunks": (3, lambda: {"header": "Transfer-Encoding: chunked", "body": rng.choice(_CHUNKS), "malformed": True}),
        "method": (5, lambda: {"method": rng.choice(_METHODS)}),
        "path": (5, lambda: {"path": rng.choice(_PATHS), "method": rng.choice(("POST", "GET", "HEAD"))}),
        "line": (3, lambda: {"line": rng.choice(_LINES), "path": "/", "body": b"", "malformed": True}),
        "key in the path": (3, lambda: {"path": f"/r/KEY{path}{rng.choice(('', '?x=1', '/x'))}", "key": "x"}),
        "half a body": (3, lambda: {"lacks": rng.randrange(1, 99), "malformed": True, "leaves": True}),
        "no more after it": (3, lambda: {"leaves": True}),
    }
    what = rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
    return replace(Shot(what, path, text), **kinds[what][1]())


def shots(count: int, seed: int) -> Iterator[Shot]:
    """So many requests."""
    rng = random.Random(seed)
    return (_shot(rng) for _ in range(count))


_DONE = (b"data: [DONE]\n\n", b'"type": "message_stop"}\n\n')
_LAST = (b"event: message_stop", b"event: response.completed", b"event: response.incomplete")


def fault(shot: Shot, answer: Answer | None) -> str:
    """Why this is no right answer; empty if it is one."""
    if answer is None:
        return "" if shot.leaves or shot.malformed else "the connection was closed without an answer"
    told, kind = f"status {answer.status}: {answer.body[:160]!r}", answer.headers.get("content-type")
    if answer.status != 200 and not 400 <= answer.status < 500:
        return told
    if shot.method == "HEAD":
        return ""
    if kind == "text/event-stream":
        last = answer.body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
        return "" if answer.body.endswith(_DONE) or last.startswith(_LAST) else f"a stream ended with {last[:160]!r}"
    if kind != "application/json":
        return "" if shot.malformed and answer.status != 200 else told
    body = json.loads(answer.body)
    if answer.status == 200:
        return "" if {"choices", "output", "content", "input_tokens", "data"} & body.keys() else told
    path = shot.path.partition("?")[0]
    path = f"/{'/'.join(path.split('/')[3:])}" if path.startswith("/r/") else path
    anthropic = path.startswith("/v1/messages") and path in DIALECTS
    error = body.get("error")
    shaped = isinstance(error, dict) and all(isinstance(error.get(key), str) for key in ("message", "type"))
    whose = shot.malformed or (body.get("type") == "error") == anthropic  # what is no HTTP has no path
    right = shaped and error["message"] and whose
    return "" if right else f"not the provider's shape: {told}"
