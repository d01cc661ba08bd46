"""The actors in the live table: a line for each replica of a role with few, and one line for a role with many.

::

    Replica, Replica, ... --(at most FEW of the role)--> an ActorRow for each
                         `-(more)----------------------> one ActorRow: counts, sums, medians, and who stands out

Pure. The line of a role with many replicas adds figures over them, and names replicas by number: those in another state
than most, those that are heard late, and the slowest if it is far behind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple, TypeVar, cast

from agent_rl.figures import ActorFigures

T = TypeVar("T")
DASH = "-"
FEW = 8
"""The most replicas of a role that have lines of their own."""
RANGES = 4
"""The most ranges of replicas that a text names."""
SLOW = 0.5
"""A replica is slow if its rate is below this share of the median."""
RATES = ("tokens_per_s", "calls_per_s")
"""The figures by which replicas of a role are compared."""
MEDIANS = ("seconds_per_step",)
"""Figures that cannot be added over replicas. Of figures of a user's own the median is shown, too."""

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
    """The role of an actor, which is its name without its number."""
    return actor.rpartition(".")[0]


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
    found: dict[str, float | None] = dict(figures.extra)
    of_filter = figures.filter
    parts = (figures.learner, figures.scheduler, of_filter, of_filter.fates if of_filter else None)
    for part in (*parts, figures.generator, figures.executor, figures):
        if part is not None:
            found |= {name: getattr(part, name) for name in _shown_fields(cast("Hashable", type(part)))}
    own = {name: found[name] for name in figures.extra} | {name: found[name] for name in OWN_FIGURES if name in found}
    return {name: value for name, value in own.items() if isinstance(value, int | float) and math.isfinite(value)}


def number(value: float | None) -> str:
    """A number for people: three digits, or all before the point; a dash for none."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


@cache
def _shown_fields(part: Hashable) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cast("Any", part)) if each.name in OWN_FIGURES)


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
        explanation="; ".join([*_standing_out(kinds, common), *_slowest(members)]),
        heard=_heard(max(ages, default=None)),
        restarts=sum(each.restarts for each in members),
        figures=[*words, *_totals([each.figures for each in members])] or [DASH],
    )


def _by_kind(members: Iterable[Replica]) -> dict[str, list[Replica]]:
    return _grouped(members, lambda each: each.kind)


def _standing_out(kinds: Mapping[str, Sequence[Replica]], common: str) -> Iterator[str]:
    """The replicas in each other state than most, and why; and those that are heard late."""
    for kind, alike in kinds.items():
        longest = max(alike, key=lambda each: each.ago or 0.0) if kind == "silent" else alike[0]
        why = f" ({longest.explanation})" if longest.explanation and kind == "failed" else ""
        state = longest.state if kind == "silent" else kind
        if kind != common:
            yield f"{len(alike):,} {state}: {_numbers(alike)}{why}"
        elif kind != "running" and longest.explanation:
            yield f"replica {longest.number} {_words(longest)}"
    if late := [each for alike in kinds.values() for each in alike if each.late and each.kind == "running"]:
        yield f"{len(late):,} heard late: {_numbers(late)}"


def _slowest(members: Sequence[Replica]) -> Iterator[str]:
    """The running replica whose rate is far below the others'."""
    for name in RATES:
        rates = [
            (each.figures[name], each.number) for each in members if name in each.figures and each.kind == "running"
        ]
        if rates and min(rates)[0] < SLOW * (middle := median(rate for rate, _ in rates)):
            rate, replica = min(rates)
            yield f"slowest: replica {replica}, {_label(name)} {number(rate)} (median {number(middle)})"


def _totals(seen: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Each figure over the replicas: its sum, or its median where a sum says nothing."""
    names = dict.fromkeys(name for figures in seen for name in figures)
    for name in sorted(names, key=lambda name: list(OWN_FIGURES).index(name) if name in OWN_FIGURES else -1):
        values = [figures[name] for figures in seen if name in figures]
        if name in OWN_FIGURES and name not in MEDIANS:
            yield f"{_label(name)} {number(math.fsum(values))}"
        else:
            yield f"median {_label(name)} {number(median(values))}"


def _numbers(members: Iterable[Replica]) -> str:
    """The numbers of replicas, as ranges; beyond some ranges, the others are counted."""
    numbers = sorted(each.number for each in members)
    runs = [[value for _, value in run] for _, run in groupby(enumerate(numbers), key=lambda at: at[1] - at[0])]
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:RANGES])
    more = sum(map(len, runs[RANGES:]))
    return f"replica{'s' if len(numbers) > 1 else ''} {shown}" + (f" and {more:,} more" if more else "")
