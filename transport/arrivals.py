"""The inbox of a node: which process sends, whether it may, and where its frames go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import trio

from transport.codec import Registry
from transport.conduct import CALLS, CLAIM_SECONDS, BreachError, Conduct, Permits, Rule
from transport.dispatch import Dispatcher
from transport.errors import DecodeError, LinkEvent, PeerBack, PeerCutOff, PeerGone, PeerLeft, UnexpectedTypeError
from transport.faults import Faults
from transport.frames import (
    AnnounceFrame,
    CallFrame,
    Cancel,
    Envelope,
    Goodbye,
    Heartbeat,
    MalformedFrame,
    PushFrame,
    Refused,
    Withdrawn,
    pack,
    unpack,
)
from transport.inbound import Delivery, DeliveryKind, Inbound
from transport.limits import Limits
from transport.links import Links
from transport.network import Network, read_identity
from transport.schema import Buffer

STRANGER = "a stranger"
"""The common name of all senders that are not nodes of the network. They are reported once."""


class Arrivals(Links):
    """Takes frames that arrive at the inbox, and drops those of processes that are refused, replaced or cut off."""

    def __init__(
        self,
        name: str,
        network: Network,
        registry: Registry,
        *,
        incarnation: int,
        limits: Limits | None,
        on_event: Callable[[LinkEvent], None],
        only_expected: bool,
        guests: str,
        permits: Callable[[str], Permits | None],
    ) -> None:
        limits = limits or Limits()
        super().__init__(name, network.attach(name, incarnation, limits), registry, incarnation, limits, on_event)
        self._receives: Mapping[DeliveryKind, Registry] = dict.fromkeys(("push", "call", "announce"), registry)
        self._draining = False
        self._inbound: dict[bytes, Inbound] = {}
        self._inbound_by_name: dict[str, Inbound] = {}
        self._only_expected = only_expected
        self._guests = guests
        self._permits = permits
        self._conducts: dict[str, tuple[int, Conduct]] = {}
        """By peer, of its newest process: a goodbye makes nothing undone."""
        self._strangers = Conduct({})
        self.cut_off: dict[tuple[str, str], PeerCutOff] = {}
        """By peer and rule, the newest process that broke a rule, until the peer's next process is expected."""
        self._claims: dict[str, tuple[int, float, str]] = {}
        """By peer, a higher incarnation than its supervisor gave out, since when it is claimed, and by whom."""
        self._cut_off: dict[str, int] = {}
        """By peer, the highest incarnation of which nothing is taken."""
        self.faults = Faults(self._report)
        """Of other processes, also those that the port finds."""
        self._changed: dict[Inbound, None] = {}
        self._memories = count()
        self._dispatcher = Dispatcher(self._send_back, self._limits)

    def _mark(self, inbound: Inbound) -> None:
        if not self._changed:
            self._flush_wanted.unpark()
        self._changed[inbound] = None

    def _send_back(self, inbound: Inbound, envelope: Envelope, message: Sequence[Buffer] = ()) -> None:
        self._port.send_back(inbound.identity, [pack(envelope, message[:1]), *message[1:]])

    def _send_heartbeat(self, inbound: Inbound) -> None:
        self._send_back(inbound, inbound.heartbeat(self.incarnation, draining=self._draining))

    def on_inbox(self, identity: bytes, frames: Sequence[Buffer], connection: int = 0) -> None:
        """A process sent something to this node's inbox."""
        inbound = self._inbound.get(identity) or self._admit(identity)
        if inbound is None:
            return
        try:
            if inbound.connection != connection:
                inbound.connection = connection
                inbound.conduct.connected(self._port.source(), trio.current_time())
            self._arrived(inbound, frames)
        except BreachError as breach:
            self._cut(inbound.peer, inbound.incarnation, breach)

    def _arrived(self, inbound: Inbound, frames: Sequence[Buffer]) -> None:
        try:
            envelope, bodies = unpack(frames[0] if frames else b"")
        except MalformedFrame as error:
            self._malformed(inbound, str(error))
            return
        if isinstance(envelope, Goodbye):
            inbound.conduct.left = inbound.conduct.judged
            self._forget(inbound)
            outbound = self._outbound.get(inbound.peer)
            # A process that answered over our connection says goodbye there too, after its acknowledgements.
            if outbound is None or outbound.incarnation != inbound.incarnation:
                self._leaves(inbound.peer, inbound.incarnation)
            return
        self._heard(inbound.peer, inbound.incarnation)
        if isinstance(envelope, (PushFrame, CallFrame, AnnounceFrame, Cancel)):
            if envelope.incarnation != self.incarnation:
                self.faults.counts["frames_for_another_incarnation"] += 1
                inbound.conduct.repeated(max(1, len(bodies)), trio.current_time())
            elif isinstance(envelope, PushFrame):
                self._push(inbound, envelope, bodies, frames[1:])
            elif isinstance(envelope, CallFrame):
                self._call(inbound, envelope, [*bodies, *frames[1:]])
            elif isinstance(envelope, AnnounceFrame):
                self._announced(inbound, envelope, [*bodies, *frames[1:]])
            else:
                inbound.conduct.small(trio.current_time())
                if envelope.request in inbound.calls:
                    inbound.calls.pop(envelope.request).withdraw()
        elif isinstance(envelope, Withdrawn):
            self._withdrawn(inbound, envelope)
        elif isinstance(envelope, Heartbeat):
            inbound.conduct.small(trio.current_time())
            for link, through in envelope.settled:
                if link in inbound.streams:
                    inbound.streams[link].settled(through)
        else:
            self._malformed(inbound, f"{type(envelope).__name__} sent to an inbox")

    # Who sends

    def _admit(self, identity: bytes) -> Inbound | None:
        who = read_identity(identity)
        guest = who is not None and bool(self._guests) and who[0].startswith(self._guests)
        if who is None or not (guest or self._port.knows(who[0])):
            self._stranger(identity)
            return None
        peer, incarnation = who
        if incarnation <= self._cut_off.get(peer, -1):
            self.faults.counts["frames_of_processes_cut_off"] += 1
            return None
        expected = self._expected.get(peer)
        if self._only_expected if expected is None else incarnation > expected:
            self.faults.refused(peer, incarnation, expected)
            if expected is not None and peer not in self._claims:
                self._claims[peer] = (incarnation, trio.current_time(), self._port.source())
            return None
        before = self._inbound_by_name.get(peer)
        if before is not None:
            if before.incarnation > incarnation:
                self.faults.counts["frames_of_replaced_processes"] += 1
                return None
            self._forget(before)
        if self._conducts.get(peer, (-1,))[0] != incarnation:
            self._conducts[peer] = (incarnation, Conduct(None if guest else self._permits(peer)))
        conduct = self._conducts[peer][1]
        if conduct.left:
            self.faults.counts["frames_of_replaced_processes"] += 1
            return None
        inbound = self._inbound[identity] = self._inbound_by_name[peer] = Inbound(
            identity, peer, incarnation, next(self._memories), conduct, self._mark
        )
        self._liveness.expect(peer, trio.current_time())
        self._send_heartbeat(inbound)
        return inbound

    def _stranger(self, identity: bytes) -> None:
        """All strangers are counted under one name, so that they cannot fill the node's memory."""
        self.faults.malformed(STRANGER, f"{identity[:40]!r} is not a node of this network")
        try:
            self._strangers.small(trio.current_time())
        except BreachError as breach:
            if (STRANGER, breach.rule) not in self.cut_off:
                self._name(STRANGER, 0, breach.rule, f"{breach.evidence}; {self._port.source()}, {identity[:40]!r}")

    def _name(self, peer: str, incarnation: int, rule: Rule, evidence: str) -> None:
        event = self.cut_off[peer, rule] = PeerCutOff(peer, incarnation, rule, evidence)
        self._report(event)

    def _forget_claims(self, peer: str, expected: int) -> None:
        """The peer's process has this incarnation: what its former processes did is settled."""
        for key in [key for key in self.cut_off if key[0] == peer and _settled(self.cut_off[key], expected)]:
            del self.cut_off[key]
        if peer in self._claims and self._claims[peer][0] <= expected:
            del self._claims[peer]

    def _judge_claims(self, now: float) -> None:
        """Name who claims an incarnation that no supervisor has given out meanwhile. Its frames are refused anyway."""
        for peer in [peer for peer, (_, since, _) in self._claims.items() if now - since >= CLAIM_SECONDS]:
            claimed, _, source = self._claims.pop(peer)
            if (peer, "forged incarnation") not in self.cut_off:
                evidence = f"{source or 'a process'} claims incarnation {claimed}, the peer has {self._expected[peer]}"
                self._name(peer, claimed, "forged incarnation", evidence)

    def _cut(self, peer: str, incarnation: int, breach: BreachError) -> None:
        """Take nothing more of this process. Who counts on the peer waits for its next process."""
        self._cut_off[peer] = incarnation
        inbound = self._inbound_by_name.get(peer)
        if inbound is not None:
            self._forget(inbound)
        self._name(peer, incarnation, breach.rule, breach.evidence)
        if self._liveness.leaves(peer, incarnation, trio.current_time()):
            self._lose([(peer, 0.0)])

    def _lose(self, lost: Iterable[tuple[str, float]]) -> None:
        """These peers count as lost, each after so many seconds of silence."""
        for peer, seconds in lost:
            self._forget_announcements(peer)
            if peer in self._outbound:
                self._outbound[peer].unavailable()
            self._report(PeerGone(peer, seconds))

    def _malformed(self, inbound: Inbound, reason: str) -> None:
        self.faults.malformed(inbound.peer, reason)
        inbound.conduct.rubbish(reason, trio.current_time())

    def _heard(self, peer: str, incarnation: int) -> None:
        """Something arrived from this process of the peer."""
        if self._liveness.has_left(peer, incarnation):
            return
        self._liveness.heard(peer)
        if peer not in self._liveness.silent:
            return
        seconds = self._liveness.back(peer, trio.current_time())
        outbound = self._outbound.get(peer)
        if outbound is not None and outbound.incarnation == incarnation:  # a new process is not identified yet
            outbound.back()
        self._report(PeerBack(peer, seconds))

    def _leaves(self, peer: str, incarnation: int) -> None:
        if not self._liveness.leaves(peer, incarnation, trio.current_time()):
            return
        self._forget_announcements(peer)
        if peer in self._outbound:
            self._outbound[peer].unavailable()
        self._report(PeerLeft(peer))

    def _forget_announcements(self, peer: str) -> None:
        """Actors drop what a peer announced when it is gone: it says all of it again if it is heard again."""
        self._dispatcher.forget_announcements(peer)
        if peer in self._inbound_by_name:
            self._inbound_by_name[peer].forget_announcements(next(self._memories))

    def _forget(self, inbound: Inbound) -> None:
        """The process left or was replaced: withdraw its calls; its pushes are still handled."""
        inbound.gone = True
        del self._inbound[inbound.identity], self._inbound_by_name[inbound.peer]
        self._changed.pop(inbound, None)
        for delivery in list(inbound.calls.values()):
            delivery.withdraw()

    # What it sends

    def _push(self, inbound: Inbound, push: PushFrame, bodies: Sequence[Buffer], frames: Sequence[Buffer]) -> None:
        stream = inbound.stream(push.link)
        receives, bound = self._receives["push"], 0
        if stream.permit is not None:
            receives, bound = stream.permit.receives, stream.permit.bound
        last = push.sequence + len(bodies) - 1
        dropped = 0
        for sequence, body in enumerate(bodies, push.sequence):
            if not stream.accept(sequence):
                dropped += 1
                continue
            if bound and stream.waiting > bound:
                inbound.conduct.pushed(push.link, stream.waiting, bound)
            try:
                message = self._decode([body, *frames] if sequence == last else [body], receives)
            except DecodeError as error:
                stream.take()
                stream.reject(sequence, str(error))
                inbound.changed(stream)
                self._undecodable(inbound, "push", push.link, error)
            else:
                self._dispatcher.put(Delivery(message, "push", push.link, inbound, sequence, stream))
        if dropped:
            self.faults.counts["duplicates_dropped"] += dropped
            inbound.changed(stream)
            if last <= stream.settled_through:
                inbound.conduct.replayed("settled messages sent again", dropped, trio.current_time())
            inbound.conduct.repeated(dropped, trio.current_time())

    def _undecodable(self, inbound: Inbound, kind: DeliveryKind, link: str, error: DecodeError) -> None:
        if isinstance(error, UnexpectedTypeError) and inbound.conduct.judged:
            self.faults.malformed(inbound.peer, str(error))
            raise BreachError("other role", f"a {kind} over link {link!r:.80}: {error}")
        self._malformed(inbound, str(error))

    def _withdrawn(self, inbound: Inbound, withdrawn: Withdrawn) -> None:
        inbound.conduct.small(trio.current_time())
        stream = inbound.stream(withdrawn.link)
        if stream.accept(withdrawn.sequence):
            stream.take()
            stream.acknowledge(withdrawn.sequence)
        inbound.changed(stream)

    def _call(self, inbound: Inbound, call: CallFrame, frames: Sequence[Buffer]) -> None:
        permit = inbound.conduct.permit("call", call.link)
        if call.request <= inbound.last_request:
            self.faults.counts["duplicates_dropped"] += 1
            inbound.conduct.replayed("calls sent again", 1, trio.current_time())
            return
        inbound.last_request = call.request
        if permit is not None and len(inbound.calls) > CALLS * permit.bound:  # of all links
            inbound.conduct.calling(call.link, inbound.unanswered(call.link), permit.bound)
        try:
            message = self._decode(frames, self._receives["call"] if permit is None else permit.receives)
        except DecodeError as error:
            self._send_back(inbound, Refused(call.request, f"undecodable request: {error}"))
            self._undecodable(inbound, "call", call.link, error)
            return
        delivery = Delivery(message, "call", call.link, inbound, call.request)
        delivery.deadline = trio.current_time() + call.timeout
        inbound.calls[call.request] = delivery
        self._dispatcher.put(delivery)

    def _announced(self, inbound: Inbound, announce: AnnounceFrame, frames: Sequence[Buffer]) -> None:
        inbound.conduct.small(trio.current_time())
        inbound.conduct.type("announce", announce.link, announce.type)
        if not inbound.announce(announce.link, announce.type, announce.version):
            return
        if self._liveness.has_left(inbound.peer, inbound.incarnation):  # the peer's state, which has ended since
            return
        try:
            message = self._decode(frames, self._receives["announce"])
        except DecodeError as error:
            inbound.announcement_handled(announce.link, announce.type, announce.version)
            self._undecodable(inbound, "announce", announce.link, error)
            return
        self._dispatcher.put(Delivery(message, "announce", announce.link, inbound, announce.version))


def _settled(event: PeerCutOff, expected: int) -> bool:
    """Whether the process that is expected now is another one than that of the event."""
    return event.incarnation < expected or (event.rule == "forged incarnation" and event.incarnation <= expected)
