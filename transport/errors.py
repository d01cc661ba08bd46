"""Transport's exceptions, the events that it reports without an exception, and the counts of others' faults."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
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
    | Unauthenticated
    | KeyRefused
)


def log_event(event: LinkEvent) -> None:
    """Write the event to the standard logger ``transport``; the default ``on_event`` of a node."""
    logging.getLogger("transport").warning("%s", event)


_COUNTED = (
    "decode_errors",
    "duplicates_dropped",
    "frames_for_another_incarnation",
    "frames_of_replaced_processes",
    "incarnations_refused",
    "unauthenticated",
)

MOST_REPORTED = 4096
"""Peers and addresses that are reported. Beyond them faults are only counted, so that strangers cannot fill memory."""


class Faults:
    """Totals by figure, and which peers were reported."""

    def __init__(self, on_event: Callable[[LinkEvent], None]) -> None:
        self.counts = Counter(dict.fromkeys(_COUNTED, 0))
        self._on_event = on_event
        self._reported: set[str] = set()

    def malformed(self, peer: str, reason: str) -> None:
        """The peer sent frames that cannot be read or are not expected here."""
        self._count_and_report("decode_errors", peer, MalformedFrames(peer, reason))

    def unauthenticated(self, address: str) -> None:
        """A client without the cluster's key was refused."""
        self._count_and_report("unauthenticated", address, Unauthenticated(address))

    def key_refused(self, peer: str, seconds: float) -> None:
        """The peer refuses this node's key. Reported at every attempt: who must act waits for some seconds of them."""
        self._on_event(KeyRefused(peer, seconds))

    def refused(self, peer: str, claimed: int, expected: int | None) -> None:
        """A process claimed a higher incarnation than the one this node expects (None: none so far)."""
        if expected is None:  # the announcement may still come
            self.counts["incarnations_refused"] += 1
            return
        self._count_and_report("incarnations_refused", f"{peer}#", IncarnationRefused(peer, claimed, expected))

    def _count_and_report(self, figure: str, whom: str, event: LinkEvent) -> None:
        self.counts[figure] += 1
        if whom not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(whom)
            self._on_event(event)
