"""The actors in the live table: a line for each replica of a role with few, and one line for a role with many.

::

    Replica, Replica, ... --(at most FEW of the role)--> an ActorRow for each
                         `-(more)----------------------> one ActorRow: counts by state, sums of figures

Pure. The line of a role with many replicas names, by number, some of those in another state than most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeVar

from agent_rl.figures import ActorFigures, numbers

T = TypeVar("T")
DASH = "-"
FEW = 8
"""The most replicas of a role that have lines of their own."""
NAMED = 4
"""The most replicas that a text names."""

OWN_FIGURES = {
    "queue": "queue",
    "running": "running",
    "waiting": "waiting",
    "groups_open": "open groups",
    "tokens_per_s": "tokens/s",
    "rollouts_per_s": "rollouts/s",
    "calls_per_s": "calls/s",
    "children": "children",
    "sessions": "sessions",
    "sessions_evicted": "evicted",
    "sessions_rebuilt": "rebuilt",
    "groups_trained": "trained",
    "rollouts_in_flight": "rollouts in flight",
    "seconds_per_step": "s/step",
    "rejected_frames": "rejected frames",
}
"""The figures in an actor's line: the name in `agent_rl.figures`, and the label."""


@dataclass(slots=True)
class Replica:
    """What is known of one actor. ``ago`` is how long ago it was heard, in seconds; None: never."""

    name: str
    state: str
    explanation: str
    """Prose about the state."""
    ago: float | None
    late: bool
    restarts: int
    detail: str
    figures: Mapping[str, float]
    """See `shown_figures`."""

    @property
    def kind(self) -> str:
        """The state without its duration, by which replicas are counted."""
        return self.state.partition(" for ")[0]

    @property
    def number(self) -> int:
        """The replica's number within its role."""
        number = self.name.rpartition(".")[2]
        return int(number) if number.isdecimal() else 0


class ActorRow(NamedTuple):
    """The cells of a line of the table. ``explanation`` is prose about the state."""

    name: str
    state: str
    explanation: str
    heard: str
    restarts: int
    figures: Sequence[str]
    """The most important ones first."""
    late: bool = False
    """Whether the last status is older than it should be."""


def rows(replicas: Iterable[Replica]) -> list[ActorRow]:
    """The lines of the table, the roles in the order of their first replicas."""
    found: list[ActorRow] = []
    for role, members in by_role(replicas, attrgetter("name")).items():
        found += [_row(each) for each in members] if len(members) <= FEW else [_role_row(role, members)]
    return found


def unusual(replicas: Iterable[Replica]) -> Iterator[tuple[str, str]]:
    """Actors in another state than running, with the state; one entry for many replicas of a role in the same."""
    for role, members in by_role((each for each in replicas if each.kind != "running"), attrgetter("name")).items():
        for kind, alike in _by_kind(members).items():
            if len(alike) <= FEW:
                yield from ((each.name, _words(each)) for each in alike)
            else:
                yield f"{len(alike)} of {role}", f"{kind}: {_numbers(alike)}"


def role_of(actor: str) -> str:
    """The role of an actor, which is its name without its number, or the role itself."""
    return actor.rpartition(".")[0] or actor


def by_role(replicas: Iterable[T], name: Callable[[T], str]) -> dict[str, list[T]]:
    """The replicas of each role, the roles in the order of their first replicas."""
    return _grouped(replicas, lambda each: role_of(name(each)))


def _grouped(replicas: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for each in replicas:
        groups.setdefault(key(each), []).append(each)
    return groups


def shown_figures(figures: ActorFigures) -> dict[str, float]:
    """The figures of an actor's line by name, its own ones first; what is None or not finite is left out."""
    found = numbers(figures)
    return {name: found[name] for name in (*figures.extra, *OWN_FIGURES) if name in found}


def number(value: float | None) -> str:
    """A number for people: three digits, or all before the point; a dash for none."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def _words(replica: Replica) -> str:
    mark = ": " if replica.kind == "failed" else "; "
    return replica.state + (f"{mark}{replica.explanation}" if replica.explanation else "")


def _label(name: str) -> str:
    return OWN_FIGURES.get(name) or name.replace("_", " ")


def _heard(ago: float | None) -> str:
    return DASH if ago is None else f"{ago:.0f} s ago"


def _row(replica: Replica) -> ActorRow:
    figures = [f"{_label(name)} {number(value)}" for name, value in replica.figures.items()]
    if replica.detail:
        figures.insert(0, replica.detail)
    cells = replica.name, replica.state, replica.explanation, _heard(replica.ago), replica.restarts
    return ActorRow(*cells, figures or [DASH], late=replica.late)


def _role_row(role: str, members: Sequence[Replica]) -> ActorRow:
    kinds = _by_kind(members)
    common = max(kinds, key=lambda kind: (len(kinds[kind]), kind == "running"))
    count = len(members)
    state = common if len(kinds) == 1 else f"{len(kinds[common])} of {count} {common}"
    ages = [each.ago for each in members if each.ago is not None and each.kind != "silent"]
    details = Counter(each.detail for each in members if each.detail).most_common(2)
    words = [detail if times == count else f"{detail} ({times})" for detail, times in details]
    return ActorRow(
        name=f"{role} ({count:,})",
        state=state,
        explanation="; ".join(_standing_out(kinds, common)),
        heard=_heard(max(ages, default=None)),
        restarts=sum(each.restarts for each in members),
        figures=[*words, *_sums([each.figures for each in members])] or [DASH],
    )


def _by_kind(members: Iterable[Replica]) -> dict[str, list[Replica]]:
    return _grouped(members, lambda each: each.kind)


def _standing_out(kinds: Mapping[str, Sequence[Replica]], common: str) -> Iterator[str]:
    """The replicas in each other state than most, and why; and those that are heard late."""
    for kind, alike in kinds.items():
        if kind != common:
            why = f" ({alike[0].explanation})" if alike[0].explanation and kind == "failed" else ""
            yield f"{len(alike):,} {kind}: {_numbers(alike)}{why}"
        elif kind != "running" and alike[0].explanation:
            yield f"replica {alike[0].number} {_words(alike[0])}"
    if late := [each for alike in kinds.values() for each in alike if each.late and each.kind == "running"]:
        yield f"{len(late):,} heard late: {_numbers(late)}"


def _sums(seen: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """The figures over the replicas, of those that can be added."""
    for name, label in OWN_FIGURES.items():
        values = [figures[name] for figures in seen if name in figures]
        if values and name != "seconds_per_step":
            yield f"{label} {number(math.fsum(values))}"


def _numbers(members: Iterable[Replica]) -> str:
    """The first of the replicas' numbers; the others are counted."""
    numbers = sorted(each.number for each in members)
    more = f" and {len(numbers) - NAMED:,} more" if len(numbers) > NAMED else ""
    return f"replica{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:NAMED]))}{more}"
