"""A node: one process's place in the network. It carries frames between the port and the state machines.

::

    port ── on_inbox ──> Inbound (streams, calls, announcements) ──> Queue ──> handler
      │                     └── Progress, HeartbeatBack, Reply ── send_back ──> port
      └──── on_back ───> Outbound (pushes, calls, announcements) ──> PushLink, CallLink, AnnounceLink

Arrivals are processed synchronously, a burst at a time. Credit and acknowledgements of one loop turn are sent together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import count

import trio

from transport.codec import Registry, decode
from transport.errors import DecodeError, Faults, LinkEvent, PeerBack, PeerGone, PeerLeft, PeerSilent, log_event
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
from transport.handles import AnnounceLink, CallLink, PushLink
from transport.inbound import Delivery, DeliveryKind, Dispatcher, Handler, Inbound
from transport.limits import Limits
from transport.link import Liveness
from transport.network import Network, read_identity
from transport.outbound import Outbound
from transport.plans import Buffer

RENEWAL_TICKS = 10
"""Heartbeats between two attempts to connect anew to a peer that is not there, or does not answer over the
connection."""
STRANGER = "a stranger"
"""The common name of all senders that are not nodes of the network. They are reported once."""


class Node:
    """Binds one inbox, and connects to the inboxes of its links' targets.

    Every later process of the same name must have a higher ``incarnation``: by it peers notice a restart. Links may be
    created before or while ``run`` runs; messages move only while it runs.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        registry: Registry,
        *,
        incarnation: int,
        limits: Limits | None = None,
        on_event: Callable[[LinkEvent], None] = log_event,
        only_expected: bool = False,
    ) -> None:
        """``only_expected``: ignore processes that claim the name of a node for which `expect` was not called."""
        self._limits = limits = limits or Limits()
        self.name = name
        self.incarnation = incarnation
        self._port = network.attach(name, incarnation, limits)
        self._registry = registry
        self._receives: Mapping[DeliveryKind, Registry] = dict.fromkeys(("push", "call", "announce"), registry)
        self._decode = partial(decode, limits=limits)
        self._only_expected = only_expected
        self._listeners = [on_event]
        self.faults = Faults(self._report)
        """Of other processes, also those that the port finds."""
        self._liveness = Liveness(limits.silent_after, limits.lost_after)
        self._expected: dict[str, int] = {}
        self._links: dict[str, PushLink | CallLink | AnnounceLink] = {}
        self._outbound: dict[str, Outbound] = {}
        self._inbound: dict[bytes, Inbound] = {}
        self._inbound_by_name: dict[str, Inbound] = {}
        self._sending: dict[Outbound, None] = {}
        self._changed: dict[Inbound, None] = {}
        self._flush_wanted = trio.lowlevel.ParkingLot()
        self._memories = count()
        self._dispatcher = Dispatcher(self._send_back, limits)
        self._draining = False
        self._running = False
        self._ticks = 0

    # Links

    def push(self, link: str, targets: Sequence[str], *, window: int) -> PushLink:
        """A push link. At most ``window`` messages to each target are sent and not yet taken off the target's queue."""
        if window < 1:
            raise ValueError(f"window of link {link} must be at least 1, got {window}")
        self._links[link] = made = PushLink(link, self._peers(link, targets), window, self._limits)
        return made

    def call(
        self, link: str, targets: Sequence[str], *, outstanding: int, timeout: float, reply: type | None = None
    ) -> CallLink:
        """A call link: at most ``outstanding`` calls to each replica at once; ``timeout`` in seconds is the default.

        A reply of another type than ``reply`` fails the call; None accepts any type.
        """
        if outstanding < 1:
            raise ValueError(f"outstanding of link {link} must be at least 1, got {outstanding}")
        replies = self._registry if reply is None else Registry(reply)
        peers = self._peers(link, targets)
        self._links[link] = made = CallLink(link, peers, outstanding, timeout, replies, self._limits)
        return made

    def announce(self, link: str, targets: Sequence[str]) -> AnnounceLink:
        """An announce link."""
        self._links[link] = made = AnnounceLink(link, self._peers(link, targets), self._limits)
        return made

    def _peers(self, link: str, targets: Sequence[str]) -> dict[str, Outbound]:
        if link in self._links:
            raise ValueError(f"node {self.name} has a link {link} already")
        if not targets:
            raise ValueError(f"link {link} leads nowhere")
        return {peer: self._connect(peer) for peer in targets}

    def targets(self, link: str) -> Collection[str]:
        """The names of a link's targets."""
        return self._links[link].targets.keys()

    def _connect(self, peer: str) -> Outbound:
        outbound = self._outbound.get(peer)
        if outbound is None:
            self._port.connect(peer)
            outbound = self._outbound[peer] = Outbound(
                peer, self._port.send, self._decode, self._report, self._will_send
            )
            if peer in self._expected:
                outbound.expect(self._expected[peer])
            if self._running:
                self._liveness.expect(peer, trio.current_time())
                outbound.send_heartbeat(self.incarnation)
        return outbound

    # What is known of peers

    def watch(self, listener: Callable[[LinkEvent], None]) -> None:
        """Call ``listener`` with each event from now on, besides the ``on_event`` that the node was made with."""
        self._listeners.append(listener)

    def _report(self, event: LinkEvent) -> None:
        for listener in self._listeners:
            listener(event)

    @property
    def gone(self) -> AbstractSet[str]:
        """The peers that are lost, have left, or whose process has ended."""
        return self._liveness.gone

    def expect(self, peer: str, incarnation: int) -> None:
        """Refuse processes that claim to be ``peer`` with a higher incarnation, also one accepted before.

        Processes of a lower incarnation have ended: within a heartbeat, the peer counts as lost until its process with
        this incarnation is heard. The new process is asked at once who it is. The question is lost where the end of the
        former connection has not been noticed yet; then the next heartbeat asks.
        """
        self._expected[peer] = incarnation
        inbound = self._inbound_by_name.get(peer)
        outbound = self._outbound.get(peer)
        known = [each.incarnation for each in (inbound, outbound) if each is not None and each.incarnation is not None]
        if known and max(known) < incarnation:
            self._liveness.ended(peer, incarnation - 1)
        if inbound is not None and inbound.incarnation > incarnation:
            self._forget(inbound)
            if peer not in self._outbound:
                self._liveness.forget(peer)
        if outbound is not None:
            outbound.expect(incarnation)
            if known and max(known) < incarnation and self._running:
                outbound.send_heartbeat(self.incarnation)

    def doubt(self, peers: Iterable[str]) -> None:
        """Exactly these peers are lost once they are silent (``Limits.silent_after``), or at once if never heard.

        For whoever knows of others that these peers' host is silent, or that they are not to run. Peers that are heard
        stay what they are.
        """
        self._lose(self._liveness.doubt(peers, trio.current_time()))

    def _lose(self, lost: Iterable[tuple[str, float]]) -> None:
        """These peers count as lost, each after so many seconds of silence."""
        for peer, seconds in lost:
            self._gone(peer, PeerGone(peer, seconds))

    def _leaves(self, peer: str, incarnation: int) -> None:
        if self._liveness.leaves(peer, incarnation, trio.current_time()):
            self._gone(peer, PeerLeft(peer))

    def _says_goodbye(self, peer: str, incarnation: int) -> None:
        """A goodbye that comes late, after something of the process's successor, is none of the peer."""
        ends = (self._outbound.get(peer), self._inbound_by_name.get(peer))
        known = [end.incarnation for end in ends if end is not None and end.incarnation is not None]
        if max(known, default=0) <= incarnation <= self._expected.get(peer, incarnation):
            self._leaves(peer, incarnation)

    def _gone(self, peer: str, event: LinkEvent) -> None:
        """Drop what the peer announced: it says all of it again if it is heard again."""
        self._dispatcher.forget_announcements(peer)
        if peer in self._inbound_by_name:
            self._inbound_by_name[peer].forget_announcements(next(self._memories))
        if peer in self._outbound:
            self._outbound[peer].unavailable()
        self._report(event)

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

    # The life of the node

    def drain(self) -> None:
        """Tell the peers that this process is about to leave: they send calls elsewhere, and get PeerDraining."""
        self._draining = True
        for inbound in self._inbound.values():
            self._send_heartbeat(inbound)

    async def idle(self) -> None:
        """Wait until no message is queued and no handler runs."""
        await self._dispatcher.idle()

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        receives: Mapping[DeliveryKind, Collection[type]] | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; ``started()`` once the inbox is open. Raises BindError.

        The result of ``handler`` answers a call; CallRefused refuses it. At most ``concurrency`` handlers run at once.
        With 1, messages are handled strictly in order of arrival. With more, announcements are handled one at a time
        beside the others. Any other exception of a handler ends the node, and this method raises it in an
        ExceptionGroup. The handler gets only the types that ``receives`` lists for a message's kind (None: all types).
        """
        if receives is not None:
            self._receives = {kind: Registry(*receives.get(kind, ())) for kind in self._receives}
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        await self._port.bind(self)
        try:
            self._running = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._port.serve)
                nursery.start_soon(self._flush_forever)
                nursery.start_soon(self._tick_forever)
                nursery.start_soon(self._dispatcher.run, handler, concurrency)
                task_status.started()
        finally:
            self._running = False
            self._flush()
            for outbound in self._outbound.values():
                self._port.send(outbound.peer, pack(Goodbye(self.incarnation)))
            for inbound in self._inbound.values():
                self._send_back(inbound, Goodbye(self.incarnation))
            await self._port.close(self._liveness.gone)

    async def _flush_forever(self) -> None:
        while True:
            if not (self._changed or self._sending):
                await self._flush_wanted.park()
            self._flush()

    def _flush(self) -> None:
        for inbound in self._changed:
            self._send_back(inbound, inbound.progress(self.incarnation))
        self._changed.clear()
        for outbound in self._sending:
            outbound.flush()
        self._sending.clear()

    async def _tick_forever(self) -> None:
        next_tick = trio.current_time()
        for outbound in self._outbound.values():
            self._liveness.expect(outbound.peer, next_tick)
        while True:
            now = trio.current_time()
            self._tick(now)
            next_tick = max(next_tick + self._limits.heartbeat_interval, now)
            await trio.sleep_until(next_tick)

    def _tick(self, now: float) -> None:
        for each in self._outbound.values():
            each.send_heartbeat(self.incarnation)
            each.unanswered += 1
            each.announcements.repeat()
            each.send_announcements()
        for inbound in self._inbound.values():
            self._send_heartbeat(inbound)
        silent, lost = self._liveness.tick(now, self._limits.heartbeat_interval)
        for peer, seconds in silent:
            outbound = self._outbound.get(peer)
            self._report(PeerSilent(peer, seconds, () if outbound is None else outbound.waiting_for))
            if outbound is not None:
                outbound.unavailable()
        self._ticks += 1
        for each in self._outbound.values() if self._ticks % RENEWAL_TICKS == 0 else ():
            unanswered = each.unanswered * self._limits.heartbeat_interval > self._limits.lost_after
            if each.incarnation is None or each.peer in self._liveness.gone or unanswered:
                self._port.renew(each.peer)
        self._lose(lost)
        for link in self._links.values():
            if isinstance(link, PushLink):
                for event in link.overdue(now, self._limits.credit_report_after):
                    self._report(event)

    def _will_send(self, outbound: Outbound) -> None:
        self._sending[outbound] = None
        self._flush_wanted.unpark()

    def _mark(self, inbound: Inbound) -> None:
        if not self._changed:
            self._flush_wanted.unpark()
        self._changed[inbound] = None

    def _send_back(self, inbound: Inbound, envelope: Envelope, message: Sequence[Buffer] = ()) -> None:
        self._port.send_back(inbound.identity, pack(envelope, message[:1], message[1:]))

    def _send_heartbeat(self, inbound: Inbound) -> None:
        self._send_back(inbound, inbound.heartbeat(self.incarnation, draining=self._draining))

    # What arrives

    def on_back(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Frames came back over the connection to ``peer``."""
        outbound = self._outbound.get(peer)
        if outbound is None:  # the connection is closed, and this had arrived
            return
        try:
            envelope, bodies, arrays = unpack(frames)
            if isinstance(envelope, Goodbye):
                self._says_goodbye(peer, envelope.incarnation)
                return
            outbound.receive(envelope, [*bodies, *arrays])
        except MalformedFrame as error:
            self.faults.malformed(peer, str(error))
            return
        self._heard(peer, -1 if outbound.incarnation is None else outbound.incarnation)

    def on_inbox(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        """A process sent something to this node's inbox."""
        inbound = self._inbound.get(identity) or self._admit(identity)
        if inbound is None:
            return
        try:
            envelope, bodies, arrays = unpack(frames)
        except MalformedFrame as error:
            self.faults.malformed(inbound.peer, str(error))
            return
        if isinstance(envelope, Goodbye):
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
            elif isinstance(envelope, PushFrame):
                self._push(inbound, envelope, bodies, arrays)
            elif isinstance(envelope, CallFrame):
                self._call(inbound, envelope, [*bodies, *arrays])
            elif isinstance(envelope, AnnounceFrame):
                self._announced(inbound, envelope, [*bodies, *arrays])
            elif envelope.request in inbound.calls:
                inbound.calls.pop(envelope.request).withdraw()
        elif isinstance(envelope, Withdrawn):
            stream = inbound.stream(envelope.link)
            if stream.accept(envelope.sequence):
                stream.take()
                stream.acknowledge(envelope.sequence)
            inbound.changed(stream)
        elif isinstance(envelope, Heartbeat):
            for link, through in envelope.settled:
                if link in inbound.streams:
                    inbound.streams[link].settled(through)
        else:
            self.faults.malformed(inbound.peer, f"{type(envelope).__name__} sent to an inbox")

    def _admit(self, identity: bytes) -> Inbound | None:
        """The state of a process that is heard for the first time. None for strangers and for processes to refuse."""
        who = read_identity(identity)
        if who is None or not self._port.knows(who[0]):
            self.faults.malformed(STRANGER, f"{identity[:40]!r} is not a node of this network")
            return None
        peer, incarnation = who
        expected = self._expected.get(peer)
        if self._only_expected if expected is None else incarnation > expected:
            self.faults.refused(peer, incarnation, expected)
            return None
        before = self._inbound_by_name.get(peer)
        if before is not None:
            if before.incarnation > incarnation:
                self.faults.counts["frames_of_replaced_processes"] += 1
                return None
            self._forget(before)
        inbound = self._inbound[identity] = self._inbound_by_name[peer] = Inbound(
            identity, peer, incarnation, next(self._memories), self._mark
        )
        self._liveness.expect(peer, trio.current_time())
        self._send_heartbeat(inbound)
        return inbound

    def _forget(self, inbound: Inbound) -> None:
        """The process left or was replaced: withdraw its calls; its pushes are still handled."""
        inbound.gone = True
        del self._inbound[inbound.identity], self._inbound_by_name[inbound.peer]
        self._changed.pop(inbound, None)
        for delivery in list(inbound.calls.values()):
            delivery.withdraw()

    def _push(self, inbound: Inbound, push: PushFrame, bodies: Sequence[Buffer], arrays: Sequence[Buffer]) -> None:
        stream = inbound.stream(push.link)
        last = push.sequence + len(bodies) - 1
        dropped = 0
        for sequence, body in enumerate(bodies, push.sequence):
            if not stream.accept(sequence):
                dropped += 1
                continue
            try:
                message = self._decode([body, *arrays] if sequence == last else [body], self._receives["push"])
            except DecodeError as error:
                stream.take()
                stream.reject(sequence, str(error))
                inbound.changed(stream)
                self.faults.malformed(inbound.peer, str(error))
            else:
                self._dispatcher.put(Delivery(message, "push", push.link, inbound, sequence, stream))
        if dropped:
            self.faults.counts["duplicates_dropped"] += dropped
            inbound.changed(stream)

    def _call(self, inbound: Inbound, call: CallFrame, frames: Sequence[Buffer]) -> None:
        if call.request <= inbound.last_request:
            self.faults.counts["duplicates_dropped"] += 1
            return
        inbound.last_request = call.request
        try:
            message = self._decode(frames, self._receives["call"])
        except DecodeError as error:
            self._send_back(inbound, Refused(call.request, f"undecodable request: {error}"))
            self.faults.malformed(inbound.peer, str(error))
            return
        delivery = Delivery(message, "call", call.link, inbound, call.request)
        delivery.deadline = trio.current_time() + call.timeout
        inbound.calls[call.request] = delivery
        self._dispatcher.put(delivery)

    def _announced(self, inbound: Inbound, announce: AnnounceFrame, frames: Sequence[Buffer]) -> None:
        if not inbound.announce(announce.link, announce.type, announce.version):
            return
        if self._liveness.has_left(inbound.peer, inbound.incarnation):  # the peer's state, which has ended since
            return
        try:
            message = self._decode(frames, self._receives["announce"])
        except DecodeError as error:
            inbound.announcement_handled(announce.link, announce.type, announce.version)
            self.faults.malformed(inbound.peer, str(error))
            return
        self._dispatcher.put(Delivery(message, "announce", announce.link, inbound, announce.version))

    @property
    def figures(self) -> dict[str, float]:
        """Figures for the live table: what waits now, and totals since the start."""
        outbound = self._outbound.values()
        return {
            "queued": self._dispatcher.queued,
            "handling": self._dispatcher.handling,
            "unacknowledged": sum(peer.unacknowledged for peer in outbound),
            "outstanding_calls": sum(len(peer.calls) for peer in outbound),
            "waiting_to_send": sum(each.waiting for each in self._links.values() if not isinstance(each, AnnounceLink)),
            "peers": len(self._inbound_by_name.keys() | self._outbound.keys()),
            "silent_peers": len(self._liveness.silent),
            "handled": self._dispatcher.handled,
            **self.faults.counts,
        }
