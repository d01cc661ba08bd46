"""How values are encoded: for each kind of field a pair of functions. One makes plain msgpack, one checks and rebuilds.

``transport/compiler.py`` combines them, once for each message type. ``transport/shortcut.py`` writes a fast path for
most messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Sized
from typing import Any, TypeAlias, get_args

from transport.limits import MAX_ITEMS, MAX_JSON_DEPTH

Buffer: TypeAlias = "bytes | memoryview"
Encoder: TypeAlias = Callable[[Any, list[Buffer]], Any]

INT_MIN = -(1 << 63)
INT_MAX = (1 << 63) - 1


class Cursor:
    """The array frames of one message, read in order."""

    __slots__ = ("frames", "position")

    def __init__(self, frames: Sequence[Buffer]) -> None:
        self.frames = frames
        self.position = 1

    def next_frame(self) -> Buffer:
        """The frame of the next large array. Raises Invalid when there is none."""
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


def _encode_float(value: Any, _frames: list[Buffer]) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, float) or type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise Invalid("integer too large for a float") from None
    raise wrong("float", value)


def _decode_float(value: Any, _cursor: Cursor) -> Any:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise wrong("float", value)


def _simple(kind: type[Any]) -> Plan:
    """The plan of a type whose values travel as they are; instances of derived classes are sent, and not accepted."""
    name = kind.__name__

    def encode(value: Any, _frames: list[Buffer]) -> Any:
        if isinstance(value, kind):
            return value
        raise wrong(name, value)

    def decode(value: Any, _cursor: Cursor) -> Any:
        if type(value) is kind:
            return value
        raise wrong(name, value)

    return Plan(encode, decode, name, name, f"type({{v}}) is {name}")


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


_INT = f"type({{v}}) is int and {INT_MIN} <= {{v}} <= {INT_MAX}"

SIMPLE: dict[object, Plan] = {
    bool: _simple(bool),
    bytes: _simple(bytes),
    str: _simple(str),
    int: Plan(_check_int, _check_int, "int", "int", _INT),
    float: Plan(_encode_float, _decode_float, "float", "float", "type({v}) is float"),
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


def sequence(item: Plan, describe: str) -> Plan:
    """``tuple[T, ...]``."""
    encode_item, decode_item = item.encode, item.decode

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, tuple):
            raise wrong(describe, value)
        _check_items(value)
        result: list[Any] = []
        append = result.append
        try:
            for each in value:
                append(encode_item(each, frames))
        except Invalid as invalid:
            invalid.path.append(f"[{len(result)}]")
            raise
        return result

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not list:
            raise wrong(describe, value)
        result: list[Any] = []
        append = result.append
        try:
            for each in value:
                append(decode_item(each, cursor))
        except Invalid as invalid:
            invalid.path.append(f"[{len(result)}]")
            raise
        return tuple(result)

    return Plan(encode, decode, describe, f"tuple[{item.layout}, ...]")


def mapping(item: Plan, describe: str) -> Plan:
    """``dict[str, T]``."""

    def run(value: Any, step: Callable[[Any], Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        key: object = ""
        try:
            for key, each in value.items():
                if type(key) is not str:
                    raise wrong("a key of type str", key)
                result[key] = step(each)
        except Invalid as invalid:
            invalid.path.append(f"[{key!r:.80}]")
            raise
        return result

    def encode(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, dict):
            raise wrong(describe, value)
        _check_items(value)
        return run(value, lambda each: item.encode(each, frames))

    def decode(value: Any, cursor: Cursor) -> Any:
        if type(value) is not dict:
            raise wrong(describe, value)
        return run(value, lambda each: item.decode(each, cursor))

    return Plan(encode, decode, describe, f"dict[str, {item.layout}]")
