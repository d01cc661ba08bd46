"""The envelope in front of the messages: packing, and checks on arrival.

Frame 0 is the envelope's length (4 bytes, big-endian), the envelope ``[version, kind, [size of each body], field,
...]`` in msgpack, and the bodies one after the other. A body is frame 0 of an encoded message. A large body is not
copied into frame 0: it is a frame of its own, and its size is 0. The other frames of the last message, if it has any,
follow as frames. A Push may carry many messages; other envelopes carry at most one.

Push, Withdrawn, Call, Cancel, Announce, Heartbeat and Goodbye go to a peer's inbox. Progress, Reply, Refused,
HeartbeatBack and Goodbye come back over the same connection. A frame for a process carries the process's incarnation,
so that a successor never takes a frame for a dead process. Frames that come back carry totals or sets: when a control
frame is lost or doubled, the next heartbeat corrects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgpack

from transport.plans import FRAME_FROM, Buffer

FRAMES_VERSION = 7


class MalformedFrame(Exception):  # noqa: N818
    """An envelope this version cannot read."""


class PushFrame(NamedTuple):
    """Consecutive messages of a stream (sender's incarnation, link, receiver's incarnation).

    The first message has the number ``sequence``, counted from 1.
    """

    link: str
    incarnation: int
    sequence: int


class CallFrame(NamedTuple):
    """A request.

    ``request`` grows with every call over the connection; ``timeout`` is the remaining time in seconds.
    """

    link: str
    incarnation: int
    request: int
    timeout: float


class Cancel(NamedTuple):
    """The caller no longer waits for the reply."""

    incarnation: int
    request: int


class AnnounceFrame(NamedTuple):
    """The newest value of a message type on a link."""

    link: str
    incarnation: int
    type: str
    version: int


class Withdrawn(NamedTuple):
    """The number of a message of a stream that the sender has withdrawn, so that its stream has no gap."""

    link: str
    incarnation: int
    sequence: int


class Heartbeat(NamedTuple):
    """The connecting side is alive. ``settled``: for each push link, all messages up to this number are settled."""

    incarnation: int
    settled: list[tuple[str, int]]


class Goodbye(NamedTuple):
    """The sender's process leaves on purpose, so its silence is not reported.

    Sent over every connection, in both directions.
    """

    incarnation: int


class StreamState(NamedTuple):
    """The complete state of a stream at its receiver, by sequence number.

    The messages seen, taken off the queue, acknowledged (contiguous part, and those beyond it), and not decodable.
    """

    link: str
    received: int
    taken: int
    acknowledged: int
    beyond: list[int]
    rejected: list[tuple[int, str]]


class HeartbeatBack(NamedTuple):
    """The inbox is alive; carries the state of every stream of this connection.

    ``draining``: the process is about to leave. ``memory``: another number than before says that the process knows no
    announcement of the connecting side any more.
    """

    incarnation: int
    draining: bool
    memory: int
    streams: list[StreamState]


class StreamProgress(NamedTuple):
    """Changes of a stream since the last frame: the total taken, and ranges (first, last) of new acknowledgements."""

    link: str
    taken: int
    acknowledged: list[tuple[int, int]]
    rejected: list[tuple[int, str]]


class Progress(NamedTuple):
    """Credit and acknowledgements of a loop turn, and announcements that arrived as (link, type, version)."""

    incarnation: int
    streams: list[StreamProgress]
    announced: list[tuple[str, str, int]]


class ReplyFrame(NamedTuple):
    """The answer to a call; its message follows."""

    request: int


class Refused(NamedTuple):
    """The handler refused the call, or the request could not be decoded."""

    request: int
    reason: str


class Received(NamedTuple):
    """The frames of one envelope, taken apart."""

    envelope: Envelope
    bodies: list[Buffer]
    arrays: Sequence[Buffer]
    """The other frames of the last message."""


Envelope: TypeAlias = (
    PushFrame
    | CallFrame
    | Cancel
    | AnnounceFrame
    | Withdrawn
    | Heartbeat
    | Goodbye
    | HeartbeatBack
    | Progress
    | ReplyFrame
    | Refused
)

_COUNT_MAX = 1 << 63


def _text(value: Any) -> Any:
    if type(value) is not str:
        raise MalformedFrame("text expected")
    return value


def _count(value: Any) -> Any:
    if type(value) is not int or not 0 <= value < _COUNT_MAX:
        raise MalformedFrame("count expected")
    return value


def _flag(value: Any) -> Any:
    if type(value) is not bool:
        raise MalformedFrame("flag expected")
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
_ranges = _list(_row(tuple, _count, _count))
_stream_progress = _row(StreamProgress._make, _text, _count, _ranges, _reasons)

# The position is the code on the wire. The middle column is the number of bodies; Push has at least one.
_KINDS: tuple[tuple[Any, int, tuple[Callable[[Any], Any], ...]], ...] = (
    (PushFrame, 1, (_text, _count, _count)),
    (CallFrame, 1, (_text, _count, _count, _seconds)),
    (Cancel, 0, (_count, _count)),
    (AnnounceFrame, 1, (_text, _count, _text, _count)),
    (Heartbeat, 0, (_count, _list(_row(tuple, _text, _count)))),
    (Goodbye, 0, (_count,)),
    (HeartbeatBack, 0, (_count, _flag, _count, _list(_stream_state))),
    (Progress, 0, (_count, _list(_stream_progress), _list(_row(tuple, _text, _text, _count)))),
    (ReplyFrame, 1, (_count,)),
    (Refused, 0, (_count, _text)),
    (Withdrawn, 0, (_text, _count, _count)),
)
_CODES = {kind: code for code, (kind, _, _) in enumerate(_KINDS)}
_LENGTH = 4


def pack(envelope: Envelope, bodies: Sequence[Buffer] = (), arrays: Sequence[Buffer] = ()) -> list[Buffer]:
    """The frames of an envelope and the bodies it carries; ``arrays`` are the other frames of the last message."""
    sizes = [len(body) if len(body) < FRAME_FROM else 0 for body in bodies]
    packed = msgpack.packb((FRAMES_VERSION, _CODES[type(envelope)], sizes, *envelope))
    length = len(packed).to_bytes(_LENGTH, "big")
    if 0 not in sizes:
        return [b"".join((length, packed, *bodies)), *arrays]
    small = (body for body in bodies if len(body) < FRAME_FROM)
    return [b"".join((length, packed, *small)), *(body for body in bodies if len(body) >= FRAME_FROM), *arrays]


def unpack(frames: Sequence[Buffer]) -> Received:
    """The content of frames. Bodies are views of frame 0, or frames of their own.

    For any bytes, raises no other exception than MalformedFrame.
    """
    view = memoryview(frames[0] if frames else b"")
    start = _LENGTH + int.from_bytes(view[:_LENGTH], "big")
    if not _LENGTH < start <= len(view):
        raise MalformedFrame("not an envelope")
    try:
        values = msgpack.unpackb(view[_LENGTH:start])
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise MalformedFrame("envelope is not msgpack") from error
    if type(values) is not list or len(values) < 2 or type(values[0]) is not int or type(values[1]) is not int:
        raise MalformedFrame("not an envelope")
    version, code = values[0], values[1]
    if version != FRAMES_VERSION:
        raise MalformedFrame(f"wire version {version}, this is version {FRAMES_VERSION}")
    if not 0 <= code < len(_KINDS):
        raise MalformedFrame(f"unknown kind of frame {code}")
    kind, count, checks = _KINDS[code]
    if len(values) != len(checks) + 3:
        raise MalformedFrame(f"{kind.__name__} with {len(values) - 3} fields")
    envelope: Envelope = kind(*[check(value) for check, value in zip(checks, values[3:], strict=True)])
    bodies = _bodies(view, start, values[2], frames)
    if len(bodies) != count and not (kind is PushFrame and bodies):
        raise MalformedFrame(f"{kind.__name__} with {len(bodies)} messages")
    return Received(envelope, bodies, frames[1 + values[2].count(0) :])


def _bodies(view: memoryview, start: int, sizes: Any, frames: Sequence[Buffer]) -> list[Buffer]:
    if type(sizes) is not list:
        raise MalformedFrame("list expected")
    bodies: list[Buffer] = []
    own = 0
    for size in sizes:
        _count(size)
        if size:
            bodies.append(view[start : start + size])
            start += size
            continue
        own += 1
        if own >= len(frames) or not len(frames[own]):
            raise MalformedFrame("an empty message")
        bodies.append(frames[own])
    if start != len(view):
        raise MalformedFrame("the messages' sizes are not the frame's")
    return bodies
