"""Which peers are heard, silent, lost or have left. Pure: it gets the time, and returns what is new."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Liveness:
    """Tracks when frames of each peer last arrived. A silent peer is reported once, and once more when it is lost.

    ::

        heard --(silent_after)--> silent --(lost_after)--> silent and gone --(heard again: back)--> heard
          |                                ^--(doubted)
          |-------(says goodbye: leaves)-------------------^
          `-------(its process has ended; next tick)-------^

    An arrival only sets a flag, and the tick reads the clock, so that an arrival costs almost nothing.
    """

    def __init__(self, silent_after: float, lost_after: float = math.inf) -> None:
        self._silent_after = silent_after
        self._lost_after = lost_after
        self._heard: set[str] = set()
        self._heard_at: dict[str, float] = {}
        self._ticked_at: float | None = None
        self._left: dict[str, int] = {}
        self._ended: set[str] = set()
        self._doubted: frozenset[str] = frozenset()
        self.silent: set[str] = set()
        self.gone: set[str] = set()
        """Peers that are lost, or said goodbye, or whose process has ended."""

    def expect(self, peer: str, now: float) -> None:
        """Watch this peer from now on."""
        self._heard_at.setdefault(peer, now)

    def forget(self, peer: str) -> None:
        """Watch the peer no longer."""
        self._heard_at.pop(peer, None)
        self._heard.discard(peer)
        self._ended.discard(peer)
        self.silent.discard(peer)
        self.gone.discard(peer)

    def heard(self, peer: str) -> None:
        """Something arrived from the peer."""
        self._heard.add(peer)

    def leaves(self, peer: str, incarnation: int, now: float) -> bool:
        """The process with this incarnation said goodbye. Returns False if it did before."""
        if self.has_left(peer, incarnation):
            return False
        self._left[peer] = incarnation
        self._heard_at[peer] = now
        self.silent.add(peer)
        self.gone.add(peer)
        return True

    def ended(self, peer: str, incarnation: int) -> None:
        """The peer's process with this incarnation is known to have ended. The next tick counts the peer as lost.

        Until then, frames that were on their way arrive; a successor that is heard keeps the peer from being lost.
        """
        if peer in self._heard_at and not self.has_left(peer, incarnation):
            self._left[peer] = incarnation
            self._heard.discard(peer)
            self._ended.add(peer)

    def doubt(self, peers: Iterable[str], now: float) -> list[tuple[str, float]]:
        """Exactly these peers are lost as soon as they are silent: somebody else has missed their host, too.

        Returns those that are lost by that, each with the seconds since its last frame.
        """
        self._doubted = frozenset(peers)
        lost = [(peer, now - self._heard_at[peer]) for peer in sorted(self._doubted & self.silent - self.gone)]
        self.gone.update(peer for peer, _ in lost)
        return lost

    def has_left(self, peer: str, incarnation: int) -> bool:
        """Whether this process said goodbye, or has ended. What arrives of it afterwards was sent before."""
        return peer in self._left and incarnation <= self._left[peer]

    def back(self, peer: str, now: float) -> float:
        """A silent peer is heard again. Returns how long the peer was silent."""
        self.silent.remove(peer)
        self.gone.discard(peer)
        seconds = now - self._heard_at[peer]
        self._heard_at[peer] = now
        return seconds

    def tick(self, now: float, interval: float) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Newly silent peers, and newly lost ones, each with the seconds since its last frame."""
        # When this process itself was stalled, it read no frames: the stall does not count as the peers' silence.
        stall = 0.0 if self._ticked_at is None else max(0.0, now - self._ticked_at - interval)
        self._ticked_at = now
        newly_silent, newly_lost = [], []
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = now if peer in self._heard and peer not in self.silent else heard_at + stall
            seconds = now - self._heard_at[peer]
            if peer not in self.silent and peer not in self._ended and seconds > self._silent_after:
                self.silent.add(peer)
                newly_silent.append((peer, seconds))
            ended = peer in self._ended and peer not in self._heard
            silent = peer in self.silent and (peer in self._doubted or seconds > self._lost_after)
            if peer not in self.gone and (ended or silent):
                self.silent.add(peer)
                self.gone.add(peer)
                newly_lost.append((peer, seconds))
        self._heard.clear()
        self._ended.clear()
        return newly_silent, newly_lost
