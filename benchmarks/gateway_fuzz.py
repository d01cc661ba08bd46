"""Requests to a gateway that are wrong in some way, and what a right answer to each of them is."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_rl.gateway.dialects import DIALECTS

if TYPE_CHECKING:
    from benchmarks.gateway_stand import Answer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "echo word 0 0"}]},
    {"role": "assistant", "content": "word", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "done"},
]
FUNCTION = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
SPOKEN = [
    {"role": "user", "content": "echo word 0 0"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1]}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]},
]
ITEMS = [
    {"role": "user", "content": "echo word 0 0"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {
        "model": "agent-rl",
        "messages": TALK,
        "tools": [{"type": "function", "function": FUNCTION}],
        "max_tokens": 8,
        "n": 2,
        "stop": ["x"],
        "logprobs": True,
        "stream": False,
        "temperature": 0.7,
    },
    "/v1/responses": {
        "model": "agent-rl",
        "input": ITEMS,
        "instructions": "Be brief.",
        "tools": [{"type": "function", **FUNCTION}],
        "max_output_tokens": 8,
        "metadata": {"a": "b"},
        "stream": False,
    },
    "/v1/messages": {
        "model": "agent-rl",
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": SPOKEN,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "max_tokens": 8,
        "stop_sequences": ["x"],
        "stream": False,
    },
    "/v1/messages/count_tokens": {"model": "agent-rl", "messages": SPOKEN},
    "/inference/v1/generate": {
        "token_ids": [5, 6, 7, 8],
        "sampling_params": {"max_tokens": 8, "logprobs": 1, "n": 1},
        "stream": False,
    },
}
"""Right requests, by path."""


def nested(depth: int) -> Any:
    """A list in a list, so many times."""
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


JUNK: tuple[Any, ...] = (
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
        [{"role": "user"}],
    ),
    *(nested(40), nested(200), list(range(3000)), "assistant", "tool", "agent-rl"),
)
HEADERS = (
    *(
        "X-Stainless-Retry-Count: 1",
        "X-Stainless-Retry-Count: \xff",
        "anthropic-version: 2023-06-01",
        "Expect: nothing",
    ),
    *("Expect: 100-continue", "Accept-Encoding: gzip, br", "Content-Type: text/plain", "Content-Encoding: gzip"),
    *(
        "Connection: close",
        "Connection: upgrade\r\nUpgrade: websocket",
        "X-Odd: \x80\xfe\xff",
        "X-Empty:",
        "Cookie: a=b",
    ),
    *("Authorization: Basic eDp5", "X-Api-Key: sk-1", "X-Long: " + "z" * 20_000, "Upgrade: h2c\r\nHTTP2-Settings: AA"),
)
BROKEN_HEADERS = (
    *("No colon", " : x", "X-Nul: \x00", "Content-Length: 5", "Content-Length: -1", "Content-Length: 9" + "9" * 30),
    *("Transfer-Encoding: gzip", "Host: twice", "X-Long: " + "z" * 70_000, "(bad): x"),
    *("Content-Length: 0x10", "X-\xe9: x", "Transfer-Encoding: chunked, chunked", " folded: x", "X: \n\n\n"),
)
METHODS = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "post", "P" * 300)
PATHS = (
    *(
        "/",
        "*",
        "//",
        "/v1",
        "/v1/",
        "/v1/chat",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages/batches",
        "/r/",
        "/r//",
    ),
    *("/r/x/v1/messages", "/v1/%2e%2e/messages", "/../v1/messages", "/v1/chat/completions/", "/V1/messages", "/?a=b"),
    *(
        "/v1/models/agent-rl",
        "http://gateway/v1/models",
        "/v1/\xff\xfe",
        "/" + "p" * 9000,
        "/inference/v1/",
        "/favicon.ico",
    ),
)
LINES = (
    *(
        "GET",
        "GET /v1/models",
        "GET /v1/models HTTP/9.9",
        "GET /v1/models HTTP/1",
        "\x16\x03\x01\x02\x00\x01",
        "GET  / HTTP/1.1",
    ),
    *(
        "PRI * HTTP/2.0",
        "GET /v1/models HTTP/1.1 x",
        "",
        "\x00" * 50,
        "GET /v1/models\xa0HTTP/1.1",
        "SSH-2.0-OpenSSH_9.6",
    ),
)


@dataclass(frozen=True)
class Shot:
    """A request. ``malformed``: it is no HTTP, so that no provider is meant; ``leaves``: the client sends no more."""

    what: str
    path: str
    body: bytes
    method: str = "POST"
    headers: tuple[str, ...] = ()
    length: int | None = None
    """What the request says of its body; None: the truth."""
    key: str = ""
    """In place of the rollout's."""
    line: str = ""
    """In place of a request line."""
    malformed: bool = False
    leaves: bool = False
    asks: Mapping[str, Any] = field(default_factory=dict)

    def data(self, key: str) -> bytes:
        """The bytes, with the key of a rollout."""
        first = self.line or f"{self.method} {self.path.replace('KEY', key)} HTTP/1.1"
        length = len(self.body) if self.length is None else self.length
        head = [first, "Host: gateway", f"Authorization: Bearer {self.key or key}", *self.headers]
        return "\r\n".join([*head, f"Content-Length: {length}", "", ""]).encode("latin-1") + self.body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _mutated(rng: random.Random, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with a few values replaced, removed, repeated or added."""
    made: dict[str, Any] = copy.deepcopy(dict(body))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        junk = copy.deepcopy(rng.choice(JUNK))
        container, key = rng.choice([*_places(made)] or [(made, "model")])
        kind = rng.randrange(8)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(0, copy.deepcopy(container[key]))
        elif kind == 2 and isinstance(container, dict):
            container[rng.choice(("temprature", "\u00e9", "functions", "n", "stream", key.upper()))] = junk
        elif kind == 3:
            container[key] = [container[key]]
        else:
            container[key] = junk
    return made


def _broken(rng: random.Random, text: bytes) -> bytes:
    """Bytes that are mostly no JSON object."""
    at = rng.randrange(1, len(text))
    flipped = bytearray(text)
    flipped[at] ^= 1 << rng.randrange(8)
    digits = b"9" * rng.choice((20, 5000, 100_000))
    return rng.choice(
        (
            *(
                text[:at],
                bytes(flipped),
                text + text,
                text[:at] + b"\xff\xfe" + text[at:],
                text.decode().encode("utf-16"),
            ),
            *(b"", b"null", b"[]", b'"text"', b"1e999", b"NaN", b"\xef\xbb\xbf" + text, b"\x00" * at, b"data: {}\n\n"),
            *(b"[" * 100_000, b'{"a":' * 50_000, b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}"),
            *(b'{"max_tokens": ' + digits + b"}", b'{"n": 1e' + digits[:4000] + b"}", text[:-1] + b', "model": 1}'),
            *(b'{"model": "\\ud800"}', b'{"model": "\\u00"}', text.replace(b'"', b"'"), text.replace(b":", b"=")),
        )
    )


def _shot(rng: random.Random) -> Shot:
    path = rng.choice(list(BODIES))
    body = {**BODIES[path], **({"stream": True} if rng.random() < 0.3 else {})}
    text = json.dumps(body).encode()
    right = Shot("right", path, text)
    kinds: Mapping[str, Callable[[], Mapping[str, Any]]] = {
        "value": lambda: {"body": json.dumps(_mutated(rng, body)).encode()},
        "bytes": lambda: {"body": _broken(rng, text)},
        "key": lambda: {
            "key": rng.choice(("x", "sk-rollout-0-x", "sk-rollout-7-x", "sk-rollout-\xb2-x", "\xff", " ", "a b"))
        },
        "header": lambda: {"headers": (rng.choice(HEADERS),)},
        "broken header": lambda: {"headers": (rng.choice(BROKEN_HEADERS),), "malformed": True},
        "method": lambda: {"method": rng.choice(METHODS)},
        "path": lambda: {"path": rng.choice(PATHS), "method": rng.choice(("POST", "GET", "HEAD"))},
        "line": lambda: {"line": rng.choice(LINES), "malformed": True},
        "key in the path": lambda: {"path": f"/r/KEY{path}{rng.choice(('', '?x=1', '/x'))}", "key": "x"},
        "half a body": lambda: {"length": len(text) + 1 + rng.randrange(99), "malformed": True, "leaves": True},
        "no more after it": lambda: {"leaves": True},
    }
    what = rng.choices(list(kinds), (40, 20, 4, 8, 5, 5, 6, 3, 3, 3, 3))[0]
    changes = kinds[what]()
    if changes.get("line"):
        changes = {**changes, "body": b""}
    return Shot(**{**vars(right), "what": what, **changes})


def shots(count: int, seed: int) -> Iterator[Shot]:
    """So many requests."""
    rng = random.Random(seed)
    for _ in range(count):
        yield _shot(rng)


ENDS = (b"data: [DONE]\n\n", b'"type": "message_stop"}\n\n')


def fault(shot: Shot, answer: Answer | None) -> str:
    """Why this is no right answer; empty if it is one."""
    if answer is None:
        return "" if shot.leaves or shot.malformed else "the connection was closed without an answer"
    told = f"status {answer.status}: {answer.body[:200]!r}"
    if answer.status != 200 and not 400 <= answer.status < 500:
        return told
    if shot.method == "HEAD":
        return ""
    path = "/" + "/".join(shot.path.split("?")[0].split("/")[3:]) if shot.path.startswith("/r/") else shot.path
    if answer.headers.get("content-type") == "text/event-stream":
        *_, last = answer.body.removesuffix(b"\n\n").rpartition(b"\n\n")
        ended = answer.body.endswith(ENDS) or last.startswith(
            (b"event: response.completed", b"event: response.incomplete")
        )
        return "" if ended else f"a stream ended with {last[:200]!r}"
    if answer.headers.get("content-type") != "application/json":
        return "" if shot.malformed and answer.status != 200 else told
    body = json.loads(answer.body)
    if answer.status == 200:
        keys = {"choices", "output", "content", "input_tokens", "data"}
        return "" if keys & body.keys() else told
    error = body.get("error")
    anthropic = path.startswith("/v1/messages") and path in DIALECTS
    shaped = isinstance(error, dict) and isinstance(error.get("message"), str) and isinstance(error.get("type"), str)
    if shaped and error["message"] and (body.get("type") == "error") == anthropic:
        return ""
    return f"not the provider's shape: {told}"
