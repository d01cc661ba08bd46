"""From a dataclass's annotations to its plan: resolved once for each type, refused early when they cannot travel."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from transport.schema import (
    SIMPLE,
    Buffer,
    Cursor,
    Invalid,
    Plan,
    WrongType,
    fixed_tuple,
    literal,
    mapping,
    sequence,
    wrong,
)

_MAX_DIMENSION = 1 << 40


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
    if origin in (Union, types.UnionType):
        return _union(tuple(compile_hint(argument, within) for argument in arguments), str(hint))
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return sequence(compile_hint(arguments[0], within), tuple, str(hint))
        return fixed_tuple(tuple(compile_hint(argument, within) for argument in arguments), str(hint))
    if origin is list:
        return sequence(compile_hint(arguments[0], within), list, str(hint))
    if origin is dict and arguments[0] is str:
        return mapping(compile_hint(arguments[1], within), str(hint))
    if origin is np.ndarray:
        return _array(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return compile_dataclass(hint, within)
    raise TypeError(f"cannot travel: {hint}")


def compile_dataclass(cls: type, within: tuple[type, ...] = ()) -> Plan:
    """The plan of a dataclass: a map of its fields by name. Raises TypeError naming the field that cannot travel."""
    if cls in within:
        raise TypeError(f"{cls.__name__} contains itself: the nesting of a message must be finite")
    return _compile_dataclass(cls) if not within else _build(cls, within)


@functools.cache
def _compile_dataclass(cls: type) -> Plan:
    return _build(cls, ())


def _build(cls: type, within: tuple[type, ...]) -> Plan:
    hints = typing.get_type_hints(cls)
    plans: dict[str, Plan] = {}
    keyword_only = False
    for field in dataclasses.fields(cls):
        keyword_only = keyword_only or field.kw_only is True
        if not field.init:
            raise TypeError(f"{cls.__name__}.{field.name}: a field with init=False cannot be rebuilt")
        try:
            plans[field.name] = compile_hint(hints[field.name], (*within, cls))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{field.name}: {error}") from None
    encoders = tuple((name, plan.encode) for name, plan in plans.items())
    decoders = tuple((name, plan.decode) for name, plan in plans.items())
    names = frozenset(plans)
    name_of_type = cls.__name__

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if type(value) is not cls:
            raise wrong(name_of_type, value)
        result: dict[str, Any] = {}
        name = ""
        try:
            for name, step in encoders:
                result[name] = step(getattr(value, name), frames)
        except Invalid as invalid:
            invalid.path.append(f".{name}")
            raise
        return result

    def mismatch(value: dict[Any, Any]) -> Invalid:
        missing = sorted(names - value.keys())
        if missing:
            invalid = Invalid("missing field")
            invalid.path.append(f".{missing[0]}")
        else:
            invalid = Invalid("unknown field")
            invalid.path.append(f".{min(map(str, value.keys() - names)):.80}")
        return invalid

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not dict:
            raise wrong(name_of_type, value)
        if value.keys() != names:
            raise mismatch(value)
        arguments: list[Any] = []
        append = arguments.append
        name = ""
        try:
            for name, step in decoders:
                append(step(value[name], cursor))
        except Invalid as invalid:
            invalid.path.append(f".{name}")
            raise
        try:
            if keyword_only:
                return cls(**dict(zip(plans, arguments, strict=True)))
            return cls(*arguments)
        except (ValueError, TypeError) as error:  # the type's own __post_init__ refused
            raise Invalid(str(error)) from error

    return Plan(encode, decode, "map", name_of_type)


def _union(members: tuple[Plan, ...], describe: str) -> Plan:
    wires = [member.wire for member in members]
    literals = {"str": "str", "int": "int", "bool": "bool"}
    families = [literals.get(wire, wire) for wire in wires]
    if len(set(families)) != len(families) or ("any" in families and len(families) > 1):
        raise TypeError(f"{describe}: the members cannot be told apart on the wire")
    # int before float, so that an int stays one
    ordered = tuple(sorted(members, key=lambda member: member.wire == "float"))
    without_none = tuple(member for member in ordered if member.wire != "nil")
    optional = len(without_none) < len(ordered)
    if optional and len(without_none) == 1:
        return _optional(without_none[0], describe)

    def encode(value: Any, frames: list[Buffer]) -> Any:
        held = len(frames)
        for member in ordered:
            try:
                return member.encode(value, frames)
            except WrongType as invalid:
                if invalid.path:  # the member fits, something inside it does not
                    raise
                del frames[held:]
        raise wrong(describe, value)

    def decode(value: Any, cursor: Cursor) -> Any:
        position = cursor.position
        for member in ordered:
            try:
                return member.decode(value, cursor)
            except WrongType as invalid:
                if invalid.path:
                    raise
                cursor.position = position
        raise wrong(describe, value)

    return Plan(encode, decode, "union", describe)


def _optional(member: Plan, describe: str) -> Plan:
    encode_member, decode_member = member.encode, member.decode

    def encode(value: Any, frames: list[Buffer]) -> Any:
        return None if value is None else encode_member(value, frames)

    def decode(value: Any, cursor: Cursor) -> Any:
        return None if value is None else decode_member(value, cursor)

    return Plan(encode, decode, "union", describe)


def _array(hint: Any) -> Plan:
    """An array: the message's map carries dtype and shape, the bytes are the next frame."""
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
    code, itemsize = dtype.str, dtype.itemsize

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, np.ndarray):
            raise wrong(describe, value)
        if value.dtype != dtype or value.ndim != ndim:
            raise Invalid(f"expected {describe}, got {value.dtype.name} with {value.ndim}")
        contiguous = np.ascontiguousarray(value)
        if contiguous.size:
            frames.append(contiguous.reshape(-1).view(np.uint8).data.toreadonly())
        else:
            frames.append(b"")  # memoryview cannot cast a view with a zero in its shape
        return [code, list(value.shape)]

    def shape_of(value: Any) -> tuple[int, ...]:
        if type(value) is not list or len(value) != 2:
            raise wrong(describe, value)
        sent, shape = value
        if sent != code:
            raise Invalid(f"expected {describe}, got dtype {sent!r:.40}")
        if type(shape) is not list or len(shape) != ndim:
            raise Invalid(f"expected {describe}, got shape {shape!r:.80}")
        for length in shape:
            if type(length) is not int or not 0 <= length <= _MAX_DIMENSION:
                raise Invalid(f"impossible shape {shape!r:.80}")
        return tuple(shape)

    def decode(value: Any, cursor: Cursor) -> Any:
        shape = shape_of(value)
        if cursor.position >= len(cursor.frames):
            raise Invalid("its frame is missing")
        frame = cursor.frames[cursor.position]
        cursor.position += 1
        size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
        expected = math.prod(shape) * itemsize
        if size != expected:
            raise Invalid(f"expected a frame of {expected} bytes for shape {shape}, got {size}")
        try:
            array = np.frombuffer(frame, dtype).reshape(shape) if size else np.empty(shape, dtype)
        except ValueError as error:  # numpy's own limits on shapes
            raise Invalid(str(error)) from error
        if not array.flags.aligned:  # a small frame inside ZeroMQ's receive buffer; torch wants alignment
            array = array.copy()
        array.flags.writeable = False
        return array

    return Plan(encode, decode, "array", describe)
