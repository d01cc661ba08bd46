"""Reads the files of a run for the report, except the journal (see `stored`).

Faulty content becomes a note and never breaks the report.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.config.hidden import redacted
from agent_rl.files.disk import older
from agent_rl.files.reading_json import open_file, read_json
from agent_rl.records.audit import Audit
from agent_rl.records.continuing import FILE as TOPOLOGY
from agent_rl.records.journal import JOURNAL
from agent_rl.records.run_directory import read_end, read_memory_kills
from agent_rl.records.timeline import FILE as TIMELINE

METRICS = "metrics.jsonl"
LARGEST = 1e100
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


def read_records(directory: Path) -> Records:
    """Read the files of a run directory, but not its journal. Raises ReportError when it is not one."""
    if not directory.is_dir():
        raise ReportError(f"there is no run directory {directory}")
    if not any((directory / name).is_file() for name in (JOURNAL, METRICS)):
        raise ReportError(f"{directory} is no run directory: it has neither {JOURNAL} nor {METRICS}")
    records = Records(directory.resolve().name)
    records.stopped = read_end(directory)
    records.memory_kills = read_memory_kills(directory)
    records.remarks = tuple(map(str, _summary(directory).get("remarks") or ()))
    _read_settings(directory, records)
    _read_metrics(directory, records)
    records.timeline = [
        row
        for path in (*filter(Path.exists, [older(directory / TIMELINE)]), directory / TIMELINE)
        for row in _rows(path, records.notes)
        if isinstance(row.get("actors"), dict) and figure(row, "seconds") > 0 and math.isfinite(figure(row, "wall"))
    ]
    return records


def figure(row: Row, name: str) -> float:
    """A figure of a row; NaN when it is missing, not finite, or too large to draw."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) < LARGEST else math.nan


def _rows(path: Path, notes: list[str]) -> list[Row]:
    """The rows of a file of JSON lines. Invalid lines are left out and noted."""
    try:
        with open_file(path) as file:
            lines = file.read().decode("utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        notes.append(f"There is no {path.name}.")
        return []
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}.")
        return []
    rows, broken = [], 0
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif line.strip():
            broken += 1
    if broken:
        end = " (the last one, half-written)" if broken == 1 and not lines[-1].endswith("\n") else ""
        notes.append(f"{broken} of {len(lines)} lines of {path.name} cannot be read{end}; they are left out.")
    return rows


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


def _read_metrics(directory: Path, records: Records) -> None:
    by_version: dict[float, Row] = {}
    evaluations: list[Row] = []
    times = []
    for row in _rows(directory / METRICS, records.notes):
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
