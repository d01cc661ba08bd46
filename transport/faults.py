"""Faults of other processes: each one is counted, and the first of each peer is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from transport.errors import IncarnationRefused, KeyRefused, LinkEvent, MalformedFrames, Unauthenticated

_COUNTED = (
    "decode_errors",
    "duplicates_dropped",
    "frames_for_another_incarnation",
    "frames_of_processes_cut_off",
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
