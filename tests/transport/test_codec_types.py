from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.clouds import CLOUDS, POSITIONS, Cloud, Point, same, with_header
from transport import DecodeError, EncodeError, Limits, Registry, decode, encode, plans


def test_a_type_that_refuses_its_values_raises_decode_error():
    @dataclasses.dataclass(frozen=True)
    class Positive:
        value: int

        def __post_init__(self):
            if self.value < 0:
                raise ValueError("must not be negative")

    frames = with_header(Positive(1), lambda header: header[3].__setitem__(0, -1))
    with pytest.raises(DecodeError, match="Positive: must not be negative"):
        decode(frames, Registry(Positive))


ODD = st.sampled_from(
    [True, 3, -(1 << 63), 1 << 63, 2.5, "near", "x" * 9, b"x", None, [], [1, 2.0], {}, {"k": 1}, (1, "a")]
)


@given(CLOUDS, st.sampled_from([field.name for field in dataclasses.fields(Cloud)]), ODD)
@settings(max_examples=150)
def test_the_shortcut_accepts_what_the_careful_way_does_and_nothing_else(message, name, value):
    """Whichever field holds whatever value, on the way out and in: the same result, or the same error."""

    def outcome(action, *arguments):
        try:
            return action(*arguments)
        except plans.Invalid as invalid:
            return invalid.field("Cloud"), invalid.reason

    fields = plans.field_plans(Cloud)
    careful_encode, careful_decode = plans.careful(Cloud, fields)
    encode_cloud, decode_cloud = plans.shortcuts(Cloud, fields, (careful_encode, careful_decode))
    values = careful_encode(message, [])
    odd = dataclasses.replace(message, **{name: value})
    assert outcome(encode_cloud, odd, []) == outcome(careful_encode, odd, [])
    values[POSITIONS[name]] = value
    one = outcome(decode_cloud, values, plans.Cursor([b""]))
    other = outcome(careful_decode, values, plans.Cursor([b""]))
    assert same(one, other)


def test_classes_of_every_make_are_rebuilt_as_their_constructor_would():
    @dataclasses.dataclass(frozen=True, slots=True)
    class Checked:
        value: int

        def __post_init__(self):
            if self.value < 0:
                raise ValueError("must not be negative")

    @dataclasses.dataclass(frozen=True, slots=True)
    class Doubling:
        value: int

        def __init__(self, value):
            object.__setattr__(self, "value", value)
            made.append(value)

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        value: int

    @dataclasses.dataclass(frozen=True)
    class Open:
        value: int

    @dataclasses.dataclass(slots=True)
    class Mutable:
        value: int

    @dataclasses.dataclass(frozen=True, slots=True)
    class Derived(Named):
        other: str = "o"

    @dataclasses.dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    made = []
    registry = Registry(Checked, Doubling, Named, Open, Mutable, Derived, Nothing)
    messages = [Checked(1), Doubling(2), Named(value=3), Open(4), Mutable(5), Derived(value=6), Nothing()]
    for message in messages:
        again = decode(encode(message), registry)
        assert type(again) is type(message)
        assert again == message
        assert dataclasses.replace(again) == message
    assert made == [2, 2, 2]
    with pytest.raises(dataclasses.FrozenInstanceError):
        decode(encode(Checked(1)), registry).value = 2
    with pytest.raises(DecodeError, match="Checked: must not be negative"):
        decode(with_header(Checked(1), lambda header: header[3].__setitem__(0, -1)), registry)


def test_types_that_cannot_travel_are_refused_by_field():
    @dataclasses.dataclass
    class WithSet:
        members: tuple[set[int], ...]

    @dataclasses.dataclass
    class WithObjects:
        values: np.ndarray[tuple[int], np.dtype[np.object_]]

    @dataclasses.dataclass
    class WithList:
        value: list[int] | None

    @dataclasses.dataclass
    class WithUnion:
        value: int | str

    for cls, field in ((WithSet, "members"), (WithObjects, "values"), (WithList, "value"), (WithUnion, "value")):
        with pytest.raises(TypeError, match=f"{cls.__name__}.{field}: "):
            Registry(cls)
    with pytest.raises(TypeError, match="is no dataclass"):
        Registry(int)


def test_registries_hold_the_types_of_a_module_and_refuse_two_of_one_name():
    module = types.ModuleType(Point.__module__)
    module.Point, module.Cloud, module.Limits, module.other = Point, Cloud, Limits, 3  # Limits is defined elsewhere
    assert set(Registry.of(module)) == {Point, Cloud}
    assert Point in Registry.of(module)
    with pytest.raises(ValueError, match="two message types are named Point"):
        Registry(Point, dataclasses.make_dataclass("Point", ["x"]))
    with pytest.raises(EncodeError, match="is no dataclass"):
        encode(3)
