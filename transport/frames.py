"""What travels around the messages: one small msgpack frame in front, checked on arrival.

To a peer's inbox go Push, Call, Cancel, Announce, Heartbeat and Goodbye; back over the same connection come Progress,
Reply, Refused and HeartbeatBack. Whatever is addressed to a process carries its incarnation, so that a frame meant for
a dead process is never taken by its successor. Everything that flows back carries totals or sets: losing or
doubling any one control frame changes nothing that the next heartbeat does not put right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgpack

from transport.codec import WIRE_VERSION
from transport.schema import Buffer


class MalformedFrame(Exception):  # noqa: N818
    """An envelope this version cannot read."""


class Push(NamedTuple):
    """Message ``sequence`` of a stream (sender's incarnation, link, receiver's incarnation); counts from 1."""

    link: str
    incarnation: int
    sequence: int


class Call(NamedTuple):
    """A request; ``request`` grows with every call over the connection, ``timeout`` is what is left in seconds."""

    link: str
    incarnation: int
    request: int
    timeout: float


class Cancel(NamedTuple):
    """The caller no longer waits for the reply."""

    incarnation: int
    request: int


class Announce(NamedTuple):
    """The newest value of a message type on a link."""

    link: str
    incarnation: int
    type: str
    version: int


class Heartbeat(NamedTuple):
    """The connecting side lives. ``settled``: per push link, up to which sequence number it waits for nothing more."""

    incarnation: int
    settled: list[tuple[str, int]]


class Goodbye(NamedTuple):
    """The connecting side leaves on purpose: its silence is no news."""


class StreamState(NamedTuple):
    """One stream as its receiver sees it, complete: seen, taken off the queue, acknowledged (with what lies beyond the
    contiguous part), and what could not be decoded, by sequence number.
    """

    link: str
    received: int
    taken: int
    acknowledged: int
    beyond: list[int]
    rejected: list[tuple[int, str]]


class HeartbeatBack(NamedTuple):
    """The inbox lives, with the state of every stream of this connection."""

    incarnation: int
    streams: list[StreamState]


class StreamProgress(NamedTuple):
    """What changed in a stream since the last frame: the total taken, and newly acknowledged sequence numbers."""

    link: str
    taken: int
    acknowledged: list[int]
    rejected: list[tuple[int, str]]


class Progress(NamedTuple):
    """Credit and acknowledgements of a loop turn, and announcements that arrived as (link, type, version)."""

    incarnation: int
    streams: list[StreamProgress]
    announced: list[tuple[str, str, int]]


class Reply(NamedTuple):
    """The answer to a call; its message follows."""

    request: int


class Refused(NamedTuple):
    """The handler refused the call, or the request could not be decoded."""

    request: int
    reason: str


Envelope: TypeAlias = Push | Call | Cancel | Announce | Heartbeat | Goodbye | HeartbeatBack | Progress | Reply | Refused

_COUNT_MAX = 1 << 63


def _text(value: Any) -> Any:
    if type(value) is not str:
        raise MalformedFrame("text expected")
    return value


def _count(value: Any) -> Any:
    if type(value) is not int or not 0 <= value < _COUNT_MAX:
        raise MalformedFrame("count expected")
    return value


def _seconds(value: Any) -> Any:
    if type(value) not in (int, float) or not 0 <= value < _COUNT_MAX:  # refuses NaN as well
        raise MalformedFrame("seconds expected")
    return value


def _list(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise MalformedFrame("list expected")
        return [item(each) for each in value]

    return check


def _row(make: Callable[[Any], Any], *checks: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise MalformedFrame("row expected")
        return make(step(each) for step, each in zip(checks, value, strict=True))

    return check


_reasons = _list(_row(tuple, _count, _text))
_stream_state = _row(StreamState._make, _text, _count, _count, _count, _list(_count), _reasons)
_stream_progress = _row(StreamProgress._make, _text, _count, _list(_count), _reasons)

# The position is the code on the wire.
_KINDS: tuple[tuple[Any, tuple[Callable[[Any], Any], ...]], ...] = (
    (Push, (_text, _count, _count)),
    (Call, (_text, _count, _count, _seconds)),
    (Cancel, (_count, _count)),
    (Announce, (_text, _count, _text, _count)),
    (Heartbeat, (_count, _list(_row(tuple, _text, _count)))),
    (Goodbye, ()),
    (HeartbeatBack, (_count, _list(_stream_state))),
    (Progress, (_count, _list(_stream_progress), _list(_row(tuple, _text, _text, _count)))),
    (Reply, (_count,)),
    (Refused, (_count, _text)),
)
_CODES = {kind: code for code, (kind, _) in enumerate(_KINDS)}


def pack(envelope: Envelope) -> bytes:
    """The envelope's bytes."""
    packed: bytes = msgpack.packb((WIRE_VERSION, _CODES[type(envelope)], *envelope))
    return packed


def unpack(frame: Buffer) -> Envelope:
    """The envelope in ``frame``. Raises MalformedFrame, and nothing else, whatever the bytes are."""
    try:
        values = msgpack.unpackb(frame)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise MalformedFrame("envelope is not msgpack") from error
    if type(values) is not list or len(values) < 2 or type(values[0]) is not int or type(values[1]) is not int:
        raise MalformedFrame("not an envelope")
    version, code = values[0], values[1]
    if version != WIRE_VERSION:
        raise MalformedFrame(f"wire version {version}, this is version {WIRE_VERSION}")
    if not 0 <= code < len(_KINDS):
        raise MalformedFrame(f"unknown kind of frame {code}")
    if code == 0 and len(values) == 5:  # the frame in front of every push, spelled out because it is the most frequent
        _, _, link, incarnation, sequence = values
        return Push(_text(link), _count(incarnation), _count(sequence))
    kind, checks = _KINDS[code]
    if len(values) != len(checks) + 2:
        raise MalformedFrame(f"{kind.__name__} with {len(values) - 2} fields")
    envelope: Envelope = kind._make(check(value) for check, value in zip(checks, values[2:], strict=True))
    return envelope
