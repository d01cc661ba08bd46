"""Decides from statuses which actors are silent, which actors wait for them, and whether the run moves at all.

::

    started, heard, forget --> Silence.tick --> [Notice("... is silent"), Notice("... is heard again"), Overdue(actor)]
    observe, forget        --> Movement.tick --> [Notice("nothing has moved for ...")]

An actor sends a status twice a second, also while it starts and while torch works in its thread. The notice about a
silent actor holds observations only: the time without a status, the kernel's view of the process, and what other actors
wait for. Replicas of a role that fall silent together share one notice. The cost of a tick is linear in the number of
actors, however many are silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agent_rl.config.links import awaited_roles
from agent_rl.figures import numbers
from agent_rl.messages import ActorStatus
from agent_rl.observe.replicas import by_role, role_of

SILENT_SECONDS = 5.0
"""An actor without a status for this long (ten intervals) is silent."""
NAMED_SECONDS = 7.5
"""A silent actor is reported once another actor waits for it, and after this time in any case."""
STARTING_SECONDS = 30.0
"""The time to the first status: imports on a busy machine are slow. A stopped process is reported like any other."""
UNWATCHED_SECONDS = 1.5
"""A longer gap between ticks means that the supervisor or the machine stood still. It does not count as silence."""
NAMED_EACH = 3
"""With more replicas of a role than this, a text names the first and counts the others."""
COMPARED_AFTER_SECONDS = 0.5
"""Statuses are compared again so long after the run was seen to move: with many actors, one of them moved just now."""
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
    """A text to log and show once. ``actor`` is empty for the whole run, and the first of ``actors`` when several."""

    text: str
    actor: str = ""
    actors: tuple[str, ...] = ()


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
    waiting_for: str = ""
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
        self._back: dict[str, float] = {}
        """Actors heard again since the last tick, with the seconds of their silence."""
        self._waits: dict[str, list[str]] = {}
        """For each role of silent actors, the waits for it: computed once, until an actor is heard."""
        self._ticked: float | None = None

    def started(self, actor: str, patience: float) -> None:
        """A process of this supervisor was started. ``patience``: the seconds it may be silent."""
        self.forget(actor)
        self._watched[actor] = _Watched(patience, "since it was started")

    def forget(self, actor: str) -> None:
        """The actor has ended or was asked to end: stop watching it."""
        self._watched.pop(actor, None)
        self._waits.clear()

    def heard(self, status: ActorStatus) -> None:
        """Take in a status. Actors of other hosts are watched from their first status on."""
        watched = self._watched.setdefault(status.actor, _Watched(math.inf))
        self._waits.clear()
        if watched.named:
            self._back[status.actor] = watched.unheard
        starting = "while it starts" if status.state == "starting" else ""
        self._watched[status.actor] = _Watched(watched.patience, starting, status.waiting_for)

    def tick(self, now: float) -> list[Notice | Overdue]:
        """Time has passed: report silent actors, those that are heard again, and those that are overdue."""
        passed = 0.0 if self._ticked is None else min(now - self._ticked, UNWATCHED_SECONDS)
        self._ticked = now
        self._waits.clear()
        named: list[str] = []
        overdue: list[Overdue] = []
        for actor, watched in self._watched.items():
            watched.unheard += passed
            if watched.unheard < SILENT_SECONDS / 2:
                continue
            watched.seen = self._look(actor)
            watched.watched += passed if watched.first_seen else 0.0
            watched.first_seen = watched.first_seen or watched.seen
            if self._silent(watched):
                waits = bool(self.waits_for(actor))
                if (waits and not watched.waits_named) or (not watched.named and watched.unheard >= NAMED_SECONDS):
                    watched.named, watched.waits_named = True, waits
                    named.append(actor)
            if watched.unheard >= watched.patience and not watched.overdue:
                watched.overdue = True
                text = f"{self.describe(actor)}; it was killed, since it may be silent for {watched.patience:g} s"
                overdue.append(Overdue(actor, text))
        back, self._back = self._back, {}
        return [
            *self._notices(back, lambda actor: f"{actor} is heard again, after {back[actor]:.0f} s"),
            *self._notices(named, self.describe),
            *overdue,
        ]

    def _notices(self, actors: Iterable[str], describe: Callable[[str], str]) -> list[Notice]:
        """A notice for each actor; one for all replicas of a role when they are many."""
        notices = []
        for replicas in by_role(actors, str).values():
            if len(replicas) <= NAMED_EACH:
                notices += [Notice(describe(actor), actor, (actor,)) for actor in replicas]
            else:
                first, *others = replicas
                also = _listed(others)
                notices.append(Notice(f"{describe(first)}; the same holds for {also}", first, tuple(replicas)))
        return notices

    @property
    def silent(self) -> list[str]:
        """The silent actors."""
        return [actor for actor, watched in self._watched.items() if watched.named]

    @property
    def descriptions(self) -> list[str]:
        """A line about each silent actor; one about all replicas of a role when they are many."""
        return [notice.text for notice in self._notices(self.silent, self.describe)]

    def state(self, actor: str) -> str:
        """A silent actor's state for the table; empty for other actors."""
        watched = self._watched.get(actor)
        return "" if watched is None or not watched.named else self._words(actor, watched)

    def describe(self, actor: str) -> str:
        """How long the actor has been silent, the state of its process, and which actors wait for it and for what."""
        return f"{actor} has been {self._words(actor, self._watched[actor])}"

    def waits_for(self, actor: str) -> list[str]:
        """The actors that report waiting for this actor's role, then those that wait for these, nearest first.

        Which roles an actor waits for follows from the topology's links (`agent_rl.config.links.wait_for`).
        """
        role = role_of(actor)
        if role not in self._waits:
            self._waits[role] = self._waits_for_role(role)
        return self._waits[role]

    def _waits_for_role(self, role: str) -> list[str]:
        waiting: dict[str, dict[str, list[str]]] = {}
        """For each role that is waited for, the actors that do, by their own role."""
        speak = (actor for actor, seen in self._watched.items() if seen.waiting_for and seen.unheard < SILENT_SECONDS)
        for actor in sorted(speak):
            for awaited in awaited_roles(self._watched[actor].waiting_for):
                waiting.setdefault(awaited, {}).setdefault(role_of(actor), []).append(actor)
        found, roles = [], [role]
        for awaited in roles:
            for its_role, actors in waiting.get(awaited, {}).items():
                if its_role == role:
                    continue
                whom = {actor: _whom(self._watched[actor].waiting_for, role) for actor in actors[:NAMED_EACH]}
                found += [f"{actor} waits for {it}" for actor, it in whom.items()]
                found += _others(actors, f"wait for {awaited}")
                if its_role not in roles:
                    roles.append(its_role)
        return list(dict.fromkeys(found))

    def _silent(self, watched: _Watched) -> bool:
        stopped = watched.seen is not None and watched.seen.stopped
        return watched.unheard >= (STARTING_SECONDS if watched.starting and not stopped else SILENT_SECONDS)

    def _words(self, actor: str, watched: _Watched) -> str:
        starting = f" {watched.starting}" if watched.starting else ""
        silent = f"silent for {watched.unheard:.0f} s{starting}{_process_words(watched)}"
        return "; ".join([silent, *(self.waits_for(actor) or ["no actor reports waiting for it"])])


def _whom(waiting_for: str, role: str) -> str:
    """The words of a wait, where ``role`` is called "it"."""
    names = ", ".join("it" if each == role else each for each in awaited_roles(waiting_for))
    return f"{names}:{waiting_for.partition(':')[2]}"


def _listed(actors: Sequence[str]) -> str:
    """Replicas of one role: all names, or the first and the number of the others."""
    if len(actors) <= NAMED_EACH:
        return ", ".join(actors)
    return f"{actors[0]} and {len(actors) - 1} more of {role_of(actors[0])}"


def _others(actors: Sequence[str], words: str) -> list[str]:
    """The replicas of one role beyond those that are named, as one item of a list."""
    more = len(actors) - NAMED_EACH
    return [f"{more} more of {role_of(actors[0])} {words}"] if more > 0 else []


def _process_words(watched: _Watched) -> str:
    """The observations of the process as a clause; empty without any."""
    first, last = watched.first_seen, watched.seen
    if first is None or last is None:
        return ""
    if last.stopped:
        return ", its process is stopped (state T)"
    used = f"{last.cpu_seconds - first.cpu_seconds:.1f} s of processor time in the last {watched.watched:.0f} s"
    return f", its process lives (state {last.state}) and used {used}"


@dataclass
class Movement:
    """Whether the run moves: a figure, a state or a wait changes, or an actor is busy.

    After ``patience`` seconds without movement the user is told. The run continues.
    """

    patience: float
    _seen: dict[str, tuple[ActorStatus, float]] = field(default_factory=dict)
    """The newest status of each actor, and when it came."""
    _moved: float | None = None
    _ticked: float | None = None
    _named: bool = False

    def observe(self, status: ActorStatus, now: float) -> list[Notice]:
        """Take in a status."""
        before = self._seen.get(status.actor)
        self._seen[status.actor] = status, now
        just_moved = self._moved is not None and now - self._moved < COMPARED_AFTER_SECONDS and not self._named
        if before is not None and (just_moved or not _moves(before, status, now)):
            return []
        stood, self._moved = now - (now if self._moved is None else self._moved), now
        named, self._named = self._named, False
        return [Notice(f"the run moves again, after {_minutes(stood)}")] if named else []

    def forget(self, actor: str) -> None:
        """The actor has ended in order: it is no longer part of the run."""
        self._seen.pop(actor, None)

    def tick(self, now: float, silent: Collection[str] = ()) -> list[Notice]:
        """Time has passed: report a run that does not move. ``silent`` are the actors that are not heard."""
        unwatched = max(0.0, now - (now if self._ticked is None else self._ticked) - UNWATCHED_SECONDS)
        self._ticked = now
        if self._moved is not None:
            self._moved += unwatched
        if self._moved is None or self._named or now - self._moved < self.patience:
            return []
        self._named = True
        return [Notice(self.describe(now, silent))]

    @property
    def stands(self) -> bool:
        """Whether the user was told that the run does not move."""
        return self._named

    def describe(self, now: float, silent: Collection[str] = ()) -> str:
        """How long nothing has moved, which actors are silent, and what each other actor waits for."""
        unheard = frozenset(silent)
        alike: dict[tuple[str, str], list[str]] = {}
        for actor in sorted(self._seen):
            words = "is silent" if actor in unheard else _says(self._seen[actor][0])
            alike.setdefault((role_of(actor), words), []).append(actor)
        lines = []
        for (_, words), actors in alike.items():
            lines += [f"{actor} {words}" for actor in actors[:NAMED_EACH]] + _others(actors, "likewise")
        stood = now - (now if self._moved is None else self._moved)
        return f"nothing has moved for {_minutes(stood)}: {'; '.join(lines)}"


def _moves(before: tuple[ActorStatus, float], status: ActorStatus, now: float) -> bool:
    was, heard_at = before
    if (was.state, was.waiting_for) != (status.state, status.waiting_for):
        return True
    if status.busy_seconds - was.busy_seconds > BUSY_SHARE * max(1e-9, now - heard_at):
        return True
    if was.figures == status.figures:
        return False
    return numbers(was.figures) != numbers(status.figures)  # the finite ones: NaN does not equal itself


def _says(status: ActorStatus) -> str:
    if status.waiting_for:
        return f"waits for {status.waiting_for}"
    return "reports no wait" if status.state == "running" else f"is {status.state}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"


class Missing:
    """The texts of ``ActorStatus.missing``, each with the actors that say it. A text is a notice once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def heard(self, status: ActorStatus) -> list[Notice]:
        """Take in a status."""
        before = self._said.pop(status.actor, "")
        known = set(self._said.values())
        if status.missing:
            self._said[status.actor] = status.missing
        if status.missing == before:
            return []
        if before and before not in known and not status.missing:
            return [Notice(f"{status.actor} goes on", status.actor)]
        new = status.missing and status.missing not in known
        return [Notice(f"{status.actor} waits: {status.missing}", status.actor)] if new else []


def final_words(silent: Sequence[str], standing: str) -> list[str]:
    """The lines of the exit message about silent actors, and about a run that did not move."""
    return [f"at the end: {text}" for text in (*silent, *([standing] if standing else []))]
