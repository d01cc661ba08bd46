"""How values are encoded: each annotation has a plan, which makes plain msgpack of a value, and checks and rebuilds it.

`compile_dataclass` combines the plans of the fields, once for each message type; annotations that cannot be encoded are
refused there. `shortcuts` writes a fast path for most messages.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import numpy as np

from transport.limits import MAX_ITEMS, MAX_JSON_DEPTH

Buffer: TypeAlias = "bytes | memoryview"
Encoder: TypeAlias = Callable[[Any, list[Buffer]], Any]

FRAME_FROM = 64 << 10
"""An array, or bytes, of so many bytes or more are a separate frame, which is not copied.

For smaller ones, a copy costs less than a frame.
"""
INT_MIN = -(1 << 63)
INT_MAX = (1 << 63) - 1


class Cursor:
    """The frames of one message after the first, read in order."""

    __slots__ = ("frames", "position")

    def __init__(self, frames: Sequence[Buffer]) -> None:
        self.frames = frames
        self.position = 1

    def next_frame(self) -> Buffer:
        """The next frame. Raises Invalid when there is none."""
        if self.position >= len(self.frames):
            raise Invalid("its frame is missing")
        frame = self.frames[self.position]
        self.position += 1
        return frame


Decoder: TypeAlias = Callable[[Any, Cursor], Any]


class Invalid(Exception):  # noqa: N818  (internal: turned into EncodeError or DecodeError)
    """A value does not fit its annotation. The path is collected from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def field(self, root: str) -> str:
        """The dotted path from ``root`` to the value."""
        return root + "".join(reversed(self.path))


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How values of one annotation are encoded.

    ``layout`` is the full annotation with its dataclasses' fields. Two processes must have equal layouts. ``unchanged``
    is a Python condition on ``{v}`` for values that are sent and accepted as they are; it may be narrower than
    ``encode`` and ``decode``, never wider. None: there is no such condition.
    """

    encode: Encoder
    decode: Decoder
    describe: str
    layout: str
    unchanged: str | None = None


def wrong(expected: str, value: object) -> Invalid:
    """The error for a value of another type."""
    return Invalid(f"expected {expected}, got {type(value).__name__}")


def _check_int(value: Any, _: object) -> Any:
    if type(value) is not int:
        raise wrong("int", value)
    if not INT_MIN <= value <= INT_MAX:
        raise Invalid("integer outside the 64-bit range")
    return value


def _float(value: Any, _: object) -> Any:
    if not isinstance(value, float) and type(value) is not int:
        raise wrong("float", value)
    try:
        return float(value)
    except OverflowError:
        raise Invalid("integer too large for a float") from None


def _simple(kind: type[Any]) -> Plan:
    """The plan of a type whose values travel as they are, also those of derived classes."""
    name = kind.__name__

    def check(value: Any, _: object) -> Any:
        if isinstance(value, kind):
            return value
        raise wrong(name, value)

    return Plan(check, check, name, name, f"type({{v}}) is {name}")


def _check_items(value: Sized) -> None:
    """Check the number of items when sending. When receiving, msgpack has already applied the limit."""
    if len(value) > MAX_ITEMS:
        raise Invalid(f"{len(value)} items, the limit is {MAX_ITEMS}")


def _check_json(value: Any, depth: int) -> None:
    """Raise Invalid unless ``value`` is None, bool, int, float, str, or a list or dictionary of these, not too deep."""
    kind = type(value)
    if value is None or kind is str or kind is bool or kind is float:
        return
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise Invalid("integer outside the 64-bit range")
        return
    if kind is not list and kind is not dict:
        raise wrong("a JSON value", value)
    if depth >= MAX_JSON_DEPTH:
        raise Invalid(f"nested deeper than {MAX_JSON_DEPTH}")
    _check_items(value)
    part: object = 0
    try:
        if kind is list:
            for index, item in enumerate(value):
                part = index
                _check_json(item, depth + 1)
        else:
            for key, item in value.items():
                part = key
                if type(key) is not str:
                    raise wrong("a key of type str", key)
                _check_json(item, depth + 1)
    except Invalid as invalid:
        invalid.path.append(f"[{part!r:.80}]")
        raise


def _any(value: Any, _: object) -> Any:
    _check_json(value, 0)
    return value


def _encode_bytes(value: Any, frames: list[Buffer]) -> Any:
    if not isinstance(value, bytes):
        raise wrong("bytes", value)
    if len(value) < FRAME_FROM:
        return value
    frames.append(value)
    return len(value)


def _decode_bytes(value: Any, cursor: Cursor) -> Any:
    if type(value) is bytes:
        return value
    if type(value) is not int:
        raise wrong("bytes", value)
    frame = cursor.next_frame()
    if len(frame) != value:
        raise Invalid(f"expected a frame of {value} bytes, got {len(frame)}")
    return bytes(frame)  # what is bytes already is not copied


_INT = f"type({{v}}) is int and {INT_MIN} <= {{v}} <= {INT_MAX}"

SIMPLE: dict[object, Plan] = {
    bool: _simple(bool),
    bytes: Plan(_encode_bytes, _decode_bytes, "bytes", "bytes", f"type({{v}}) is bytes and len({{v}}) < {FRAME_FROM}"),
    str: _simple(str),
    int: Plan(_check_int, _check_int, "int", "int", _INT),
    float: Plan(_float, _float, "float", "float", "type({v}) is float"),
    Any: Plan(_any, _any, "Any", "Any"),
}


def literal(hint: Any) -> Plan:
    """One of the listed values, all of one type."""
    choices = get_args(hint)
    kinds = {type(choice) for choice in choices}
    if len(kinds) != 1 or not kinds <= {str, int, bool}:
        raise TypeError(f"{hint}: the choices of a Literal must be all str, all int or all bool")
    (kind,) = kinds
    allowed = frozenset(choices)

    def check(value: Any, _: object) -> Any:
        if type(value) is not kind:
            raise wrong(kind.__name__, value)
        if value not in allowed:
            raise Invalid(f"{value!r:.80} is none of {', '.join(map(repr, choices))}")
        return value

    among = f"type({{v}}) is {kind.__name__} and {{v}} in {{{{{', '.join(map(repr, choices))}}}}}"
    return Plan(check, check, str(hint), str(hint), among)


def _items(values: Iterable[Any], step: Callable[[Any, Any], Any], state: object) -> list[Any]:
    result: list[Any] = []
    append = result.append
    try:
        for each in values:
            append(step(each, state))
    except Invalid as invalid:
        invalid.path.append(f"[{len(result)}]")
        raise
    return result


def sequence(item: Plan, describe: str) -> Plan:
    """``tuple[T, ...]``."""

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, tuple):
            raise wrong(describe, value)
        _check_items(value)
        return _items(value, item.encode, frames)

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not list:
            raise wrong(describe, value)
        return tuple(_items(value, item.decode, cursor))

    return Plan(encode, decode, describe, f"tuple[{item.layout}, ...]")


def _entries(values: dict[Any, Any], step: Callable[[Any, Any], Any], state: object) -> dict[str, Any]:
    result: dict[str, Any] = {}
    key: object = ""
    try:
        for key, each in values.items():
            if type(key) is not str:
                raise wrong("a key of type str", key)
            result[key] = step(each, state)
    except Invalid as invalid:
        invalid.path.append(f"[{key!r:.80}]")
        raise
    return result


def mapping(item: Plan, describe: str) -> Plan:
    """``dict[str, T]``."""

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, dict):
            raise wrong(describe, value)
        _check_items(value)
        return _entries(value, item.encode, frames)

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not dict:
            raise wrong(describe, value)
        return _entries(value, item.decode, cursor)

    return Plan(encode, decode, describe, f"dict[str, {item.layout}]")


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
    names, name_of_type = tuple(plans), cls.__name__
    encoders = [plan.encode for plan in plans.values()]
    decoders = [plan.decode for plan in plans.values()]

    def convert(steps: Sequence[Callable[[Any, Any], Any]], values: Iterable[Any], state: object) -> list[Any]:
        result: list[Any] = []
        try:
            for step, each in zip(steps, values, strict=True):
                result.append(step(each, state))
        except Invalid as invalid:
            invalid.path.append(f".{names[len(result)]}")
            raise
        return result

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if type(value) is not cls:
            raise wrong(name_of_type, value)
        return convert(encoders, (getattr(value, name) for name in names), frames)

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not list:
            raise wrong(name_of_type, value)
        if len(value) != len(names):
            raise Invalid(f"expected {len(names)} fields, got {len(value)}")
        fields = dict(zip(names, convert(decoders, value, cursor), strict=True))
        try:
            return cls(**fields)
        except (ValueError, TypeError) as error:  # the type's own __post_init__ refused
            raise Invalid(str(error)) from error

    return encode, decode


def _optional(member: Plan, describe: str, layout: str) -> Plan:
    def unless_none(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda value, state: None if value is None else step(value, state)

    unchanged = member.unchanged and f"({{v}} is None or {member.unchanged})"
    return Plan(unless_none(member.encode), unless_none(member.decode), describe, layout, unchanged)


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


def shortcuts(cls: type, plans: Mapping[str, Plan], careful: tuple[Encoder, Decoder]) -> tuple[Encoder, Decoder]:
    """An encoder and a decoder with the results of the careful ones, but faster."""
    every = list(enumerate(plans.values()))
    tests = [plan.unchanged.format(v=f"v{i}") for i, plan in every if plan.unchanged is not None]
    condition = f"  if {' and '.join(tests) or 'True'}:"
    converted = {f"step{i}": plan for i, plan in every if plan.unchanged is None}

    def values(state: str) -> list[str]:
        return [f"step{i}(v{i}, {state})" if f"step{i}" in converted else f"v{i}" for i, _ in every]

    lines = [
        "def encode(value, frames):",
        " if type(value) is cls:",
        *(f"  v{i} = value.{name}" for i, name in enumerate(plans)),
        condition,
        *_attempt(
            [f"return [{', '.join(values('frames'))}]"],
            "count = len(frames)",
            "Invalid",
            "del frames[count:]",
            needed=bool(converted),
        ),
        " return careful(value, frames)",
    ]
    names: dict[str, Any] = {"cls": cls, "Invalid": Invalid, "careful": careful[0]}
    encode = _function("encode", lines, names | {step: plan.encode for step, plan in converted.items()})

    blank = _blank(cls, tuple(plans))
    fields = list(zip(plans, values("cursor"), strict=True))
    if blank is not None:
        fill = [f"made.{name} = {value}" for name, value in fields]
        make = ["made = blank()", *fill, "made.__class__ = cls", "return made"]
    else:
        make = [f"return cls({', '.join(f'{name}={value}' for name, value in fields)})"]
    lines = [
        "def decode(value, cursor):",
        f" if type(value) is list and len(value) == {len(plans)}:",
        f"  [{', '.join(f'v{i}' for i, _ in every)}] = value",
        condition,
        *_attempt(
            make,
            "position = cursor.position",
            "(Invalid, ValueError, TypeError)",  # the latter two from the type's own __post_init__
            "cursor.position = position",
            needed=bool(converted) or blank is None,
        ),
        " return careful(value, cursor)",
    ]
    names = {"cls": cls, "Invalid": Invalid, "careful": careful[1], "blank": blank}
    return encode, _function("decode", lines, names | {step: plan.decode for step, plan in converted.items()})


def _attempt(lines: list[str], before: str, errors: str, restore: str, *, needed: bool) -> list[str]:
    """Indent the lines. If a line may fail, undo the begun work before the call of the careful function."""
    if not needed:
        return [f"   {line}" for line in lines]
    return [f"   {before}", "   try:", *(f"    {line}" for line in lines), f"   except {errors}:", f"    {restore}"]


def _function(name: str, lines: list[str], namespace: dict[str, Any]) -> Any:
    """The function that the lines define. The lines contain only field names, which are identifiers, and constants."""
    exec("\n".join(lines), namespace)  # noqa: S102 - as dataclasses makes __init__; the source contains no input
    return namespace[name]


def _blank(cls: type, names: tuple[str, ...]) -> Callable[[], Any] | None:
    """A class like ``cls`` whose instances can be filled and then become ``cls``; None where that would skip code.

    A frozen dataclass sets each field with a function call; filling a blank instance costs a fifth. Possible only for
    classes that consist of their slots and have the dataclass constructor.
    """
    constructor = getattr(cls.__dict__.get("__init__"), "__code__", None)
    own = "__post_init__" in cls.__dict__ or "__new__" in cls.__dict__
    if own or constructor is None or cls.__bases__ != (object,) or cls.__dict__.get("__slots__") != names:
        return None
    if "__dataclass_builtins_object__" not in (*constructor.co_freevars, *constructor.co_names):
        return None  # not frozen, so not slow, or with another constructor
    blank: Any = type(cls.__name__, (), {"__slots__": names})
    try:
        blank().__class__ = cls
    except TypeError:
        return None
    made: Callable[[], Any] = blank
    return made
