"""Every message that crosses a link: random values arrive as they were sent, and damaged bytes raise the one error.

Damage to a message raises DecodeError, damage to an envelope MalformedFrame. Neither takes memory or time beyond what
the bytes themselves take.
"""

import contextlib
import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agent_rl import messages
from agent_rl.messages import pipes
from tests.transport.clouds import JSON, same, values
from transport import DecodeError, Registry, decode, encode, plans
from transport.codec import WIRE_VERSION
from transport.frames import FRAMES_VERSION, CallFrame, MalformedFrame, PushFrame, pack, unpack

REGISTRY = Registry(*Registry.of(messages), *Registry.of(pipes))
TYPES = sorted(REGISTRY, key=lambda cls: cls.__name__)
ROOM = 128 << 20
"""Bytes that decoding a short frame may take, whatever sizes it claims: msgpack makes room for some of what is claimed,
at each of at most 1,024 levels."""
QUICK = settings(max_examples=4, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def round_trip(message: Any) -> list[bytes]:
    frames = [bytes(frame) for frame in encode(message)]
    again = decode(frames, REGISTRY)
    assert [bytes(frame) for frame in encode(again)] == frames
    assert same(again, message) or "nan" in repr(message)  # NaN equals nothing, itself included
    return frames


def damaged(frames: list[bytes], data: st.DataObject) -> list[bytes]:
    """The frames with bytes changed, cut, added, moved between frames, or replaced by other msgpack."""
    changed = [bytearray(frame) for frame in frames]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = changed[data.draw(st.integers(0, len(changed) - 1))]
        at = data.draw(st.integers(0, len(frame)))
        damage = data.draw(st.sampled_from(["flip", "cut", "put", "claim", "drop", "double", "value"]))
        if damage == "flip" and at < len(frame):
            frame[at] = data.draw(st.integers(0, 255))
        elif damage == "cut":
            del frame[at:]
        elif damage == "put":
            frame[at:at] = data.draw(st.binary(max_size=6))
        elif damage == "claim":  # a container or text that says it is large
            frame[at:at] = data.draw(CLAIMS) + data.draw(st.sampled_from([b"\xff\xff\xff\xff", b"\0\x0f\xff\xff"]))
        elif damage == "value":
            frame[at : at + 1] = msgpack.packb(data.draw(JSON))
        elif damage == "drop" and len(changed) > 1:
            changed.remove(frame)
        else:
            changed.append(frame)
    return [bytes(frame) for frame in changed]


CLAIMS = st.sampled_from([b"\xc6", b"\xc9", b"\xdb", b"\xdd", b"\xdf"])
"""The codes of msgpack for binary, extension, text, array and map with a length of 32 bits."""


def one_error(frames: list[bytes], data: st.DataObject) -> None:
    body, *others = damaged(frames, data)
    with contextlib.suppress(DecodeError):
        encode(decode([body, *others], REGISTRY))  # what was accepted fits its annotations
    assume(body)
    frames = damaged([bytes(each) for each in pack(data.draw(st.sampled_from(ENVELOPES)), [body])], data)
    with contextlib.suppress(MalformedFrame):
        pack(*unpack(frames))


ENVELOPES = [PushFrame("trajectories", 1 << 20, 7), CallFrame("steps", 1 << 20, 8, 1.5)]


EACH = pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)


@EACH
@given(data=st.data())
@QUICK
def test_every_message_arrives_as_it_was_sent_and_damaged_raises_the_one_error(cls, data):
    one_error(round_trip(data.draw(values(cls))), data)


@pytest.mark.slow
@EACH
@given(data=st.data())
@LONG
def test_many_values_and_damages_of_every_message(cls, data):
    plans.FRAME_FROM, before = data.draw(st.sampled_from([1, plans.FRAME_FROM])), plans.FRAME_FROM
    try:
        one_error(round_trip(data.draw(values(cls))), data)
    finally:
        plans.FRAME_FROM = before


def claim(code: bytes, length: int) -> bytes:
    return code + length.to_bytes(4, "big")


HEADER = b"\x94" + msgpack.packb(WIRE_VERSION) + msgpack.packb("GroupOpened") + msgpack.packb(0)
BOMBS = {
    "a list of 4 billion": claim(b"\xdd", (1 << 32) - 1),
    "a map of 4 billion": claim(b"\xdf", (1 << 32) - 1),
    "a text of 4 GiB": claim(b"\xdb", (1 << 32) - 1),
    "bytes of 4 GiB": claim(b"\xc6", (1 << 32) - 1),
    "an extension of 4 GiB": claim(b"\xc9", (1 << 32) - 1) + b"\x01",
    "lists of a million in each other": claim(b"\xdd", 1 << 20) * 1000,
    "maps of a million in each other": (claim(b"\xdf", 1 << 20) + b"\x01") * 1000,
    "lists in each other": b"\x91" * 100_000,
    "a million of nothing, in each other": claim(b"\xdd", 60_000) * 1000 + b"\xc0" * 60_000,
    "a number as text": b"\xd9\xff" + b"9" * 255,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_claims_to_be_large_takes_neither_memory_nor_time(bomb):
    envelope = b"\x96" + msgpack.packb(FRAMES_VERSION) + b"\x00" + bomb
    tracemalloc.start()
    began = time.process_time()
    try:
        for body in (bomb, HEADER + bomb):
            with pytest.raises(DecodeError):
                decode([body], REGISTRY)
        for packed in (bomb, envelope):
            with pytest.raises(MalformedFrame):
                unpack([len(packed).to_bytes(4, "big") + packed])
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 2.0
