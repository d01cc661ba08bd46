"""Watch the handshakes with a peer: one that closes every connection before it is authenticated has another key.

::

    connection to a peer --(succeeded)-----------------------------------> the count starts again
                         `-(closed, or another mechanism: TIMES in a row)-> on_refused, at this and every further one

A peer that does not run, or that is stopped, lets no handshake fail in this way: nobody accepts, or nobody answers.
`turn_away` is for a process that has no key: it refuses its peers at its node's address, so that their host can say so.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import trio
import zmq
from zmq.utils.monitor import parse_monitor_message

from transport.schema import Buffer

TIMES = 2
"""One failed handshake may be a peer that ended in the middle of it."""
_FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_EVENTS = _FAILED | int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_CLOSED = {errno.EPIPE, errno.ECONNRESET}


class Handshakes:
    """The handshakes of a socket that connects to one peer, and is not connected yet.

    ``on_refused`` gets the seconds for which the peer has refused this node's key.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_refused: Callable[[float], None]) -> None:
        self._socket = socket
        self._on_refused = on_refused
        self._failed = 0
        self._since = 0.0
        self.monitor = socket.get_monitor_socket(_EVENTS)
        self.monitor.setsockopt(zmq.LINGER, 0)

    def watch(self, frames: Sequence[Buffer]) -> None:
        """Take an event of the socket from ZeroMQ's monitor."""
        event = parse_monitor_message([bytes(frame) for frame in frames])
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._failed = 0
        elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or int(event["value"]) in _CLOSED:
            now = trio.current_time()
            self._since = self._since if self._failed else now
            self._failed += 1
            if self._failed >= TIMES:
                self._on_refused(now - self._since)

    def close(self) -> None:
        """Stop watching, before the socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close()


async def turn_away(address: str, seconds: float) -> bool:
    """Close each connection at a tcp address at once, until more than ``TIMES`` have come, or for so long.

    Returns whether so many came; False too when the address cannot be listened at.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    came = 0
    with trio.move_on_after(seconds):
        try:
            (listener, *others) = await trio.open_tcp_listeners(int(port), host=host.strip("[]"))
        except OSError:
            return False
        for other in others:
            await other.aclose()
        async with listener:
            while came <= TIMES:
                await (await listener.accept()).aclose()
                came += 1
    return came > TIMES
