"""The interfaces between a node and a network. `zeromq.py` has the network of runs, `memory.py` one for tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from transport.errors import Faults
from transport.limits import Limits
from transport.plans import Buffer


class Receiver(Protocol):
    """The node's side of a port. Methods are called in the trio thread and never wait."""

    faults: Faults
    """Where the port reports clients without the cluster's key, and peers that refuse this node's key."""

    def on_inbox(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Frames of the process ``identity`` (see ``make_identity``) arrived at the inbox."""

    def on_back(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Frames came back over the connection to ``peer``."""


class Port(Protocol):
    """The network's side of one node. Sending never waits: credit bounds the frames in flight."""

    async def bind(self, receiver: Receiver) -> None:
        """Open the inbox. Raises BindError."""

    async def serve(self) -> None:
        """Pass arriving frames to the receiver, until cancelled."""

    def connect(self, peer: str) -> None:
        """Open the connection to a peer's inbox, which need not exist yet. Raises UnknownPeer."""

    def renew(self, peer: str) -> None:
        """Connect again to a peer that cannot be heard. Frames on their way to the peer are lost."""

    def knows(self, peer: str) -> bool:
        """Whether the network has a node of this name. Processes of other names are strangers."""

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Send to a peer's inbox. Frames that cannot be delivered are lost."""

    def send_back(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Send back to a process that is connected to this inbox. Frames that cannot be delivered are lost."""

    async def close(self, absent: Collection[str] = ()) -> None:
        """Close everything, waiting at most ``Limits.linger`` for the last frames to leave, none to ``absent``."""


class Network(Protocol):
    """Where nodes are attached, by name."""

    def attach(self, name: str, incarnation: int, limits: Limits) -> Port:
        """The port of node ``name``. Raises UnknownPeer when the network has no address for it."""

    def extend(self, addresses: Mapping[str, str]) -> None:
        """Add nodes while ports are open; a node that no port is connected to may get another address.

        Addresses of other hosts are numeric. Raises as the making of the network does.
        """


def make_identity(name: str, incarnation: int) -> bytes:
    """The identity of a process on its connections: node name and incarnation."""
    identity = f"{name}#{incarnation}".encode()
    if len(identity) > 255:
        raise ValueError(f"node name of {len(name)} characters: the identity would exceed ZeroMQ's 255 bytes")
    return identity


def read_identity(identity: bytes) -> tuple[str, int] | None:
    """The name and incarnation in an identity; None when `make_identity` cannot have made it."""
    try:
        name, separator, incarnation = identity.decode().rpartition("#")
    except UnicodeDecodeError:
        return None
    if not (name and separator and incarnation.isascii() and incarnation.isdigit() and len(incarnation) < 20):
        return None
    return name, int(incarnation)
