"""The cluster's key pair, and what is said of others' keys: admission of clients (ZeroMQ's ZAP, RFC 27), clients of an
inbox that speak no CURVE, and peers that refuse this node's key.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket as sockets
import stat
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path

import trio
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from transport.plans import Buffer

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"cluster"


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """One CURVE key pair that all processes of a cluster share, in Z85 (40 characters each).

    Every node uses the pair as server key and as client key. A process that has the keys belongs to the cluster.
    """

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, key in (("public", self.public), ("secret", self.secret)):
            if len(key) != 40 or not key.isascii():
                raise ValueError(f"the {name} key is not a Z85 key of 40 characters")

    @classmethod
    def generate(cls) -> CurveKeys:
        """A new pair, from the system's randomness."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def load(cls, path: Path) -> CurveKeys:
        """Read a file of ``save``. Raises PermissionError when other users may read it, ValueError for another file."""
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise PermissionError(f"{path} may be read by others (mode {mode:04o}): run chmod 600 {path}")
        lines = path.read_text().split()
        if len(lines) != 2:
            raise ValueError(f"{path} holds no key pair")
        return cls(*lines)

    def save(self, path: Path) -> None:
        """Write the pair to a new file that only its owner may read. Raises FileExistsError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.text())

    def text(self) -> str:
        """The content of a file of ``save``."""
        return f"{self.public}\n{self.secret}\n"


class Admission:
    """Answers ZAP requests: admits only clients with the cluster's public key."""

    def __init__(self, keys: CurveKeys, on_admitted: Callable[[str], None], on_refused: Callable[[str], None]) -> None:
        """Both functions get the client's numeric address."""
        self._key = z85.decode(keys.public)
        self._on_admitted = on_admitted
        self._on_refused = on_refused

    def answer(self, request: Sequence[bytes]) -> list[bytes] | None:
        """The reply to a request; None when the frames are not a ZAP request."""
        if len(request) < 6 or request[0] != b"1.0":
            return None
        number, address, mechanism, credentials = request[1], request[3], request[5], request[6:]
        admitted = mechanism == b"CURVE" and len(credentials) == 1 and hmac.compare_digest(credentials[0], self._key)
        (self._on_admitted if admitted else self._on_refused)(address.decode(errors="replace").removeprefix("::ffff:"))
        status = (b"200", b"OK", b"member") if admitted else (b"400", b"not a member of this cluster", b"")
        return [b"1.0", number, *status, b""]


TIMES = 2
"""One failed handshake may be a peer that ended in the middle of it."""
_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_ENDING = _PROTOCOL | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_SUCCEEDED)
_FAILED = _PROTOCOL | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_WRONG_KEY = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_COMING = _FAILED | _WRONG_KEY | int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
STRANGERS = 128
"""The connections of an inbox that may be in their handshakes at once, beside one for each node."""
IN_FLIGHT = 64 << 20
"""What a connection may have read, or hold in the kernel, beside one message of the largest size."""
UNKNOWN = "an address that is not known any more"
"""The address of a client whose connection was closed before the event loop saw it."""
_CLOSED = {errno.EPIPE, errno.ECONNRESET}


class _Monitor:
    """Reports events of a socket that is neither bound nor connected yet."""

    def __init__(self, socket: zmq.Socket[bytes], events: int) -> None:
        self._socket = socket
        self.monitor = socket.get_monitor_socket(events)
        self.monitor.setsockopt(zmq.LINGER, 0)

    def close(self) -> None:
        """Stop watching, before the socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close()


@dataclass(slots=True)
class _Client:
    """A connection to an inbox: its client's address, the kernel's number of its socket, and when it was accepted."""

    address: str
    socket: int
    since: float
    whole: int = 0
    """The bytes that it had received when a whole message was last seen to have come."""


class Uninvited(_Monitor):
    """Watches the connections of an inbox on TCP: who speaks no CURVE is reported, and strangers have few places.

    ::

        accepted --> newcomer --(admitted)-----------------> open until a side closes it
                              `-(handshake failed)---------> closed by ZeroMQ
                              `-(too many newcomers: the oldest of the address that has most)--> closed here

    An open connection is closed here, too, when the message that it has begun outgrows those of nodes: ZeroMQ keeps
    all parts of a message until the last has come, and knows no limit for their sum.

    Clients with another key are refused, and reported, by `Admission`.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        nodes: Sized,
        seconds: float,
        largest: int,
        on_refused: Callable[[str], None],
        on_endless: Callable[[str, str], None],
    ) -> None:
        """There may be as many newcomers as ``nodes``, and STRANGERS more.

        Who is still there after ``seconds``, the time for a handshake, is no newcomer. ``on_refused`` gets the address
        of each client that speaks no CURVE, sends more than a handshake does, or had to make room. ``on_endless`` gets
        the address of each whose message is larger than ``largest`` bytes, and the reason.
        """
        super().__init__(socket, _COMING)
        self._nodes = nodes
        self._largest = largest + IN_FLIGHT
        self._on_endless = on_endless
        self._seconds = seconds
        self._on_refused = on_refused
        self._clients: dict[int, _Client] = {}
        """Connections by descriptor."""
        self._newcomers: dict[int, _Client] = {}
        """Those that may be in their handshakes, the oldest first."""
        self._failure = 0
        """Why the next connection that closes failed: ZeroMQ's thread reports one after the other."""
        self._wrong_keys = 0
        """Newcomers that `Admission` has refused; they close later."""

    def watch(self, frames: Sequence[Buffer]) -> None:
        """Take an event of the inbox from ZeroMQ's monitor."""
        event = parse_monitor_message([bytes(frame) for frame in frames])
        descriptor = int(event["value"])
        if event["event"] == zmq.EVENT_ACCEPTED:
            with contextlib.suppress(OSError), _connection(descriptor) as connection:  # else: closed
                address = str(connection.getpeername()[0]).removeprefix("::ffff:")
                client = _Client(address, os.fstat(descriptor).st_ino, trio.current_time())
                self._newcomers.pop(descriptor, None)
                self._clients[descriptor] = self._newcomers[descriptor] = client
            self._make_room()
        elif event["event"] & _FAILED:
            self._failure = int(event["event"])
        elif event["event"] == _WRONG_KEY:
            self._wrong_keys += 1
        else:
            known, new = self._clients.pop(descriptor, None), self._newcomers.pop(descriptor, None)
            failure, self._failure = self._failure, 0
            if new is not None and not failure and self._wrong_keys:
                self._wrong_keys -= 1
            elif failure == _PROTOCOL or (new is not None and not failure):
                self._on_refused(UNKNOWN if known is None else known.address)

    def admitted(self, address: str) -> None:
        """A client has shown the key. Which connection of its address is unknown, and the oldest is taken for it."""
        for descriptor, client in self._newcomers.items():
            if client.address == address:
                del self._newcomers[descriptor]
                break

    def _make_room(self) -> None:
        now = trio.current_time()
        while self._newcomers:
            descriptor, client = next(iter(self._newcomers.items()))
            if now - client.since < self._seconds:
                break
            del self._newcomers[descriptor]
        if len(self._newcomers) <= len(self._nodes) + STRANGERS:
            return
        ((crowd, _),) = Counter(client.address for client in self._newcomers.values()).most_common(1)
        descriptor = next(each for each, client in self._newcomers.items() if client.address == crowd)
        if self._close(descriptor, self._newcomers.pop(descriptor)):
            self._on_refused(crowd)

    def __len__(self) -> int:
        return len(self._clients)

    def close_endless(self, heard: Collection[int]) -> None:
        """Close connections whose unfinished messages are larger than a node's, or together than those of all nodes.

        ``heard``: the descriptors over which whole messages have come since the last time, up to now.
        """
        for descriptor in heard:
            self._newcomers.pop(descriptor, None)
        unfinished = dict.fromkeys(self._clients, 0)
        for descriptor, client in self._clients.items():
            with contextlib.suppress(OSError), _connection(descriptor) as connection:
                received = _received(connection)
                client.whole = received if descriptor in heard else client.whole
                unfinished[descriptor] = received - client.whole
        total = sum(unfinished.values())
        for descriptor in sorted(unfinished, key=unfinished.__getitem__, reverse=True):
            if unfinished[descriptor] <= self._largest and total <= self._largest * len(self._nodes):
                break
            total -= unfinished[descriptor]
            if self._close(descriptor, self._clients[descriptor]):
                address = self._clients.pop(descriptor).address
                self._on_endless(address, f"more than {unfinished[descriptor]} bytes of one message")

    @staticmethod
    def _close(descriptor: int, client: _Client) -> bool:
        with contextlib.suppress(OSError), _connection(descriptor) as connection:  # else: closed meanwhile
            if os.fstat(descriptor).st_ino == client.socket:  # the descriptor is still this connection's
                connection.shutdown(sockets.SHUT_RDWR)
                return True
        return False


_TCP_INFO_RECEIVED = slice(128, 136)  # tcpi_bytes_received of struct tcp_info (linux/tcp.h)


def _received(connection: sockets.socket) -> int:
    """The bytes that a connection has received. 0 where the system does not count them."""
    info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_RECEIVED.stop)
    return int.from_bytes(info[_TCP_INFO_RECEIVED], sys.byteorder)


def _connection(descriptor: int) -> sockets.socket:
    """A connection of ZeroMQ's. Raises OSError for one that is closed."""
    own = os.dup(descriptor)
    try:
        return sockets.socket(fileno=own)
    except OSError:  # a file has the descriptor now
        os.close(own)
        raise


class Handshakes(_Monitor):
    """Watches the handshakes with a peer: one that closes every connection before it is authenticated has another key.

    ::

        connection --(succeeded)-----------------------------------> the count starts again
                   `-(closed, or another mechanism: TIMES in a row)-> on_refused, at this and every further one

    ``on_refused`` gets the seconds for which the peer has refused this node's key. A peer that does not run, or that is
    stopped, lets no handshake fail in this way: nobody accepts, or nobody answers.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_refused: Callable[[float], None]) -> None:
        super().__init__(socket, _ENDING)
        self._on_refused = on_refused
        self._failed = 0
        self._since = 0.0

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


async def turn_away(address: str, seconds: float) -> bool:
    """Close each connection at a tcp address at once, until more than ``TIMES`` have come, or for so long.

    For a process that has no key: it refuses its peers at its node's address, so that their host can say so.

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
