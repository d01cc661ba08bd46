"""Compile a dataclass's annotations to a plan, once for each type.

Annotations that cannot be encoded are refused here.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from transport.schema import (
    SIMPLE,
    Buffer,
    Cursor,
    Decoder,
    Encoder,
    Invalid,
    Plan,
    literal,
    mapping,
    sequence,
    wrong,
)
from transport.shortcut import shortcuts

_MAX_DIMENSION = 1 << 40
FRAME_FROM = 64 << 10
"""An array of so many bytes or more is a separate frame and not copied.

For smaller arrays, a copy costs less than a frame.
"""


def compile_hint(hint: Any, within: tuple[type, ...] = ()) -> Plan:
    """The plan of one annotation; ``within`` are the dataclasses being compiled around it. Raises TypeError."""
    try:
        simple = SIMPLE.get(hint)
    except TypeError:  # an unhashable annotation, such as Literal[[]]
        simple = None
    if simple is not None:
        return simple
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return literal(hint)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        (member,) = (compile_hint(argument, within) for argument in arguments if argument is not type(None))
        layouts = ("None" if argument is type(None) else member.layout for argument in arguments)
        return _optional(member, str(hint), " | ".join(layouts))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return sequence(compile_hint(arguments[0], within), str(hint))
    if origin is dict and arguments[0] is str:
        return mapping(compile_hint(arguments[1], within), str(hint))
    if origin is np.ndarray:
        return _array(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return compile_dataclass(hint, within)
    raise TypeError(f"cannot travel: {hint}")


def compile_dataclass(cls: type, within: tuple[type, ...] = ()) -> Plan:
    """The plan of a dataclass: the list of its fields' values. Raises TypeError naming the field that cannot travel."""
    if cls in within:
        raise TypeError(f"{cls.__name__} contains itself: the nesting of a message must be finite")
    return _compile_dataclass(cls) if not within else _build(cls, within)


@functools.cache
def _compile_dataclass(cls: type) -> Plan:
    return _build(cls, ())


def _build(cls: type, within: tuple[type, ...]) -> Plan:
    plans = field_plans(cls, within)
    layout = f"{cls.__name__}({', '.join(f'{name}: {plan.layout}' for name, plan in plans.items())})"
    encode, decode = shortcuts(cls, plans, careful(cls, plans))
    return Plan(encode, decode, cls.__name__, layout)


def field_plans(cls: type, within: tuple[type, ...] = ()) -> dict[str, Plan]:
    """The plans of a dataclass's fields, in their order. Raises TypeError naming the field that cannot travel."""
    hints = typing.get_type_hints(cls)
    plans: dict[str, Plan] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            raise TypeError(f"{cls.__name__}.{field.name}: a field with init=False cannot be rebuilt")
        try:
            plans[field.name] = compile_hint(hints[field.name], (*within, cls))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{field.name}: {error}") from None
    return plans


def careful(cls: type, plans: dict[str, Plan]) -> tuple[Encoder, Decoder]:
    """An encoder and a decoder for every value, field by field. An error names the field."""
    keyword_only = any(field.kw_only for field in dataclasses.fields(cls))
    names = tuple(plans)
    encoders = tuple((name, plan.encode) for name, plan in plans.items())
    decoders = tuple(plan.decode for plan in plans.values())
    name_of_type = cls.__name__

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if type(value) is not cls:
            raise wrong(name_of_type, value)
        result: list[Any] = []
        try:
            for name, step in encoders:
                result.append(step(getattr(value, name), frames))
        except Invalid as invalid:
            invalid.path.append(f".{names[len(result)]}")
            raise
        return result

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not list:
            raise wrong(name_of_type, value)
        if len(value) != len(decoders):
            raise Invalid(f"expected {len(decoders)} fields, got {len(value)}")
        arguments: list[Any] = []
        try:
            for step, each in zip(decoders, value, strict=True):
                arguments.append(step(each, cursor))
        except Invalid as invalid:
            invalid.path.append(f".{names[len(arguments)]}")
            raise
        try:
            if keyword_only:
                return cls(**dict(zip(plans, arguments, strict=True)))
            return cls(*arguments)
        except (ValueError, TypeError) as error:  # the type's own __post_init__ refused
            raise Invalid(str(error)) from error

    return encode, decode


def _optional(member: Plan, describe: str, layout: str) -> Plan:
    encode_member, decode_member = member.encode, member.decode

    def encode(value: Any, frames: list[Buffer]) -> Any:
        return None if value is None else encode_member(value, frames)

    def decode(value: Any, cursor: Cursor) -> Any:
        return None if value is None else decode_member(value, cursor)

    unchanged = member.unchanged and f"({{v}} is None or {member.unchanged})"
    return Plan(encode, decode, describe, layout, unchanged)


def _array(hint: Any) -> Plan:
    """Encode an array as ``[bytes, *shape]``; a large array as ``[None, *shape]`` with its bytes in the next frame."""
    shape_hint, dtype_hint = get_args(hint)
    dimensions = get_args(shape_hint)
    if get_origin(shape_hint) is not tuple or Ellipsis in dimensions:
        raise TypeError(f"{hint}: the annotation must state the number of dimensions, as in tuple[int, int]")
    (scalar,) = get_args(dtype_hint)
    dtype = np.dtype(scalar)
    if dtype.kind not in "biufc":
        raise TypeError(f"{hint}: only boolean and numeric arrays travel")
    ndim = len(dimensions)
    describe = f"array of {dtype.name} with {ndim} dimensions"
    itemsize = dtype.itemsize

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, np.ndarray):
            raise wrong(describe, value)
        if value.dtype != dtype or value.ndim != ndim:
            raise Invalid(f"expected {describe}, got {value.dtype.name} with {value.ndim}")
        if value.nbytes < FRAME_FROM:
            return [value.tobytes(), *value.shape]
        frames.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data.toreadonly())
        return [None, *value.shape]

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not list:
            raise wrong(describe, value)
        if len(value) != ndim + 1:
            raise Invalid(f"expected {describe}, got shape {value[1:]!r:.80}")
        data, *shape = value
        size = itemsize
        for length in shape:
            if type(length) is not int or not 0 <= length <= _MAX_DIMENSION:
                raise Invalid(f"impossible shape {shape!r:.80}")
            size *= length
        if type(data) is bytes:  # such memory is aligned and cannot be written to
            if len(data) != size:
                raise Invalid(f"expected {size} bytes for shape {shape}, got {len(data)}")
            return view(shape, data)
        if data is not None:
            raise Invalid(f"expected {describe}, got {type(data).__name__} for its bytes")
        frame = cursor.next_frame()
        if len(frame) != size:
            raise Invalid(f"expected a frame of {size} bytes for shape {shape}, got {len(frame)}")
        array = view(shape, frame)
        if not array.flags.aligned:  # a frame may begin anywhere in ZeroMQ's receive buffer; torch needs alignment
            array = array.copy()
        array.flags.writeable = False
        return array

    def decode_vector(value: Any, cursor: Cursor) -> Any:
        """The fast path for most arrays: one dimension, among the fields. `decode` handles all others."""
        if type(value) is list and len(value) == 2:
            data, length = value
            if type(data) is bytes and data and type(length) is int and len(data) == length * itemsize:
                return np.frombuffer(data, dtype)
        return decode(value, cursor)

    def view(shape: list[int], data: Buffer) -> Any:
        try:
            return np.ndarray(shape, dtype, data)
        except ValueError as error:  # numpy's limits on shapes
            raise Invalid(str(error)) from error

    return Plan(encode, decode_vector if ndim == 1 else decode, describe, f"array[{dtype.str}, {ndim}]")
