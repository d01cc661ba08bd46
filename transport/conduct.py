"""Whether a process sends what a node of its role may send. Pure: it counts, gets the time, and raises `BreachError`.

::

    a link or a type that does not lead from the peer's role here -------------------> other role
    a push beyond the window that was granted, or many times the calls granted ------> flood
    announcements, heartbeats and other small frames above SMALL_PER_SECOND ---------> flood
    messages that their sender knows to be settled, calls that were sent before -----> replay
    repetitions beyond what the redelivery of honest senders can cause --------------> replay
    frames and messages that cannot be read -----------------------------------------> rubbish
    the name and incarnation of a process, over the connection of another process ---> forged name
    an incarnation that is not given out within CLAIM_SECONDS of being claimed ------> forged incarnation

Honest processes repeat messages after stalls, reconnections and restarts, and deliver all at once what piled up while
they or this process were suspended. So the first two rules are exact, and each other rule has a `Bucket` that is far
larger than such a burst. A suspension only helps: buckets leak meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from transport.codec import Registry

Rule: TypeAlias = Literal["other role", "flood", "replay", "rubbish", "forged name", "forged incarnation"]

SMALL_PER_SECOND, SMALL_AT_ONCE = 2_000.0, 20_000
"""Small frames. An honest node sends few a second, and what piles up during a suspension is a few seconds of them."""
CALLS = 32
"""Calls without answer, in multiples of those granted. A caller that lost its connection, or took this process for
lost, begins anew without withdrawing: once in `Limits.silent_after` at most."""
WINDOWS, WINDOWS_PER_SECOND, REPEATED_AT_LEAST = 64, 0.5, 4_096
"""Repeated messages, in windows of the link. A sender repeats a window after two heartbeats without progress, and
waits twice as long before each further repetition. A sender that was suspended for an hour, and reads all heartbeats
of that hour at once, repeats some 30 windows."""
REPLAYED, REPLAYED_PER_SECOND = 64, 1.0
"""Messages that an honest sender never sends. They are allowed for networks that double or reorder frames."""

CONNECTIONS, CONNECTIONS_PER_SECOND = 20, 1.0
"""New connections of one process. Two processes with one name take the connection from each other several times a
second; an honest one connects anew when a connection broke."""
CLAIM_SECONDS = 8.0
"""A process may be heard before the news that its supervisor started it. Longer than it takes to miss a supervisor."""


class BreachError(Exception):
    """The process broke a rule; ``evidence`` says in words what it did."""

    def __init__(self, rule: Rule, evidence: str) -> None:
        super().__init__(f"{rule}: {evidence}")
        self.rule: Rule = rule
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Permit:
    """What a node may send on a link: messages of these types.

    ``bound``: the window of a push link, or the calls outstanding to each replica of a call link; 0: not bounded.
    """

    receives: Registry
    bound: int = 0


Permits: TypeAlias = Mapping[tuple[str, str], Permit]
"""By kind of delivery and link: all that a node may send."""


class Bucket:
    """Counts what comes, and forgets ``per_second`` of it each second."""

    __slots__ = ("_at", "_capacity", "_per_second", "level")

    def __init__(self, capacity: float, per_second: float) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._at = 0.0
        self.level = 0.0

    def overflows(self, amount: int, now: float) -> bool:
        """Add an amount. Returns whether the bucket holds more than its capacity."""
        self.level = max(0.0, self.level - (now - self._at) * self._per_second) + amount
        self._at = now
        return self.level > self._capacity


class Conduct:
    """What one process has sent. ``permits`` None: everything is permitted, as for peers whose links are not known."""

    def __init__(self, permits: Permits | None) -> None:
        self._permits = permits
        self.left = False
        """Whether the process said goodbye over its connection: honest processes send nothing after it."""
        self._small = Bucket(SMALL_AT_ONCE, SMALL_PER_SECOND)
        self._repeated = Bucket(REPEATED_AT_LEAST, REPEATED_AT_LEAST / WINDOWS)
        self._replayed = Bucket(REPLAYED, REPLAYED_PER_SECOND)
        self._rubbish = Bucket(REPLAYED, REPLAYED_PER_SECOND)
        self._connections = Bucket(CONNECTIONS, CONNECTIONS_PER_SECOND)
        self._source: str | None = None
        if permits:
            windows = sum(permit.bound for (kind, _), permit in permits.items() if kind == "push")
            if windows * WINDOWS > REPEATED_AT_LEAST:
                self._repeated = Bucket(windows * WINDOWS, windows * WINDOWS_PER_SECOND)

    @property
    def judged(self) -> bool:
        """Whether it is known what the process may send."""
        return self._permits is not None

    def permit(self, kind: str, link: str) -> Permit | None:
        """What may come over the link; None: anything. Raises BreachError when no such link leads here."""
        if self._permits is None:
            return None
        permit = self._permits.get((kind, link))
        if permit is None:
            raise BreachError("other role", f"a {kind} over link {link!r:.80}, which does not lead here from its role")
        return permit

    def type(self, kind: str, link: str, name: str) -> None:
        """A message of this type comes over the link. Raises BreachError when the link carries no such messages."""
        permit = self.permit(kind, link)
        if permit is not None and permit.receives.plan(name) is None:
            raise BreachError("other role", f"a {kind} of {name!r:.80} over link {link!r:.80}, which carries none")

    def connected(self, source: str, now: float) -> None:
        """The process sends over a new connection; ``source`` is what the kernel says of it (`Port.source`)."""
        first, self._source = self._source or source, self._source or source
        another = source != first and source.startswith("process ")  # hosts may have several addresses
        if self._permits is not None and (self._connections.overflows(1, now) or another):
            raise BreachError("forged name", f"two processes claim this name and incarnation: {first}, {source}")

    def pushed(self, link: str, waiting: int, bound: int) -> None:
        """So many pushes of the link wait in the queue: an honest sender never exceeds its window."""
        raise BreachError("flood", f"{waiting} pushes over link {link!r:.80}, which grants {bound}")

    def calling(self, link: str, calls: int, bound: int) -> None:
        """So many calls over the link are without an answer."""
        if self._permits is not None and bound and calls > CALLS * bound:
            raise BreachError("flood", f"{calls} calls at once over link {link!r:.80}, which grants {bound}")

    def small(self, now: float) -> None:
        """An announcement, a heartbeat or another frame that costs no credit."""
        if self._permits is not None and self._small.overflows(1, now):
            raise BreachError("flood", f"{SMALL_AT_ONCE} small frames more than {SMALL_PER_SECOND:.0f} a second")

    def repeated(self, count: int, now: float) -> None:
        """Messages that came before, or were sent to the former process of this node."""
        if self._permits is not None and self._repeated.overflows(count, now):
            raise BreachError(
                "replay", f"{self._repeated.level:.0f} messages that came before, or for a former process"
            )

    def replayed(self, what: str, count: int, now: float) -> None:
        """Messages that an honest sender does not send again."""
        if self._permits is not None and self._replayed.overflows(count, now):
            raise BreachError("replay", f"{self._replayed.level:.0f} {what}")

    def rubbish(self, reason: str, now: float) -> None:
        """A frame or message that cannot be read."""
        if self._permits is not None and self._rubbish.overflows(1, now):
            raise BreachError(
                "rubbish", f"{self._rubbish.level:.0f} messages that cannot be read, as in: {reason:.200}"
            )
