"""Messages over a pipe, between a process and one that it starts: one frame of the codec each, after its length.

Whoever reads sees whole messages or the end. A message of which only a part came before the end is dropped: its sender
has ended. Bytes that are no message raise DecodeError, and nothing after them is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import trio

from transport.codec import Registry, decode, encode
from transport.errors import DecodeError
from transport.limits import Limits

LENGTH_BYTES = 4
LIMITS = Limits(message_bytes=16 << 20, message_frames=1)


def packed(message: Any) -> bytes:
    """A message as the bytes for a pipe. Raises EncodeError, also for one with large arrays."""
    frame = bytes(encode(message, LIMITS)[0])
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


class Unpacker:
    """Makes messages of bytes that come in pieces. Iterating yields the messages that are whole by now."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in what came next."""
        self._rest += data

    def __iter__(self) -> Iterator[Any]:
        """Raises DecodeError."""
        rest = self._rest
        while len(rest) >= LENGTH_BYTES:
            size = int.from_bytes(rest[:LENGTH_BYTES], "big")
            if size > LIMITS.message_bytes:
                raise DecodeError("length", f"{size} bytes, the limit is {LIMITS.message_bytes}")
            end = LENGTH_BYTES + size
            if len(rest) < end:
                return
            frame = bytes(rest[LENGTH_BYTES:end])
            del rest[:end]
            yield decode([frame], self._registry, LIMITS)


class PipeReader:
    """The reading end of a pipe, which stays its owner's to close."""

    def __init__(self, descriptor: int, registry: Registry) -> None:
        self._descriptor = descriptor
        self._unpacker = Unpacker(registry)

    async def receive(self) -> Any:
        """The next message; None at the end of the pipe. May be cancelled: nothing is lost. Raises DecodeError."""
        while (message := next(iter(self._unpacker), None)) is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            if not (data := os.read(self._descriptor, 1 << 16)):
                break
            self._unpacker.feed(data)
        return message
