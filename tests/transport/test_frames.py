from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport.frames import (
    Announce,
    Call,
    Cancel,
    Goodbye,
    Heartbeat,
    HeartbeatBack,
    MalformedFrame,
    Progress,
    Push,
    Refused,
    Reply,
    StreamProgress,
    StreamState,
    pack,
    unpack,
)

ENVELOPES = [
    Push("link", 3, 7),
    Call("link", 3, 8, 1.5),
    Cancel(3, 8),
    Announce("link", 3, "Item", 9),
    Heartbeat(2, [("link", 5)]),
    Goodbye(),
    HeartbeatBack(1, [StreamState("link", 5, 4, 2, [4], [(3, "why")])]),
    Progress(1, [StreamProgress("link", 4, [2, 3], [(3, "why")])], [("link", "Item", 9)]),
    Reply(8),
    Refused(8, "why"),
]


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda envelope: type(envelope).__name__)
def test_round_trip(envelope):
    assert unpack(pack(envelope)) == envelope
    assert type(unpack(pack(envelope))) is type(envelope)


@given(st.sampled_from(ENVELOPES), st.integers(0, 40), st.integers(0, 255), st.binary(max_size=3))
@settings(max_examples=150, deadline=None)
def test_damaged_envelopes_raise_malformed_frame_only(envelope, at, byte, more):
    frame = bytearray(pack(envelope))
    frame[at % len(frame)] = byte
    with contextlib.suppress(MalformedFrame):
        pack(unpack(bytes(frame) + more))


@pytest.mark.parametrize(
    "values",
    [
        [2, 0, "link", 3, 7],
        [1, 99, 3],
        [1, 0, "link", 3],
        [1, 0, "link", 3, -1],
        [1, 0, "link", True, 7],
        [1, 0, b"link", 3, 7],
        [1, 1, "link", 3, 8, float("nan")],
        [1, 4, 2, [["link"]]],
        [1],
        {},
        7,
    ],
)
def test_what_is_no_envelope_is_refused(values):
    with pytest.raises(MalformedFrame):
        unpack(msgpack.packb(values))
