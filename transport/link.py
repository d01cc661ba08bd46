"""The state machines of the links, without input or output: events go in, what to send comes out.

All that changes the state of a stream, a call router or an announcement stands in this file. A stream is what one push
link sends to one receiver's process. Its messages are numbered from 1; when the receiver's process is replaced, what
was not acknowledged is numbered anew, so the successor sees a stream without holes, in the order of sending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from transport.frames import StreamProgress, StreamState
from transport.schema import Buffer

T = TypeVar("T")


class SequenceSet:
    """A set of sequence numbers from 1 that fills up from below: the contiguous part is one number."""

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
    """A message that was sent, or waits to be, and is not acknowledged."""

    frames: Sequence[Buffer]
    on_ack: Callable[[], None] | None


class PushSender:
    """The sending end of a stream.

    ``window`` bounds the messages accepted but not yet taken off the receiver's queue, and so those in flight.
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

    @property
    def room(self) -> int:
        """How many messages may be offered now."""
        return self._window - (self._accepted - self._taken)

    @property
    def unacknowledged(self) -> int:
        """Messages offered and not yet acknowledged."""
        return len(self._unsettled)

    @property
    def settled_through(self) -> int:
        """Every number up to this one is acknowledged or rejected, and known to be."""
        return next(iter(self._unsettled), self._accepted + 1) - 1

    def offer(self, message: Unsettled) -> None:
        """Accept a message; the caller has seen to it that there is room."""
        assert self.room > 0
        self._accepted += 1
        self._unsettled[self._accepted] = message

    def to_transmit(self) -> Iterator[tuple[int, Sequence[Buffer]]]:
        """What is to go out now, in order; each is counted as transmitted when it is yielded."""
        while self._transmitted < min(self._accepted, self._taken + self._window):
            self._transmitted += 1
            message = self._unsettled.get(self._transmitted)
            if message is not None:
                yield self._transmitted, message.frames

    def progressed(self, progress: StreamProgress) -> tuple[list[Unsettled], list[str]]:
        """Credit and acknowledgements came back: what is now acknowledged, and why others were rejected."""
        self._taken = max(self._taken, min(progress.taken, self._transmitted))
        start, end = self.settled_through + 1, self._transmitted + 1
        ranges = (range(max(first, start), min(last + 1, end)) for first, last in progress.acknowledged)
        return self._settle(chain.from_iterable(ranges), progress.rejected)

    def heard(self, state: StreamState) -> tuple[list[Unsettled], list[str]]:
        """A heartbeat came back with the whole state. Decides as well whether frames were lost: see to_transmit."""
        self._taken = max(self._taken, min(state.taken, self._transmitted))
        if state.received > self._received:
            self._received = state.received
            self._stalled = 0
            self._patience = self._stalled_heartbeats
        elif self._received < self._transmitted_at_heartbeat:
            self._stalled += 1
            if self._stalled >= self._patience:
                self._transmitted = self._received
                self._stalled = 0
                # a message longer than the interval is no loss: wait twice as long before the next repetition
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
        """The receiver's process is a new one: number what is not acknowledged anew, and transmit it again."""
        self._unsettled = dict(enumerate(self._unsettled.values(), start=1))
        self._accepted = len(self._unsettled)
        self._transmitted = self._taken = self._received = self._transmitted_at_heartbeat = self._stalled = 0
        self._patience = self._stalled_heartbeats


class PushReceiver:
    """The receiving end of a stream: takes each number once and in order."""

    def __init__(self, link: str) -> None:
        self.link = link
        self._received = 0
        self._taken = 0
        self._acknowledged = SequenceSet()
        self._rejected: dict[int, str] = {}
        self._new_acknowledged: list[tuple[int, int]] = []
        self._new_rejected: list[tuple[int, str]] = []

    def accept(self, sequence: int) -> bool:
        """Whether this is the next message; duplicates, and what follows a gap, are dropped (it is sent again)."""
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
        """The message cannot be decoded: it is not to be sent again."""
        self._rejected[sequence] = reason
        self._new_rejected.append((sequence, reason))
        self._acknowledged.add(sequence)

    def settled(self, through: int) -> None:
        """The sender knows the fate of everything up to here."""
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
    """Which replica a call goes to: the one its key is pinned to, else the one with the fewest outstanding."""

    def __init__(self, targets: Sequence[str], limit: int) -> None:
        self._outstanding = dict.fromkeys(sorted(targets), 0)
        self._limit = limit
        self._pins: dict[str, str] = {}

    @property
    def outstanding(self) -> int:
        """Calls begun and not ended, over all replicas."""
        return sum(self._outstanding.values())

    def begin(self, key: str | None, silent: Collection[str]) -> str | None:
        """Choose a replica and count the call against it; None when there is no room. Ties go by name.

        Replicas that are silent are chosen only when all are.
        """
        pinned = None if key is None else self._pins.get(key)
        if pinned is not None:
            candidates = [pinned]
        else:
            candidates = [name for name in self._outstanding if name not in silent] or list(self._outstanding)
        target = min(candidates, key=self._outstanding.__getitem__)
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
        """Calls with this key may go anywhere again. An unknown key is ignored."""
        self._pins.pop(key, None)

    def lost(self, target: str) -> None:
        """The replica is replaced or silent: what was pinned to it no longer is."""
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

    @property
    def pending(self) -> int:
        """Values whose newest version is not acknowledged."""
        return sum(value.acknowledged < value.version for value in self._values.values())

    def set(self, link: str, kind: str, frames: Sequence[Buffer]) -> None:
        """A newer value."""
        value = self._values.get((link, kind))
        if value is None:
            self._values[link, kind] = _Announced(1, frames)
        else:
            value.version += 1
            value.frames = frames

    def to_transmit(self) -> Iterator[tuple[str, str, int, Sequence[Buffer]]]:
        """What is to go out now: values newer than what was transmitted, as (link, type, version, frames)."""
        for (link, kind), value in self._values.items():
            if value.transmitted < value.version:
                value.transmitted = value.version
                yield link, kind, value.version, value.frames

    def acknowledged(self, link: str, kind: str, version: int) -> None:
        """The peer has this version."""
        value = self._values.get((link, kind))
        if value is not None:
            value.acknowledged = max(value.acknowledged, min(version, value.version))

    def repeat(self) -> None:
        """A heartbeat is due: what is not acknowledged goes out again."""
        for value in self._values.values():
            value.transmitted = min(value.transmitted, value.acknowledged)

    def replaced(self) -> None:
        """The peer's process is a new one: it knows nothing."""
        for value in self._values.values():
            value.acknowledged = value.transmitted = 0


class Liveness:
    """Who was heard of, and when: peers that are silent for too long are named once.

    Arrivals only set a flag, and the tick reads the clock: hearing costs nothing on the way of a message.
    """

    def __init__(self, silent_after: float) -> None:
        self._silent_after = silent_after
        self._heard: set[str] = set()
        self._heard_at: dict[str, float] = {}
        self._ticked_at: float | None = None
        self.silent: set[str] = set()
        self.left: set[str] = set()
        """Peers that said goodbye and were not heard since."""

    def expect(self, peer: str, now: float) -> None:
        """Watch this peer from now on."""
        self._heard_at.setdefault(peer, now)

    def forget(self, peer: str) -> None:
        """The peer left on purpose."""
        self._heard_at.pop(peer, None)
        self._heard.discard(peer)
        self.silent.discard(peer)

    def heard(self, peer: str) -> None:
        """Something arrived from the peer."""
        self._heard.add(peer)
        if self.left:
            self.left.discard(peer)

    def back(self, peer: str, now: float) -> float | None:
        """A heartbeat arrived: for how long the peer was silent, when it was reported as silent."""
        if peer not in self.silent:
            return None
        self.silent.remove(peer)
        seconds = now - self._heard_at[peer]
        self._heard_at[peer] = now
        return seconds

    def tick(self, now: float, interval: float) -> list[tuple[str, float]]:
        """Peers that are found silent now, with the seconds since they were heard."""
        # When this process itself stood still, so did its reading: the stall is not the peers' silence.
        stall = 0.0 if self._ticked_at is None else max(0.0, now - self._ticked_at - interval)
        self._ticked_at = now
        found = []
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = now if peer in self._heard and peer not in self.silent else heard_at + stall
            if peer not in self.silent and now - self._heard_at[peer] > self._silent_after:
                self.silent.add(peer)
                found.append((peer, now - self._heard_at[peer]))
        self._heard.clear()
        return found


class WaitingLine(Generic[T]):
    """A first-in first-out queue whose items may leave from the middle when they can be served."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(self, item: T) -> None:
        """Queue up."""
        self._items.append(item)

    def discard(self, item: T) -> None:
        """Give up; an item that is not there is ignored."""
        if item in self._items:
            self._items.remove(item)

    def serve(self, attempt: Callable[[T], bool]) -> None:
        """Offer each item its turn, oldest first; those for which ``attempt`` returns True leave."""
        self._items = deque(item for item in self._items if not attempt(item))
