"""How the supervisors of several hosts get to know each other, and say what is wrong with a host.

::

    HostHello, both ways --(release and settings agree)--> admitted: its actors are told to the others
                          `-(they differ)----------------> a mistake; a host that is not the main host ends: refuse
    KeyRefused, MalformedFrames, PeerSilent -------------> a mistake, with what a connection to the address shows

Mistakes are said on the host that finds them, logged, and repeated in its exit message while they last. Both sides
compare, so the main host and the other host each say the same of themselves.
"""

from __future__ import annotations

import importlib.metadata
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import trio

from actors.runtime.networks import STARTING
from agent_rl import messages
from agent_rl.config.addresses import addresses, runtime_directory, supervisor_node
from agent_rl.config.agreement import differences
from agent_rl.config.topology import Topology
from agent_rl.messages import HostHello

if TYPE_CHECKING:
    from transport import CallLink, LinkEvent, Node

Kind: TypeAlias = Literal["key", "release", "settings", "clock", "silent", "start"]
CLOCK_SECONDS = 5.0
"""Clocks of two hosts may be so far apart."""
QUICK_SECONDS = 1.0
"""An answer within this time says how far the clocks are apart."""
AGAIN_SECONDS = 30.0
"""Between two greetings of a host: its clock may be set meanwhile."""
ANSWER_SECONDS = 30.0
KEY_SECONDS = 3.0
"""After so long without an admitted connection, a host ends: the main host has another key."""
PROBE_SECONDS = 2.0


def _link(supervisor: str) -> str:
    return f"hello {supervisor}"


def release() -> str:
    """The release that runs here, with a checksum of the layouts of all messages."""
    from transport import Registry

    registry = Registry.of(messages)
    plans = [registry.plan(cls.__name__) for cls in registry]
    layouts = zlib.crc32(repr([plan[1] for plan in plans if plan is not None]).encode())
    return f"{importlib.metadata.version('agent-rl')} (messages {layouts:08x})"


@dataclass(frozen=True, slots=True)
class Reports:
    """What a supervisor does with the findings: ``say`` to the user and the log, ``refuse``: end this host."""

    say: Callable[[str], None]
    refuse: Callable[[str], None]
    admitted: Callable[[str, Any], None]
    """A supervisor is admitted, and has told this."""


class Handshake:
    """The hosts that other supervisors of the run serve.

    ``settings``: those that all hosts must have (`settings_to_agree`). ``wall``: the clock of this host.
    """

    def __init__(
        self,
        topology: Topology,
        hosts: Sequence[str],
        settings: dict[str, str],
        reports: Reports,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._hosts = tuple(hosts)
        self._is_main = topology.main_host in hosts
        self._main = supervisor_node(topology.main_host)
        self._topology = topology
        self._others = {supervisor_node(host): host for host in topology.hosts_in_use if host not in self._hosts}
        self._addresses = addresses(topology, runtime_directory(topology))
        self._reports = reports
        self._wall = wall
        self._release = release()
        self._settings = settings
        self._admitted: set[str] = set()
        self._told: dict[str, Any] = {}
        self._mistakes: dict[tuple[str, Kind], str] = {}
        self._nursery: trio.Nursery | None = None
        self._looked_at: dict[str, trio.CancelScope] = {}
        """The silent supervisors whose addresses are looked at."""

    @property
    def final_words(self) -> list[str]:
        """The mistakes that last, for the exit message."""
        return [f"at the end: {text}" for text in self._mistakes.values()]

    def is_admitted(self, supervisor: str) -> bool:
        """Whether the supervisor has the release and the settings of this host.

        Only the main host and the others greet each other: two others leave it to the main host to refuse either.
        """
        return supervisor in self._admitted or not (self._is_main or supervisor == self._main)

    def is_refused(self, supervisor: str) -> bool:
        """Whether the supervisor was found to have another release or other settings."""
        return (supervisor, "release") in self._mistakes or (supervisor, "settings") in self._mistakes

    def told(self, supervisor: str, what: Any) -> None:
        """What a supervisor tells is passed on once the supervisor is admitted."""
        self._told[supervisor] = what
        if self.is_admitted(supervisor):
            self._reports.admitted(supervisor, what)

    # The exchange

    async def run(self, node: Node) -> None:
        """Greet the hosts that ``node``, the supervisor of a host, has to do with, until cancelled."""
        if node.name != self._main and self._is_main:  # another host of the main host's process
            return
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for peer in self._others if self._is_main else [self._main]:
                link = node.call(_link(peer), [peer], outstanding=1, timeout=ANSWER_SECONDS, reply=HostHello)
                nursery.start_soon(self._greet, link, peer)

    async def _greet(self, link: CallLink, peer: str) -> None:
        from transport import CallFailed, CallTimeout, PeerLost

        while True:
            sent = self._wall()
            try:
                theirs: HostHello = await link(self.hello())
            except (CallTimeout, PeerLost):
                continue
            except CallFailed as error:
                self._other_release(peer, str(error))
            else:
                received = self._wall()
                self.heard(peer, theirs)
                if not 0 <= received - sent <= QUICK_SECONDS:  # it was waited for, or this host's clock was set
                    continue
                self._compare_clocks(peer, theirs.wall, sent, received)
            await trio.sleep(AGAIN_SECONDS)

    def hello(self) -> HostHello:
        """What this host tells the others of itself."""
        return HostHello(self._release, self._settings, self._wall(), "")

    def heard(self, peer: str, theirs: HostHello) -> HostHello:
        """Another host greets or answers. Returns the answer to a greeting."""
        if peer.startswith(STARTING):
            host = peer.removeprefix(STARTING)
            self._mistake(supervisor_node(host), "start", f"host {host} does not start: {theirs.refusal}")
        elif peer in self._others:
            self._right(peer, "start")
            self._compare(peer, theirs)
        return self.hello()

    def _compare(self, peer: str, theirs: HostHello) -> None:
        self._right(peer, "key")
        if theirs.refusal:
            self._reports.refuse(theirs.refusal)
            return
        if theirs.release != self._release:
            self._other_release(peer, f"{self._release} here and {theirs.release} there")
            return
        self._right(peer, "release")
        if found := differences(self._settings, theirs.settings):
            remedy = "give both hosts one topology file, apart from paths and settings of actors"
            self._refusal(peer, "settings", f"has another topology: {found}; {remedy}")
            return
        self._right(peer, "settings")
        if peer not in self._admitted:
            self._admitted.add(peer)
            if peer in self._told:
                self._reports.admitted(peer, self._told[peer])

    def _compare_clocks(self, peer: str, theirs: float, sent: float, received: float) -> None:
        """``theirs`` was read between ``sent`` and ``received`` of this host's clock."""
        ahead, behind = theirs - received, sent - theirs
        if max(ahead, behind) <= CLOCK_SECONDS:
            self._right(peer, "clock")
            return
        words = f"{ahead:.0f} s ahead of" if ahead > 0 else f"{behind:.0f} s behind"
        text = f"the clock of host {self._others[peer]} is {words} the clock of this host; synchronise both (NTP)"
        self._mistake(peer, "clock", text)

    # Links

    def link_event(self, event: LinkEvent) -> None:
        """A link to another supervisor reports an event."""
        from transport import KeyRefused, MalformedFrames, PeerBack, PeerLeft, PeerReplaced, PeerSilent, Unauthenticated

        if isinstance(event, Unauthenticated):
            self._stranger(event.address)
            return
        peer = event.peer
        if peer not in self._others:
            return
        match event:
            case KeyRefused():
                self._key_refused(peer, event.seconds)
            case MalformedFrames() if peer not in self._admitted:
                self._other_release(peer, event.reason)
            case PeerSilent() if self._nursery is not None and (peer, "key") not in self._mistakes:
                scope = self._looked_at[peer] = trio.CancelScope()
                self._nursery.start_soon(self._look, peer, event.seconds, scope)
            case PeerReplaced():
                self._admitted.discard(peer)
            case PeerBack():
                self._look_no_more(peer)
                if self._mistakes.pop((peer, "silent"), None):
                    self._reports.say(f"{peer} is heard again, after {event.seconds:.0f} s")
            case PeerLeft():
                self._look_no_more(peer)
                self._admitted.discard(peer)
                words = "has stopped in order, and its actors with it; start its host again, and the run goes on"
                self._reports.say(f"{peer} {words}")

    def _key_refused(self, peer: str, seconds: float) -> None:
        host, where = self._others[peer], self._addresses[peer]
        file = self._topology.security.key_file
        what = f"host {host} at {where} refuses the key of this host: it has another key or none"
        if self._is_main:
            text = f"{what}, or another program has its port; copy {file} of this host to it, and start it again"
            self._mistake(peer, "key", text)
        elif seconds >= KEY_SECONDS:
            text = f"{what}, or another program has its port; copy its key to {file} of this host, and start again"
            self._mistake(peer, "key", text)
            self._reports.refuse(text)

    def _stranger(self, address: str) -> None:
        """A client without the key was refused. Only hosts of the run are worth a line on the terminal."""
        for peer, host in self._others.items():
            if self._topology.hosts[host].address == address and peer not in self._admitted:
                file = self._topology.security.key_file
                text = f"a process at {address}, the address of host {host}, has another key or none: copy {file} to it"
                self._mistake(peer, "key", text)

    def _look_no_more(self, peer: str) -> None:
        """The supervisor is heard, or has left: why it was silent is no mistake that lasts."""
        if peer in self._looked_at:
            self._looked_at.pop(peer).cancel()

    async def _look(self, peer: str, seconds: float, scope: trio.CancelScope) -> None:
        """Say why a silent peer may be silent, unless it is heard meanwhile."""
        with scope:
            await trio.lowlevel.checkpoint()  # it may have left before this task runs
            found = await self._found_at(peer)
            if (peer, "key") not in self._mistakes and (peer, "start") not in self._mistakes:
                self._mistake(peer, "silent", f"{peer} has been silent for {seconds:.0f} s: {found}")

    async def _found_at(self, peer: str) -> str:
        """What a connection to the address of a supervisor shows."""
        host, where = self._others[peer], self._addresses[peer]
        name, _, port = where.removeprefix("tcp://").rpartition(":")
        remedy = f"start the host, or correct hosts.{host}.address"
        try:
            with trio.fail_after(PROBE_SECONDS):
                stream = await trio.open_tcp_stream(name.strip("[]"), int(port))
            await stream.aclose()
        except trio.TooSlowError:
            return f"{where} does not answer within {PROBE_SECONDS:g} s; {remedy}, or look at firewall and network"
        except OSError as error:
            cause = error.__cause__  # what each attempt came to
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if isinstance(cause, ConnectionRefusedError):
                return f"nothing listens at {where}; {remedy}"
            return f"{where} cannot be reached ({cause or error}); {remedy}, or look at the network"
        return f"a process listens at {where} and does not answer; look at that host"

    # Mistakes

    def _other_release(self, peer: str, why: str) -> None:
        self._refusal(peer, "release", f"has another release of agent_rl: {why}; install the same on both")

    def _refusal(self, peer: str, kind: Kind, what: str) -> None:
        self._admitted.discard(peer)
        host = self._others[peer]
        if self._is_main:
            self._mistake(peer, kind, f"host {host} is refused: it {what}, and start it again")
        elif peer == self._main:
            text = f"this host is refused: the main host {host} {what}, and start again"
            self._mistake(peer, kind, text)
            self._reports.refuse(text)

    def _mistake(self, peer: str, kind: Kind, text: str) -> None:
        """Say it once; while it lasts, it is part of the exit message."""
        before = self._mistakes.get((peer, kind))
        self._mistakes[peer, kind] = text
        if before is None or (kind in {"release", "settings", "start"} and before != text):
            self._reports.say(text)

    def _right(self, peer: str, kind: Kind) -> None:
        self._mistakes.pop((peer, kind), None)
