"""How values are encoded: each annotation has a plan, which makes plain msgpack of a value, and checks and rebuilds it.

`compile_dataclass` combines the plans of the fields, once for each message type; annotations that cannot be encoded are
refused there.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import numpy as np

from transport.limits import MAX_ITEMS, MAX_JSON_DEPTH

Buffer: TypeAlias = "bytes | memoryview"
Step: TypeAlias = Callable[[Any, Any], Any]
"""An `Encoder` or a `Decoder`."""
Encoder: TypeAlias = Callable[[Any, list[Buffer]], Any]
"""Makes plain msgpack of a value, and appends frames."""
Decoder: TypeAlias = Callable[[Any, Iterator[Buffer]], Any]
"""Rebuilds a value of plain msgpack and of the frames that are not read yet."""

FRAME_FROM = 64 << 10
"""An array, or bytes, of so many bytes or more are a separate frame, which is not copied.

For smaller ones, a copy costs less than a frame.
"""
INT_MIN = -(1 << 63)
INT_MAX = (1 << 63) - 1


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
    is a Python condition on ``{v}`` for values that ``encode`` and ``decode`` return as they are, which need not be
    called then. None: there is no such condition.
    """

    encode: Encoder
    decode: Decoder
    layout: str
    unchanged: str | None = None


def next_frame(frames: Iterator[Buffer]) -> Buffer:
    """Raises Invalid when there is none."""
    frame = next(frames, None)
    if frame is None:
        raise Invalid("its frame is missing")
    return frame


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

    return Plan(check, check, name, f"type({{v}}) is {name}")


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
        for part, item in enumerate(value) if kind is list else value.items():
            if kind is dict and type(part) is not str:
                raise wrong("a key of type str", part)
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


def _decode_bytes(value: Any, frames: Iterator[Buffer]) -> Any:
    if type(value) is bytes:
        return value
    if type(value) is not int:
        raise wrong("bytes", value)
    frame = next_frame(frames)
    if len(frame) != value:
        raise Invalid(f"expected a frame of {value} bytes, got {len(frame)}")
    return bytes(frame)  # what is bytes already is not copied


_INT = f"type({{v}}) is int and {INT_MIN} <= {{v}} <= {INT_MAX}"

SIMPLE: dict[object, Plan] = {
    bool: _simple(bool),
    bytes: Plan(_encode_bytes, _decode_bytes, "bytes", f"type({{v}}) is bytes and len({{v}}) < {FRAME_FROM}"),
    str: _simple(str),
    int: Plan(_check_int, _check_int, "int", _INT),
    float: Plan(_float, _float, "float", "type({v}) is float"),
    Any: Plan(_any, _any, "Any"),
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
    return Plan(check, check, str(hint), among)


def _items(values: Iterable[Any], step: Step, frames: object) -> list[Any]:
    result: list[Any] = []
    append = result.append
    try:
        for each in values:
            append(step(each, frames))
    except Invalid as invalid:
        invalid.path.append(f"[{len(result)}]")
        raise
    return result


def _entries(values: dict[Any, Any], step: Step, frames: object) -> dict[str, Any]:
    result: dict[str, Any] = {}
    key: object = ""
    try:
        for key, each in values.items():
            if type(key) is not str:
                raise wrong("a key of type str", key)
            result[key] = step(each, frames)
    except Invalid as invalid:
        invalid.path.append(f"[{key!r:.80}]")
        raise
    return result


def _container(
    kind: type[tuple[Any, ...] | dict[str, Any]],
    wire: type,
    parts: Callable[[Any, Step, Any], Any],
    item: Plan,
    hint: Any,
    layout: str,
) -> Plan:
    """Values of ``kind``, which are of the type ``wire`` in msgpack. ``parts`` makes the latter of either."""
    describe = str(hint)

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, kind):
            raise wrong(describe, value)
        _check_items(value)
        return parts(value, item.encode, frames)

    def decode(value: Any, frames: Iterator[Buffer]) -> Any:
        if type(value) is not wire:
            raise wrong(describe, value)
        found = parts(value, item.decode, frames)
        return found if kind is wire else kind(found)

    return Plan(encode, decode, layout)


_MAX_DIMENSION = 1 << 40


def compile_hint(hint: Any, within: tuple[type, ...] = ()) -> Plan:
    """The plan of one annotation; ``within`` are the dataclasses being compiled around it. Raises TypeError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return literal(hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if origin in (Union, types.UnionType) and len(arguments) == 2 and types.NoneType in arguments:
        (member,) = (compile_hint(argument, within) for argument in arguments if argument is not types.NoneType)
        return _optional(member)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = compile_hint(arguments[0], within)
        return _container(tuple, list, _items, item, hint, f"tuple[{item.layout}, ...]")
    if origin is dict and arguments[0] is str:
        item = compile_hint(arguments[1], within)
        return _container(dict, dict, _entries, item, hint, f"dict[str, {item.layout}]")
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
    return Plan(fields_encoder(cls, plans), fields_decoder(cls, plans), layout)


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


def _optional(member: Plan) -> Plan:
    def unless_none(step: Step) -> Step:
        return lambda value, frames: None if value is None else step(value, frames)

    unchanged = member.unchanged and f"({{v}} is None or {member.unchanged})"
    return Plan(unless_none(member.encode), unless_none(member.decode), f"{member.layout} | None", unchanged)


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

    def decode(value: Any, frames: Iterator[Buffer]) -> Any:
        if type(value) is not list:
            raise wrong(describe, value)
        if len(value) != ndim + 1:
            raise Invalid(f"expected {describe}, got shape {value[1:]!r:.80}")
        data, *shape = value
        if not all(type(length) is int and 0 <= length <= _MAX_DIMENSION for length in shape):
            raise Invalid(f"impossible shape {shape!r:.80}")
        size, apart = itemsize * math.prod(shape), ""
        if data is None:
            data, apart = next_frame(frames), "a frame of "
        elif type(data) is not bytes:
            raise Invalid(f"expected {describe}, got {type(data).__name__} for its bytes")
        if len(data) != size:
            raise Invalid(f"expected {apart}{size} bytes for shape {shape}, got {len(data)}")
        try:
            array = np.ndarray(shape, dtype, data)
        except ValueError as error:  # numpy's limits on shapes
            raise Invalid(str(error)) from error
        if not array.flags.aligned:  # a frame may begin anywhere in ZeroMQ's receive buffer; torch needs alignment
            array = array.copy()
        array.flags.writeable = False
        return array

    def decode_vector(value: Any, frames: Iterator[Buffer]) -> Any:
        """The fast path for most arrays: one dimension, among the fields. `decode` handles all others."""
        if type(value) is list and len(value) == 2:
            data, length = value
            if type(data) is bytes and data and type(length) is int and len(data) == length * itemsize:
                return np.frombuffer(data, dtype)
        return decode(value, frames)

    return Plan(encode, decode_vector if ndim == 1 else decode, f"array[{dtype.str}, {ndim}]")


def fields_encoder(cls: type, plans: Mapping[str, Plan]) -> Encoder:
    """Makes a list of the values of a dataclass. An error names the field."""
    lines = [
        "def encode(value, frames):",
        " if type(value) is not cls:",
        "  raise wrong(cls.__name__, value)",
        *(f" v{i} = value.{name}" for i, name in enumerate(plans)),
        *_steps(plans),
        f" return [{_all(plans)}]",
    ]
    encode: Encoder = _function(lines, cls, plans, {f"step{i}": plan.encode for i, plan in enumerate(plans.values())})
    return encode


def fields_decoder(cls: type, plans: Mapping[str, Plan]) -> Decoder:
    """Makes a dataclass of the list of its values. An error names the field."""
    blank = _blank(cls, tuple(plans))
    if blank is not None:
        fill = [f" made.{name} = v{i}" for i, name in enumerate(plans)]
        make = [" made = blank()", *fill, " made.__class__ = cls", " return made"]
    else:
        make = [
            " try:",
            f"  return cls({', '.join(f'{name}=v{i}' for i, name in enumerate(plans))})",
            " except (ValueError, TypeError) as error:",  # the type's own __post_init__ refused
            "  raise Invalid(str(error)) from error",
        ]
    lines = [
        "def decode(value, frames):",
        " if type(value) is not list:",
        "  raise wrong(cls.__name__, value)",
        f" if len(value) != {len(plans)}:",
        f"  raise Invalid(f'expected {len(plans)} fields, got {{len(value)}}')",
        f" [{_all(plans)}] = value",
        *_steps(plans),
        *make,
    ]
    names = {f"step{i}": plan.decode for i, plan in enumerate(plans.values())}
    decode: Decoder = _function(lines, cls, plans, {"blank": blank, **names})
    return decode


def _all(plans: Mapping[str, Plan]) -> str:
    return ", ".join(f"v{i}" for i in range(len(plans)))


def _steps(plans: Mapping[str, Plan]) -> list[str]:
    """Lines that put each value through the step of its field, unless the value stays what it is."""
    lines = [" try:", "  at = 0"]
    for i, plan in enumerate(plans.values()):
        if plan.unchanged is not None:
            lines.append(f"  if not ({plan.unchanged.format(v=f'v{i}')}):")
        indent = "  " if plan.unchanged is None else "   "
        lines.append(f"{indent}at = {i}; v{i} = step{i}(v{i}, frames)")
    return [*lines, " except Invalid as invalid:", "  invalid.path.append(places[at])", "  raise"]


def _function(lines: list[str], cls: type, plans: Mapping[str, Plan], names: Mapping[str, Any]) -> Any:
    """The function that the lines define. The lines contain only field names, which are identifiers, and constants.

    Such a function takes a third of the time of a loop over the fields.
    """
    places = tuple(f".{name}" for name in plans)
    namespace: dict[str, Any] = {"cls": cls, "places": places, "Invalid": Invalid, "wrong": wrong, **names}
    exec("\n".join(lines), namespace)  # noqa: S102 - as dataclasses makes __init__; the source contains no input
    return namespace[lines[0].partition("(")[0].removeprefix("def ")]


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
