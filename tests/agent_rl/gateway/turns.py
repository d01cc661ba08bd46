"""Turns for tests of dialects, and the events of a stream as data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from agent_rl.gateway.base import RequestError
from agent_rl.gateway.dialects import DIALECTS
from agent_rl.messages import Choice, SaidCall, TurnGiven, TurnPart

CHAT, RESPONSES, MESSAGES, COUNT, GENERATE = DIALECTS
PROMPT = np.array([1, 2, 3], dtype=np.int32)
CALL = SaidCall("look", '{"at": "é", "deep": true}')


def tokens(*ids: int):
    return np.array(ids, dtype=np.int32)


def logprobs(*ids: int):
    return -np.array(ids, dtype=np.float32) / 8


def part(content: str = "", reasoning: str = "", ids: tuple[int, ...] = (), choice: int = 0) -> TurnPart:
    return TurnPart(choice, content, reasoning, tokens(*ids), logprobs(*ids))


def choice(content: str = "", reasoning: str = "", calls=(), finish="stop", ids=(10, 11, 12)) -> Choice:
    return Choice(content, reasoning, tuple(calls), finish, tokens(*ids), logprobs(*ids))


def given(*choices: Choice) -> TurnGiven:
    return TurnGiven(prompt=PROMPT, choices=choices or (choice("Hello"),))


WHOLE = given(choice("Hello world", "let me see", [CALL, CALL], "tool_calls", (10, 11, 12, 13, 14)))
PARTS = (part("", "let me ", (10,)), part("Hel", "see", (11,)), part("lo wor", "", (12,)), part("", "", (13,)))
"""Of WHOLE, but not all of it."""


def events(content: bytes) -> list[Any]:
    """The data of server-sent events without keepalives; ``[DONE]`` is a text. Names must agree with types."""
    found: list[Any] = []
    assert content.endswith(b"\n\n")
    for block in content.decode("ascii").removesuffix("\n\n").split("\n\n"):
        *names, data = block.split("\n")
        if data.startswith(":"):
            continue
        value = data.removeprefix("data: ")
        found.append(value if value == "[DONE]" else json.loads(value))
        if names:
            assert names == [f"event: {found[-1]['type']}"]
    return [each for each in found if each != {"type": "ping"}]


def streamed(path: str, body: dict[str, Any], parts=PARTS, whole=WHOLE, prompt=PROMPT) -> bytes:
    dialect = DIALECTS[path]
    wanted = dialect.read({"stream": True, **body})
    assert wanted.asked.streams
    stream = dialect.stream(wanted, "x", 7)
    written = [stream.opened(prompt) if len(prompt) else stream.opened()]
    for each in parts:
        written += [stream.keepalive, stream.part(each)]
    return b"".join([*written, stream.ended(whole)])


def replied(path: str, body: dict[str, Any], whole=WHOLE) -> dict[str, Any]:
    dialect = DIALECTS[path]
    return json.loads(json.dumps(dialect.reply(dialect.read(body), whole, "x", 7), allow_nan=False))


def refused(path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The message and the field of a refusal."""
    try:
        DIALECTS[path].read(body)
    except RequestError as error:
        return str(error), error.field
    raise AssertionError("the body was read")
