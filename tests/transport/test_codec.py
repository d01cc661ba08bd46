from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transport.clouds import CLOUDS, JSON, REGISTRY, Point, cloud, put, same, values_of, with_header
from transport import DecodeError, EncodeError, Limits, Registry, decode, encode, plans
from transport.codec import WIRE_VERSION
from transport.limits import MAX_ITEMS


@pytest.fixture(params=[plans.FRAME_FROM, 1], ids=["inline", "framed"])
def frame_from(request, monkeypatch):
    """Arrays lie among the fields, or each is a frame of its own."""
    monkeypatch.setattr(plans, "FRAME_FROM", request.param)


EITHER_WAY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(CLOUDS)
@EITHER_WAY
def test_round_trip(frame_from, message):
    assert same(decode([bytes(frame) for frame in encode(message)], REGISTRY), message)


@given(JSON | st.lists(JSON | st.sampled_from([1, "Cloud", "Point"]), max_size=4))
@settings(max_examples=80)
def test_arbitrary_headers_raise_decode_error_only(value):
    with pytest.raises(DecodeError):
        decode([msgpack.packb(value)], REGISTRY)


@given(st.lists(st.binary(max_size=40), max_size=4))
@settings(max_examples=100)
def test_arbitrary_frames_raise_decode_error_only(frames):
    with pytest.raises(DecodeError):
        decode(frames, REGISTRY)


LARGE = np.arange(1 << 14, dtype=np.int32).reshape(128, 128)


def test_large_contiguous_arrays_are_not_copied_on_either_side():
    cells = LARGE
    frames = encode(cloud(cells=cells))
    assert np.shares_memory(np.frombuffer(frames[1], np.int32), cells)
    received = [memoryview(bytes(frame)) for frame in frames]
    decoded = decode(received, REGISTRY)
    assert np.shares_memory(decoded.cells, np.frombuffer(received[1], np.int32))
    assert not decoded.cells.flags.writeable


@dataclass(frozen=True)
class Parcel:
    """Bytes, as of a packed body, and bytes that may be missing."""

    name: str
    body: bytes
    stamp: bytes | None


@pytest.mark.parametrize("stamp", [None, b"", b"s" * 9, b"s" * plans.FRAME_FROM])
@pytest.mark.parametrize("size", [0, plans.FRAME_FROM - 1, plans.FRAME_FROM, 1 << 20])
def test_bytes_arrive_and_large_ones_are_frames_that_are_not_copied_to_be_sent(size, stamp):
    parcel = Parcel("one", b"b" * size, stamp)
    frames = encode(parcel)
    apart = [part for part in (parcel.body, stamp) if part is not None and len(part) >= plans.FRAME_FROM]
    assert [frame is part for frame, part in zip(frames[1:], apart, strict=True)] == [True] * len(apart)
    for received in (frames, [memoryview(bytes(frame)) for frame in frames]):
        assert decode(received, Registry(Parcel)) == parcel


def test_a_frame_of_bytes_has_the_length_that_is_said():
    head, body = encode(Parcel("one", b"b" * plans.FRAME_FROM, None))
    for frames, said in (
        ([head, body[1:]], "expected a frame of 65536 bytes, got 65535"),
        ([head], "its frame is missing"),
        ([head, body, body], "1 frames more than its arrays"),
    ):
        with pytest.raises(DecodeError, match=said):
            decode(frames, Registry(Parcel))


@pytest.mark.parametrize("values", [np.arange(12, dtype=np.int32).reshape(3, 4), LARGE], ids=["small", "large"])
def test_arrays_that_are_not_contiguous_arrive_whole(values):
    cells = values.T[::2]
    assert np.array_equal(decode(encode(cloud(cells=cells)), REGISTRY).cells, cells)


def test_misaligned_buffers_are_realigned():
    frames = encode(cloud(cells=LARGE))
    shifted = memoryview(b"x" + bytes(frames[1]))[1:]
    decoded = decode([frames[0], shifted, *frames[2:]], REGISTRY)
    assert decoded.cells.flags.aligned
    assert np.array_equal(decoded.cells, LARGE)


def test_small_arrays_are_aligned_read_only_and_keep_nothing_else_alive():
    (frame,) = encode(cloud())
    decoded = decode([memoryview(bytearray(frame))], REGISTRY)
    for array in (decoded.cells, decoded.values, *decoded.masks):
        assert array.flags.aligned
        assert not array.flags.writeable
        assert array.base is None or len(bytes(array.base)) == array.nbytes


def test_integers_stand_for_floats_and_nan_travels():
    assert decode(encode(Point(1, 2)), REGISTRY) == Point(1, 2.0)
    assert type(decode(encode(Point(1, 2)), REGISTRY).y) is float
    assert math.isnan(decode(encode(Point(1, math.nan)), REGISTRY).y)
    assert type(decode(encode(cloud(weight=3)), REGISTRY).weight) is float


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"name": 1}, "Cloud.name", "expected str, got int"),
        ({"name": "\ud800"}, "Cloud.name", "surrogates"),
        ({"dense": 1}, "Cloud.dense", "expected bool, got int"),
        ({"kind": "middle"}, "Cloud.kind", "is none of 'near', 'far'"),
        ({"level": True}, "Cloud.level", "expected int, got bool"),
        ({"points": (Point(1, 2.0), Point(True, 2.0))}, "Cloud.points[1].x", "expected int, got bool"),
        ({"points": (Point(1, "2"),)}, "Cloud.points[0].y", "expected float, got str"),
        ({"points": (Point(1 << 63, 2.0),)}, "Cloud.points[0].x", "64-bit"),
        ({"names": ["a"]}, "Cloud.names", "got list"),
        ({"by_name": {"k": 3}}, "Cloud.by_name['k']", "expected Point, got int"),
        ({"by_name": {3: Point(1, 1.0)}}, "Cloud.by_name[3]", "key of type str"),
        ({"extra": {"a": [1, {2}]}}, "Cloud.extra['a'][1]", "a JSON value, got set"),
        ({"extra": {"a": 10**30}}, "Cloud.extra['a']", "64-bit"),
        ({"centre": Point(1, None)}, "Cloud.centre.y", "expected float, got NoneType"),
        ({"label": 3}, "Cloud.label", "expected str, got int"),
        ({"cells": np.zeros((2, 2))}, "Cloud.cells", "int32 with 2 dimensions, got float64"),
        ({"values": np.zeros((2, 2), np.float32)}, "Cloud.values", "1 dimensions, got float32 with 2"),
        ({"masks": (None,)}, "Cloud.masks[0]", "got NoneType"),
    ],
)
def test_encode_names_the_field_that_does_not_fit(changes, field, reason):
    with pytest.raises(EncodeError) as caught:
        encode(cloud(**changes))
    assert caught.value.field == field
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (put("name", 1), "Cloud.name", "expected str, got int"),
        (put("points", 1, "x", True), "Cloud.points[1].x", "expected int, got bool"),
        (put("points", 1, "x", (1 << 64) - 1), "Cloud.points[1].x", "64-bit"),
        (lambda header: values_of(header, "points", 0).append(1), "Cloud.points[0]", "expected 2 fields, got 3"),
        (lambda header: values_of(header, "points", 0).pop(), "Cloud.points[0]", "expected 2 fields, got 1"),
        (put("points", 0, {"x": 1, "y": 2.0}), "Cloud.points[0]", "expected Point, got dict"),
        (put("kind", "middle"), "Cloud.kind", "is none of"),
        (put("by_name", "k", None), "Cloud.by_name['k']", "expected Point, got NoneType"),
        (put("cells", [bytes(24), 6]), "Cloud.cells", "shape [6]"),
        (put("cells", [bytes(24), -2, -3]), "Cloud.cells", "impossible shape"),
        (put("cells", [bytes(24), 2, 3.0]), "Cloud.cells", "impossible shape"),
        (put("cells", [bytes(24), 2, 1 << 50]), "Cloud.cells", "impossible shape"),
        (put("cells", [bytes(24), 2, 4]), "Cloud.cells", "expected 32 bytes"),
        (put("cells", ["text", 2, 3]), "Cloud.cells", "got str for its bytes"),
        (put("cells", [None, 2, 3]), "Cloud.cells", "its frame is missing"),
        (put("cells", 3), "Cloud.cells", "got int"),
        (put("extra", b"bytes"), "Cloud.extra", "a JSON value, got bytes"),
        (lambda header: header.__setitem__(0, 1), "header", "wire version 1"),
        (lambda header: header.__setitem__(2, 7), "Cloud", "defines this type differently"),
        (lambda header: header.__setitem__(2, None), "Cloud", "defines this type differently"),
        (lambda header: header.__setitem__(0, True), "header", "wire version True"),
        (lambda header: header.__setitem__(1, "Fog"), "header", "message type 'Fog' is unknown"),
        (lambda header: header.append(0), "header", "not a message"),
    ],
)
def test_decode_names_the_field_that_does_not_fit(change, field, reason):
    with pytest.raises(DecodeError) as caught:
        decode(with_header(cloud(), change), REGISTRY)
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_missing_and_extra_frames_are_refused():
    frames = encode(cloud(cells=LARGE))
    assert len(frames) == 2
    with pytest.raises(DecodeError, match=r"Cloud\.cells: its frame is missing"):
        decode(frames[:-1], REGISTRY)
    with pytest.raises(
        DecodeError, match=r"Cloud\.cells: expected a frame of 65536 bytes for shape \[128, 128\], got 9"
    ):
        decode([frames[0], b"too short"], REGISTRY)
    with pytest.raises(DecodeError, match="1 frames more than its arrays"):
        decode([*frames, b""], REGISTRY)
    with pytest.raises(DecodeError, match="no frames"):
        decode([], REGISTRY)
    with pytest.raises(DecodeError, match="not msgpack"):
        decode([frames[0][:-1], *frames[1:]], REGISTRY)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(message_bytes=100), "bytes, the limit is 100"),
        (Limits(message_frames=1), "2 frames, the limit is 1"),
    ],
)
def test_limits_are_kept(limits, reason):
    message = cloud(cells=LARGE)
    with pytest.raises(DecodeError, match=reason):
        decode(encode(message), REGISTRY, limits)


@pytest.mark.parametrize(
    ("limits", "reason"), [(Limits(message_bytes=100), "bytes"), (Limits(message_frames=1), "2 frames")]
)
def test_what_no_receiver_would_accept_is_not_encoded(limits, reason):
    with pytest.raises(EncodeError, match=f"Cloud: .*{reason}, the limit is"):
        encode(cloud(cells=LARGE), limits)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"names": ("",) * (MAX_ITEMS + 1)}, "Cloud.names"),
        ({"extra": {"a": [0] * (MAX_ITEMS + 1)}}, "Cloud.extra['a']"),
        ({"by_name": dict.fromkeys(map(str, range(MAX_ITEMS + 1)), Point(1, 1.0))}, "Cloud.by_name"),
    ],
)
def test_containers_are_bounded_on_both_sides(changes, field):
    with pytest.raises(EncodeError, match=f"{MAX_ITEMS + 1} items, the limit is {MAX_ITEMS}") as caught:
        encode(cloud(**changes))
    assert caught.value.field == field
    many = msgpack.packb([WIRE_VERSION, "Cloud", 0, [None] * (MAX_ITEMS + 1)])
    with pytest.raises(DecodeError, match=r"header: not msgpack: .* exceeds max_array_len"):
        decode([many], REGISTRY)


def test_deep_nesting_raises_decode_error():
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    with pytest.raises(DecodeError, match="nested deeper"):
        decode(with_header(cloud(), put("extra", deep)), REGISTRY)
    bomb = b"\x91" * 100_000 + b"\x01"
    with pytest.raises(DecodeError, match="not msgpack"):
        decode([bomb], REGISTRY)
