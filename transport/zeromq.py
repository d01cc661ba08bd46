"""A network of ZeroMQ sockets: one ROUTER per node as its inbox, one DEALER per peer it sends to.

Four properties of ZeroMQ shape this file:

- High-water marks on sending would make a ROUTER drop and a DEALER block. They are off, and credit bounds the frames in
  flight. The high-water mark on receiving makes a sender wait, and loses nothing.
- A socket's file descriptor is edge-triggered, and any operation on the socket may consume the edge. So one task reads
  each socket until it is empty before it waits, and a send that leaves something to read wakes that task.
- Closing with linger 0 would lose the last acknowledgements. So the linger is bounded, not 0.
- A socket reads frames of up to MAXMSGSIZE from a client before it knows the client's key. So frames go over TCP in
  parts of at most 128 KiB, and a larger part closes the connection. It keeps all parts of a message until the last has
  come, and no option limits their sum. So the port compares what connections have received with what they delivered.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio
import zmq

from transport.addresses import make_way, numeric, remove
from transport.curve import ZAP_DOMAIN, ZAP_ENDPOINT, Admission, CurveKeys, Handshakes, Uninvited
from transport.errors import BindError, InsecureLink, UnknownPeer
from transport.limits import PART, Limits
from transport.network import Port, Receiver, make_identity
from transport.plans import Buffer

_SOCKETS_BESIDE = 1024
# The most unread messages of one connection to an inbox. Beyond it, messages wait in the sender's memory.
_UNREAD_MAX = 64
# What frame 0 may hold beside a message of the largest size.
_ENVELOPE_MAX = 64 << 10
# How often, in seconds, connections are looked at for messages that do not end.
_UNFINISHED_INTERVAL = 0.25
# What CURVE adds to a part.
_SEALED = 64


class ZmqNetwork:
    """Nodes by name at ``addresses``: ``ipc:///path`` on one machine, ``tcp://host:port`` between machines.

    With ``curve`` every socket is encrypted and only clients with the cluster's keys are admitted. Raises InsecureLink
    for a tcp address when ``curve`` is None (also on loopback, which every user of the machine reaches), and ValueError
    for an address that is neither ipc nor tcp. A node learns which of the peers ``watched`` refuse its key.
    """

    def __init__(
        self, addresses: Mapping[str, str], curve: CurveKeys | None = None, watched: Collection[str] = ()
    ) -> None:
        self._addresses: dict[str, str] = {}
        self._curve = curve
        self.extend(addresses)
        self._watched = frozenset(watched) if curve is not None else frozenset()

    def extend(self, addresses: Mapping[str, str]) -> None:
        """Add nodes, also while ports are open. Their hosts may then be numeric addresses only."""
        for name, address in addresses.items():
            scheme, _, rest = address.partition("://")
            if scheme not in ("ipc", "tcp") or not rest:
                raise ValueError(f"address of {name}: expected ipc:///path or tcp://host:port, got {address!r}")
            if scheme == "tcp" and self._curve is None:
                raise InsecureLink(
                    f"{address} of {name} can be reached by others, and no key authenticates them: "
                    "create a key file (CurveKeys.generate().save(path)), copy it to every host and pass curve="
                )
        self._addresses.update(addresses)

    def attach(self, name: str, incarnation: int, limits: Limits) -> Port:
        """The port of a node. Raises UnknownPeer when it has no address."""
        if name not in self._addresses:
            raise UnknownPeer(f"no address is known for {name}")
        port = ZmqPort(self._addresses, name, incarnation, limits, self._curve)
        port.watched = self._watched
        return port


class ZmqPort:
    """A node's sockets."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        name: str,
        incarnation: int,
        limits: Limits,
        curve: CurveKeys | None,
    ) -> None:
        self._addresses = addresses
        self._name = name
        self._identity = make_identity(name, incarnation)
        self._limits = limits
        self._linger = int(limits.linger * 1000)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._curve = curve
        self._receiver: Receiver | None = None
        self._inbox: Channel | None = None
        self._zap: Channel | None = None
        self._uninvited: tuple[Uninvited, Channel] | None = None
        self._peers: dict[str, Channel | None] = {}
        self.watched: Collection[str] = ()
        self._handshakes: dict[str, tuple[Handshakes, Channel]] = {}
        self._nursery: trio.Nursery | None = None
        self._to_read: list[Channel] = []
        self._bound = False

    async def bind(self, receiver: Receiver) -> None:
        """Open the inbox at this node's address. Raises BindError."""
        self._receiver = receiver
        self._context = self._new_context()
        address = self._addresses[self._name]
        try:
            if self._curve is not None:
                self._zap = self._admission(self._curve, receiver)
            socket = self._socket(zmq.ROUTER, address)
            self._inbox = Channel(socket, self._on_inbox, in_parts=_in_parts(address))
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            if address.startswith("tcp://"):
                faults, limits = receiver.faults, self._limits
                uninvited = Uninvited(
                    socket,
                    self._addresses,
                    limits.handshake,
                    limits.message_bytes,
                    faults.unauthenticated,
                    faults.malformed,
                )
                self._uninvited = uninvited, Channel(uninvited.monitor, uninvited.watch)
            await self._bind(socket, address)
            self._bound = True
            for peer in self._peers:
                self._open(peer)
        except BaseException:
            await self.close()
            raise

    def _new_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # the inbox, admission, and a socket for each peer, also those of hosts that join
        made.set(zmq.MAX_SOCKETS, len(self._addresses) + _SOCKETS_BESIDE)
        return made

    async def _bind(self, socket: zmq.Socket[bytes], address: str) -> None:
        scheme, _, rest = address.partition("://")
        if scheme == "ipc":
            make_way(Path(rest), address)
        else:
            address = await numeric(address)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            remedy = {
                errno.EADDRINUSE: "another process listens there: stop it, or change the host's base_port",
                errno.ENODEV: "no interface of this machine has this address: correct the host's address",
                errno.EADDRNOTAVAIL: "no interface of this machine has this address: correct the host's address",
                errno.EACCES: "permission denied: choose a directory or port this user may use",
            }.get(error.errno or 0, str(error))
            raise BindError(f"{self._name} cannot listen at {address}: {remedy}") from error

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        assert self._context is not None
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, _UNREAD_MAX if kind == zmq.ROUTER else 0)
        largest = PART + _SEALED if _in_parts(address) else self._limits.message_bytes + _ENVELOPE_MAX
        socket.setsockopt(zmq.MAXMSGSIZE, largest)
        socket.setsockopt(zmq.LINGER, self._linger)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(self._limits.handshake * 1000))
        # A host that lost power closes no connection, and TCP would notice after 15 minutes or never. ZeroMQ's
        # heartbeats are no remedy: 4.3.5 aborts the process (!_io_error) when one is due on a connection that was reset
        # while the inbox was full.
        socket.setsockopt(zmq.TCP_MAXRT, max(10_000, int(2_000 * self._limits.silent_after)))
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
        if self._curve is not None:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._curve.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._curve.secret.encode())
            if kind == zmq.ROUTER:
                socket.setsockopt(zmq.CURVE_SERVER, 1)
                socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
                socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # refuse clients while admission does not answer
            else:
                socket.setsockopt(zmq.CURVE_SERVERKEY, self._curve.public.encode())
        return socket

    def _admission(self, keys: CurveKeys, receiver: Receiver) -> Channel:
        assert self._context is not None
        admission = Admission(keys, self._on_admitted, receiver.faults.unauthenticated)
        socket = self._context.socket(zmq.REP)
        socket.bind(ZAP_ENDPOINT)

        def answer(frames: Sequence[Buffer]) -> None:
            reply = admission.answer([bytes(frame) for frame in frames])
            socket.send_multipart(reply or [b""])

        return Channel(socket, answer)

    def _on_admitted(self, address: str) -> None:
        if self._uninvited is not None:
            uninvited, monitor = self._uninvited
            monitor.catch_up()  # the connection was accepted before
            uninvited.admitted(address)

    def _open(self, peer: str) -> None:
        assert self._receiver is not None
        on_back = self._receiver.on_back
        address = self._addresses[peer]
        socket = self._socket(zmq.DEALER, address)
        socket.setsockopt(zmq.ROUTING_ID, self._identity)
        socket.setsockopt(zmq.RECONNECT_IVL, 25)  # a successor that got ready beside listens after 100 ms
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        channel = Channel(socket, lambda frames: on_back(peer, frames), in_parts=_in_parts(address))
        self._peers[peer] = channel
        self._read(channel)
        if peer in self.watched and address.startswith("tcp://"):
            handshakes = Handshakes(socket, partial(self._receiver.faults.key_refused, peer))
            self._handshakes[peer] = handshakes, Channel(handshakes.monitor, handshakes.watch)
            self._read(self._handshakes[peer][1])
        socket.connect(address)

    def _read(self, channel: Channel) -> None:
        """Read the channel from now on, or from ``serve`` on."""
        if self._nursery is not None:
            self._nursery.start_soon(channel.read)
        else:
            self._to_read.append(channel)

    async def serve(self) -> None:
        """Read all sockets until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            watched = None if self._uninvited is None else self._uninvited[1]
            for channel in (watched, self._zap, self._inbox, *self._to_read):
                if channel is not None:
                    nursery.start_soon(channel.read)
            self._to_read.clear()
            if self._uninvited is not None and self._inbox is not None:
                nursery.start_soon(self._bound_unfinished, self._uninvited[0], self._inbox)

    @staticmethod
    async def _bound_unfinished(uninvited: Uninvited, inbox: Channel) -> None:
        while True:
            await trio.sleep(_UNFINISHED_INTERVAL)
            for _ in range(0, 1 + len(uninvited), _READ_BETWEEN_CHECKPOINTS):  # hears each that has a whole message
                inbox.catch_up()
            uninvited.close_endless(inbox.heard)
            inbox.heard.clear()

    def connect(self, peer: str) -> None:
        """Connect to a peer, now or as soon as the inbox is open."""
        if peer not in self._addresses:
            raise UnknownPeer(f"no address is known for {peer}")
        if peer not in self._peers:
            self._peers[peer] = None
            if self._inbox is not None:
                self._open(peer)

    def renew(self, peer: str) -> None:
        """Connect again. ZeroMQ gives a connection up for good when another program answered at the peer's address.

        What waits in the former connection is lost. It would linger and connect, too, and whichever of the two the
        peer's inbox meets last takes the other's place there: the inbox hears nothing over the other any more.
        """
        channel = self._peers[peer]
        if channel is not None:
            channel.socket.setsockopt(zmq.LINGER, 0)
            with contextlib.suppress(
                zmq.ZMQError
            ):  # it has given the connection up, and knows no such address any more
                channel.socket.disconnect(self._addresses[peer])
            channel.socket.setsockopt(zmq.LINGER, self._linger)
            channel.socket.connect(self._addresses[peer])

    def knows(self, peer: str) -> bool:
        """Whether there is an address for it."""
        return peer in self._addresses

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Send to a peer's inbox."""
        channel = self._peers[peer]
        if channel is not None:
            channel.send(frames)

    def send_back(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Send back to a connected process."""
        if self._inbox is not None:
            self._inbox.send([identity, *frames])

    def _on_inbox(self, frames: list[Buffer]) -> None:
        assert self._receiver is not None
        self._receiver.on_inbox(bytes(frames[0]), frames[1:])

    async def close(self, absent: Collection[str] = ()) -> None:
        """Close the sockets. The last frames may take ``Limits.linger`` seconds to leave; none go to absent peers."""
        self._nursery = None
        self._to_read.clear()
        for handshakes, _ in self._handshakes.values():
            handshakes.close()
        self._handshakes.clear()
        if self._uninvited is not None:
            self._uninvited[0].close()
        self._uninvited = None
        for peer, channel in (("", self._inbox), ("", self._zap), *self._peers.items()):
            if channel is not None:
                channel.socket.close(0 if peer in absent else None)
        self._inbox = self._zap = None
        self._peers = dict.fromkeys(self._peers)
        context, self._context = self._context, None
        if context is not None:
            with trio.CancelScope(shield=True):  # bounded by the linger; in a thread, since it would block the loop
                await trio.to_thread.run_sync(context.term)
        scheme, _, rest = self._addresses[self._name].partition("://")
        if self._bound and scheme == "ipc":  # remove the socket file only if this node made it
            self._bound = False
            remove(Path(rest))


_READ_BETWEEN_CHECKPOINTS = 128
# A copy of a small frame is cheaper than a reference to ZeroMQ's buffer, on either side.
_COPY_BELOW = 64 << 10
# plain integers: pyzmq's enumerations cost more than the call itself
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)
_SRCFD = int(zmq.SRCFD)


def _in_parts(address: str) -> bool:
    return address.startswith("tcp://")


def _parts(frames: Sequence[Buffer]) -> list[Buffer]:
    """Frames as they go over TCP."""
    parts: list[Buffer] = []
    for frame in frames:
        if len(frame) < PART:
            parts.append(frame)
        else:
            parts += [memoryview(frame)[at : at + PART] for at in range(0, len(frame) + 1, PART)]
    return parts


def _joined(parts: Sequence[Buffer]) -> list[Buffer]:
    """The frames of ``_parts``. After a last part that promises another, the frame is what has come."""
    frames: list[Buffer] = []
    begun: list[Buffer] = []
    for number, part in enumerate(parts, 1):
        if len(part) == PART and number < len(parts):
            begun.append(part)
        elif begun:
            frames.append(b"".join((*begun, part)))
            begun.clear()
        else:
            frames.append(part)
    return frames


class Channel:
    """A socket and the task that reads it. ``in_parts``: large frames go in parts, and come in parts."""

    def __init__(
        self, socket: zmq.Socket[bytes], deliver: Callable[[list[Buffer]], None], *, in_parts: bool = False
    ) -> None:
        self.socket = socket
        self._deliver = deliver
        self._in_parts = in_parts
        self._copy_below = PART + 1 if in_parts else _COPY_BELOW
        self._waiting: trio.CancelScope | None = None
        self.heard: set[int] = set()
        """With ``in_parts``: the connections, by descriptor, of the messages that were delivered."""

    async def read(self) -> None:
        """Deliver what arrives, until cancelled."""
        descriptor = self.socket.fileno()
        while True:
            if self._drain():  # no other task ran since, so the socket is still empty: wait
                with trio.CancelScope() as self._waiting:
                    await trio.lowlevel.wait_readable(descriptor)
                self._waiting = None
            else:
                await trio.lowlevel.checkpoint()

    def _readable(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def catch_up(self) -> None:
        """Deliver what has arrived, now."""
        if not self._drain() and self._waiting is not None:
            self._waiting.cancel()

    def _drain(self) -> bool:
        """Deliver a burst of messages; return whether the socket is empty. An empty read resets the edge."""
        for _ in range(_READ_BETWEEN_CHECKPOINTS):
            try:
                frames = _receive(self.socket, self.heard if self._in_parts else None)
            except zmq.Again:
                return True
            self._deliver(_joined(frames) if self._in_parts else frames)
        return False

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send without waiting; frames to a vanished peer are lost. Wakes the reader if the send consumed its edge."""
        frames = _parts(frames) if self._in_parts else frames
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                self.socket.send(frame, _LAST if index == last else _MORE, len(frame) < self._copy_below)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
        if self._waiting is not None and self._readable():
            self._waiting.cancel()


def _receive(socket: zmq.Socket[bytes], heard: set[int] | None) -> list[Buffer]:
    """One multipart message. Small frames are copied out, large ones stay in ZeroMQ's memory."""
    frame = socket.recv(_LAST, copy=False)
    if heard is not None:
        heard.add(frame.get(_SRCFD))
    frames: list[Buffer] = [frame.bytes if len(frame) < _COPY_BELOW else frame.buffer]
    while frame.more:  # cheaper than the socket's RCVMORE
        frame = socket.recv(_LAST, copy=False)
        frames.append(frame.bytes if len(frame) < _COPY_BELOW else frame.buffer)
    return frames


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 128 << 20
_OWN_MAPPING_FROM = 16 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 128 MiB of freed memory for its next messages, where the C library is glibc.

    By default glibc returns the freed memory of a large message to the kernel. The next message of its size then costs
    a page fault for each 4 KiB: a third of the cost of a message of 1 MiB. A process's entry point calls this function.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_FROM)
