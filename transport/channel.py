"""A ZeroMQ socket in trio's loop.

A socket's file descriptor is edge-triggered, and any operation on the socket may consume the edge. So one task reads
each socket until it is empty before it waits, and a send that leaves something to read wakes that task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
import zmq

from transport.schema import Buffer

_READ_BETWEEN_CHECKPOINTS = 128
# A copy of a small frame is cheaper than a reference to ZeroMQ's buffer, on either side.
_COPY_BELOW = 64 << 10
# plain integers: pyzmq's enumerations cost more than the call itself
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)


class Channel:
    """A socket and the task that reads it."""

    def __init__(self, socket: zmq.Socket[bytes], deliver: Callable[[list[Buffer]], None]) -> None:
        self.socket = socket
        self.first: zmq.Frame | None = None
        """The first frame of the newest message."""
        self._deliver = deliver
        self._waiting: trio.CancelScope | None = None
        self._closed = False

    def stop(self) -> None:
        """Read no more, before the socket is closed."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def read(self) -> None:
        """Deliver what arrives, until cancelled or closed."""
        descriptor = self.socket.fileno()
        while not self._closed:
            if self._drain():  # no other task ran since, so the socket is still empty: wait
                with trio.CancelScope() as self._waiting:
                    await trio.lowlevel.wait_readable(descriptor)
                self._waiting = None
            else:
                await trio.lowlevel.checkpoint()

    def _readable(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def _drain(self) -> bool:
        """Deliver a burst of messages; return whether the socket is empty. An empty read resets the edge."""
        for _ in range(_READ_BETWEEN_CHECKPOINTS):
            if self._closed:
                return False
            try:
                frames, self.first = _receive(self.socket)
            except zmq.Again:
                return True
            self._deliver(frames)
        return False

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send without waiting; frames to a vanished peer are lost. Wakes the reader if the send consumed its edge."""
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                self.socket.send(frame, _LAST if index == last else _MORE, len(frame) < _COPY_BELOW)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
        if self._waiting is not None and self._readable():
            self._waiting.cancel()


def _receive(socket: zmq.Socket[bytes]) -> tuple[list[Buffer], zmq.Frame]:
    """One multipart message, and its first frame. Small frames are copied out, large ones stay in ZeroMQ's memory."""
    first = frame = socket.recv(_LAST, copy=False)
    frames: list[Buffer] = [frame.bytes if len(frame) < _COPY_BELOW else frame.buffer]
    while frame.more:  # cheaper than the socket's RCVMORE
        frame = socket.recv(_LAST, copy=False)
        frames.append(frame.bytes if len(frame) < _COPY_BELOW else frame.buffer)
    return frames, first
