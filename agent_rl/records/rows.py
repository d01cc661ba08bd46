"""The types of a journal's rows, which a back end stores.

`KEY` identifies a row; `INDEXES` are further search columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agent_rl.figures import EvaluationFigures, SelectionFigures, StepFigures, TrainingFigures
from agent_rl.messages import Judgement


@dataclass(frozen=True, slots=True)
class Row:
    """A row. Columns are numbers, text, bytes, booleans, or values stored as JSON (tuples, records of figures)."""

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    INDEXES: ClassVar[tuple[tuple[str, ...], ...]] = ()


@dataclass(frozen=True, slots=True)
class GroupRow(Row):
    """A group. ``kept`` pairs samples with attempts; ``step`` is the version of the step that decided the group.

    ``at_step`` is set for groups of an evaluation within an rl stage: the steps of the stage before the evaluation.
    ``segment`` holds the payloads of its trajectories. ``right`` says whether any rollout of a dropped group succeeded.
    """

    TABLE = "groups"
    KEY = ("id",)
    INDEXES = (("state", "stage"), ("segment",))
    id: str
    stage: int
    at_step: int | None
    number: int
    purpose: str
    opened: bytes
    segment: int
    state: str = "open"
    reason: str = ""
    step: int | None = None
    kept: tuple[tuple[int, int], ...] = ()
    rewards: tuple[float, ...] = ()
    oldest: int = 0
    decided_order: int = 0
    right: bool = False


@dataclass(frozen=True, slots=True)
class TrajectoryRow(Row):
    """A trajectory. Its payload is ``size`` bytes from byte ``offset`` on of its group's segment, with their CRC-32.

    ``judgement`` is None while the trajectory is not judged; some never are.
    """

    TABLE = "trajectories"
    KEY = ("group_id", "sample", "attempt")
    group_id: str
    sample: int
    attempt: int
    status: str
    offset: int
    size: int
    checksum: int
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True)
class SegmentRow(Row):
    """A segment of payloads, and the track whose groups it holds."""

    TABLE = "segments"
    KEY = ("number",)
    number: int
    track: str


@dataclass(frozen=True, slots=True)
class StepRow(Row):
    """A closed step, with the filter's and (once trained) the learner's figures.

    ``skipped``: the learner skipped the step because it was not finite. Its groups are dropped, and no replay trains
    them.
    """

    TABLE = "steps"
    KEY = ("version",)
    version: int
    stage: int
    trained: bool
    skipped: bool
    groups: tuple[str, ...]
    decided: tuple[str, ...]
    figures: StepFigures
    learner_figures: TrainingFigures | None = None


@dataclass(frozen=True, slots=True)
class EvaluationRow(Row):
    """The result of an evaluate stage."""

    TABLE = "evaluations"
    KEY = ("stage",)
    stage: int
    figures: EvaluationFigures


@dataclass(frozen=True, slots=True)
class InterimEvaluationRow(Row):
    """The result of the evaluation within an rl stage after ``at_step`` steps of the stage."""

    TABLE = "interim_evaluations"
    KEY = ("stage", "at_step")
    stage: int
    at_step: int
    figures: EvaluationFigures


@dataclass(frozen=True, slots=True)
class SampledRow(Row):
    """A problem that a select stage has sampled, by the number of its group; ``problem`` is its id.

    Of its ``samples`` rollouts, ``right`` were right and ``lost`` failed in all their attempts; ``tokens`` are those of
    all responses.
    """

    TABLE = "sampled"
    KEY = ("stage", "number")
    stage: int
    number: int
    environment: str
    problem: str
    right: int
    samples: int
    lost: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SelectionRow(Row):
    """The result of a select stage: the numbers of the problems that it keeps, and its figures."""

    TABLE = "selections"
    KEY = ("stage",)
    stage: int
    kept: tuple[int, ...]
    figures: SelectionFigures


@dataclass(frozen=True, slots=True)
class FactRow(Row):
    """A named fact, such as the epoch."""

    TABLE = "facts"
    KEY = ("key",)
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RecordRow(Row):
    """A row of metrics.jsonl."""

    TABLE = "records"
    KEY = ("number",)
    number: int
    row: str


ROWS: tuple[type[Row], ...] = (
    GroupRow,
    TrajectoryRow,
    SegmentRow,
    StepRow,
    EvaluationRow,
    InterimEvaluationRow,
    SampledRow,
    SelectionRow,
    FactRow,
    RecordRow,
)
"""Every type of row."""
