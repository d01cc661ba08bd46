"""Messages to frames and back: the fields in msgpack, then each large array, and large bytes, as a frame of its own.

Frame 0 is ``[version, type name, fingerprint, [value, ...]]``, the values in the order of the fields. Small arrays are
among the values; the k-th of them is frame k. The fingerprint is a hash of all names and annotations, so sender and
receiver must agree on them. For any bytes, decoding returns a message that fits its annotations or raises DecodeError.
No executable data crosses the wire.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import msgpack

from transport.errors import DecodeError, EncodeError
from transport.limits import DEFAULT_LIMITS, MAX_ITEMS, Limits
from transport.plans import Buffer, Invalid, Plan, compile_dataclass

WIRE_VERSION = 3


class Registry:
    """The message types a node knows, by name.

    Raises TypeError for a type that is not a dataclass or has a field that cannot be encoded, ValueError for two types
    of one name.
    """

    def __init__(self, *types: type) -> None:
        self._types: dict[str, type] = {}
        self._plans: dict[str, tuple[Plan, int]] = {}
        for cls in types:
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
                raise TypeError(f"{cls!r} is no dataclass")
            if cls.__name__ in self._types:
                raise ValueError(f"two message types are named {cls.__name__}")
            self._types[cls.__name__] = cls
            self._plans[cls.__name__] = _compiled(cls)

    @classmethod
    def of(cls, module: ModuleType) -> Registry:
        """The dataclasses of ``module`` that are defined in it, or in a file of it where it is a package."""
        here = f"{module.__name__}."
        members = (member for _, member in inspect.getmembers(module, inspect.isclass))
        return cls(
            *(each for each in members if dataclasses.is_dataclass(each) and f"{each.__module__}.".startswith(here))
        )

    def plan(self, name: str) -> tuple[Plan, int] | None:
        """The plan and the fingerprint of the type ``name``; None when there is no such type."""
        return self._plans.get(name)

    def __iter__(self) -> Iterator[type]:
        return iter(self._types.values())


@functools.cache
def _compiled(cls: type) -> tuple[Plan, int]:
    """The plan of a dataclass and the fingerprint of its layout. Raises EncodeError for another type."""
    if not dataclasses.is_dataclass(cls):
        raise EncodeError(cls.__name__, "is no dataclass")
    plan = compile_dataclass(cls)
    return plan, zlib.crc32(plan.layout.encode())


def encode(message: Any, limits: Limits = DEFAULT_LIMITS) -> list[Buffer]:
    """The frames of a message: the fields, then one frame for each large array and for large bytes.

    A frame shares a contiguous array's memory. So do not change an array after this call. Raises EncodeError, which
    names the field that does not fit its annotation, also for a message above the limits of its receivers.
    """
    cls = type(message)
    plan, fingerprint = _compiled(cls)  # type: ignore[arg-type]  # classes are hashable
    frames: list[Buffer] = [b""]
    try:
        fields = plan.encode(message, frames)
    except Invalid as invalid:
        raise EncodeError(invalid.field(cls.__name__), invalid.reason) from invalid
    try:
        frames[0] = msgpack.packb((WIRE_VERSION, cls.__name__, fingerprint, fields))
    except (ValueError, TypeError, OverflowError) as error:
        raise EncodeError(_unpackable(message, cls.__name__) or cls.__name__, str(error)) from error
    excess = _excess(frames, limits)
    if excess is not None:
        raise EncodeError(cls.__name__, excess)
    return frames


def _excess(frames: Sequence[Buffer], limits: Limits) -> str | None:
    """Why frames are too many or too large; None when they are not."""
    if len(frames) == 1 and len(frames[0]) <= limits.message_bytes and limits.message_frames > 0:
        return None
    if len(frames) > limits.message_frames:
        return f"{len(frames)} frames, the limit is {limits.message_frames}"
    size = size_of(frames)
    return f"{size} bytes, the limit is {limits.message_bytes}" if size > limits.message_bytes else None


def _unpackable(value: Any, path: str) -> str | None:
    """The path of a text with a lone surrogate, which has no UTF-8. Plans do not check for it; msgpack refuses it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return path
        return None
    parts: Iterable[tuple[str, Any]] = ()
    if dataclasses.is_dataclass(value):
        parts = ((f"{path}.{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, dict):
        parts = ((f"{path}[{key!r:.80}]", each) for item in value.items() for key, each in ((item[0], item[0]), item))
    elif isinstance(value, (list, tuple)):
        parts = ((f"{path}[{index}]", each) for index, each in enumerate(value))
    return next((inner for where, part in parts if (inner := _unpackable(part, where)) is not None), None)


def size_of(frames: Sequence[Buffer]) -> int:
    """Bytes of all frames together."""
    return sum(frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames)


def decode(frames: Sequence[Buffer], registry: Registry, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The message in ``frames``. Its arrays are read-only views of the frames' memory. Raises DecodeError only."""
    if not frames:
        raise DecodeError("message", "no frames")
    excess = _excess(frames, limits)
    if excess is not None:
        raise DecodeError("message", excess)
    try:
        header = msgpack.unpackb(frames[0], max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise DecodeError("header", f"not msgpack: {error}" if str(error) else "not msgpack") from error
    if type(header) is not list or not header:
        raise DecodeError("header", "not a message")
    if type(header[0]) is not int or header[0] != WIRE_VERSION:
        version = type(header[0]).__name__ if isinstance(header[0], list | dict) else header[0]
        raise DecodeError("header", f"wire version {version!r:.40}, this is version {WIRE_VERSION}")
    if len(header) != 4 or type(header[1]) is not str:
        raise DecodeError("header", "not a message")
    _, name, sent_fingerprint, values = header
    known = registry.plan(name)
    if known is None:
        raise DecodeError("header", f"message type {name!r:.80} is unknown here or not expected")
    plan, fingerprint = known
    if type(sent_fingerprint) is not int or sent_fingerprint != fingerprint:
        raise DecodeError(name, "the sender defines this type differently: use one version of agent_rl everywhere")
    others = iter(frames[1:])
    try:
        message = plan.decode(values, others)
    except Invalid as invalid:
        raise DecodeError(invalid.field(name), invalid.reason) from invalid
    except RecursionError as error:
        raise DecodeError(name, "nested too deeply") from error
    if unread := len(list(others)):
        raise DecodeError(name, f"{unread} frames more than its arrays")
    return message
