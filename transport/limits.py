"""Bounds and intervals of a node, in one place; the defaults suit a cluster, tests choose shorter intervals."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ITEMS = 1 << 20
"""Items of one tuple, list or dictionary, in every message."""
MAX_JSON_DEPTH = 64
"""Nesting of a field annotated ``Any``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a node takes from the wire and puts on it, and how long it waits before it says something.

    Sizes are in bytes or items, times in seconds of trio's clock. Nodes that talk to each other have the same sizes: a sender
    refuses what its receivers would not take.
    """

    message_bytes: int = 256 << 20
    """All frames of one message together."""
    message_frames: int = 8192
    """Frames of one message: one, and one for each array."""
    heartbeat_interval: float = 1.0
    silent_after: float = 5.0
    credit_report_after: float = 5.0
    stalled_heartbeats: int = 2
    """So many heartbeats without progress, although more was sent, and what the peer has not seen is sent again."""
    handshake: float = 10.0
    """How long a connection may take to show that it holds the key."""
    linger: float = 0.5
    """How long closing waits for the last frames to leave; everything that counts was acknowledged before."""


DEFAULT_LIMITS = Limits()
