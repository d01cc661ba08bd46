"""Bounds and intervals of a node. The defaults suit a cluster; tests choose shorter intervals."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ITEMS = 1 << 20
"""The most items of a tuple, list or dictionary in a message."""
MAX_JSON_DEPTH = 64
"""Nesting of a field annotated ``Any``."""
PART = 128 << 10
"""A frame of so many bytes or more goes over TCP in parts: all have this size but the last, which is smaller. It is
the most that an inbox reads from a client that has not shown the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The sizes that a node sends and accepts, and the times after which it reports a wait.

    Sizes are in bytes or items, times in seconds of trio's clock. All nodes of a network must have the same sizes: a
    sender refuses messages that its receivers would refuse.
    """

    message_bytes: int = 256 << 20
    """All frames of one message together."""
    message_frames: int = 8192
    """The most frames of one message: one, and one for each large array or bytes."""
    heartbeat_interval: float = 1.0
    silent_after: float = 5.0
    lost_after: float = 20.0
    """A peer that is silent for so long is reported as lost. Until then, everything waits for the peer's return.
    A peer in doubt (`Node.doubt`) is lost as soon as it is silent."""
    credit_report_after: float = 5.0
    stalled_heartbeats: int = 2
    """After so many heartbeats without progress, messages that the peer has not seen are sent again."""
    handling: float = 0.002
    """For so long messages are handled one after the other before other tasks have a turn, by the machine's clock. A
    simulation whose order of events must not depend on the machine sets it to infinity: their number ends a turn, too.
    """
    handshake: float = 10.0
    """How long the authentication of a connection may take."""
    linger: float = 0.5
    """How long closing waits for the last frames to leave. Nothing is lost: messages are acknowledged before."""


DEFAULT_LIMITS = Limits()
