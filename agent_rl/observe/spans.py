"""A rollout as a trace of OpenTelemetry, named by its conventions for generative AI. Pure; texts are left out.

::

    invoke_agent ENVIRONMENT        the rollout: problem, group, sample, status, reward, policy versions
      chat MODEL                    a turn of the model: tokens in and out, why it ended
      execute_tool NAME             a call of a tool: its outcome

The ids are functions of the run and the rollout, so that a rollout has one trace wherever it runs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agent_rl.messages import LOST, Trajectory


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a rollout, from ``began`` to ``ended`` in seconds since 1970. Without an ``error`` that is empty."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, Any]
    """Texts, numbers, truths, and tuples of texts."""
    error: str = ""
    calls_out: bool = False
    """Whether it is a request to a model."""


def turn(model: str, began: float, ended: float, tokens: int, written: int, *, stopped: bool) -> Span:
    """A turn of the model, which read so many ``tokens``."""
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": tokens,
        "gen_ai.usage.output_tokens": written,
        "gen_ai.response.finish_reasons": ("stop" if stopped else "length",),
    }
    return Span(f"chat {model}", began, ended, about, calls_out=True)


def call(tool: str, began: float, ended: float, outcome: str, turn_number: int) -> Span:
    """A call of a tool."""
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.type": "function",
        "agent_rl.turn": turn_number,
    }
    return Span(f"execute_tool {tool}", began, ended, about, "" if outcome == "success" else outcome)


def rollout(environment: str, problem: str, trajectory: Trajectory, began: float, ended: float) -> Span:
    """The whole rollout."""
    about: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": environment,
        "gen_ai.conversation.id": trajectory.rollout,
        "gen_ai.usage.output_tokens": trajectory.written,
        "agent_rl.problem": problem,
        "agent_rl.policy.oldest": trajectory.oldest,
        "agent_rl.policy.newest": trajectory.newest,
    }
    names = ("group", "stage", "sample", "attempt", "purpose", "status", "turns", "response_length", "generator")
    about |= {f"agent_rl.{name}": getattr(trajectory, name) for name in names}
    if trajectory.judgement is not None:
        about |= {"agent_rl.reward": trajectory.judgement.reward, "agent_rl.success": trajectory.judgement.success}
    known = {name: value for name, value in about.items() if value is not None}
    return Span(
        f"invoke_agent {environment}", began, ended, known, trajectory.status if trajectory.status in LOST else ""
    )


def request(resource: Mapping[str, Any], traces: Iterable[tuple[str, Span, Sequence[Span]]]) -> bytes:
    """The body of a request to a collector: an ``ExportTraceServiceRequest`` of OTLP 1.

    ``traces``: the id of each rollout, unique in all runs, its root span, and its parts. The message is written field
    by field: OpenTelemetry's own objects take several times the processor time.
    """
    spans = b"".join(_field(2, span) for trace in traces for span in _trace(*trace))
    scope = _field(1, _text(1, "agent_rl"))
    return _field(1, _field(1, _attributes(1, resource)) + _field(2, scope + spans))


def _trace(rollout_id: str, root: Span, parts: Sequence[Span]) -> Iterator[bytes]:
    digest = hashlib.sha256(rollout_id.encode()).digest()
    trace, first = _field(1, digest[:16]), int.from_bytes(digest[16:23], "big") + 1
    for number, span in enumerate((root, *parts)):
        content = [trace, _field(2, (first + number).to_bytes(8, "big"))]
        if number:
            content.append(_field(4, first.to_bytes(8, "big")))
        content.append(_text(5, span.name))
        content.append(_varint(6 << 3) + _varint(CLIENT if span.calls_out else INTERNAL))
        content.append(_TIMES.pack(7 << 3 | 1, int(span.began * 1e9), 8 << 3 | 1, int(span.ended * 1e9)))
        content.append(_attributes(9, span.attributes))
        if span.error:
            content.append(_attributes(9, {"error.type": span.error}))
            content.append(_field(15, _text(2, span.error) + _varint(3 << 3) + _varint(ERROR)))
        yield b"".join(content)


INTERNAL, CLIENT, ERROR = 1, 3, 2
"""Kinds of spans and the status of a failed one, as numbers of the protocol."""
_TIMES = struct.Struct("<BQBQ")
_DOUBLE = struct.Struct("<Bd")


def _attributes(number: int, attributes: Mapping[str, Any]) -> bytes:
    return b"".join([_attribute(number, name, value, type(value).__name__) for name, value in attributes.items()])


@lru_cache(8192)  # names and most values come again and again
def _attribute(number: int, name: str, value: Any, kind: str) -> bytes:
    """A field with an attribute. ``kind`` is the value's type: 1, 1.0 and True are equal."""
    del kind
    return _field(number, _text(1, name) + _field(2, _value(value)))


def _value(value: Any) -> bytes:
    match value:
        case str():
            return _text(1, value)
        case bool():
            return bytes((2 << 3, value))
        case int():
            return _varint(3 << 3) + _varint(value % 2**64)
        case float():
            return _DOUBLE.pack(4 << 3 | 1, value)
        case _:
            return _field(5, b"".join(_field(1, _value(each)) for each in value))


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes, text, or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number < 128:
        return _BYTES[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_BYTES = [bytes((number,)) for number in range(128)]
