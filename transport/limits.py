"""Bounds and intervals of a node, in one place; the defaults suit a cluster, tests choose shorter intervals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a node accepts from the wire, and how long it waits before it says something.

    Sizes are in bytes, characters or items; times in seconds of trio's clock.
    """

    message_bytes: int = 256 << 20
    """All frames of one message together."""
    message_frames: int = 8192
    """Frames of one message: one, and one for each array."""
    string: int = 64 << 20
    """Characters of a ``str`` field, bytes of a ``bytes`` field."""
    container: int = 1 << 20
    """Items of one tuple, list or dictionary."""
    json_depth: int = 64
    """Nesting of a field annotated ``Any``."""
    heartbeat_interval: float = 1.0
    silent_after: float = 5.0
    credit_report_after: float = 5.0
    stalled_heartbeats: int = 2
    """So many heartbeats without progress, although more was sent, and what the peer has not seen is sent again."""
    linger: float = 0.5
    """How long closing waits for the last frames to leave; everything that counts was acknowledged before."""


DEFAULT_LIMITS = Limits()
