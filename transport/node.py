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

import trio

from transport.arrivals import Arrivals
from transport.codec import Registry
from transport.conduct import Permits
from transport.dispatch import Handler
from transport.errors import LinkEvent, PeerSilent, log_event
from transport.frames import (
    Envelope,
    Goodbye,
    HeartbeatBack,
    MalformedFrame,
    pack,
    unpack,
)
from transport.handles import AnnounceLink
from transport.inbound import DeliveryKind
from transport.limits import Limits
from transport.network import Network
from transport.schema import Buffer

RENEWAL_TICKS = 10
"""Heartbeats between two attempts to connect anew to a peer that is not there, or does not answer over the
connection."""


class Node(Arrivals):
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
        guests: str = "",
        permits: Callable[[str], Permits | None] = lambda _: None,
    ) -> None:
        """``only_expected``: ignore processes that claim the name of a node for which `expect` was not called.

        ``guests``: take processes whose names begin so, which the network need not know. ``permits``: what a peer may
        send; a process that sends something else, or floods, is cut off (`transport.conduct`). None: not judged.
        """
        super().__init__(
            name,
            network,
            registry,
            incarnation=incarnation,
            limits=limits,
            on_event=on_event,
            only_expected=only_expected,
            guests=guests,
            permits=permits,
        )
        self._ticks = 0

    def _disconnect(self, peer: str) -> None:
        super()._disconnect(peer)
        if peer not in self._inbound_by_name:
            self._liveness.forget(peer)

    def drain(self) -> None:
        """Tell the peers that this process is about to leave: they send calls elsewhere, and get PeerDraining."""
        self._draining = True
        for inbound in self._inbound.values():
            self._send_heartbeat(inbound)

    async def idle(self) -> None:
        """Wait until no message is queued and no handler runs."""
        await self._dispatcher.idle()

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
        self._forget_claims(peer, incarnation)
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
        """Exactly these peers are lost once they are silent (``Limits.silent_after``), rather than later.

        For whoever hears of another process that their host is silent. Peers that are heard stay what they are.
        """
        self._lose(self._liveness.doubt(peers, trio.current_time()))

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
                self._port.send(outbound.peer, [pack(Goodbye())])
            for inbound in self._inbound.values():
                self._send_back(inbound, Goodbye())
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
        self._judge_claims(now)
        for link in self._pushes():
            for event in link.overdue(now, self._limits.credit_report_after):
                self._report(event)

    def on_back(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Frames came back over the connection to ``peer``."""
        try:
            envelope, bodies = unpack(frames[0] if frames else b"")
            outbound = self._outbound.get(peer)
            if outbound is None:  # the connection is closed, and this had arrived
                return
            if peer in self._cut_off and not self._of_next_process(peer, envelope):
                return
            if isinstance(envelope, Goodbye):
                self._leaves(peer, -1 if outbound.incarnation is None else outbound.incarnation)
                return
            outbound.receive(envelope, [*bodies, *frames[1:]])
        except MalformedFrame as error:
            self.faults.malformed(peer, str(error))
            return
        self._heard(peer, -1 if outbound.incarnation is None else outbound.incarnation)

    def _of_next_process(self, peer: str, envelope: Envelope) -> bool:
        """Whether what came back is of a later process than the one that was cut off."""
        incarnation = envelope.incarnation if isinstance(envelope, HeartbeatBack) else self._outbound[peer].incarnation
        return incarnation is not None and incarnation > self._cut_off[peer]

    @property
    def figures(self) -> dict[str, float]:
        """Figures for the live table: what waits now, and totals since the start."""
        outbound = self._outbound.values()
        links = [link for link in self._links.values() if not isinstance(link, AnnounceLink)]
        return {
            "queued": self._dispatcher.queued,
            "handling": self._dispatcher.handling,
            "unacknowledged": sum(peer.unacknowledged for peer in outbound),
            "outstanding_calls": sum(len(peer.calls) for peer in outbound),
            "waiting_to_send": sum(link.waiting for link in links),
            "peers": len(self._inbound_by_name.keys() | self._outbound.keys()),
            "silent_peers": len(self._liveness.silent),
            "handled": self._dispatcher.handled,
            **self.faults.counts,
        }
