"""The sending side: the state of the connection to one peer, and the effect of returning frames on its links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from transport.codec import Registry
from transport.errors import CallFailed, DecodeError, LinkEvent, MessageRejected, PeerDraining, PeerLost, PeerReplaced
from transport.frames import (
    AnnounceFrame,
    CallFrame,
    Cancel,
    Envelope,
    Heartbeat,
    HeartbeatBack,
    MalformedFrame,
    Progress,
    PushFrame,
    Refused,
    ReplyFrame,
    StreamState,
    Withdrawn,
    pack,
)
from transport.link import AnnounceSender, PushSender, Unsettled
from transport.plans import Buffer

if TYPE_CHECKING:
    from transport.handles import CallLink, PushLink

_TOGETHER = 64 << 10
"""Bytes of messages in one frame: enough to share the frame's cost, few enough to be read at once."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call without an answer: it waits for room, waits for its peer, or was sent."""

    link: CallLink
    frames: Sequence[Buffer]
    key: str | None
    deadline: float
    target: Outbound | None = None
    request: int = 0
    sent: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    reply: Any = None
    failure: Exception | None = None

    def finish(self, reply: Any, failure: Exception | None = None) -> None:
        """End the call: wake the caller and make room."""
        self.reply = reply
        self.failure = failure
        self.done.set()
        self.link.ended(self)


class Outbound:
    """One peer. Everything for the peer waits here until a heartbeat has identified its process."""

    def __init__(
        self,
        peer: str,
        transmit: Callable[[str, Sequence[Buffer]], None],
        decode: Callable[[Sequence[Buffer], Registry], Any],
        report: Callable[[LinkEvent], None],
        on_waiting: Callable[[Outbound], None],
    ) -> None:
        self.peer = peer
        self.incarnation: int | None = None
        self._highest: int | None = None
        self._known = False
        self._memory: int | None = None
        self.silent = False
        self.unanswered = 0
        """Heartbeats since something came back over the connection; the peer may be heard over its own all the time."""
        self.draining = False
        """Whether the process says that it is about to leave."""
        self.pushes: dict[str, tuple[PushSender, PushLink]] = {}
        self.call_links: list[CallLink] = []
        self.calls: dict[int, PendingCall] = {}
        self.announcements = AnnounceSender()
        self._announced = trio.lowlevel.ParkingLot()
        self._requests = 0
        self._transmit = transmit
        self._decode = decode
        self._report = report
        self._on_waiting = on_waiting
        self._to_flush: dict[str, None] = {}

    @property
    def available(self) -> bool:
        """Whether calls may be sent to the peer, as far as is known."""
        return not (self.silent or self.draining)

    @property
    def unacknowledged(self) -> int:
        """Pushes, over all links, that the peer has not acknowledged."""
        return sum(sender.unacknowledged for sender, _ in self.pushes.values())

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """What this node waits for from the peer, in words."""
        texts = [
            f"{sender.unacknowledged} unacknowledged on {link}"
            for link, (sender, _) in self.pushes.items()
            if sender.unacknowledged
        ]
        links = [call.link.name for call in self.calls.values()]
        texts += [f"{links.count(link)} calls on {link}" for link in dict.fromkeys(links)]
        if pending := self.announcements.pending():
            texts.append(f"{pending} announcements")
        return tuple(texts)

    def _send(self, envelope: Envelope, message: Sequence[Buffer] = ()) -> None:
        if self._to_flush:
            self._flush_pushes()  # keeps the order of sending
        self._transmit(self.peer, pack(envelope, message[:1], message[1:]))

    def send_heartbeat(self, incarnation: int) -> None:
        """Tell the peer that this process lives."""
        settled = [(link, sender.settled_through) for link, (sender, _) in self.pushes.items()]
        self._send(Heartbeat(incarnation, settled))

    def send_pushes(self, link: str) -> None:
        """Transmit the messages that the window allows, together, at the end of this turn of the loop."""
        if not self._to_flush:
            self._on_waiting(self)
        self._to_flush[link] = None

    def flush(self) -> None:
        """Transmit what waits for the end of the turn."""
        self._flush_pushes()
        self.send_announcements()

    def _flush_pushes(self) -> None:
        links, self._to_flush = self._to_flush, {}
        if self.incarnation is not None:
            for link in links:
                self._flush(link, self.incarnation)

    def _flush(self, link: str, incarnation: int) -> None:
        first = size = 0
        bodies: list[Buffer] = []

        def leave(frames: Sequence[Buffer] = ()) -> None:
            self._transmit(self.peer, pack(PushFrame(link, incarnation, first), bodies, frames))
            bodies.clear()

        for sequence, message in self.pushes[link][0].to_transmit():
            if message is None:
                if bodies:
                    leave()
                self._transmit(self.peer, pack(Withdrawn(link, incarnation, sequence)))
                continue
            body, *frames = message
            if bodies and (sequence != first + len(bodies) or size + len(body) > _TOGETHER):
                leave()
            if not bodies:
                first, size = sequence, 0
            bodies.append(body)
            size += len(body)
            if frames:
                leave(frames)
        if bodies:
            leave()

    def announce(self, link: str, kind: str, frames: Sequence[Buffer]) -> None:
        """Set the newest value of a message type; it is sent at the end of this turn of the loop."""
        self.announcements.set(link, kind, frames)
        self._on_waiting(self)

    def send_announcements(self) -> None:
        """Transmit the newest values that the peer lacks.

        For a silent peer they wait, so that frames do not pile up.
        """
        if self.incarnation is not None and not self.silent:
            for link, kind, version, frames in self.announcements.to_transmit():
                self._send(AnnounceFrame(link, self.incarnation, kind, version), frames)

    async def announced(self, link: str) -> None:
        """Wait until the peer has handled the newest values of a link, or is silent or gone."""
        await trio.lowlevel.checkpoint()
        while self.announcements.pending(link) and not self.silent:
            await self._announced.park()

    def begin(self, call: PendingCall) -> None:
        """Send a call, or keep it until the peer is identified."""
        self._requests += 1
        call.request = self._requests
        call.target = self
        self.calls[call.request] = call
        self._send_call(call)

    def _send_call(self, call: PendingCall) -> None:
        left = call.deadline - trio.current_time()
        if self.incarnation is not None and not self.silent and left > 0:
            call.sent = True
            self._send(CallFrame(call.link.name, self.incarnation, call.request, left), call.frames)

    def abandon(self, call: PendingCall) -> None:
        """The caller gave up: tell the peer."""
        if self.calls.pop(call.request, None) is not None and call.sent and self.incarnation is not None:
            self._send(Cancel(self.incarnation, call.request))

    def lost(self) -> None:
        """The process was replaced, is silent or has left: fail the calls sent, pass the others on, unpin its keys."""
        for link in self.call_links:
            link.lost(self.peer)
        calls, self.calls = self.calls, {}
        for call in calls.values():
            if call.sent:
                call.finish(None, PeerLost(self.peer))
            else:
                call.link.again(call)

    def unavailable(self) -> None:
        """The peer is silent, or has left."""
        self.silent = True
        self._announced.unpark_all()
        self.lost()

    def back(self) -> None:
        """A silent peer is heard again."""
        self.silent = False
        for call in self.calls.values():
            if not call.sent:
                self._send_call(call)
        self.send_announcements()
        for link in self.call_links:
            link.available()
        for _, pushes in self.pushes.values():
            pushes.moved(self.peer)

    def _drains(self) -> None:
        self.draining = True
        for link in self.call_links:
            link.lost(self.peer)
            link.available()
        self._report(PeerDraining(self.peer))

    def receive(self, envelope: Envelope, message: Sequence[Buffer]) -> None:
        """Take a returning envelope and the frames of its message. Raises MalformedFrame."""
        self.unanswered = 0
        if isinstance(envelope, Progress):
            self._progressed(envelope)
        elif isinstance(envelope, ReplyFrame):
            call = self.calls.pop(envelope.request, None)
            if call is not None:  # otherwise the call was abandoned, or the reply is a duplicate
                self._replied(call, message)
        elif isinstance(envelope, Refused):
            call = self.calls.pop(envelope.request, None)
            if call is not None:
                call.finish(None, CallFailed(envelope.reason))
        elif isinstance(envelope, HeartbeatBack):
            self._heard(envelope)
        else:
            raise MalformedFrame(f"{type(envelope).__name__} sent back from an inbox")

    def _replied(self, call: PendingCall, frames: Sequence[Buffer]) -> None:
        try:
            reply = self._decode(frames, call.link.replies)
        except DecodeError as error:
            call.finish(None, CallFailed(f"undecodable reply: {error}"))
            raise MalformedFrame(str(error)) from error
        else:
            call.finish(reply)

    def expect(self, incarnation: int) -> None:
        """The peer's process has this incarnation, or an earlier one."""
        self._highest = incarnation
        if self.incarnation is not None and self.incarnation > incarnation:
            self.incarnation = None  # the process was an impostor: everything waits for the true one

    def _heard(self, heartbeat: HeartbeatBack) -> None:
        if self._highest is not None and heartbeat.incarnation > self._highest:
            return
        if self.incarnation is None or heartbeat.incarnation > self.incarnation:
            known, self._known = self._known, True
            self.incarnation, self.draining = heartbeat.incarnation, False
            self._memory = heartbeat.memory
            if known:
                self._replaced()
            self.back()
            for link in self.pushes:
                self.send_pushes(link)
        if heartbeat.incarnation == self.incarnation:
            if heartbeat.draining and not self.draining:
                self._drains()
            if heartbeat.memory != self._memory:
                self._memory = heartbeat.memory
                self.announcements.forgotten()
                self.send_announcements()
            # a stream that the heartbeat does not list has lost its first messages: the peer has seen none
            states = {state.link: state for state in heartbeat.streams}
            for link, (sender, _) in self.pushes.items():
                state = states.get(link) or StreamState(link, 0, 0, 0, [], [])
                self._settled(link, *sender.heard(state))

    def _replaced(self) -> None:
        assert self.incarnation is not None
        self._report(PeerReplaced(self.peer, self.incarnation))
        self.announcements.forgotten()
        for sender, _ in self.pushes.values():
            sender.replaced()
        self.lost()

    def _progressed(self, progress: Progress) -> None:
        if progress.incarnation != self.incarnation:
            return
        for each in progress.streams:
            if each.link in self.pushes:
                sender, _ = self.pushes[each.link]
                self._settled(each.link, *sender.progressed(each))
        for link, kind, version in progress.announced:
            self.announcements.acknowledged(link, kind, version)
            self._announced.unpark_all()

    def _settled(self, link: str, settled: list[Unsettled], rejected: list[str]) -> None:
        for message in settled:
            if message.on_ack is not None:
                message.on_ack()
        for reason in rejected:
            self._report(MessageRejected(self.peer, link, reason))
        sender, pushes = self.pushes[link]
        if sender.transmits:
            self.send_pushes(link)
        pushes.moved(self.peer)
