"""The receiving side: deliveries, their queue, the state of each sender, and the handlers that run."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias

import trio

from transport.codec import encode
from transport.errors import CallRefused
from transport.frames import Envelope, HeartbeatBack, Progress, Refused, ReplyFrame
from transport.limits import Limits
from transport.link import PushReceiver
from transport.plans import Buffer

DeliveryKind: TypeAlias = Literal["push", "call", "announce"]


class Inbound:
    """One process that is connected to this node's inbox: its streams, calls and announcements."""

    def __init__(
        self,
        identity: bytes,
        peer: str,
        incarnation: int,
        memory: int,
        on_change: Callable[[Inbound], None],
    ) -> None:
        """``memory``: no other `Inbound` of this node has the same, before or later."""
        self.identity = identity
        self.peer = peer
        self.incarnation = incarnation
        self.streams: dict[str, PushReceiver] = {}
        self.calls: dict[int, Delivery] = {}
        self.last_request = 0
        self.gone = False
        """Whether the process has left, or was replaced."""
        self._memory = memory
        self._announced: dict[tuple[str, str], int] = {}
        """The newest version of each (link, type) that arrived."""
        self._handled: dict[tuple[str, str], int] = {}
        self._on_change = on_change
        self._changed: dict[str, PushReceiver] = {}
        self._new_announced: dict[tuple[str, str], int] = {}

    def stream(self, link: str) -> PushReceiver:
        """The stream of a link."""
        stream = self.streams.get(link)
        if stream is None:
            stream = self.streams[link] = PushReceiver(link)
        return stream

    def changed(self, stream: PushReceiver) -> None:
        """The stream changed: the next Progress includes it."""
        self._changed[stream.link] = stream
        self._on_change(self)

    def announce(self, link: str, kind: str, version: int) -> bool:
        """Whether this version is newer than the last. The sender repeats it until it hears that it was handled."""
        if version <= self._handled.get((link, kind), 0):
            self.announcement_handled(link, kind, version)
        if version <= self._announced.get((link, kind), 0):
            return False
        self._announced[link, kind] = version
        return True

    def announcement_handled(self, link: str, kind: str, version: int) -> None:
        """Tell the sender that this version needs no repetition, unless it was forgotten meanwhile."""
        if version > self._announced.get((link, kind), 0):
            return
        self._handled[link, kind] = self._new_announced[link, kind] = max(version, self._handled.get((link, kind), 0))
        self._on_change(self)

    def forget_announcements(self, memory: int) -> None:
        """The peer counts as lost, and so does what it announced. The next heartbeat asks for all of it again."""
        self._memory = memory
        for versions in (self._announced, self._handled, self._new_announced):
            versions.clear()

    def progress(self, incarnation: int) -> Progress:
        """The changes since the last call, for the sender."""
        streams = [stream.progress() for stream in self._changed.values()]
        announced = [(link, kind, version) for (link, kind), version in self._new_announced.items()]
        self._changed.clear()
        self._new_announced.clear()
        return Progress(incarnation, streams, announced)

    def heartbeat(self, incarnation: int, *, draining: bool) -> HeartbeatBack:
        """The whole state of all streams."""
        return HeartbeatBack(incarnation, draining, self._memory, [stream.state for stream in self.streams.values()])


@dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """A message on its way to the handler: ``message``, and its ``sender`` (a node), ``link`` and ``kind``.

    The node uses the other fields. ``number`` counts a push in its stream, or a call at its caller.
    """

    message: Any
    kind: DeliveryKind
    link: str
    inbound: Inbound
    number: int
    stream: PushReceiver | None = None
    deadline: float = 0.0
    deferred: bool = False
    withdrawn: bool = False
    scope: trio.CancelScope | None = None
    _released: bool = False

    @property
    def sender(self) -> str:
        """The name of the node that sent the message."""
        return self.inbound.peer

    def taken(self) -> None:
        """The delivery leaves the queue: there is room for another."""
        if self.stream is not None:
            self.stream.take()
            self.inbound.changed(self.stream)

    def defer(self) -> Callable[[], None]:
        """Acknowledge the push when the returned function is called, not when the handler returns.

        The function may be called anywhere in the trio thread, at any time, more than once. Raises RuntimeError for
        calls and announcements, which are not acknowledged.
        """
        if self.kind != "push":
            raise RuntimeError(f"only a push can be deferred, this is a {self.kind}")
        self.deferred = True
        return self.release

    def release(self) -> None:
        """Acknowledge the push or announcement, once."""
        if self._released:
            return
        self._released = True
        if self.stream is not None:
            self.stream.acknowledge(self.number)
            self.inbound.changed(self.stream)
        elif self.kind == "announce":
            self.inbound.announcement_handled(self.link, type(self.message).__name__, self.number)

    def withdraw(self) -> None:
        """Skip the call or cancel its handler, since the caller no longer waits."""
        self.withdrawn = True
        if self.scope is not None:
            self.scope.cancel()

    def __repr__(self) -> str:
        return f"<Delivery {self.kind} {type(self.message).__name__} from {self.sender} over {self.link}>"


CURRENT: ContextVar[Delivery] = ContextVar("transport_current_delivery")


def current_delivery() -> Delivery:
    """The delivery that the running handler was started for. Raises LookupError outside of handlers."""
    return CURRENT.get()


_PURGE_FROM = 1024


class Queue:
    """Deliveries in order of arrival. A newer announcement replaces a waiting one of the same (sender, link, type).

    Withdrawn calls are taken out when they may be half of the queue, so that who calls and withdraws fills no memory.
    """

    def __init__(self) -> None:
        self._items: deque[Delivery] = deque()
        self._purge_at = _PURGE_FROM
        self._announcements: dict[tuple[str, str, type], Delivery] = {}
        self._empty = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, delivery: Delivery) -> None:
        """Append a delivery, or replace the waiting announcement."""
        if delivery.kind == "announce":
            key = (delivery.sender, delivery.link, type(delivery.message))
            waiting = self._announcements.get(key)
            if waiting is not None:
                waiting.message, waiting.inbound, waiting.number = delivery.message, delivery.inbound, delivery.number
                waiting.withdrawn = False
                return
            self._announcements[key] = delivery
        self._items.append(delivery)
        if len(self._items) >= self._purge_at:
            self._items = deque(each for each in self._items if each.kind != "call" or not each.withdrawn)
            self._purge_at = 2 * len(self._items) + _PURGE_FROM
        if self._empty:
            self._empty.unpark()

    def pop(self) -> Delivery | None:
        """The oldest delivery that was not withdrawn, or None."""
        while self._items:
            delivery = self._items.popleft()
            if delivery.kind == "announce":
                del self._announcements[delivery.sender, delivery.link, type(delivery.message)]
            if not delivery.withdrawn:
                return delivery
        return None

    def forget_announcements(self, sender: str) -> None:
        """Skip the waiting announcements of a sender that is gone. If it returns, it repeats them."""
        for (name, _, _), delivery in self._announcements.items():
            if name == sender:
                delivery.withdrawn = True

    async def wait(self) -> None:
        """Wait until there may be something to pop."""
        if not self._items:
            await self._empty.park()


Handler: TypeAlias = Callable[[Delivery], Awaitable[object]]

# A handler that never waits would prevent the tasks that read the socket and return credit from running.
_HANDLED_BETWEEN_CHECKPOINTS = 64


class Dispatcher:
    """Runs the handler for each delivery. ``send_back`` sends answers."""

    def __init__(self, send_back: Callable[[Inbound, Envelope, Sequence[Buffer]], None], limits: Limits) -> None:
        self._limits = limits
        self.handled = 0
        self.handling = 0
        self._send_back = send_back
        self._queue = Queue()
        self._announcements = Queue()
        self._handler: Handler | None = None
        self._concurrency = 1
        self._nursery: trio.Nursery | None = None
        self._idle = trio.lowlevel.ParkingLot()

    @property
    def queued(self) -> int:
        """Deliveries whose handler has not started."""
        return len(self._queue) + len(self._announcements)

    def put(self, delivery: Delivery) -> None:
        """Queue a delivery, or start its handler at once when fewer than ``concurrency`` handlers run."""
        if self._concurrency == 1:
            self._queue.put(delivery)
        elif delivery.kind == "announce":
            self._announcements.put(delivery)
        else:
            self._queue.put(delivery)
            self._start_handlers()

    def forget_announcements(self, sender: str) -> None:
        """Skip the waiting announcements of a sender that is gone."""
        self._queue.forget_announcements(sender)
        self._announcements.forget_announcements(sender)

    async def idle(self) -> None:
        """Wait until no handler runs and nothing is queued."""
        await trio.lowlevel.checkpoint()
        while self.handling or self.queued:
            await self._idle.park()

    async def run(self, handler: Handler, concurrency: int) -> None:
        """Handle until cancelled.

        With concurrency 1 one task handles all deliveries in order, which costs less than a task for each. With more,
        announcements have their own task, so that they never wait for busy handlers.
        """
        self._handler, self._concurrency = handler, concurrency
        if concurrency == 1:
            await self._work(self._queue)
            return
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            early, self._queue = self._queue, Queue()
            while (delivery := early.pop()) is not None:  # arrived before this task ran
                self.put(delivery)
            try:
                await self._work(self._announcements)
            finally:
                self._nursery = None  # what still arrives while the node stops starts no handler

    async def _work(self, queue: Queue) -> None:
        handled, since = 0, perf_counter()
        while True:
            delivery = queue.pop()
            if delivery is None:
                await queue.wait()
            else:
                self._take(delivery)
                await self._handle(delivery)
                handled += 1
                if handled < _HANDLED_BETWEEN_CHECKPOINTS and perf_counter() - since < self._limits.handling:
                    continue
                await trio.lowlevel.checkpoint()
            handled, since = 0, perf_counter()

    def _start_handlers(self) -> None:
        while self.handling < self._concurrency and self._nursery is not None:
            delivery = self._queue.pop()
            if delivery is None:
                break
            self._take(delivery)
            self._nursery.start_soon(self._handle_beside_others, delivery)

    async def _handle_beside_others(self, delivery: Delivery) -> None:
        await self._handle(delivery)
        self._start_handlers()

    def _take(self, delivery: Delivery) -> None:
        if delivery.kind != "announce":
            self.handling += 1
        delivery.taken()

    async def _handle(self, delivery: Delivery) -> None:
        assert self._handler is not None
        token = CURRENT.set(delivery)
        try:
            if delivery.kind == "call":
                await self._answer(delivery, self._handler)
            else:
                await self._handler(delivery)
        finally:
            CURRENT.reset(token)
        self.handled += 1
        if delivery.kind != "announce":
            self.handling -= 1
        if not delivery.deferred:
            delivery.release()
        if self._idle and not self.handling:
            self._idle.unpark_all()

    async def _answer(self, delivery: Delivery, handler: Handler) -> None:
        inbound = delivery.inbound
        answer: Envelope | None = None
        frames: Sequence[Buffer] = ()
        if delivery.withdrawn or trio.current_time() >= delivery.deadline:  # the caller no longer waits
            inbound.calls.pop(delivery.number, None)
            return
        with trio.CancelScope(deadline=delivery.deadline) as delivery.scope:
            try:
                reply = await handler(delivery)
            except CallRefused as refused:
                answer = Refused(delivery.number, refused.reason)
            else:
                answer, frames = ReplyFrame(delivery.number), encode(reply, self._limits)
        inbound.calls.pop(delivery.number, None)
        if answer is not None:
            self._send_back(inbound, answer, frames)
