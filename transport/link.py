"""The state machines of the links, without input or output: methods take events and return what to send.

Only this file changes the state of a stream, a call router or an announcement. A stream carries the messages of one
push link to one process. Messages are numbered from 1. When the receiver's process is replaced, messages without
acknowledgement get new numbers, so that the successor receives a stream without gaps, in the order of sending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from transport.frames import StreamProgress, StreamState
from transport.plans import Buffer


class SequenceSet:
    """A set of sequence numbers from 1. One number represents the contiguous part from 1 on."""

    __slots__ = ("beyond", "through")

    def __init__(self) -> None:
        self.through = 0
        self.beyond: set[int] = set()

    def add(self, sequence: int) -> bool:
        """Add one; False when it was there."""
        if sequence == self.through + 1:
            self.through = sequence
            while self.beyond and self.through + 1 in self.beyond:
                self.through += 1
                self.beyond.remove(self.through)
            return True
        if sequence <= self.through or sequence in self.beyond:
            return False
        self.beyond.add(sequence)
        return True


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A message, sent or waiting, without acknowledgement."""

    frames: Sequence[Buffer]
    on_ack: Callable[[], None] | None


class PushSender:
    """The sending end of a stream.

    ``window`` bounds the messages that are accepted and not yet taken off the receiver's queue.
    """

    def __init__(self, window: int, stalled_heartbeats: int) -> None:
        self._window = window
        self._patience = self._stalled_heartbeats = stalled_heartbeats
        self._unsettled: dict[int, Unsettled] = {}  # in order of sequence numbers
        self._accepted = 0
        self._transmitted = 0
        self._taken = 0
        self._received = 0
        self._transmitted_at_heartbeat = 0
        self._stalled = 0
        self._withdrawn: set[int] = set()

    @property
    def room(self) -> int:
        """How many messages may be offered now."""
        return self._window - (self._accepted - self._taken)

    @property
    def unacknowledged(self) -> int:
        """The number of messages offered and not acknowledged."""
        return len(self._unsettled)

    @property
    def settled_through(self) -> int:
        """Every message up to this number is acknowledged or rejected."""
        return next(iter(self._unsettled), self._accepted + 1) - 1

    def offer(self, message: Unsettled) -> None:
        """Accept a message; the caller has checked that there is room."""
        assert self.room > 0
        self._accepted += 1
        self._unsettled[self._accepted] = message

    @property
    def transmits(self) -> bool:
        """Whether `to_transmit` has something to send."""
        return self._transmitted < min(self._accepted, self._taken + self._window)

    def to_transmit(self) -> Iterator[tuple[int, Sequence[Buffer] | None]]:
        """The messages to send now, in order. A message counts as transmitted when it is yielded.

        None stands for a message that was withdrawn: only its number is sent.
        """
        while self.transmits:
            self._transmitted += 1
            message = self._unsettled.get(self._transmitted)
            if message is not None:
                yield self._transmitted, message.frames
            elif self._transmitted in self._withdrawn:
                yield self._transmitted, None

    def withdraw(self) -> int:
        """Forget all messages without acknowledgement: their ``on_ack`` is never called. Returns their number.

        A message that the receiver has may still be handled. A message that the receiver has not seen is never sent
        again; `to_transmit` yields its number in its place.
        """
        withdrawn = len(self._unsettled)
        self._withdrawn.update(number for number in self._unsettled if number > self._received)
        self._unsettled.clear()
        return withdrawn

    def progressed(self, progress: StreamProgress) -> tuple[list[Unsettled], list[str]]:
        """Take credit and acknowledgements; return the messages now acknowledged, and why others were rejected."""
        self._taken = max(self._taken, min(progress.taken, self._transmitted))
        start, end = self.settled_through + 1, self._transmitted + 1
        ranges = (range(max(first, start), min(last + 1, end)) for first, last in progress.acknowledged)
        return self._settle(chain.from_iterable(ranges), progress.rejected)

    def heard(self, state: StreamState) -> tuple[list[Unsettled], list[str]]:
        """Take the complete state from a heartbeat. If frames were lost, `to_transmit` yields their messages again."""
        self._taken = max(self._taken, min(state.taken, self._transmitted))
        if state.received > self._received:
            self._received = state.received
            self._withdrawn = {number for number in self._withdrawn if number > state.received}
            self._stalled = 0
            self._patience = self._stalled_heartbeats
        elif self._received < self._transmitted_at_heartbeat:
            self._stalled += 1
            if self._stalled >= self._patience:
                self._transmitted = self._received
                self._stalled = 0
                # a large message may take longer than the interval: wait twice as long before the next repetition
                self._patience = min(2 * self._patience, 16 * self._stalled_heartbeats)
        self._transmitted_at_heartbeat = self._transmitted
        settled = [number for number in self._unsettled if number <= state.acknowledged]
        return self._settle([*settled, *state.beyond], state.rejected)

    def _settle(
        self, acknowledged: Iterable[int], rejected: Sequence[tuple[int, str]]
    ) -> tuple[list[Unsettled], list[str]]:
        pop = self._unsettled.pop
        reasons = [reason for number, reason in rejected if pop(number, None) is not None]
        settled = [message for number in acknowledged if (message := pop(number, None)) is not None]
        return settled, reasons

    def replaced(self) -> None:
        """The receiver has a new process: renumber the messages without acknowledgement, and transmit them again."""
        self._unsettled = dict(enumerate(self._unsettled.values(), start=1))
        self._withdrawn.clear()
        self._accepted = len(self._unsettled)
        self._transmitted = self._taken = self._received = self._transmitted_at_heartbeat = self._stalled = 0
        self._patience = self._stalled_heartbeats


class PushReceiver:
    """The receiving end of a stream: takes each number once and in order."""

    def __init__(self, link: str) -> None:
        self.link = link
        self.settled_through = 0
        """The sender says that it has settled all messages up to this number."""
        self._received = 0
        self._taken = 0
        self._acknowledged = SequenceSet()
        self._rejected: dict[int, str] = {}
        self._new_acknowledged: list[tuple[int, int]] = []
        self._new_rejected: list[tuple[int, str]] = []

    def accept(self, sequence: int) -> bool:
        """Whether this is the next message.

        Duplicates and messages after a gap are dropped; the latter are sent again.
        """
        if sequence != self._received + 1:
            return False
        self._received = sequence
        return True

    def take(self) -> None:
        """The oldest waiting message left the queue."""
        self._taken += 1

    def acknowledge(self, sequence: int) -> None:
        """The message is handled, or durable."""
        if self._acknowledged.add(sequence):
            first = sequence
            if self._new_acknowledged and self._new_acknowledged[-1][1] == sequence - 1:
                first, _ = self._new_acknowledged.pop()
            self._new_acknowledged.append((first, sequence))

    def reject(self, sequence: int, reason: str) -> None:
        """The message cannot be decoded and must not be sent again."""
        self._rejected[sequence] = reason
        self._new_rejected.append((sequence, reason))
        self._acknowledged.add(sequence)

    def settled(self, through: int) -> None:
        """The sender has settled all messages up to ``through``."""
        self.settled_through = max(self.settled_through, through)
        for sequence in [each for each in self._rejected if each <= through]:
            del self._rejected[sequence]

    def progress(self) -> StreamProgress:
        """What changed since the last call."""
        progress = StreamProgress(self.link, self._taken, self._new_acknowledged, self._new_rejected)
        self._new_acknowledged, self._new_rejected = [], []
        return progress

    @property
    def state(self) -> StreamState:
        """The whole state, for a heartbeat."""
        done = self._acknowledged
        return StreamState(
            self.link, self._received, self._taken, done.through, sorted(done.beyond), list(self._rejected.items())
        )


class CallRouter:
    """Chooses the replica of a call: the one its key is pinned to, or the one with the fewest calls outstanding."""

    def __init__(self, targets: Sequence[str], limit: int) -> None:
        self._outstanding = dict.fromkeys(sorted(targets), 0)
        self._limit = limit
        self._pins: dict[str, str] = {}

    def pinned(self, key: str | None) -> str | None:
        """The replica to which a key is pinned."""
        return None if key is None else self._pins.get(key)

    def pin(self, target: str) -> str:
        """A key that is pinned to a replica."""
        if target not in self._outstanding:
            raise ValueError(f"{target} is none of {', '.join(self._outstanding)}")
        key = f"to {target}"
        self._pins[key] = target
        return key

    def begin(self, key: str | None, unavailable: Collection[str]) -> str | None:
        """Choose a replica and count the call; None when there is no room, or nobody is available. Ties go by name."""
        pinned = self.pinned(key)
        candidates = self._outstanding if pinned is None else (pinned,)
        available = [name for name in candidates if name not in unavailable]
        if not available:
            return None
        target = min(available, key=self._outstanding.__getitem__)
        if self._outstanding[target] >= self._limit:
            return None
        self._outstanding[target] += 1
        if key is not None:
            self._pins[key] = target
        return target

    def end(self, target: str) -> None:
        """A call is answered, failed, timed out or cancelled."""
        self._outstanding[target] -= 1

    def forget(self, key: str) -> None:
        """Unpin a key. An unknown key is ignored."""
        self._pins.pop(key, None)

    def lost(self, target: str) -> None:
        """Unpin the keys of a replica that was replaced, is silent or is about to leave."""
        self._pins = {key: name for key, name in self._pins.items() if name != target}


@dataclass(slots=True)
class _Announced:
    version: int
    frames: Sequence[Buffer]
    acknowledged: int = 0
    transmitted: int = 0


class AnnounceSender:
    """The newest value of each (link, message type) for one peer."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], _Announced] = {}

    def pending(self, link: str | None = None) -> int:
        """The number of values, of one link or all, whose newest version is not acknowledged."""
        return sum(
            value.acknowledged < value.version for (name, _), value in self._values.items() if link in {None, name}
        )

    def set(self, link: str, kind: str, frames: Sequence[Buffer]) -> None:
        """A newer value."""
        value = self._values.get((link, kind))
        if value is None:
            self._values[link, kind] = _Announced(1, frames)
        else:
            value.version += 1
            value.frames = frames

    def to_transmit(self) -> Iterator[tuple[str, str, int, Sequence[Buffer]]]:
        """The values to send now, as (link, type, version, frames): those newer than the last transmission."""
        for (link, kind), value in self._values.items():
            if value.transmitted < value.version:
                value.transmitted = value.version
                yield link, kind, value.version, value.frames

    def acknowledged(self, link: str, kind: str, version: int) -> None:
        """The peer has handled this version."""
        value = self._values.get((link, kind))
        if value is not None:
            value.acknowledged = max(value.acknowledged, min(version, value.version))

    def repeat(self) -> None:
        """A heartbeat is due: transmit values without acknowledgement again."""
        for value in self._values.values():
            value.transmitted = min(value.transmitted, value.acknowledged)

    def forgotten(self) -> None:
        """The peer knows no value any more, as it counted this node as lost or has a new process: transmit all."""
        for value in self._values.values():
            value.acknowledged = value.transmitted = 0


class Liveness:
    """Tracks when frames of each peer last arrived. A silent peer is reported once, and once more when it is lost.

    ::

        heard --(silent_after)--> silent --(lost_after)--> silent and gone --(heard again: back)--> heard
          |                                ^--(doubted, or doubted and never heard)
          |-------(says goodbye: leaves)-------------------^
          `-------(its process has ended; next tick)-------^

    An arrival only sets a flag, and the tick reads the clock, so that an arrival costs almost nothing.
    """

    def __init__(self, silent_after: float, lost_after: float = math.inf) -> None:
        self._silent_after = silent_after
        self._lost_after = lost_after
        self._heard: set[str] = set()
        self._met: set[str] = set()
        """Peers that were heard before the last tick."""
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
        self._met.discard(peer)
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
        """Exactly these peers are lost as soon as they are silent, or at once if they were never heard.

        Returns those that are lost by that, each with the seconds since its last frame.
        """
        self._doubted = frozenset(peers)
        found = [peer for peer in self._heard_at if peer not in self.gone and self._is_lost_by_doubt(peer)]
        self.silent.update(found)
        self.gone.update(found)
        return [(peer, now - self._heard_at[peer]) for peer in sorted(found)]

    def _is_lost_by_doubt(self, peer: str) -> bool:
        known = peer in self._met or peer in self._heard
        return peer in self._doubted and (peer in self.silent or not known)

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
            silent = peer in self.silent and seconds > self._lost_after
            if peer not in self.gone and (ended or silent or self._is_lost_by_doubt(peer)):
                self.silent.add(peer)
                self.gone.add(peer)
                newly_lost.append((peer, seconds))
        self._met |= self._heard
        self._heard.clear()
        self._ended.clear()
        return newly_silent, newly_lost
