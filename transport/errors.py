"""Transport's exceptions, and the events that it reports without an exception."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias


class TransportError(Exception):
    """Base of every error of this package."""


class _FieldError(TransportError):
    """``field`` is a dotted path, as in ``Trajectory.calls[2].turn``."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class EncodeError(_FieldError):
    """A message does not fit its own annotations."""


class DecodeError(_FieldError):
    """Bytes that are not a message of the registry (the expected types)."""


class UnexpectedTypeError(DecodeError):
    """A message of a type that is not in the registry."""


class BindError(TransportError):
    """A node cannot listen at its address; the message names the address and the remedy."""


class InsecureLink(TransportError):  # noqa: N818  (named for what it is, like trio.Cancelled)
    """An address is TCP and no keys were given; the message names the address and the remedy."""


class UnknownPeer(TransportError):  # noqa: N818
    """The network has no address for this node."""


class _ReasonError(TransportError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallRefused(_ReasonError):  # noqa: N818
    """Raised by a handler to refuse a call; the caller gets CallFailed with the reason."""


class CallFailed(_ReasonError):  # noqa: N818
    """The replica refused the call, or the call or its answer could not be decoded."""


class CallTimeout(TransportError):  # noqa: N818
    """No answer before the deadline. The handler is cancelled if it runs."""


class PeerLost(TransportError):  # noqa: N818
    """The replica's process was replaced or was silent for too long: the call may or may not have run."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} was lost before it answered")
        self.peer = peer


@dataclass(frozen=True, slots=True)
class PeerSilent:
    """Nothing arrived from ``peer`` for ``seconds``. ``waiting_for`` lists what this node waits for from the peer."""

    peer: str
    seconds: float
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerBack:
    """Frames arrive again from a peer that was reported silent, after ``seconds``."""

    peer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer announced that it leaves. Its silence is not reported, and nothing of its process arrives from now on."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerGone:
    """A peer counts as lost: it was silent for longer than ``Limits.lost_after``, is silent and in doubt
    (`Node.doubt`), or its process has ended.

    Nothing arrived from the peer for ``seconds``. Its announcements that are not handled yet are discarded. When the
    peer is heard again, PeerBack says so.
    """

    peer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PeerDraining:
    """A peer says that it is about to leave. It finishes what it has; calls go to other replicas."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerReplaced:
    """The peer has a new process. Messages without acknowledgement are sent again."""

    peer: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class CreditWait:
    """A send has waited ``seconds`` for room at ``peer`` and still waits."""

    link: str
    peer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MalformedFrames:
    """The peer sent frames that this version cannot read. Reported once per peer; the figures count all."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """The peer could not decode a message that this node pushed. The message is lost: it is not sent again.

    Its ``on_ack`` is not called.
    """

    peer: str
    link: str
    reason: str


@dataclass(frozen=True, slots=True)
class IncarnationRefused:
    """A process claims to be ``peer``, with a higher incarnation than the supervisor gave the peer.

    Reported once per peer.
    """

    peer: str
    claimed: int
    expected: int


@dataclass(frozen=True, slots=True)
class PeerCutOff:
    """A process of ``peer`` broke a rule (`transport.conduct`): nothing of this incarnation is taken from now on.

    ``rule`` names the rule, ``evidence`` says what the process did.
    """

    peer: str
    incarnation: int
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Unauthenticated:
    """A client without the cluster's key was refused. Reported once per address."""

    address: str


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """The peer has refused this node's connections for ``seconds``: it has another key or none, or is another program.

    Reported at every attempt, for the peers that the network watches.
    """

    peer: str
    seconds: float


LinkEvent: TypeAlias = (
    PeerSilent
    | PeerBack
    | PeerGone
    | PeerDraining
    | PeerLeft
    | PeerReplaced
    | CreditWait
    | MalformedFrames
    | MessageRejected
    | IncarnationRefused
    | PeerCutOff
    | Unauthenticated
    | KeyRefused
)


def log_event(event: LinkEvent) -> None:
    """Write the event to the standard logger ``transport``; the default ``on_event`` of a node."""
    logging.getLogger("transport").warning("%s", event)
