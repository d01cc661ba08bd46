import contextlib
import functools
import math
import operator

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport import frames
from transport.frames import (
    FRAMES_VERSION,
    AnnounceFrame,
    CallFrame,
    Cancel,
    Goodbye,
    Heartbeat,
    HeartbeatBack,
    MalformedFrame,
    Progress,
    PushFrame,
    Refused,
    ReplyFrame,
    StreamProgress,
    StreamState,
    Withdrawn,
    pack,
    unpack,
)

ENVELOPES = [
    PushFrame("link", 3, 7),
    CallFrame("link", 3, 8, 1.5),
    Cancel(3, 8),
    AnnounceFrame("link", 3, "Item", 9),
    Heartbeat(2, [("link", 5)]),
    Goodbye(2),
    HeartbeatBack(1, True, 7, [StreamState("link", 5, 4, 2, [4], [(3, "why")])]),
    Progress(1, [StreamProgress("link", 4, [(2, 3)], [(3, "why")])], [("link", "Item", 9)]),
    ReplyFrame(8),
    Refused(8, "why"),
    Withdrawn("link", 3, 7),
]


WITH_MESSAGE = (PushFrame, CallFrame, AnnounceFrame, ReplyFrame)


def bodies_of(envelope):
    return [b"message"] if isinstance(envelope, WITH_MESSAGE) else []


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda envelope: type(envelope).__name__)
def test_round_trip(envelope):
    received = unpack(pack(envelope, bodies_of(envelope)))
    assert received == (envelope, bodies_of(envelope), [])
    assert type(received.envelope) is type(envelope)


@given(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=6), st.lists(st.binary(max_size=3), max_size=2))
def test_a_push_carries_any_number_of_messages_and_large_ones_as_frames_that_are_not_copied(bodies, arrays):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_FROM", 4)
        packed = pack(ENVELOPES[0], bodies, arrays)
    assert unpack(packed) == (ENVELOPES[0], bodies, arrays)
    apart = [body for body in bodies if len(body) >= 4]
    assert [id(each) for each in packed[1:]] == [id(each) for each in (*apart, *arrays)]
    for short in (packed[:number] for number in range(1, 1 + len(apart))):
        for cut in (short, [*short, b""]):
            with pytest.raises(MalformedFrame, match="an empty message"):
                unpack(cut)


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda envelope: type(envelope).__name__)
def test_the_wrong_number_of_messages_is_refused(envelope):
    wrong = [[], [b"one", b"two"]] if isinstance(envelope, WITH_MESSAGE) else [[b"one"]]
    for bodies in wrong[: 1 if isinstance(envelope, PushFrame) else 2]:
        with pytest.raises(MalformedFrame, match="messages"):
            unpack(pack(envelope, bodies))
    (frame,) = pack(envelope, bodies_of(envelope))
    for damaged in (frame + b"more", frame[:-1], frame[1:], b""):
        with pytest.raises(MalformedFrame):
            unpack([damaged])


ODD = [None, True, -1, 0, (1 << 63) - 1, 1 << 63, 2.5, math.nan, 1e300, -0.5, "text", b"raw", [], [None], {}]


def places(values, *path):
    """The path of each value in lists within lists."""
    for number, each in enumerate(values):
        yield (*path, number)
        if isinstance(each, list):
            yield from places(each, *path, number)


def fits(now, odd, *, row):
    """Whether a value may stand where another one stands."""
    if isinstance(now, (bool, str)):
        return type(odd) is type(now)
    if isinstance(now, list):
        return odd == [] and not row
    return type(odd) in {int, type(now)} and 0 <= odd < 1 << 63


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda envelope: type(envelope).__name__)
def test_a_field_takes_values_of_its_kind_and_no_others(envelope):
    (frame,) = pack(envelope, bodies_of(envelope))
    end = 4 + int.from_bytes(frame[:4], "big")
    for field, *path in places(msgpack.unpackb(frame[4:end])[3:]):
        for odd in ODD:
            values = msgpack.unpackb(frame[4:end])
            *way, last = (3 + field, *path)
            within = functools.reduce(operator.getitem, way, values)
            now, within[last] = within[last], odd
            packed = msgpack.packb(values)
            taken = fits(now, odd, row=len(path) % 2 == 1)
            with contextlib.nullcontext() if taken else pytest.raises(MalformedFrame):
                unpack([len(packed).to_bytes(4, "big") + packed + frame[end:]])


@given(st.sampled_from(ENVELOPES), st.integers(0, 40), st.integers(0, 255), st.binary(max_size=3))
@settings(max_examples=150)
def test_damaged_envelopes_raise_malformed_frame_only(envelope, at, byte, more):
    frame = bytearray(pack(envelope, bodies_of(envelope))[0])
    frame[at % len(frame)] = byte
    with contextlib.suppress(MalformedFrame):
        pack(*unpack([bytes(frame) + more]))


@pytest.mark.parametrize(
    "values",
    [
        [1, 0, [1], "link", 3, 7],
        [FRAMES_VERSION, 99, [1], 3],
        [FRAMES_VERSION, -1, [], "link", 3, 7],
        [FRAMES_VERSION, False, [1], "link", 3, 7],
        [float(FRAMES_VERSION), 0, [1], "link", 3, 7],
        [FRAMES_VERSION, 0, [1], "link", 3],
        [FRAMES_VERSION, 0, [1], "link", 3, 7, 8],
        [FRAMES_VERSION, 0, [True], "link", 3, 7],
        [FRAMES_VERSION, 0, [2], "link", 3, 7],
        [FRAMES_VERSION, 0, [1, 0], "link", 3, 7],
        [FRAMES_VERSION, 0, [-1, 2], "link", 3, 7],
        [FRAMES_VERSION, 0, 1, "link", 3, 7],
        [FRAMES_VERSION, 4, [], 2, [["link"]]],
        [FRAMES_VERSION, 4, [], 2, [["link", 1, 2]]],
        [FRAMES_VERSION],
        {},
        7,
    ],
)
def test_what_is_no_envelope_is_refused(values):
    packed, body = msgpack.packb(values), b"x" * (type(values) is list and len(values) > 2 and values[2] != [])
    with pytest.raises(MalformedFrame):
        unpack([len(packed).to_bytes(4, "big") + packed + body])
