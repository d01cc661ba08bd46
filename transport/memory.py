"""A network in memory, for tests and simulation: nodes of one trio loop, in virtual time where the loop has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import trio

from transport.errors import BindError, UnknownPeer
from transport.limits import Limits
from transport.network import Port, Receiver, make_identity, read_identity
from transport.plans import Buffer

_WAITING_FRAMES = 1024
_READ_BETWEEN_CHECKPOINTS = 128


class MemoryNetwork:
    """Nodes of one trio loop. Every frame is encoded and decoded as it would be on a wire."""

    def __init__(self) -> None:
        self._ports: dict[str, MemoryPort] = {}
        self._waiting: dict[str, deque[Callable[[Receiver], None]]] = {}

    def attach(self, name: str, incarnation: int, limits: Limits) -> Port:
        """The port of a node of any name. ``limits`` concern real networks only."""
        del limits
        return MemoryPort(self, name, incarnation)

    def extend(self, addresses: Mapping[str, str]) -> None:
        """Nodes of any name are known."""

    def bind(self, port: MemoryPort) -> None:
        """Open a port's inbox and deliver the frames that waited for it."""
        if port.name in self._ports:
            raise BindError(f"{port.name} runs already in this network: stop it first, or choose another name")
        self._ports[port.name] = port
        for deliver in self._waiting.pop(port.name, ()):
            port.arrived(deliver)

    def unbind(self, port: MemoryPort) -> None:
        """A port's inbox closes."""
        if self._ports.get(port.name) is port:
            del self._ports[port.name]

    def to_inbox(self, source: MemoryPort, peer: str, frames: Sequence[Buffer]) -> None:
        """Carry frames to a node's inbox."""

        def deliver(receiver: Receiver) -> None:
            receiver.on_inbox(source.identity, frames)

        port = self._ports.get(peer)
        if port is not None:
            port.arrived(deliver)
        else:
            self._waiting.setdefault(peer, deque(maxlen=_WAITING_FRAMES)).append(deliver)

    def back(self, source: MemoryPort, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Carry frames back to a connected process."""
        who = read_identity(identity)
        port = self._ports.get(who[0]) if who is not None else None
        if port is not None and port.identity == identity:
            port.arrived(lambda receiver: receiver.on_back(source.name, frames))


class MemoryPort:
    """A node's attachment to a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, name: str, incarnation: int) -> None:
        self.name = name
        self.identity = make_identity(name, incarnation)
        self._network = network
        self._peers: set[str] = set()
        self._receiver: Receiver | None = None
        self._arrived: deque[Callable[[Receiver], None]] = deque()
        self._wanted = trio.lowlevel.ParkingLot()

    def arrived(self, deliver: Callable[[Receiver], None]) -> None:
        """Something for this node."""
        self._arrived.append(deliver)
        if self._wanted:
            self._wanted.unpark()

    async def bind(self, receiver: Receiver) -> None:
        """Open the inbox. Raises BindError when a node of this name runs."""
        await trio.lowlevel.checkpoint()
        self._receiver = receiver
        self._network.bind(self)

    async def serve(self) -> None:
        """Hand over what arrives, until cancelled."""
        receiver, arrived = self._receiver, self._arrived
        assert receiver is not None
        while True:
            if arrived:
                await trio.lowlevel.checkpoint()
            else:
                await self._wanted.park()
            for _ in range(min(len(arrived), _READ_BETWEEN_CHECKPOINTS)):
                arrived.popleft()(receiver)

    def connect(self, peer: str) -> None:
        """Nothing needs to be opened."""
        self._peers.add(peer)

    def renew(self, peer: str) -> None:
        """A connection in memory does not end."""

    def knows(self, peer: str) -> bool:
        """Whoever is attached is known."""
        del peer
        return True

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Send to a peer's inbox."""
        if peer not in self._peers:
            raise UnknownPeer(f"{self.name} is not connected to {peer}")
        self._network.to_inbox(self, peer, frames)

    def send_back(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Send back to a connected process."""
        self._network.back(self, identity, frames)

    async def close(self, absent: Collection[str] = ()) -> None:
        """Leave the network; all frames sent have arrived."""
        del absent
        self._network.unbind(self)
