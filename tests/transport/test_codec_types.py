import dataclasses
import types
from typing import Literal

import numpy as np
import pytest

from tests.transport.clouds import Cloud, Point, with_header
from transport import DecodeError, EncodeError, Limits, Registry, decode, encode, plans

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
        return dataclasses.make_dataclass(name, fields, bases=bases, namespace=namespace, **options)

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
        assert dataclasses.replace(again) == message
    assert made == [2, 2, 2]
    with pytest.raises(dataclasses.FrozenInstanceError):
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
        Registry(dataclasses.make_dataclass("Parcel", [("other", int), ("field", kind)]))


class Chain:
    """Contains itself."""

    __annotations__ = {"length": int, "rest": "Chain | None"}


def test_types_that_cannot_be_rebuilt_are_refused():
    computed = dataclasses.make_dataclass("Parcel", [("field", int, dataclasses.field(init=False, default=1))])
    with pytest.raises(TypeError, match=r"Parcel\.field: a field with init=False"):
        Registry(computed)
    with pytest.raises(TypeError, match=r"Chain\.rest: Chain contains itself"):
        Registry(dataclasses.dataclass(Chain))
    with pytest.raises(TypeError, match="is no dataclass"):
        Registry(int)


def test_registries_hold_the_types_of_a_module_and_refuse_two_of_one_name():
    module = types.ModuleType(Point.__module__)
    members = {"Point": Point, "Cloud": Cloud, "Limits": Limits, "other": 3}  # Limits is defined elsewhere
    for place in (".inner", "s"):  # a file of the package, and another module whose name begins alike
        members[place] = dataclasses.make_dataclass(f"In{place[-1]}", [("x", int)])
        members[place].__module__ = f"{Point.__module__}{place}"
    vars(module).update(members)
    assert {each.__name__ for each in Registry.of(module)} == {"Point", "Cloud", "Inr"}
    assert Point in Registry.of(module)
    assert dataclasses.make_dataclass("Point", ["x"]) not in Registry.of(module)
    with pytest.raises(ValueError, match="two message types are named Point"):
        Registry(Point, dataclasses.make_dataclass("Point", ["x"]))
    with pytest.raises(EncodeError, match="is no dataclass"):
        encode(3)
