from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from transport.plans import FRAME_FROM

ENVELOPES = [
    PushFrame("link", 3, 7),
    CallFrame("link", 3, 8, 1.5),
    Cancel(3, 8),
    AnnounceFrame("link", 3, "Item", 9),
    Heartbeat(2, [("link", 5)]),
    Goodbye(),
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


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5))
def test_a_push_carries_any_number_of_messages(bodies):
    assert unpack(pack(PushFrame("link", 3, 7), bodies)) == (PushFrame("link", 3, 7), bodies, [])


def test_a_large_message_is_a_frame_of_its_own_and_not_copied():
    large, arrays = bytes(FRAME_FROM), [b"an array", b"another"]
    frames = pack(PushFrame("link", 3, 7), [b"small", large], arrays)
    assert frames[1] is large
    assert unpack(frames) == (PushFrame("link", 3, 7), [b"small", large], arrays)
    for cut in (frames[:1], [frames[0], b""]):
        with pytest.raises(MalformedFrame, match="an empty message"):
            unpack(cut)


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda envelope: type(envelope).__name__)
def test_the_wrong_number_of_messages_is_refused(envelope):
    wrong = [[], [b"one", b"two"]] if isinstance(envelope, WITH_MESSAGE) else [[b"one"]]
    for bodies in wrong[: 1 if isinstance(envelope, PushFrame) else 2]:
        with pytest.raises(MalformedFrame, match="messages"):
            unpack(pack(envelope, bodies))


@given(st.sampled_from(ENVELOPES), st.integers(0, 40), st.integers(0, 255), st.binary(max_size=3))
@settings(max_examples=150)
def test_damaged_envelopes_raise_malformed_frame_only(envelope, at, byte, more):
    frame = bytearray(pack(envelope, bodies_of(envelope))[0])
    frame[at % len(frame)] = byte
    with contextlib.suppress(MalformedFrame):
        pack(*unpack([bytes(frame) + more]))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_malformed_frame_only(frame):
    with pytest.raises(MalformedFrame):
        unpack([frame])


@pytest.mark.parametrize(
    "values",
    [
        [1, 0, [1], "link", 3, 7],
        [FRAMES_VERSION, 99, [1], 3],
        [FRAMES_VERSION, 0, [1], "link", 3],
        [FRAMES_VERSION, 0, [1], "link", 3, -1],
        [FRAMES_VERSION, 0, [1], "link", True, 7],
        [FRAMES_VERSION, 0, [1], b"link", 3, 7],
        [FRAMES_VERSION, 0, [2], "link", 3, 7],
        [FRAMES_VERSION, 0, [1, 0], "link", 3, 7],
        [FRAMES_VERSION, 0, [-1, 2], "link", 3, 7],
        [FRAMES_VERSION, 0, 1, "link", 3, 7],
        [FRAMES_VERSION, 1, [1], "link", 3, 8, float("nan")],
        [FRAMES_VERSION, 4, [1], 2, [["link"]]],
        [FRAMES_VERSION],
        {},
        7,
    ],
)
def test_what_is_no_envelope_is_refused(values):
    packed = msgpack.packb(values)
    with pytest.raises(MalformedFrame):
        unpack([len(packed).to_bytes(4, "big") + packed + b"x"])
