"""Decides from statuses which actors are silent, which actors wait for them, and whether the run moves at all.

::

    started, heard, forget --> Silence.tick --> [Notice("... is silent"), Notice("... is heard again"), Overdue(actor)]
    observe                --> Movement.tick --> [Notice("nothing has moved for ...")]

An actor sends a status twice a second, also while it starts and while torch works in its thread. The notice about a
silent actor holds observations only: the time without a status, the kernel's view of the process, and what other actors
wait for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent_rl.figures import numbers
from agent_rl.messages import ActorStatus

SILENT_SECONDS = 5.0
"""An actor without a status for this long (ten intervals) is silent."""
NAMED_SECONDS = 7.5
"""A silent actor is reported once another actor waits for it, and after this time in any case."""
STARTING_SECONDS = 30.0
"""The time to the first status: imports on a busy machine are slow. A stopped process is reported like any other."""
UNWATCHED_SECONDS = 1.5
"""A longer gap between ticks means that the supervisor or the machine stood still. It does not count as silence."""
BUSY_SHARE = 0.2
"""An actor moves, whatever its figures, if its role's work takes this share of the time."""


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """The kernel's view of a process: the letter of its state (proc(5)), and its processor seconds so far."""

    state: str
    cpu_seconds: float

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process."""
        return self.state in {"T", "t"}


@dataclass(frozen=True, slots=True)
class Notice:
    """A text to log and show once. ``actor`` is empty for the whole run."""

    text: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Overdue:
    """The actor was silent longer than its entry allows: the supervisor must kill and restart it."""

    actor: str
    text: str


@dataclass(slots=True)
class _Watched:
    patience: float
    """Seconds of silence after which the actor is overdue."""
    starting: str = ""
    """The phase, in words, while the actor starts or has sent nothing yet."""
    unheard: float = 0.0
    first_seen: ProcessSeen | None = None
    seen: ProcessSeen | None = None
    watched: float = 0.0
    """Seconds from ``first_seen`` to ``seen``."""
    named: bool = False
    waits_named: bool = False
    overdue: bool = False


class Silence:
    """Statuses in, notices out. ``now`` is seconds on any monotonic clock.

    ``look`` returns the kernel's view of an actor's process, or None if it is unknown, as on another host.
    """

    def __init__(self, look: Callable[[str], ProcessSeen | None]) -> None:
        self._look = look
        self._watched: dict[str, _Watched] = {}
        self._waiting_for: dict[str, str] = {}
        self._ticked: float | None = None

    def started(self, actor: str, patience: float) -> None:
        """A process of this supervisor was started. ``patience``: the seconds it may be silent."""
        self._watched[actor] = _Watched(patience, "since it was started")
        self._waiting_for.pop(actor, None)

    def forget(self, actor: str) -> None:
        """The actor has ended or was asked to end: stop watching it."""
        self._watched.pop(actor, None)
        self._waiting_for.pop(actor, None)

    def heard(self, status: ActorStatus) -> list[Notice]:
        """Take in a status. Actors of other hosts are watched from their first status on."""
        watched = self._watched.setdefault(status.actor, _Watched(math.inf))
        self._waiting_for[status.actor] = status.waiting_for
        named, seconds = watched.named, watched.unheard
        self._watched[status.actor] = _Watched(
            watched.patience, "while it starts" if status.state == "starting" else ""
        )
        return [Notice(f"{status.actor} is heard again, after {seconds:.0f} s", status.actor)] if named else []

    def tick(self, now: float) -> list[Notice | Overdue]:
        """Time has passed: report silent actors, and those that are overdue."""
        passed = 0.0 if self._ticked is None else min(now - self._ticked, UNWATCHED_SECONDS)
        self._ticked = now
        decided: list[Notice | Overdue] = []
        for actor, watched in self._watched.items():
            watched.unheard += passed
            if watched.unheard < SILENT_SECONDS / 2:
                continue
            self._observe(actor, watched, passed)
            if self._silent(watched):
                waits = self.waits_for(actor)
                if not watched.named and (waits or watched.unheard >= NAMED_SECONDS):
                    watched.named, watched.waits_named = True, bool(waits)
                    decided.append(Notice(self.describe(actor), actor))
                elif watched.named and waits and not watched.waits_named:
                    watched.waits_named = True
                    decided.append(Notice(self.describe(actor), actor))
            if watched.unheard >= watched.patience and not watched.overdue:
                watched.overdue = True
                text = f"{self.describe(actor)}; it was killed, since it may be silent for {watched.patience:g} s"
                decided.append(Overdue(actor, text))
        return decided

    @property
    def silent(self) -> dict[str, str]:
        """The silent actors, each with its description."""
        return {actor: self.describe(actor) for actor, watched in self._watched.items() if watched.named}

    def state(self, actor: str) -> str:
        """A silent actor's state for the table; empty for other actors."""
        watched = self._watched.get(actor)
        return "" if watched is None or not watched.named else self._words(actor, watched)

    def describe(self, actor: str) -> str:
        """How long the actor has been silent, the state of its process, and which actors wait for it and for what."""
        return f"{actor} has been {self._words(actor, self._watched[actor])}"

    def waits_for(self, actor: str) -> list[str]:
        """The actors that report waiting for this actor, then those that wait for these, nearest first."""
        role = actor.rpartition(".")[0]
        found, roles = [], [role]
        for awaited in roles:
            for waiting, what in sorted(self._waiting_for.items()):
                its_role = waiting.rpartition(".")[0]
                target, _, thing = what.partition(": ")
                if target != awaited or its_role == role or self._watched[waiting].unheard >= SILENT_SECONDS:
                    continue
                found.append(f"{waiting} waits for {'it' if awaited == role else awaited}: {thing}")
                if its_role not in roles:
                    roles.append(its_role)
        return list(dict.fromkeys(found))

    def _silent(self, watched: _Watched) -> bool:
        stopped = watched.seen is not None and watched.seen.stopped
        return watched.unheard >= (STARTING_SECONDS if watched.starting and not stopped else SILENT_SECONDS)

    def _observe(self, actor: str, watched: _Watched, passed: float) -> None:
        watched.seen = self._look(actor)
        if watched.first_seen is None:
            watched.first_seen = watched.seen
        else:
            watched.watched += passed

    def _words(self, actor: str, watched: _Watched) -> str:
        starting = f" {watched.starting}" if watched.starting else ""
        silent = f"silent for {watched.unheard:.0f} s{starting}{_process_words(watched)}"
        return "; ".join([silent, *(self.waits_for(actor) or ["no actor reports waiting for it"])])


def _process_words(watched: _Watched) -> str:
    """The observations of the process as a clause; empty without any."""
    first, last = watched.first_seen, watched.seen
    if first is None or last is None:
        return ""
    if last.stopped:
        return ", its process is stopped (state T)"
    used = f"{last.cpu_seconds - first.cpu_seconds:.1f} s of processor time in the last {watched.watched:.0f} s"
    return f", its process lives (state {last.state}) and used {used}"


@dataclass(slots=True)
class _Heard:
    status: ActorStatus
    at: float


@dataclass
class Movement:
    """Whether the run moves: a figure, a state or a wait changes, or an actor is busy.

    After ``patience`` seconds without movement the user is told. The run continues.
    """

    patience: float
    _seen: dict[str, _Heard] = field(default_factory=dict)
    _moved: float | None = None
    _ticked: float | None = None
    _named: bool = False

    def observe(self, status: ActorStatus, now: float) -> list[Notice]:
        """Take in a status."""
        before = self._seen.get(status.actor)
        self._seen[status.actor] = _Heard(status, now)
        if before is not None and not _moves(before, status, now):
            return []
        stood, self._moved = now - (now if self._moved is None else self._moved), now
        named, self._named = self._named, False
        return [Notice(f"the run moves again, after {_minutes(stood)}")] if named else []

    def tick(self, now: float) -> list[Notice]:
        """Time has passed: report a run that does not move."""
        unwatched = max(0.0, now - (now if self._ticked is None else self._ticked) - UNWATCHED_SECONDS)
        self._ticked = now
        if self._moved is not None:
            self._moved += unwatched
        if self._moved is None or self._named or now - self._moved < self.patience:
            return []
        self._named = True
        return [Notice(self.describe(now))]

    @property
    def stands(self) -> bool:
        """Whether the user was told that the run does not move."""
        return self._named

    def describe(self, now: float) -> str:
        """How long nothing has moved, and what each actor waits for."""
        actors = [f"{actor} {_says(seen.status)}" for actor, seen in sorted(self._seen.items())]
        return f"nothing has moved for {_minutes(now - (self._moved or now))}: {'; '.join(actors)}"


def _moves(before: _Heard, status: ActorStatus, now: float) -> bool:
    was = before.status
    if (was.state, was.waiting_for, _finite(was)) != (status.state, status.waiting_for, _finite(status)):
        return True
    return status.busy_seconds - was.busy_seconds > BUSY_SHARE * max(1e-9, now - before.at)


def _finite(status: ActorStatus) -> dict[str, float]:
    """The finite figures. NaN cannot be compared: it does not equal itself."""
    return numbers(status.figures)


def _says(status: ActorStatus) -> str:
    if status.waiting_for:
        return f"waits for {status.waiting_for}"
    return "reports no wait" if status.state == "running" else f"is {status.state}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"


def final_words(silent: Mapping[str, str], standing: str) -> list[str]:
    """The lines of the exit message about silent actors, and about a run that did not move."""
    return [f"at the end: {text}" for text in (*silent.values(), *([standing] if standing else []))]
