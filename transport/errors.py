"""What transport raises, and what it reports without raising."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias


class TransportError(Exception):
    """Base of every error of this package."""


class EncodeError(TransportError):
    """A message does not fit its own annotations. ``field`` is a dotted path, as in ``Trajectory.calls[2].turn``."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class DecodeError(TransportError):
    """Bytes that are not a message of the registry, which holds the types that are expected. ``field`` is a dotted path, as in ``Trajectory.calls[2].turn``."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class BindError(TransportError):
    """A node cannot listen at its address; the message names the address and the remedy."""


class InsecureLink(TransportError):  # noqa: N818  (named for what it is, like trio.Cancelled)
    """An address is TCP and no keys were given; the message names the address and the remedy."""


class UnknownPeer(TransportError):  # noqa: N818
    """A node was named for which the network has no address."""


class CallRefused(TransportError):  # noqa: N818
    """Raised by a handler to refuse a call; the caller gets CallFailed with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallFailed(TransportError):  # noqa: N818
    """The replica refused the call, or it or its answer could not be decoded."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallTimeout(TransportError):  # noqa: N818
    """No answer before the deadline; the handler, if it runs, is cancelled."""


class PeerLost(TransportError):  # noqa: N818
    """The replica's process was replaced, or has been silent beyond the limit: the call may or may not have run."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} was lost before it answered")
        self.peer = peer


@dataclass(frozen=True, slots=True)
class PeerSilent:
    """Nothing was heard of ``peer`` for ``seconds``; ``waiting_for`` says in words what of this node depends on it."""

    peer: str
    seconds: float
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerBack:
    """A peer reported silent is heard again, after ``seconds``."""

    peer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer said that it leaves: its silence from now on is no news, and is not reported."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerReplaced:
    """The peer's process is a new one; what it had not acknowledged is being sent again."""

    peer: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class CreditWait:
    """A send has waited ``seconds`` for room at ``peer`` and goes on waiting."""

    link: str
    peer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MalformedFrames:
    """The peer sent what this version cannot read. Reported once per peer; the figures count the rest."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """The peer could not decode a message this node pushed: it is acknowledged as lost and not sent again.

    Its ``on_ack`` is not called.
    """

    peer: str
    link: str
    reason: str


@dataclass(frozen=True, slots=True)
class IncarnationRefused:
    """A process says it is ``peer`` and claims a higher incarnation than its supervisor gave it. Reported once per peer."""

    peer: str
    claimed: int
    told: int


@dataclass(frozen=True, slots=True)
class Unauthenticated:
    """A client that does not hold the cluster's key was turned away. Reported once per address."""

    address: str


LinkEvent: TypeAlias = (
    PeerSilent
    | PeerBack
    | PeerLeft
    | PeerReplaced
    | CreditWait
    | MalformedFrames
    | MessageRejected
    | IncarnationRefused
    | Unauthenticated
)


def log_event(event: LinkEvent) -> None:
    """Write the event to the standard logger ``transport``: what a node does when it is given no other ``on_event``."""
    logging.getLogger("transport").warning("%s", event)
