"""Which actor worked and which waited for which: the timeline's rows on one axis of running time, and the shares.

A continued run has gaps on the wall clock. The axis leaves them out and marks them. Rows keep their order in the file,
whatever their clock says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_rl.observe.replicas import role_of
from agent_rl.observe.report.records import Records
from agent_rl.observe.words import clock, percent
from agent_rl.records.timeline import Moment, Moments

GAP_SECONDS = 5.0
"""A longer time between two rows means that the run was not running."""
ROLES = ("learner", "rollout_generator", "tool_executor", "roc_filter", "kv_scheduler")
"""The roles in the order of display. The place gives the colour."""
MOST_LANES = 12
"""With more actors than this, lanes show roles, as means of their replicas."""
PLACES = 230
"""The most places of the timeline."""
LANES_NOTE = (
    "Filled: at work in its role. Pale: idle, in the colour of the role it waits for. The rest is neither. Below, "
    "processor time of all actors with their children."
)


@dataclass(slots=True)
class TimeUse:
    """An actor's shares of a span of time: busy, and waiting by role waited for; processor time in cores."""

    busy: float = 0.0
    cpu: float = 0.0
    waiting: dict[str, float] = field(default_factory=dict)
    words: dict[str, float] = field(default_factory=dict)
    """Waiting by what the actor waits for, without numbers."""

    @property
    def waiting_in_all(self) -> float:
        """All waiting, for any role."""
        return sum(self.waiting.values())

    def reasons(self) -> list[tuple[str, float]]:
        """The main reasons for waiting: at most four, each at least a thousandth of the time."""
        longest = sorted(self.words.items(), key=lambda item: -item[1])[:4]
        return [(words, part) for words, part in longest if part >= 0.001]


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds ``start`` to ``end`` of running time, with the actors by name."""

    start: float
    end: float
    actors: dict[str, TimeUse]


@dataclass(frozen=True, slots=True)
class Activity:
    """The whole run. ``cores``: None where it was not recorded."""

    spans: tuple[Span, ...]
    gaps: tuple[float, ...]
    """The restarts of the run, in seconds of running time."""
    cores: int | None
    _walls: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Running time of the run in seconds."""
        return self.spans[-1].end if self.spans else 0.0

    def place(self, wall: float) -> float | None:
        """A wall clock time in seconds of running time; None when unknown."""
        if not self.spans or not math.isfinite(wall):
            return None
        for span, ended in zip(self.spans, self._walls, strict=True):
            if wall <= ended:
                return max(span.start, span.end - (ended - wall))
        return self.seconds

    def lanes(self) -> list[str]:
        """The actors, or the roles when there are many, in the order of ROLES."""
        names = {name for span in self.spans for name in span.actors}
        return sorted(names, key=lambda name: (role_number(name), name))


def activity(rows: Sequence[Moments]) -> Activity:
    """The timeline on one axis."""
    by_role = len({name for row in rows for name in row.actors}) > MOST_LANES
    spans: list[Span] = []
    gaps: list[float] = []
    at, ended = 0.0, -math.inf
    for row in rows:
        if spans and not -GAP_SECONDS < row.wall - row.seconds - ended <= GAP_SECONDS:  # negative: set back
            gaps.append(at)
        actors: dict[str, list[TimeUse]] = {}
        for name, moment in row.actors.items():
            actors.setdefault(role_of(name) if by_role else name, []).append(_use_of(moment))
        means = {name: _mean([(use, 1.0) for use in of]) for name, of in actors.items()}
        for name, of in actors.items() if by_role else ():  # processor time adds up
            means[name].cpu = sum(use.cpu for use in of)
        spans.append(Span(at, at + row.seconds, means))
        at, ended = at + row.seconds, row.wall
    cores = [row.cores for row in rows if row.cores is not None]
    return Activity(tuple(spans), tuple(gaps), max(cores, default=None), tuple(row.wall for row in rows))


def binned(spans: Sequence[Span], count: int) -> list[Span]:
    """The same time in ``count`` equal spans (or as many as exist). No span crosses the end of another."""
    if len(spans) <= count:
        return list(spans)
    width = spans[-1].end / count
    sums: list[dict[str, list[tuple[TimeUse, float]]]] = [{} for _ in range(count)]
    for span in spans:
        for index in range(int(span.start / width), min(count, math.ceil(span.end / width - 1e-9))):
            overlap = min(span.end, (index + 1) * width) - max(span.start, index * width)
            for name, share in span.actors.items():
                sums[index].setdefault(name, []).append((share, overlap))
    return [
        Span(index * width, (index + 1) * width, {name: _mean(of) for name, of in actors.items()})
        for index, actors in enumerate(sums)
    ]


def totals(spans: Sequence[Span]) -> dict[str, TimeUse]:
    """Every actor's shares of the time in which it reported."""
    of: dict[str, list[tuple[TimeUse, float]]] = {}
    for span in spans:
        for name, share in span.actors.items():
            of.setdefault(name, []).append((share, span.end - span.start))
    return {name: _mean(shares) for name, shares in sorted(of.items())}


def load(spans: Sequence[Span]) -> float:
    """Mean processor use of all actors together, in cores; NaN when nothing was reported."""
    heard = [span for span in spans if span.actors]
    seconds = sum(span.end - span.start for span in heard)
    spent = sum((span.end - span.start) * share.cpu for span in heard for share in span.actors.values())
    return spent / seconds if seconds else math.nan


def supervised_losses(rows: Sequence[Moments], stage: int) -> list[tuple[float, float]]:
    """(step, loss) of a supervised stage, from the learner's reports about once a second."""
    found: dict[float, float] = {}
    for moment in (moment for row in rows for moment in row.actors.values()):
        step, loss = moment.figure("step"), moment.figure("loss")
        if moment.figure("stage") == stage and step > 0 and math.isfinite(loss):
            found[step] = loss
    return sorted(found.items())


def role_number(actor: str) -> int:
    """The place of an actor's role, or of a role, in ROLES, from 1; others come last."""
    role = role_of(actor)
    return ROLES.index(role) + 1 if role in ROLES else len(ROLES) + 1


def _use_of(moment: Moment) -> TimeUse:
    use = TimeUse(min(1.0, max(0.0, moment.busy)), moment.cpu)
    waited = min(moment.waited, 1.0 - use.busy)
    if moment.waiting_for and waited > 0:
        role, _, words = moment.waiting_for.partition(":")
        use.waiting[role] = waited
        use.words[f"{role}: {_without_numbers(words)}"] = waited
    return use


def _without_numbers(words: str) -> str:
    return " ".join(word for word in words.replace(",", " ").split() if not word.isdigit())


def _mean(shares: Sequence[tuple[TimeUse, float]]) -> TimeUse:
    whole = sum(weight for _, weight in shares) or 1.0
    mean = TimeUse()
    for share, weight in shares:
        mean.busy += share.busy * weight / whole
        mean.cpu += share.cpu * weight / whole
        for into, of in ((mean.waiting, share.waiting), (mean.words, share.words)):
            for name, value in of.items():
                into[name] = into.get(name, 0.0) + value * weight / whole
    return mean


def lanes(records: Records, active: Activity) -> dict[str, Any] | None:
    """The timeline as an object of the page's JSON: a lane for each actor, stages above, processor time below."""
    if not active.spans:
        return None
    spans, shares, stages = binned(active.spans, PLACES), totals(active.spans), _stage_spans(records, active)
    names = active.lanes()
    cores = [sum(share.cpu for share in span.actors.values()) for span in spans]
    mean, of = load(active.spans), f" of {active.cores}" if active.cores else ""
    awaited = {role for share in shares.values() for role in share.waiting}
    busy = [role for role in ROLES if any(name.startswith(role) for name in names)]
    gaps = f" Dashed lines: the run was started again, {len(active.gaps)} times." if active.gaps else ""
    return {
        "title": "Timeline (minutes)",
        "legend": [
            *((f"{role} busy", role_number(role), "area") for role in busy),
            *((f"waiting for {role}", role_number(role), "pale") for role in _in_order(awaited)),
        ],
        "spans": [(span.start, span.end) for span in spans],
        "lanes": [_lane(name, shares[name], [span.actors.get(name) or TimeUse() for span in spans]) for name in names],
        "cores": {
            "words": f"{mean:.2f}{of} cores on average" if math.isfinite(mean) else "not recorded",
            "full": active.cores or max([*cores, 1e-9]),
            "values": cores,
        },
        "stages": stages,
        "gaps": active.gaps,
        "words": [_words(span, names, stages) for span in spans],
        "note": LANES_NOTE + gaps,
        "alt": f"Timeline of {clock(active.seconds)} minutes. "
        + "; ".join(f"{name} {_use(share, 'waiting for nobody')}" for name, share in shares.items()),
    }


def _lane(name: str, share: TimeUse, uses: Sequence[TimeUse]) -> dict[str, Any]:
    return {
        "name": name,
        "words": f"busy {percent(share.busy)}, waiting {percent(share.waiting_in_all)}",
        "colour": role_number(name),
        "busy": [each.busy for each in uses],
        "waits": [
            (role_number(role), [each.waiting.get(role, 0.0) for each in uses]) for role in _in_order(share.waiting)
        ],
    }


def _in_order(roles: Iterable[str]) -> list[str]:
    return sorted(roles, key=lambda role: (role_number(role), role))


def _use(share: TimeUse, nobody: str = "") -> str:
    waits = [f"waiting for {role} {percent(part)}" for role, part in sorted(share.waiting.items())]
    return ", ".join([f"busy {percent(share.busy)}", *(waits or filter(None, [nobody]))])


def _words(span: Span, names: Sequence[str], stages: Sequence[tuple[str, float, float]]) -> str:
    middle = (span.start + span.end) / 2
    within = next((f", stage {name}" for name, start, end in stages if start <= middle < end), "")
    cores = sum(share.cpu for share in span.actors.values())
    lines = [f"{name}: {_use(span.actors[name]) if name in span.actors else 'not heard'}" for name in names]
    return "\n".join([f"{clock(span.start)} to {clock(span.end)}{within}, {cores:.2f} cores", *lines])


def _stage_spans(records: Records, active: Activity) -> list[tuple[str, float, float]]:
    """The stages with their beginning and end in running time."""
    spans: list[tuple[str, float, float]] = []
    for end in records.ends:
        at, stage = active.place(end.wall), end.figures.stage
        if at is not None and 0 <= stage < len(records.stages):
            spans.append((records.stages[stage].name, spans[-1][2] if spans else 0.0, at))
    if spans and not records.finished and records.stage is not None and records.stage < len(records.stages):
        spans.append((records.stages[records.stage].name, spans[-1][2], active.seconds))
    return spans
