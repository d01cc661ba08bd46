"""What others do wrong: every time counted, once told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from transport.errors import IncarnationRefused, LinkEvent, MalformedFrames, Unauthenticated

_COUNTED = (
    "decode_errors",
    "duplicates_dropped",
    "frames_for_another_incarnation",
    "frames_of_replaced_processes",
    "incarnations_refused",
    "unauthenticated",
)


class Faults:
    """Totals by figure, and who was told of already."""

    def __init__(self, on_event: Callable[[LinkEvent], None]) -> None:
        self.counts = Counter(dict.fromkeys(_COUNTED, 0))
        self._on_event = on_event
        self._told: set[str] = set()

    def malformed(self, peer: str, reason: str) -> None:
        """The peer sent what cannot be read, or is not expected here."""
        self._count_and_tell("decode_errors", peer, MalformedFrames(peer, reason))

    def unauthenticated(self, address: str) -> None:
        """A client without the cluster's key was turned away."""
        self._count_and_tell("unauthenticated", address, Unauthenticated(address))

    def refused(self, peer: str, claimed: int, told: int | None) -> None:
        """A process claimed a higher incarnation than this node was told the peer has, or before it was told of any."""
        if told is None:  # which may still come
            self.counts["incarnations_refused"] += 1
            return
        self._count_and_tell("incarnations_refused", f"{peer}#", IncarnationRefused(peer, claimed, told))

    def _count_and_tell(self, figure: str, whom: str, event: LinkEvent) -> None:
        self.counts[figure] += 1
        if whom not in self._told:
            self._told.add(whom)
            self._on_event(event)
