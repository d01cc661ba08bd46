"""The sending half of a node: its links and the connections to their targets, which may change while the node runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import trio

from transport.codec import Registry, decode
from transport.errors import LinkEvent
from transport.handles import AnnounceLink, CallLink, PushLink
from transport.limits import Limits
from transport.liveness import Liveness
from transport.network import Port
from transport.outbound import Outbound


class Links:
    """The base of a node: makes links by name, and opens and closes the connections to their targets."""

    def __init__(
        self,
        name: str,
        port: Port,
        registry: Registry,
        incarnation: int,
        limits: Limits,
        on_event: Callable[[LinkEvent], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self._port = port
        self._registry = registry
        self._limits = limits
        self._decode = partial(decode, limits=limits)
        self._listeners = [on_event]
        self._liveness = Liveness(limits.silent_after, limits.lost_after)
        self._expected: dict[str, int] = {}
        self._outbound: dict[str, Outbound] = {}
        self._links: dict[str, PushLink | CallLink | AnnounceLink] = {}
        self._sending: dict[Outbound, None] = {}
        self._flush_wanted = trio.lowlevel.ParkingLot()
        self._running = False

    def push(self, link: str, targets: Sequence[str], *, window: int) -> PushLink:
        """A push link. At most ``window`` messages to each target are sent and not yet taken off the target's queue."""
        if window < 1:
            raise ValueError(f"window of link {link} must be at least 1, got {window}")
        peers = self._peers(link, targets)
        self._links[link] = made = PushLink(link, peers, window, self._limits)
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
        self._links[link] = made = CallLink(
            link, self._peers(link, targets), outstanding, timeout, replies, self._limits
        )
        return made

    def announce(self, link: str, targets: Sequence[str], *, growing: bool = False) -> AnnounceLink:
        """An announce link. ``growing``: it may have no target yet."""
        peers = self._peers(link, targets) if targets or not growing else {}
        self._links[link] = made = AnnounceLink(link, peers, self._limits)
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

    def set_targets(self, targets: Mapping[str, Sequence[str]]) -> None:
        """Give links other targets, each by its name. Connections that no link needs any more are closed.

        A new target gets the newest announcements. Calls without an answer from a removed target fail with PeerLost.
        Pushes that it has not acknowledged go to other targets, except those that were sent to it alone: they are
        withdrawn. A peer that was removed may be a target again once a new process has its name.
        """
        for link, wanted in targets.items():
            made = self._links[link]
            for peer in sorted(set(wanted) - made.targets.keys()):
                made.add(peer, self._connect(peer))
        removed = [
            (link, peer) for link, wanted in targets.items() for peer in self._links[link].targets.keys() - set(wanted)
        ]
        for peer in dict.fromkeys(peer for _, peer in removed):
            self._outbound[peer].unavailable()  # before the first link lets go of it, so that no link calls it again
        for link, peer in sorted(removed):
            self._links[link].remove(peer)
        for peer in dict.fromkeys(peer for _, peer in removed):
            if not any(peer in link.targets for link in self._links.values()):
                self._disconnect(peer)

    def _pushes(self) -> Iterator[PushLink]:
        return (link for link in self._links.values() if isinstance(link, PushLink))

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

    def _disconnect(self, peer: str) -> None:
        """Close the connection to a peer. What comes back of it afterwards is lost."""
        self._sending.pop(self._outbound.pop(peer), None)
        self._port.disconnect(peer)

    def _will_send(self, outbound: Outbound) -> None:
        self._sending[outbound] = None
        self._flush_wanted.unpark()

    def watch(self, listener: Callable[[LinkEvent], None]) -> None:
        """Call ``listener`` with each event from now on, besides the ``on_event`` that the node was made with."""
        self._listeners.append(listener)

    def _report(self, event: LinkEvent) -> None:
        for listener in self._listeners:
            listener(event)
