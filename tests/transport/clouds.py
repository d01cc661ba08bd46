"""Two message types that hold every kind of field, and strategies for them."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, Optional, Union

import msgpack
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from transport import Registry, encode

Matrix = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Vector = np.ndarray[tuple[int], np.dtype[np.float32]]


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float


@dataclasses.dataclass(frozen=True, slots=True)
class Cloud:
    name: str
    raw: bytes
    dense: bool
    kind: Literal["near", "far"]
    level: Literal[1, 2, 3]
    weight: float | None
    label: Optional[str]  # noqa: UP045  (both spellings must work)
    points: tuple[Point, ...]
    names: tuple[str, ...]
    by_name: dict[str, Point]
    extra: Any
    centre: Point | None
    cells: Matrix
    values: Vector
    masks: tuple[Vector, ...]


REGISTRY = Registry(Point, Cloud)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=8)
FLOATS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@functools.cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation."""
    simple = {int: INT64, float: FLOATS, bool: st.booleans(), str: TEXT, bytes: st.binary(max_size=8), Any: JSON}
    if hint in simple:
        return simple[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if each is types.NoneType else values(each) for each in arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, values(arguments[1]), max_size=2)
    if origin is np.ndarray:
        shapes = st.tuples(*(st.integers(0, 4) for _ in typing.get_args(arguments[0])))
        return st_numpy.arrays(typing.get_args(arguments[1])[0], shapes)
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in dataclasses.fields(hint)})


CLOUDS = values(Cloud)


def cloud(**changes):
    values = {
        "name": "n",
        "raw": b"r",
        "dense": True,
        "kind": "near",
        "level": 1,
        "weight": None,
        "label": None,
        "points": (Point(1, 2.0), Point(3, 4.0)),
        "names": ("a",),
        "by_name": {"k": Point(5, 6.0)},
        "extra": {"list": [1, None, {"deep": True}]},
        "centre": None,
        "cells": np.arange(6, dtype=np.int32).reshape(2, 3),
        "values": np.ones(4, np.float32),
        "masks": (np.zeros(2, np.float32),),
    }
    return Cloud(**{**values, **changes})


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def with_header(message, change):
    frames = encode(message)
    header = msgpack.unpackb(frames[0])
    change(header)
    return [msgpack.packb(header), *frames[1:]]


POSITIONS = {field.name: position for cls in (Point, Cloud) for position, field in enumerate(dataclasses.fields(cls))}


def values_of(header, *path):
    place = header[3]
    for step in path:
        place = place[POSITIONS.get(step, step)]
    return place


def put(*path):
    *way, last, value = path

    def change(header):
        values_of(header, *way)[POSITIONS.get(last, last)] = value

    return change
