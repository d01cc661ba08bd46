from __future__ import annotations

import math
import types
from dataclasses import FrozenInstanceError, dataclass, field, make_dataclass, replace
from typing import Any, Literal

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transport.clouds import (
    CLOUDS,
    JSON,
    REGISTRY,
    Cloud,
    Matrix,
    Point,
    Vector,
    cloud,
    put,
    same,
    values_of,
    with_header,
)
from transport import DecodeError, EncodeError, Limits, Registry, codec, decode, encode, plans
from transport.codec import size_of
from transport.limits import MAX_JSON_DEPTH


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


LARGE = np.arange(1 << 14, dtype=np.int32).reshape(128, 128)


def test_large_contiguous_arrays_are_not_copied_on_either_side():
    cells = LARGE
    frames = encode(cloud(cells=cells))
    assert np.shares_memory(np.frombuffer(frames[1], np.int32), cells)
    received = [memoryview(bytearray(frame)) for frame in frames]
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


@pytest.mark.parametrize("values", [np.arange(12, dtype=np.int32).reshape(3, 4), LARGE], ids=["small", "large"])
def test_arrays_that_are_not_contiguous_arrive_whole(values):
    cells = values.T[::2]
    assert np.array_equal(decode(encode(cloud(cells=cells)), REGISTRY).cells, cells)


def test_misaligned_buffers_are_realigned():
    frames = encode(cloud(cells=LARGE))
    shifted = memoryview(b"x" + bytes(frames[1]))[1:]
    decoded = decode([frames[0], shifted, *frames[2:]], REGISTRY)
    assert decoded.cells.flags.aligned
    assert not decoded.cells.flags.writeable
    assert np.array_equal(decoded.cells, LARGE)


def test_small_arrays_are_aligned_read_only_and_keep_nothing_else_alive():
    (frame,) = encode(cloud())
    decoded = decode([memoryview(bytearray(frame))], REGISTRY)
    for array in (decoded.cells, decoded.values, *decoded.masks):
        assert array.flags.aligned
        assert not array.flags.writeable
        assert array.base is None or len(bytes(array.base)) == array.nbytes


def test_what_is_a_value_of_the_type_in_all_but_name_arrives_as_one():
    class Name(str):
        __slots__ = ()

    for point in (Point(1, 2), Point(1, np.float64(2.0))):
        assert type(decode(encode(point), REGISTRY).y) is float
    assert same(decode(with_header(Point(1, 2.0), put("y", 2)), REGISTRY), Point(1, 2.0))
    assert math.isnan(decode(encode(Point(1, math.nan)), REGISTRY).y)
    assert same(decode(encode(cloud(weight=3, name=Name("n"))), REGISTRY), cloud(weight=3.0))


class Pixel(Point):
    __slots__ = ()


@pytest.mark.parametrize(
    ("changes", "place", "reason"),
    [
        ({"name": 1}, "Cloud.name", "expected str, got int"),
        ({"name": "\ud800"}, "Cloud.name", "surrogates"),
        ({"dense": 1}, "Cloud.dense", "expected bool, got int"),
        ({"kind": "middle"}, "Cloud.kind", "is none of 'near', 'far'"),
        ({"level": True}, "Cloud.level", "expected int, got bool"),
        ({"points": (Point(1, 2.0), Point(True, 2.0))}, "Cloud.points[1].x", "expected int, got bool"),
        ({"points": (Point(1, "2"),)}, "Cloud.points[0].y", "expected float, got str"),
        ({"points": (Pixel(1, 2.0),)}, "Cloud.points[0]", "expected Point, got Pixel"),
        ({"points": (Point(1, 10**400),)}, "Cloud.points[0].y", "too large for a float"),
        ({"weight": True}, "Cloud.weight", "expected float, got bool"),
        ({"raw": bytearray(b"r")}, "Cloud.raw", "expected bytes, got bytearray"),
        ({"names": ["a"]}, "Cloud.names", "got list"),
        ({"by_name": {"k": 3}}, "Cloud.by_name['k']", "expected Point, got int"),
        ({"by_name": {3: Point(1, 1.0)}}, "Cloud.by_name[3]", "key of type str"),
        ({"extra": {"a": [1, {2}]}}, "Cloud.extra['a'][1]", "a JSON value, got set"),
        ({"extra": {"a": (1, 2)}}, "Cloud.extra['a']", "a JSON value, got tuple"),
        ({"extra": {"a": {1: 2}}}, "Cloud.extra['a'][1]", "key of type str"),
        ({"extra": {"a": ["x", "\ud800"]}}, "Cloud.extra['a'][1]", "surrogates"),
        ({"by_name": {"\ud800": Point(1, 1.0)}}, "Cloud.by_name['\\ud800']", "surrogates"),
        ({"centre": Point(1, None)}, "Cloud.centre.y", "expected float, got NoneType"),
        ({"label": 3}, "Cloud.label", "expected str, got int"),
        ({"cells": np.zeros((2, 2))}, "Cloud.cells", "int32 with 2 dimensions, got float64"),
        ({"values": np.zeros((2, 2), np.float32)}, "Cloud.values", "1 dimensions, got float32 with 2"),
        ({"masks": (None,)}, "Cloud.masks[0]", "got NoneType"),
    ],
)
def test_encode_names_the_field_that_does_not_fit(changes, place, reason):
    with pytest.raises(EncodeError) as caught:
        encode(cloud(**changes))
    assert caught.value.field == place
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (put("name", 1), "Cloud.name", "expected str, got int"),
        (put("points", 1, "x", True), "Cloud.points[1].x", "expected int, got bool"),
        (put("points", 1, "x", 1 << 63), "Cloud.points[1].x", "64-bit"),
        (put("extra", "list", 1 << 63), "Cloud.extra['list']", "64-bit"),
        (put("extra", {b"k": 2}), "Cloud.extra[b'k']", "key of type str"),
        (put("weight", True), "Cloud.weight", "expected float, got bool"),
        (put("raw", "text"), "Cloud.raw", "expected bytes, got str"),
        (put("values", [bytes(16), 5]), "Cloud.values", "expected 20 bytes"),
        (put("values", [bytes(16), 4.0]), "Cloud.values", "impossible shape"),
        (put("values", [bytes(16), 2, 2]), "Cloud.values", "shape [2, 2]"),
        (lambda header: values_of(header, "points", 0).append(1), "Cloud.points[0]", "expected 2 fields, got 3"),
        (lambda header: values_of(header, "points", 0).pop(), "Cloud.points[0]", "expected 2 fields, got 1"),
        (put("points", 0, {"x": 1, "y": 2.0}), "Cloud.points[0]", "expected Point, got dict"),
        (put("kind", "middle"), "Cloud.kind", "is none of"),
        (put("by_name", "k", None), "Cloud.by_name['k']", "expected Point, got NoneType"),
        (put("cells", [bytes(24), 6]), "Cloud.cells", "shape [6]"),
        (put("cells", [bytes(24), -2, -3]), "Cloud.cells", "impossible shape"),
        (put("cells", [bytes(24), 2, 3.0]), "Cloud.cells", "impossible shape"),
        (put("cells", [b"", 0, (1 << 40) + 1]), "Cloud.cells", "impossible shape"),
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
def test_decode_names_the_field_that_does_not_fit(change, place, reason):
    with pytest.raises(DecodeError) as caught:
        decode(with_header(cloud(), change), REGISTRY)
    assert caught.value.field == place
    assert reason in caught.value.reason


def test_missing_and_extra_frames_are_refused():
    frames = encode(cloud(cells=LARGE))
    large = encode(cloud(raw=bytes(plans.FRAME_FROM)))
    shape = r"Cloud\.cells: expected a frame of 65536 bytes for shape \[128, 128\], got"
    for wrong, said in (
        (frames[:-1], r"Cloud\.cells: its frame is missing"),
        ([frames[0], bytes(65535)], f"{shape} 65535"),
        ([frames[0], bytes(65537)], f"{shape} 65537"),
        *(
            ([large[0], body], f"expected a frame of 65536 bytes, got {len(body)}")
            for body in (bytes(65535), bytes(65537))
        ),
        ([*frames, b""], "1 frames more than its arrays"),
        ([], "no frames"),
        ([frames[0][:-1], *frames[1:]], "not msgpack"),
        ([*with_header(cloud(), put("cells", [None, 128, 128])), frames[1]], None),
        (with_header(cloud(cells=LARGE), put("masks", [None])), r"Cloud\.masks\[0\]: expected array"),
    ):
        if said is None:
            assert same(decode(wrong, REGISTRY), cloud(cells=LARGE))
        else:
            with pytest.raises(DecodeError, match=said):
                decode(wrong, REGISTRY)


@pytest.mark.parametrize("arrays", range(3))
def test_a_message_of_the_largest_size_passes_and_one_byte_or_frame_more_does_not(arrays):
    message = cloud(masks=(np.zeros(plans.FRAME_FROM // 4, np.float32),) * arrays)
    frames = encode(message)
    size, count = size_of(frames), arrays + 1
    exact = Limits(message_bytes=size, message_frames=count)
    assert same(decode(encode(message, exact), REGISTRY, exact), message)
    for less, said in (
        (replace(exact, message_bytes=size - 1), f"{size} bytes, the limit is {size - 1}"),
        (replace(exact, message_frames=arrays), f"{count} frames, the limit is {arrays}"),
    ):
        with pytest.raises(EncodeError, match=f"Cloud: {said}"):
            encode(message, less)
        with pytest.raises(DecodeError, match=f"message: {said}"):
            decode(frames, REGISTRY, less)


CONTAINERS = [
    ("names", lambda count: ("",) * count),
    ("extra", lambda count: [0] * count),
    ("extra", lambda count: dict.fromkeys(map(str, range(count)), 0)),
    ("by_name", lambda count: dict.fromkeys(map(str, range(count)), Point(1, 1.0))),
]


@pytest.mark.parametrize(("name", "items"), CONTAINERS)
def test_containers_are_bounded_on_both_sides(monkeypatch, name, items):
    most = len(cloud().__slots__)
    too_many = cloud(**{name: items(most + 1)})
    frames = encode(too_many)
    for module in (plans, codec):
        monkeypatch.setattr(module, "MAX_ITEMS", most)
    assert same(decode(encode(cloud(**{name: items(most)})), REGISTRY), cloud(**{name: items(most)}))
    with pytest.raises(EncodeError, match=rf"Cloud\.{name}: {most + 1} items, the limit is {most}"):
        encode(too_many)
    with pytest.raises(DecodeError, match=r"header: not msgpack: .* exceeds max_(array|map)_len"):
        decode(frames, REGISTRY)


def test_nesting_is_bounded_on_both_sides():
    deep: Any = 1
    for depth in range(1, MAX_JSON_DEPTH + 2):
        deep = [deep] if depth % 2 else {"k": deep}
        if depth == MAX_JSON_DEPTH:
            assert same(decode(encode(cloud(extra=deep)), REGISTRY), cloud(extra=deep))
    with pytest.raises(EncodeError, match=f"nested deeper than {MAX_JSON_DEPTH}"):
        encode(cloud(extra=deep))
    with pytest.raises(DecodeError, match=f"nested deeper than {MAX_JSON_DEPTH}"):
        decode(with_header(cloud(), put("extra", deep)), REGISTRY)
    with pytest.raises(DecodeError, match="not msgpack"):
        decode([b"\x91" * 100_000 + b"\x01"], REGISTRY)
    for depth in (900, 1000, 1020):  # near the bounds of msgpack and of Python
        with pytest.raises(DecodeError, match=r"not msgpack|wire version 'list'"):
            decode([b"\x91" * depth + b"\x01"], REGISTRY)


@pytest.mark.parametrize(("last", "beyond"), [(-(1 << 63), -(1 << 63) - 1), ((1 << 63) - 1, 1 << 63)])
def test_integers_have_64_bits(last, beyond):
    message = cloud(points=(Point(last, 1.0),), extra=[last])
    assert same(decode(encode(message), REGISTRY), message)
    for changes in ({"points": (Point(beyond, 1.0),)}, {"extra": beyond}):
        with pytest.raises(EncodeError, match="64-bit"):
            encode(cloud(**changes))


KINDS = [
    *(int, bool, float, str, bytes, Any, Point, Matrix, Vector),
    *(Literal["a"], Literal["b"], Literal["a", "b"], Literal[1]),
    *(int | None, float | None, Point | None, tuple[int, ...], tuple[float, ...], tuple[tuple[int, ...], ...]),
    *(dict[str, int], dict[str, float], make_dataclass("Point", [("x", int), ("y", int)])),
    *(make_dataclass("Spot", [("x", int), ("y", float)]), np.ndarray[tuple[int], np.dtype[np.int32]]),
]


def test_types_of_one_name_that_differ_in_any_annotation_name_or_order_are_of_different_releases():
    layouts = [
        *([("number", kind), ("text", str)] for kind in KINDS),
        *([("text", str), ("number", int)], [("number", int)], [("other", int), ("text", str)]),
    ]
    registries = [Registry(make_dataclass("Parcel", fields, frozen=True)) for fields in layouts]
    assert len({registry.plan("Parcel")[1] for registry in registries}) == len(layouts)
    (parcel,) = registries[0]
    for other in registries[1:]:
        with pytest.raises(DecodeError, match="Parcel: the sender defines this type differently"):
            decode(encode(parcel(1, "x")), other)


# Types.


ODD = [True, 3, -(1 << 63), 1 << 63, 2.5, "near", "x" * 9, b"x", bytes(plans.FRAME_FROM), None, [], [1, 2.0], {"k": 1}]


@pytest.mark.parametrize("plan", plans.field_plans(Cloud).values(), ids=plans.field_plans(Cloud))
def test_the_steps_of_a_field_return_a_value_that_travels_as_it_is(plan):
    unchanged = [each for each in ODD if plan.unchanged and eval(plan.unchanged.format(v="each"), {"each": each})]
    assert unchanged or not plan.unchanged
    for each in unchanged:
        assert plan.encode(each, []) is plan.decode(each, iter([])) is each


def test_classes_of_every_make_are_rebuilt_as_their_constructor_would():
    def check(self):
        if self.value < 0:
            raise ValueError("must not be negative")

    def double(self, value):
        object.__setattr__(self, "value", value)
        made.append(value)

    def make(name, *fields, bases=(), frozen=True, slots=True, init=True, kw_only=False, **namespace):
        options = {"frozen": frozen, "slots": slots, "init": init, "kw_only": kw_only}
        return make_dataclass(name, fields, bases=bases, namespace=namespace, **options)

    value, made = ("value", int), []
    named = make("Named", value, kw_only=True)
    derived = make("Derived", ("other", str, "o"), bases=(named,))
    checked = make("Checked", value, __post_init__=check)
    doubling = make("Doubling", value, init=False, __init__=double)
    simple = [checked, make("Open", value, slots=False), make("Mutable", value, frozen=False), make("Plain", value)]
    registry = Registry(*simple, named, doubling, derived, make("Nothing"))
    messages = [
        doubling(2),
        *(cls(value=3) for cls in (*simple, named, derived)),
        *(cls() for cls in registry if cls.__name__ == "Nothing"),
    ]
    for message in messages:
        again = decode(encode(message), registry)
        assert type(again) is type(message)
        assert again == message
        assert replace(again) == message
    assert made == [2, 2, 2]
    with pytest.raises(FrozenInstanceError):
        decode(encode(checked(1)), registry).value = 2
    with pytest.raises(DecodeError, match="Checked: must not be negative"):
        decode(with_header(checked(1), lambda header: header[3].__setitem__(0, -1)), registry)


REFUSED = [
    *(set[int], list[int], int | str, int | str | None, dict[int, int], tuple[int, int], object),
    *(Literal["a", 1], Literal[b"a"], Literal[[]], tuple[set[int], ...], dict[str, list[int]], list[int] | None),
    *(np.ndarray[tuple[int], np.dtype[np.object_]], np.ndarray[tuple[int, ...], np.dtype[np.int32]]),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_types_that_cannot_travel_are_refused_by_field(kind):
    with pytest.raises(TypeError, match=r"Parcel\.field: "):
        Registry(make_dataclass("Parcel", [("other", int), ("field", kind)]))


class Chain:
    """Contains itself."""

    __annotations__ = {"length": int, "rest": "Chain | None"}


def test_types_that_cannot_be_rebuilt_are_refused():
    computed = make_dataclass("Parcel", [("field", int, field(init=False, default=1))])
    with pytest.raises(TypeError, match=r"Parcel\.field: a field with init=False"):
        Registry(computed)
    with pytest.raises(TypeError, match=r"Chain\.rest: Chain contains itself"):
        Registry(dataclass(Chain))
    with pytest.raises(TypeError, match="is no dataclass"):
        Registry(int)


def test_registries_hold_the_types_of_a_module_and_refuse_two_of_one_name():
    module = types.ModuleType(Point.__module__)
    members = {"Point": Point, "Cloud": Cloud, "Limits": Limits, "other": 3}  # Limits is defined elsewhere
    for place in (".inner", "s"):  # a file of the package, and another module whose name begins alike
        members[place] = make_dataclass(f"In{place[-1]}", [("x", int)])
        members[place].__module__ = f"{Point.__module__}{place}"
    vars(module).update(members)
    assert {each.__name__ for each in Registry.of(module)} == {"Point", "Cloud", "Inr"}
    assert Point in Registry.of(module)
    assert make_dataclass("Point", ["x"]) not in Registry.of(module)
    with pytest.raises(ValueError, match="two message types are named Point"):
        Registry(Point, make_dataclass("Point", ["x"]))
    with pytest.raises(EncodeError, match="is no dataclass"):
        encode(3)
