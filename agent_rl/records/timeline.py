"""``timeline.jsonl``: which actors worked and which waited, and for whom. One row a second (twice
``run.status_seconds``); rows are longer later, and with many actors.

::

    ActorStatus (totals) --> Timeline.observe ... Timeline.row --> {"wall": 1.7e9, "seconds": 1.0, "actors": {
        "learner.0": {"state": "running", "busy": 0.42, "cpu": 0.40, "waiting_for": "roc_filter: step 3", "waited": 0.5,
                      "figures": {"step": 12.0, ...}}}, "cores": 2}

``busy`` and ``cpu`` are shares of the row's seconds. ``waited`` is the share of statuses that named something to wait
for. The figures are the actor's newest; a generator's ``passes`` are lists by size, in the order of
`agent_rl.figures.Passes`. ``cores`` counts the cores that the supervisor may use.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from agent_rl.figures import ActorFigures, numbers
from agent_rl.files.disk import LossyLines, older
from agent_rl.files.reading_json import open_file
from agent_rl.messages import ActorStatus

FILE = "timeline.jsonl"
SHORTEST_ROW = 1.0
"""Seconds, when actors report as often as by default."""
ROWS_PER_DOUBLING = 600
"""Rows cover more seconds as the run goes on, so that a day takes a few thousand rows."""
ACTORS_PER_SECOND = 100
"""Rows cover more seconds with more actors than this, so that the file grows no faster."""


@dataclass(slots=True)
class _Seen:
    status: ActorStatus
    at: float
    """When the status was heard."""
    busy: float = 0.0
    cpu: float = 0.0
    statuses: int = 0
    waits: int = 0
    since: float = 0.0
    """``busy`` and ``cpu`` cover the time from here on."""


class Timeline:
    """Turns the totals of statuses into shares. ``now`` is in seconds of any monotonic clock."""

    def __init__(self, now: float, shortest: float = SHORTEST_ROW) -> None:
        self._began = self._row_began = now
        self._shortest = shortest
        self._seen: dict[str, _Seen] = {}

    def observe(self, status: ActorStatus, now: float) -> None:
        """Take an actor's totals. A new process of the actor has smaller totals than before."""
        seen = self._seen.get(status.actor)
        if seen is None:
            self._seen[status.actor] = _Seen(status, now, since=now)
            return
        before = seen.status
        replaced = status.busy_seconds < before.busy_seconds or status.cpu_seconds < before.cpu_seconds
        seen.busy += status.busy_seconds - (0.0 if replaced else before.busy_seconds)
        seen.cpu += status.cpu_seconds - (0.0 if replaced else before.cpu_seconds)
        seen.statuses += 1
        seen.waits += bool(status.waiting_for)
        seen.status, seen.at = status, now

    def due(self, now: float) -> bool:
        """Whether a row is due."""
        shortest = max(self._shortest, len(self._seen) / ACTORS_PER_SECOND)
        return now - self._row_began >= max(shortest, (now - self._began) / ROWS_PER_DOUBLING)

    def row(self, now: float, wall: float) -> dict[str, Any]:
        """The statuses since the last row; ``wall`` is the end of the row in seconds since the epoch."""
        actors = {}
        for name, seen in sorted(self._seen.items()):
            if not seen.statuses:
                continue
            seconds = max(1e-9, seen.at - seen.since)
            actors[name] = {
                "state": seen.status.state,
                "busy": round(min(1.0, seen.busy / seconds), 4),
                "cpu": round(seen.cpu / seconds, 4),
                "waiting_for": seen.status.waiting_for,
                "waited": round(seen.waits / seen.statuses, 4),
                "figures": _figures(seen.status.figures),
            }
            seen.busy = seen.cpu = 0.0
            seen.statuses = seen.waits = 0
            seen.since = seen.at
        row = {"wall": round(wall, 3), "seconds": round(now - self._row_began, 3), "actors": actors}
        self._row_began = now
        return row


def _figures(figures: ActorFigures) -> dict[str, Any]:
    found: dict[str, Any] = {name: round(value, 4) for name, value in numbers(figures).items()}
    if figures.generator is not None and figures.generator.passes:
        found["passes"] = {
            size: [round(value, 4) for value in astuple(passes)] for size, passes in figures.generator.passes.items()
        }
    return found


class TimelineFile:
    """Appends the rows to a run directory's file, as statuses come in."""

    def __init__(
        self,
        directory: Path,
        now: float,
        wall: Callable[[], float],
        limit: float = math.inf,
        shortest: float = SHORTEST_ROW,
    ) -> None:
        """A file that reaches ``limit`` bytes is replaced by a new one; the previous file is kept (`LossyLines`).

        ``shortest``: the seconds that a row covers at least.
        """
        self._timeline = Timeline(now, shortest)
        self._lines = LossyLines(directory / FILE, limit)
        self._wall = wall
        self._cores = len(os.sched_getaffinity(0))

    def observe(self, status: ActorStatus, now: float) -> None:
        """Take a status; write a row when one is due, unless the disk is full."""
        self._timeline.observe(status, now)
        if self._timeline.due(now):
            self._lines.append(json.dumps(self._timeline.row(now, self._wall()) | {"cores": self._cores}))

    @property
    def lost(self) -> int:
        """How many rows the disk did not take."""
        return self._lines.lost_in_all

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What an actor did in the ``seconds`` before ``wall``. ``busy``, ``cpu`` and ``waited`` are shares of them."""

    wall: float
    seconds: float
    actor: str
    state: str
    busy: float
    cpu: float
    waiting_for: str
    waited: float
    figures: dict[str, Any]
    """The actor's newest figures by name."""

    def figure(self, name: str) -> float:
        """A figure that is a number; NaN where there is none."""
        return _number(self.figures.get(name), math.nan)


@dataclass(frozen=True, slots=True)
class Moments:
    """A row: the actors by name. ``cores``: None where it was not recorded."""

    wall: float
    seconds: float
    actors: dict[str, Moment]
    cores: int | None = None


def read_row(row: Mapping[str, Any]) -> Moments:
    """A row of the file. An actor's share that is no number is 0. Raises ValueError for one that no run writes."""
    wall, seconds, actors = _number(row.get("wall"), math.nan), _number(row.get("seconds"), 0.0), row.get("actors")
    if math.isnan(wall) or seconds <= 0 or not isinstance(actors, dict):
        raise ValueError("the row has no time or no actors")
    found = {
        name: Moment(
            wall=wall,
            seconds=seconds,
            actor=name,
            state=str(of.get("state", "")),
            waiting_for=str(of.get("waiting_for") or ""),
            figures=figures if isinstance(figures := of.get("figures"), dict) else {},
            **{share: _number(of.get(share), 0.0) for share in ("busy", "cpu", "waited")},
        )
        for name, of in actors.items()
        if isinstance(of, dict)
    }
    cores = _number(row.get("cores"), 0.0)
    return Moments(wall, seconds, found, int(cores) if cores >= 1 else None)


def _number(value: object, otherwise: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return otherwise
    return float(value)


def read_timeline(directory: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run, oldest first; a half-written last line is left out."""
    for path in (older(directory / FILE), directory / FILE):
        if path.exists():
            with open_file(path) as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield json.loads(line)
