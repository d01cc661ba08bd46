"""The sending ends that actors hold: push, call and announce links, and the line in which sends and calls wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

import trio

from transport.codec import Registry, encode
from transport.errors import CallTimeout, CreditWait, UnknownPeer
from transport.limits import Limits
from transport.link import CallRouter, PushSender, Unsettled
from transport.outbound import Outbound, PendingCall

T = TypeVar("T", bound=Hashable)

_COMPACTED_FROM = 64
"""A heap with more entries is built anew when most of them are of items that left."""


class WaitingLine(Generic[T]):
    """Items that wait for room at one place, or at any place (None), each of them first in, first out.

    Each method but `at` and `serve_all` costs at most the logarithm of the number of items, and `serve` that for each
    item that is served.
    """

    def __init__(self) -> None:
        self._items: dict[T, tuple[int, str | None]] = {}
        """The number of each item, which says how old it is, and its place."""
        self._heaps: dict[str | None, list[tuple[int, T]]] = {}
        """The items of each place by number. Entries of items that left, or changed their place, stay for a while."""
        self._newest = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(self, item: T, place: str | None) -> None:
        """Append an item."""
        self._newest += 1
        self._put(item, self._newest, place)

    def move(self, item: T, place: str | None) -> None:
        """From now on an item waits at another place. It keeps its age."""
        self._put(item, self._items[item][0], place)

    def discard(self, item: T) -> None:
        """Remove an item; an unknown item is ignored."""
        self._items.pop(item, None)

    def at(self, place: str | None) -> list[T]:
        """The items of a place, oldest first."""
        found = {item: number for number, item in self._heaps.get(place, ()) if self._waits(number, item, place)}
        return sorted(found, key=found.__getitem__)

    def serve(self, attempt: Callable[[T], bool], place: str | None) -> None:
        """There may be room at a place: items take it, oldest first, until ``attempt`` returns False for the next."""
        while self._serve_one(attempt, place):
            pass

    def serve_all(self, attempt: Callable[[T], bool]) -> None:
        """There may be room at any place."""
        for place in list(self._heaps):
            self.serve(attempt, place)

    def _serve_one(self, attempt: Callable[[T], bool], place: str | None) -> bool:
        heads = [head for each in dict.fromkeys((place, None)) if (head := self._head(each)) is not None]
        for _, item in sorted(heads, key=lambda head: head[0]):
            if attempt(item):
                self.discard(item)
                return True
        return False

    def _head(self, place: str | None) -> tuple[int, T] | None:
        heap = self._heaps.get(place)
        while heap:
            if self._waits(*heap[0], place):
                return heap[0]
            heappop(heap)
        self._heaps.pop(place, None)
        return None

    def _put(self, item: T, number: int, place: str | None) -> None:
        self._items[item] = number, place
        heap = self._heaps.setdefault(place, [])
        if len(heap) > max(_COMPACTED_FROM, 2 * len(self._items)):
            heap[:] = [entry for entry in heap if self._waits(*entry, place)]
            heapify(heap)
        heappush(heap, (number, item))

    def _waits(self, number: int, item: T, place: str | None) -> bool:
        return self._items.get(item) == (number, place)


# A send that finds room yields to the scheduler only every so often, so that a loop of sends lets other tasks run.
_SENDS_BETWEEN_CHECKPOINTS = 32


@dataclass(slots=True, eq=False)
class _WaitingSend:
    message: Unsettled
    to: str | None
    since: float = field(default_factory=trio.current_time)
    reported: bool = False
    sent: trio.Event = field(default_factory=trio.Event)


class PushLink:
    """One way, at least once; created by ``Node.push``. Messages to one target arrive in the order of sending."""

    def __init__(self, name: str, targets: Mapping[str, Outbound], window: int, limits: Limits) -> None:
        self.name = name
        self._limits = limits
        self.targets = dict(sorted(targets.items()))
        self._window = window
        self._senders = {peer: PushSender(window, limits.stalled_heartbeats) for peer in self.targets}
        self._waiting: WaitingLine[_WaitingSend] = WaitingLine()
        self._drained: trio.Event | None = None
        self._sends = 0
        for peer, outbound in self.targets.items():
            outbound.pushes[name] = (self._senders[peer], self)

    async def send(
        self,
        message: Any,
        *,
        to: str | None = None,
        on_ack: Callable[[], None] | None = None,
    ) -> None:
        """Wait for credit and send, by default to the target with the most credit (ties by name).

        Silent and leaving targets are used only when all are. Returns before the message has arrived: ``on_ack`` is
        called once the receiver has acknowledged it, unless the message is withdrawn. Do not change the message's
        arrays before. A new process of the target gets the message again. Raises EncodeError, and UnknownPeer when
        ``to`` is not a target of this link.
        """
        if to is not None and to not in self._senders:
            raise UnknownPeer(f"{to} is no target of link {self.name}")
        unsettled = Unsettled(encode(message, self._limits), on_ack)
        self._sends += 1
        if not self._waiting and self._sends % _SENDS_BETWEEN_CHECKPOINTS:
            await trio.lowlevel.checkpoint_if_cancelled()
            target = self._with_room(to)
            if target is not None:
                self._offer(target, unsettled)
                return
        waiting = _WaitingSend(unsettled, to)
        self._waiting.add(waiting, to)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._waiting.serve(self._serve, to)
            if waiting.sent.is_set():  # the message was sent, so the cancellation comes too late
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                await waiting.sent.wait()
        finally:
            self._waiting.discard(waiting)

    def withdraw(self, to: str) -> int:
        """Forget every message to this target that is not acknowledged, sent or waiting; returns how many.

        Their ``on_ack`` is never called, and sends that wait for credit return. The target may have got messages that
        were sent, and handle them. It gets no message that it has not got yet, also when it returns.
        """
        withdrawn = self._senders[to].withdraw()
        for waiting in self._waiting.at(to):
            self._waiting.discard(waiting)
            waiting.sent.set()
            withdrawn += 1
        self.moved(to)
        return withdrawn

    def unacknowledged(self, to: str | None = None) -> int:
        """The number of messages to one target, or to all, without acknowledgement."""
        if to is not None:
            return self._senders[to].unacknowledged
        return sum(sender.unacknowledged for sender in self._senders.values())

    async def drained(self) -> None:
        """Wait until everything sent is acknowledged."""
        await trio.lowlevel.checkpoint()
        while self.unacknowledged():
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    @property
    def waiting(self) -> int:
        """Sends that wait for credit."""
        return len(self._waiting)

    def moved(self, peer: str) -> None:
        """Credit or acknowledgements came back from a target."""
        if self._waiting:
            self._waiting.serve(self._serve, peer)
        if self._drained is not None and not self.unacknowledged():
            self._drained.set()
            self._drained = None

    def overdue(self, now: float, after: float) -> list[CreditWait]:
        """Waits for credit longer than ``after`` seconds; each is returned once."""
        waits: dict[str, CreditWait] = {}
        for waiting in self._waiting:
            if not waiting.reported and now - waiting.since >= after:
                waiting.reported = True
                peer = waiting.to or ", ".join(self._senders)
                waits.setdefault(peer, CreditWait(self.name, peer, now - waiting.since))
        return list(waits.values())

    def _with_room(self, to: str | None) -> str | None:
        if to is not None:
            return to if self._senders[to].room > 0 else None
        candidates = [peer for peer in self._senders if self.targets[peer].available] or list(self._senders)
        if not candidates:
            return None
        target = max(candidates, key=lambda peer: self._senders[peer].room)  # the first of equals: sorted by name
        return target if self._senders[target].room > 0 else None

    def _serve(self, waiting: _WaitingSend) -> bool:
        target = self._with_room(waiting.to)
        if target is None:
            return False
        self._offer(target, waiting.message)
        waiting.sent.set()
        return True

    def _offer(self, target: str, message: Unsettled) -> None:
        self._senders[target].offer(message)
        self.targets[target].send_pushes(self.name)


class CallLink:
    """Request and reply, with a deadline; created by ``Node.call``."""

    def __init__(
        self,
        name: str,
        targets: Mapping[str, Outbound],
        outstanding: int,
        timeout: float,
        replies: Registry,
        limits: Limits,
    ) -> None:
        self.name = name
        self._limits = limits
        self.replies = replies
        self.router = CallRouter(tuple(targets), outstanding)
        self.targets = targets
        self._timeout = timeout
        self._waiting: WaitingLine[PendingCall] = WaitingLine()
        """A call waits at the replica that its key is pinned to, or at any."""
        self._waiting_by_key: dict[str, dict[PendingCall, None]] = {}
        self._reachable = trio.lowlevel.ParkingLot()
        for outbound in targets.values():
            outbound.call_links.append(self)

    async def __call__(
        self, message: Any, *, timeout: float | None = None, key: str | None = None, to: str | None = None
    ) -> Any:
        """Call the replica with the fewest calls outstanding; return its reply. Calls wait for room in order.

        Replicas that are silent or about to leave are not called; a call waits while there is no other. All calls with
        the same ``key`` go to one replica, until ``forget(key)`` or until that replica is lost or about to leave.
        ``to``: the replica to call, until it is lost or about to leave; then it is any. ``timeout`` in seconds includes
        these waits. Raises EncodeError, CallTimeout, CallFailed, PeerLost.
        """
        seconds = self._timeout if timeout is None else timeout
        if to is not None:
            key = self.router.pin(to)
        call = PendingCall(self, encode(message, self._limits), key, trio.current_time() + seconds)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._wait(call)
        try:
            with trio.move_on_at(call.deadline):
                await call.done.wait()
        finally:
            if not call.done.is_set():
                self._abandon(call)
        if call.failure is not None:
            raise call.failure
        if not call.done.is_set():
            where = (
                f"{call.target.peer} did not answer"
                if call.target is not None
                else ("no replica had room" if self.reachable else "no replica was heard")
            )
            raise CallTimeout(f"{type(message).__name__} over {self.name}: {where} within {seconds:g} s")
        return call.reply

    def forget(self, key: str) -> None:
        """Unpin a key whose session has ended. An unknown key is ignored."""
        self.router.forget(key)
        for call in self._waiting_by_key.get(key, ()):
            self._waiting.move(call, None)
        self._waiting.serve(self._begin, None)

    @property
    def waiting(self) -> int:
        """Calls that wait for room."""
        return len(self._waiting)

    def ended(self, call: PendingCall) -> None:
        """A call has ended: there is room for the next."""
        if call.target is not None:
            self.router.end(call.target.peer)
            self._waiting.serve(self._begin, call.target.peer)

    @property
    def reachable(self) -> bool:
        """Whether a replica can be called, as far as is known."""
        return any(target.available for target in self.targets.values())

    async def until_reachable(self) -> None:
        """Wait until a replica can be called."""
        await trio.lowlevel.checkpoint()
        while not self.reachable:
            await self._reachable.park()

    def again(self, call: PendingCall) -> None:
        """A call whose replica was lost before it was sent waits for another one."""
        if call.target is not None:
            self.router.end(call.target.peer)
            call.target = None
        self._wait(call)

    def lost(self, peer: str) -> None:
        """Unpin the keys of a replica: it lost its sessions, or is about to. Calls that waited for it go anywhere.

        They do with the next event: the replica's calls may be about to end.
        """
        self.router.lost(peer)
        for call in self._waiting.at(peer):
            self._waiting.move(call, None)

    def available(self) -> None:
        """A replica can be called again, or calls that waited for one can go elsewhere."""
        self._reachable.unpark_all()
        self._waiting.serve_all(self._begin)

    def _wait(self, call: PendingCall) -> None:
        place = self.router.pinned(call.key)
        self._waiting.add(call, place)
        if call.key is not None:
            self._waiting_by_key.setdefault(call.key, {})[call] = None
        self._waiting.serve(self._begin, place)

    def _begin(self, call: PendingCall) -> bool:
        pinned = self.router.pinned(call.key)
        target = self.router.begin(call.key, [peer for peer, each in self.targets.items() if not each.available])
        if target is None:
            return False
        self._waits_no_longer(call)
        if call.key is not None and pinned is None:
            for other in self._waiting_by_key.get(call.key, ()):
                self._waiting.move(other, target)
        self.targets[target].begin(call)
        return True

    def _waits_no_longer(self, call: PendingCall) -> None:
        self._waiting.discard(call)
        if call.key is not None and (same := self._waiting_by_key.get(call.key)) is not None:
            same.pop(call, None)
            if not same:
                del self._waiting_by_key[call.key]

    def _abandon(self, call: PendingCall) -> None:
        self._waits_no_longer(call)
        if call.target is not None:
            call.target.abandon(call)
            self.ended(call)


class AnnounceLink:
    """The newest value wins, and sending never blocks; created by ``Node.announce``."""

    def __init__(self, name: str, targets: Mapping[str, Outbound], limits: Limits) -> None:
        self.name = name
        self._limits = limits
        self.targets = targets

    def set(self, message: Any, *, to: str | None = None) -> None:
        """Set the newest value of this message's type, for every target or for one. Raises EncodeError."""
        kind = type(message).__name__
        frames = encode(message, self._limits)
        for outbound in self.targets.values() if to is None else (self.targets[to],):
            outbound.announce(self.name, kind, frames)

    async def acknowledged(self, *, by: Collection[str] | None = None) -> None:
        """Wait until all targets, or those of ``by``, have handled the newest values.

        Targets that are silent, lost or have left are not waited for. A target that was never heard is waited for until
        it counts as silent (`Limits.silent_after`).
        """
        for peer, outbound in tuple(self.targets.items()):
            if by is None or peer in by:
                await outbound.announced(self.name)

    @property
    def unhandled(self) -> tuple[str, ...]:
        """The targets that have not handled the newest values."""
        return tuple(peer for peer, outbound in self.targets.items() if outbound.announcements.pending(self.name))
