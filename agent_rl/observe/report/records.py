"""Reads the files of a run for the report, except the journal (see `stored`).

Faulty content becomes a note and never breaks the report.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.config.hidden import redacted
from agent_rl.files.disk import older
from agent_rl.files.reading_json import open_file, read_json
from agent_rl.records.audit import Audit
from agent_rl.records.continuing import FILE as TOPOLOGY
from agent_rl.records.journal import JOURNAL
from agent_rl.records.run_directory import in_use, read_end, read_memory_kills
from agent_rl.records.timeline import FILE as TIMELINE

METRICS = "metrics.jsonl"
LARGEST = 1e100
PIECE_BYTES = 1 << 20
WAYS = ("sampled", "greedy")

Row = dict[str, Any]


class ReportError(Exception):
    """There is no run to report on; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Success:
    """A share of trials in [0, 1] with its 95 % interval."""

    share: float
    low: float
    high: float
    trials: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Success on held-out problems after ``steps`` RL steps, by way (sampled, greedy)."""

    name: str
    steps: int
    ways: dict[str, Success]
    environments: dict[str, Success]
    """Of sampled answers by environment, where the run has several."""
    figures: dict[str, float]

    def rows(self) -> Iterator[tuple[str, Success, str]]:
        """All ways with their words, those of environments last."""
        yield from ((way, success, way) for way, success in self.ways.items())
        yield from ((f"sampled_{name}", success, f"sampled, {name}") for name, success in self.environments.items())


class RecipeStage(NamedTuple):
    """A stage of the recipe."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class StageEnd:
    """When a stage ended, on the wall clock, and its figures."""

    stage: int
    wall: float
    figures: dict[str, float]


@dataclass(slots=True)
class Records:
    """All records except the trajectories. ``steps`` are in order, with figures by name; NaN for missing ones."""

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
    steps: list[Row] = field(default_factory=list)
    evaluations: list[HeldOutResult] = field(default_factory=list)
    ends: list[StageEnd] = field(default_factory=list)
    timeline: list[Row] = field(default_factory=list)
    fates: list[tuple[int | None, str, int]] = field(default_factory=list)
    """Numbers of training groups, as (version of the step that decided them or None, fate, number)."""
    kept_rewards: dict[int, float] = field(default_factory=dict)
    audit: Audit | None = None
    notes: list[str] = field(default_factory=list)
    journal_fault: str = ""
    """Why the journal cannot be read."""

    @property
    def finished(self) -> bool:
        """Whether the recipe was completed."""
        return self.stage is not None and bool(self.stages) and self.stage >= len(self.stages)

    def set_stage(self, fact: str | None) -> None:
        """Take the journal's fact of the current stage."""
        self.stage = int(fact) if fact is not None and fact.isdigit() else None


class RunFiles:
    """The files of a run directory, whose rows are read as they are added. Raises ReportError when it is not one."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise ReportError(f"there is no run directory {directory}")
        begun = any((directory / name).is_file() for name in (JOURNAL, METRICS))
        if not begun and not in_use(directory):  # the actors of a run that starts have made neither yet
            raise ReportError(f"{directory} is no run directory: it has neither {JOURNAL} nor {METRICS}")
        self.directory = directory
        self.metrics = Lines(directory / METRICS)
        self.timeline = Lines(directory / TIMELINE)

    def look(self) -> None:
        """Read what was added."""
        self.metrics.look()
        self.timeline.look()

    def records(self) -> Records:
        """The records so far."""
        directory = self.directory
        path = directory.resolve()
        records = Records(f"{path.parent.name}/{path.name}" if path.name == "run" else path.name)
        records.stopped = read_end(directory)
        records.memory_kills = read_memory_kills(directory)
        records.remarks = tuple(map(str, _summary(directory).get("remarks") or ()))
        _read_settings(directory, records)
        records.notes += self.metrics.notes()
        _read_metrics(directory, self.metrics.rows, records)
        records.notes += self.timeline.notes()
        records.timeline = list(filter(_is_span, self.timeline.rows))
        return records

    def newest(self) -> Row | None:
        """The newest row of the timeline."""
        return next(filter(_is_span, reversed(self.timeline.rows)), None)


def _is_span(row: Row) -> bool:
    return isinstance(row.get("actors"), dict) and figure(row, "seconds") > 0 and math.isfinite(figure(row, "wall"))


def read_records(directory: Path) -> Records:
    """Read the files of a run directory, but not its journal. Raises ReportError when it is not one."""
    files = RunFiles(directory)
    files.look()
    return files.records()


class Lines:
    """A file of JSON lines that grows, with the older part that `older` names. Invalid lines are left out and counted.

    A line counts once it has its end. A file that was replaced, or that is shorter than before, is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self._path = path
        self._fault = ""
        self._begin(None)

    def _begin(self, file: tuple[int, int] | None) -> None:
        self._file = file
        self._at = self._broken = self._count = 0
        self._half = b""
        self.rows.clear()

    def look(self) -> None:
        """Read the lines that were added."""
        try:
            with open_file(self._path) as file:
                self._fault = ""
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._at:
                    self._begin((found.st_dev, found.st_ino))
                    self._read_older()
                file.seek(self._at)
                while piece := file.read(PIECE_BYTES):
                    self._at += len(piece)
                    self._take(piece)
        except FileNotFoundError:
            self._fault = f"There is no {self._path.name}."
        except OSError as error:
            self._fault = f"{self._path.name} cannot be read: {error.strerror}."

    def _read_older(self) -> None:
        if (path := older(self._path)).exists():
            with open_file(path) as file:
                while piece := file.read(PIECE_BYTES):
                    self._take(piece)
            self._half = b""

    def _take(self, piece: bytes) -> None:
        *whole, self._half = (self._half + piece).split(b"\n")
        for line in whole:
            self._count += 1
            if (row := _row(line)) is not None:
                self.rows.append(row)
            else:
                self._broken += bool(line.strip())

    def notes(self) -> list[str]:
        """What is wrong with the file, in sentences."""
        half = bool(self._half.strip())
        broken = self._broken + half
        if self._fault or not broken:
            return [self._fault] if self._fault else []
        end = " (the last one, half-written)" if broken == 1 and half else ""
        lines = f"{broken} of {self._count + half} lines of {self._path.name}"
        return [f"{lines} cannot be read{end}; they are left out."]


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def figure(row: Row, name: str) -> float:
    """A figure of a row; NaN when it is missing, not finite, or too large to draw."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) < LARGEST else math.nan


def _read_settings(directory: Path, records: Records) -> None:
    try:
        settings = read_json(directory / TOPOLOGY)
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict):
        records.notes.append(f"{TOPOLOGY} is missing or unreadable: what the run was made with is not known.")
        return
    records.settings = redacted(settings)
    while isinstance(words := settings.get(f"stages.{len(records.stages)}"), str):
        kind, _, name = words.partition(" stage named ")
        records.stages.append(RecipeStage(kind, name))


def _read_metrics(directory: Path, rows: Sequence[Row], records: Records) -> None:
    by_version: dict[float, Row] = {}
    evaluations: list[Row] = []
    times = []
    for row in rows:
        times.append(figure(row, "seconds"))
        match row.get("kind"):
            case "step" if math.isfinite(figure(row, "version")):
                by_version[figure(row, "version")] = row  # the last row counts, in case a crash has repeated one
            case "evaluation":
                evaluations.append(row)
            case "stage":
                stage = figure(row, "stage")
                if math.isfinite(stage):
                    records.ends.append(StageEnd(int(stage), figure(row, "wall"), _numbers(row)))
    times.append(60.0 * figure(_summary(directory), "minutes"))  # until the filter stopped, after the last row
    records.seconds = max((time for time in times if math.isfinite(time)), default=math.nan)
    records.steps = [by_version[version] for version in sorted(by_version)]
    for row in evaluations:
        steps = sum(at <= figure(row, "version") for at in by_version)
        if (result := _evaluation(row, steps)).ways:
            records.evaluations.append(result)
    _note_missing_figures(records)


def _summary(directory: Path) -> Row:
    try:
        summary = read_json(directory / "summary.json")
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _evaluation(row: Row, steps: int) -> HeldOutResult:
    name = str(row.get("stage"))
    prefix = f"success_{name}_"
    ways = {way: success for way in WAYS if (success := _success(row, f"{name}_{way}"))}
    environments = {
        key.removeprefix(f"{prefix}sampled_"): success
        for key in row
        if key.startswith(f"{prefix}sampled_") and (success := _success(row, key.removeprefix("success_")))
    }
    return HeldOutResult(name, steps, ways, environments, _numbers(row))


def _success(row: Row, of: str) -> Success | None:
    """Success of some answers; None where the row has no share with an interval."""
    share, low, high = (figure(row, f"success_{of}{end}") for end in ("", "_low", "_high"))
    trials, lost = figure(row, f"problems_{of}"), figure(row, f"lost_{of}")
    if not all(map(math.isfinite, (share, low, high, trials))):
        return None
    return Success(share, low, high, int(trials), int(lost) if math.isfinite(lost) else 0)


def _numbers(row: Row) -> dict[str, float]:
    return {name: figure(row, name) for name in row if math.isfinite(figure(row, name))}


def _note_missing_figures(records: Records) -> None:
    """Note the figures that are NaN or infinite in some step."""
    odd: Counter[str] = Counter()
    for row in records.steps:
        odd.update(name for name, value in row.items() if isinstance(value, float) and math.isnan(figure(row, name)))
    if odd:
        named = ", ".join(f"{name} in {count}" for name, count in sorted(odd.items()))
        steps = len(records.steps)
        records.notes.append(f"Not finite numbers, of {steps} steps: {named}. The curves leave them out.")
