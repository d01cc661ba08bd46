"""Pass messages from the queue to the handler, one after another or several at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Protocol, TypeAlias

import trio

from transport.codec import encode
from transport.errors import CallRefused
from transport.frames import Envelope, Refused, ReplyFrame
from transport.inbound import CURRENT, Delivery, Inbound, Queue
from transport.limits import Limits
from transport.schema import Buffer

Handler: TypeAlias = Callable[[Delivery], Awaitable[object]]

# A handler that never waits would prevent the tasks that read the socket and return credit from running.
_HANDLED_BETWEEN_CHECKPOINTS = 64


class _SendBack(Protocol):
    def __call__(self, inbound: Inbound, envelope: Envelope, frames: Sequence[Buffer] = (), /) -> None: ...


class Dispatcher:
    """Runs the handler for each delivery. ``send_back`` sends answers."""

    def __init__(self, send_back: _SendBack, limits: Limits) -> None:
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
