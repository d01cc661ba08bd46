"""Messages to frames and back: a msgpack header with the fields, then the raw bytes of each array as its own frame.

Frame 0 is ``[version, type name, {field: value}]``. An array's value there is ``[dtype, shape]``; the k-th array met in
field order is frame k. Decoding trusts nothing: whatever the bytes are, it returns a message that fits its annotations
or raises DecodeError. Nothing that can run code crosses the wire.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import msgpack

from transport.compiler import compile_dataclass
from transport.errors import DecodeError, EncodeError
from transport.limits import DEFAULT_LIMITS, Limits
from transport.schema import Buffer, Cursor, Invalid, Plan

WIRE_VERSION = 1


class Registry:
    """The message types a node knows, by name.

    Raises TypeError for a type that is no dataclass or has a field that cannot travel, ValueError for two of one name.
    """

    def __init__(self, *types: type) -> None:
        self._types: dict[str, type] = {}
        self._plans: dict[str, Plan] = {}
        for cls in types:
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
                raise TypeError(f"{cls!r} is no dataclass")
            if cls.__name__ in self._types:
                raise ValueError(f"two message types are named {cls.__name__}")
            self._types[cls.__name__] = cls
            self._plans[cls.__name__] = compile_dataclass(cls)

    @classmethod
    def of(cls, module: ModuleType) -> Registry:
        """All dataclasses defined in ``module``."""
        members = (member for _, member in inspect.getmembers(module, inspect.isclass))
        return cls(*(each for each in members if dataclasses.is_dataclass(each) and each.__module__ == module.__name__))

    def plan(self, name: str) -> Plan | None:
        """How messages of the type ``name`` travel; None when there is no such type."""
        return self._plans.get(name)

    def __iter__(self) -> Iterator[type]:
        return iter(self._types.values())

    def __contains__(self, cls: object) -> bool:
        return isinstance(cls, type) and self._types.get(cls.__name__) is cls


def encode(message: Any) -> list[Buffer]:
    """The frames of a message: the header, then one frame an array, which shares the array's memory when contiguous.

    So an array must not be changed after it is handed over. Raises EncodeError naming the field that does not fit.
    """
    cls = type(message)
    if not dataclasses.is_dataclass(cls):
        raise EncodeError(cls.__name__, "is no dataclass")
    frames: list[Buffer] = [b""]
    try:
        fields = compile_dataclass(cls).encode(message, frames)
    except Invalid as invalid:
        raise EncodeError(invalid.field(cls.__name__), invalid.reason) from invalid
    try:
        frames[0] = msgpack.packb((WIRE_VERSION, cls.__name__, fields))
    except (ValueError, TypeError, OverflowError) as error:
        field, reason = _unpackable(fields, cls.__name__, str(error))
        raise EncodeError(field, reason) from error
    return frames


def _unpackable(value: Any, path: str, reason: str) -> tuple[str, str]:
    """Where in plain data the value stands that msgpack refuses: a string with a lone surrogate, as a rule."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{path}.{key!s}", item) for key, item in value.items()]
    elif isinstance(value, list):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    for where, item in parts:
        try:
            msgpack.packb(item)
        except (ValueError, TypeError, OverflowError) as error:
            return _unpackable(item, where, str(error))
    return path, reason


def size_of(frames: Sequence[Buffer]) -> int:
    """Bytes of all frames together."""
    return sum(frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames)


def decode(frames: Sequence[Buffer], registry: Registry, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The message in ``frames``. Its arrays are read-only views of the frames' memory. Raises DecodeError only."""
    if not frames:
        raise DecodeError("message", "no frames")
    if len(frames) > limits.message_frames:
        raise DecodeError("message", f"{len(frames)} frames, the limit is {limits.message_frames}")
    size = size_of(frames)
    if size > limits.message_bytes:
        raise DecodeError("message", f"{size} bytes, the limit is {limits.message_bytes}")
    try:
        header = msgpack.unpackb(frames[0])
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise DecodeError("header", f"not msgpack: {error}" if str(error) else "not msgpack") from error
    if type(header) is not list or not header:
        raise DecodeError("header", "not a message")
    if type(header[0]) is not int or header[0] != WIRE_VERSION:
        raise DecodeError("header", f"wire version {header[0]!r:.40}, this is version {WIRE_VERSION}")
    if len(header) != 3 or type(header[1]) is not str:
        raise DecodeError("header", "not a message")
    name = header[1]
    plan = registry.plan(name)
    if plan is None:
        raise DecodeError("header", f"unknown message type {name!r:.80}")
    cursor = Cursor(frames, limits)
    try:
        message = plan.decode(header[2], cursor)
    except Invalid as invalid:
        raise DecodeError(invalid.field(name), invalid.reason) from invalid
    if cursor.position != len(frames):
        raise DecodeError(name, f"{len(frames) - cursor.position} frames more than its arrays")
    return message
