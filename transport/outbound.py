"""What this node sends to one peer: the connection's state, and what its back flow means for the links on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from transport.errors import CallFailed, DecodeError, LinkEvent, MessageRejected, PeerLost, PeerReplaced
from transport.frames import (
    Announce,
    Call,
    Cancel,
    Envelope,
    Heartbeat,
    HeartbeatBack,
    MalformedFrame,
    Progress,
    Push,
    Refused,
    Reply,
    pack,
)
from transport.link import AnnounceSender, PushSender, Unsettled
from transport.schema import Buffer

if TYPE_CHECKING:
    from transport.handles import CallLink, PushLink


class PendingCall:
    """A call that is not answered: waiting for room, waiting for its peer, or under way."""

    __slots__ = ("deadline", "done", "failure", "frames", "key", "link", "reply", "request", "sent", "target")

    def __init__(self, link: CallLink, frames: Sequence[Buffer], key: str | None, deadline: float) -> None:
        self.link = link
        self.frames = frames
        self.key = key
        self.deadline = deadline
        self.target: Outbound | None = None
        self.request = 0
        self.sent = False
        self.done = trio.Event()
        self.reply: Any = None
        self.failure: Exception | None = None

    def finish(self, reply: Any, failure: Exception | None = None) -> None:
        """The fate is known: wake the caller and make room."""
        self.reply = reply
        self.failure = failure
        self.done.set()
        self.link.ended(self)


class Outbound:
    """One peer. Until its process has said who it is, by a heartbeat, everything for it waits here."""

    def __init__(
        self,
        peer: str,
        transmit: Callable[[str, Sequence[Buffer]], None],
        decode: Callable[[Sequence[Buffer]], Any],
        report: Callable[[LinkEvent], None],
    ) -> None:
        self.peer = peer
        self.incarnation: int | None = None
        self.silent = False
        self.pushes: dict[str, tuple[PushSender, PushLink]] = {}
        self.call_links: list[CallLink] = []
        self.calls: dict[int, PendingCall] = {}
        self.announcements = AnnounceSender()
        self._requests = 0
        self._transmit = transmit
        self._decode = decode
        self._report = report

    @property
    def unacknowledged(self) -> int:
        """Pushes, over all links, that the peer has not acknowledged."""
        return sum(sender.unacknowledged for sender, _ in self.pushes.values())

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """In words, what of this node depends on the peer."""
        texts = [
            f"{sender.unacknowledged} unacknowledged on {link}"
            for link, (sender, _) in self.pushes.items()
            if sender.unacknowledged
        ]
        links = [call.link.name for call in self.calls.values()]
        texts += [f"{links.count(link)} calls on {link}" for link in dict.fromkeys(links)]
        if self.announcements.pending:
            texts.append(f"{self.announcements.pending} announcements")
        return tuple(texts)

    def _send(self, envelope: Envelope, frames: Sequence[Buffer] = ()) -> None:
        self._transmit(self.peer, [pack(envelope), *frames])

    def send_heartbeat(self, incarnation: int) -> None:
        """Tell the peer that this process lives."""
        settled = [(link, sender.settled_through) for link, (sender, _) in self.pushes.items()]
        self._send(Heartbeat(incarnation, settled))

    def send_pushes(self, link: str) -> None:
        """Transmit what the window allows."""
        if self.incarnation is not None:
            for sequence, frames in self.pushes[link][0].to_transmit():
                self._send(Push(link, self.incarnation, sequence), frames)

    def send_announcements(self) -> None:
        """Transmit the newest values that the peer does not have; for a silent one they wait, or they would pile up."""
        if self.incarnation is not None and not self.silent:
            for link, kind, version, frames in self.announcements.to_transmit():
                self._send(Announce(link, self.incarnation, kind, version), frames)

    def begin(self, call: PendingCall) -> None:
        """Send a call, or hold it until the peer is heard."""
        self._requests += 1
        call.request = self._requests
        call.target = self
        self.calls[call.request] = call
        self._send_call(call)

    def _send_call(self, call: PendingCall) -> None:
        left = call.deadline - trio.current_time()
        if self.incarnation is not None and not self.silent and left > 0:
            call.sent = True
            self._send(Call(call.link.name, self.incarnation, call.request, left), call.frames)

    def abandon(self, call: PendingCall) -> None:
        """The caller gave up: tell the peer."""
        if self.calls.pop(call.request, None) is not None and call.sent and self.incarnation is not None:
            self._send(Cancel(self.incarnation, call.request))

    def lost(self) -> None:
        """The process is replaced or silent: calls under way fail, pinned keys are free."""
        for link in self.call_links:
            link.router.lost(self.peer)
        for call in [call for call in self.calls.values() if call.sent]:
            del self.calls[call.request]
            call.finish(None, PeerLost(self.peer))

    def back(self) -> None:
        """A silent peer is heard again."""
        self.silent = False
        for call in self.calls.values():
            if not call.sent:
                self._send_call(call)
        self.send_announcements()

    def receive(self, envelope: Envelope, frames: Sequence[Buffer]) -> None:
        """Something flowed back; ``frames`` are those after the envelope. Raises MalformedFrame."""
        if isinstance(envelope, Progress):
            self._progressed(envelope)
        elif isinstance(envelope, Reply):
            call = self.calls.pop(envelope.request, None)
            if call is not None:  # else it was abandoned, or this reply is a duplicate
                self._replied(call, frames)
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
            reply = self._decode(frames)
        except DecodeError as error:
            call.finish(None, CallFailed(f"undecodable reply: {error}"))
            raise MalformedFrame(str(error)) from error
        else:
            call.finish(reply)

    def _heard(self, heartbeat: HeartbeatBack) -> None:
        if self.incarnation is None or heartbeat.incarnation > self.incarnation:
            known = self.incarnation is not None
            self.incarnation = heartbeat.incarnation
            if known:
                self._replaced()
            self.back()
            for link in self.pushes:
                self.send_pushes(link)
        if heartbeat.incarnation == self.incarnation:
            for state in heartbeat.streams:
                if state.link in self.pushes:
                    sender, _ = self.pushes[state.link]
                    self._settled(state.link, *sender.heard(state))

    def _replaced(self) -> None:
        assert self.incarnation is not None
        self._report(PeerReplaced(self.peer, self.incarnation))
        self.announcements.replaced()
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

    def _settled(self, link: str, settled: list[Unsettled], rejected: list[str]) -> None:
        for message in settled:
            if message.on_ack is not None:
                message.on_ack()
        for reason in rejected:
            self._report(MessageRejected(self.peer, link, reason))
        self.send_pushes(link)
        self.pushes[link][1].moved()
