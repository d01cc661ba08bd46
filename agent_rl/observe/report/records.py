"""The files of a run as the page shows them, except the journal (see `watched`).

`RunFiles` reads them as they grow; `Records` is what a page is made of. Faulty content becomes a note.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.config.hidden import redacted
from agent_rl.figures import AnswerFigures
from agent_rl.files.reading_json import read_object
from agent_rl.records.audit import Audit
from agent_rl.records.continuing import METRICS, SETTINGS, SUMMARY
from agent_rl.records.health import Alarm, Held
from agent_rl.records.journal import JOURNAL
from agent_rl.records.reading import Evaluated, Left, Lines, Step, read_record
from agent_rl.records.run_directory import in_use, read_end, read_memory_kills
from agent_rl.records.timeline import FILE as TIMELINE
from agent_rl.records.timeline import Moments, read_row

LARGEST = 1e100
WAYS = ("sampled", "greedy")


class ReportError(Exception):
    """There is no run to report on; the message says what is missing."""


class RecipeStage(NamedTuple):
    """A stage of the recipe."""

    kind: str
    name: str


@dataclass(slots=True)
class Records:
    """All of a run but its trajectories. ``steps`` are in order, each version once."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    stages: list[RecipeStage] = field(default_factory=list)
    stage: int | None = None
    """The current stage: an index of ``stages``, or their number when the run is finished."""
    stopped: str = ""
    """Why the run was stopped early because of a fault."""
    memory_kills: dict[str, int] = field(default_factory=dict)
    """How often the kernel killed the processes of actors for lack of memory."""
    remarks: tuple[str, ...] = ()
    """Those of the summary, which a run that ended has."""
    seconds: float = math.nan
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    ends: list[Left] = field(default_factory=list)
    timeline: list[Moments] = field(default_factory=list)
    fates: list[tuple[int | None, str, int]] = field(default_factory=list)
    """Numbers of training groups, as (version of the step that decided them or None, fate, number)."""
    kept_rewards: dict[int, float] = field(default_factory=dict)
    alarms: list[Held] = field(default_factory=list)
    alarms_now: tuple[Alarm, ...] = ()
    audit: Audit | None = None
    notes: list[str] = field(default_factory=list)
    journal_fault: str = ""
    """Why the journal cannot be read."""

    @property
    def finished(self) -> bool:
        """Whether the recipe was completed."""
        return self.stage is not None and bool(self.stages) and self.stage >= len(self.stages)

    def steps_before(self, evaluation: Evaluated) -> int:
        """The steps of the policy that was evaluated."""
        return bisect(self.steps, evaluation.version, key=lambda step: step.version)


def answers_to_all(evaluation: Evaluated) -> dict[str, AnswerFigures]:
    """The answers to all problems of an evaluation, by way."""
    return {way: answers for way, answers in evaluation.figures.ways().items() if way in WAYS}


def drawable(value: float | None) -> float:
    """A figure that can be drawn; NaN for one that is missing, not finite, or too large."""
    return math.nan if value is None or not abs(value) < LARGEST else float(value)


class _Written(NamedTuple):
    """A row of metrics.jsonl, its ``seconds``, and the names of its figures that cannot be drawn."""

    record: Step | Evaluated | Left | None
    seconds: float
    odd: tuple[str, ...]


def _read(row: dict[str, Any]) -> _Written:
    odd = tuple(name for name, value in row.items() if isinstance(value, float) and math.isnan(drawable(value)))
    seconds = row.get("seconds")
    return _Written(read_record(row), drawable(seconds) if isinstance(seconds, int | float) else math.nan, odd)


class RunFiles:
    """The files of a run directory, whose rows are read as they are added. Raises ReportError when it is not one."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise ReportError(f"there is no run directory {directory}")
        begun = any((directory / name).is_file() for name in (JOURNAL, METRICS))
        if not begun and not in_use(directory):  # the actors of a run that starts have made neither yet
            raise ReportError(f"{directory} is no run directory: it has neither {JOURNAL} nor {METRICS}")
        self.directory = directory
        self._metrics = Lines(directory / METRICS, _read)
        self._timeline = Lines(directory / TIMELINE, read_row)

    def look(self) -> None:
        """Read what was added."""
        self._metrics.look()
        self._timeline.look()

    @property
    def newest(self) -> Moments | None:
        """The newest row of the timeline."""
        return self._timeline.rows[-1] if self._timeline.rows else None

    def records(self) -> Records:
        """The records so far."""
        path = self.directory.resolve()
        records = Records(f"{path.parent.name}/{path.name}" if path.name == "run" else path.name)
        records.stopped, records.memory_kills = read_end(self.directory), read_memory_kills(self.directory)
        summary = read_object(self.directory / SUMMARY) or {}
        records.remarks = tuple(map(str, summary.get("remarks") or ()))
        if (settings := read_object(self.directory / SETTINGS)) is None:
            records.notes.append(f"{SETTINGS} is missing or unreadable: what the run was made with is not known.")
        else:
            records.settings = redacted(settings)
            while isinstance(words := settings.get(f"stages.{len(records.stages)}"), str):
                kind, _, name = words.partition(" stage named ")
                records.stages.append(RecipeStage(kind, name))
        records.notes += [*self._metrics.notes(), *self._timeline.notes()]
        rows = self._metrics.rows
        minutes = summary.get("minutes")  # until the filter stopped, after the last row
        times = [*(row.seconds for row in rows), 60.0 * minutes if isinstance(minutes, int | float) else math.nan]
        records.seconds = max(filter(math.isfinite, times), default=math.nan)
        # The last row of a version counts, in case a crash has repeated one.
        steps = {row.record.version: (row.record, row.odd) for row in rows if isinstance(row.record, Step)}
        records.steps = [steps[version][0] for version in sorted(steps)]
        records.evaluations = [row.record for row in rows if isinstance(row.record, Evaluated)]
        records.ends = [row.record for row in rows if isinstance(row.record, Left)]
        records.timeline = self._timeline.rows
        if odd := Counter(name for _, names in steps.values() for name in names):
            named = ", ".join(f"{name} in {count}" for name, count in sorted(odd.items()))
            said = f"Not finite numbers, of {len(steps)} steps: {named}. The curves leave them out."
            records.notes.append(said)
        return records
