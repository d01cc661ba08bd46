"""What a run has written, as typed rows: of ``metrics.jsonl`` (the journal holds the same rows), and rollouts.

::

    metrics.jsonl, Journal.records --> read_record --> Step, Evaluated, Left
    timeline.jsonl                 --> read_row    --> Moments (timeline.py)
    journal                        --> rollouts_of --> Rollout

`Lines` reads a file of rows as it grows. The run may be under way, ended or crashed; nothing is changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from agent_rl.figures import EvaluationFigures, StageFigures, StepFigures, TrainingFigures, from_object, from_row
from agent_rl.files.disk import older
from agent_rl.files.reading_json import open_file
from agent_rl.messages import Judgement, Problem, Trajectory
from agent_rl.records.journal import Decode, GroupRow, Journal

T = TypeVar("T")
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A trained step: the filter's figures of the rollouts, and the learner's. ``version`` is the one it made."""

    stage: str
    step: int
    version: int
    figures: StepFigures
    training: TrainingFigures = field(default_factory=TrainingFigures)
    seconds: float
    """Seconds of running since the run began."""
    wall: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation of the policy ``version`` that is complete."""

    figures: EvaluationFigures
    version: int
    seconds: float
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The end of a stage."""

    figures: StageFigures
    seconds: float
    wall: float


def read_record(row: dict[str, Any]) -> Step | Evaluated | Left | None:
    """A row of ``metrics.jsonl``; None for one of another kind. Raises ValueError for one that no run writes."""
    match row.get("kind"):
        case "step":
            return from_row(Step, row)
        case "evaluation":
            about = {name: row.get(name) for name in ("version", "seconds", "wall")}
            return from_object(Evaluated, {"figures": EvaluationFigures.of_row(str(row.get("stage")), row), **about})
        case "stage":
            return from_row(Left, row)
    return None


class Lines(Generic[T]):
    """A file of JSON lines that grows, with the older part that `older` names: what ``read`` makes of each line.

    Lines that hold no object, and those for which ``read`` raises ValueError, are left out and counted. A line counts
    once it has its end. A file that was replaced, or that is shorter than before, is read anew.
    """

    def __init__(self, path: Path, read: Callable[[dict[str, Any]], T]) -> None:
        self.rows: list[T] = []
        self._path, self._read = path, read
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
            try:
                self.rows.append(self._read(_object(line)))
            except (ValueError, RecursionError):
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


def _object(line: bytes) -> dict[str, Any]:
    row = json.loads(line.decode("utf-8", errors="replace"))
    if not isinstance(row, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - as for a line that is no JSON
    return row


class Rollout(NamedTuple):
    """A trajectory of the journal with its problem and its group. ``judgement`` is None where there is none."""

    problem: Problem
    group: GroupRow
    trajectory: Trajectory
    judgement: Judgement | None

    @property
    def key(self) -> str:
        """Group, sample and attempt."""
        return f"{self.group.id}.{self.trajectory.sample}.{self.trajectory.attempt}"

    @property
    def kept(self) -> bool | None:
        """Whether it was selected for training; None where nothing was selected."""
        return (self.trajectory.sample, self.trajectory.attempt) in self.group.kept if self.group.kept else None


def rollouts_of(
    journal: Journal, group: str, decode: Decode, only: Container[tuple[int, int]] | None = None
) -> Iterator[Rollout]:
    """The trajectories of a group that the journal still holds; ``only``: those of these samples and attempts.

    Raises JournalError, and ValueError for what cannot be decoded.
    """
    row = journal.group(group)
    stored = [] if row is None else journal.trajectories(group, only)
    if row is not None and stored:
        problem = decode(row.opened).problem
        yield from (Rollout(problem, row, decode(each.payload), each.judgement) for each in stored)
