"""The instructions that the group book gives the filter, and the reasons why groups are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from agent_rl.config.selection import Solved
from agent_rl.figures import EvaluationFigures, SelectionFigures, StepFigures
from agent_rl.messages import Evaluation, Judgement, Problem, Trajectory
from agent_rl.scheduling.staleness import Step

EQUAL_REWARDS = "equal_rewards"
TOO_FEW_ROLLOUTS = "too_few_rollouts"
PROMPT_TOO_LONG = "prompt_too_long"
STALE = "stale"
NOT_SELECTED = "not_selected"
NOT_ADMITTED = "not_admitted"
"""The stage's curriculum refused the group."""
STAGE_BOUNDARY = "stage_boundary"
NOT_FINITE = "not_finite"
"""The reason of a skipped step's groups: loss or gradient was not finite, so the learner changed nothing."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Instruction: have an executor judge this rollout. Call `judged`, or `failed` when the environment fails."""

    trajectory: Trajectory
    problem: Problem
    seed: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Instruction: record the judgement of a trajectory."""

    group: str
    sample: int
    attempt: int
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Ready:
    """Instruction: record the group and send it to the learner. ``kept`` are (sample, attempt) pairs."""

    group: str
    kept: tuple[tuple[int, int], ...]
    rewards: tuple[float, ...]
    oldest: int
    order: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Instruction: record why the group is not trained, and the success of its judged rollouts.

    ``order`` is its place among the decided groups where it counts towards a step, else 0.
    """

    group: str
    reason: str
    success: float
    oldest: int
    order: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Instruction: record the step and send it to the learner."""

    stage: int
    step: Step
    figures: StepFigures


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Instruction: an evaluation is complete. Record its figures and send them to the learner."""

    evaluation: Evaluation
    figures: EvaluationFigures


@dataclass(frozen=True, slots=True)
class EvaluationGroupDone:
    """Instruction: record an evaluation group as evaluated."""

    group: str


@dataclass(frozen=True, slots=True)
class SampledProblem:
    """What was counted of a problem, by stage and number of its group; ``tokens`` are those of all its responses."""

    stage: int
    number: int
    environment: str
    id: str
    solved: Solved
    lost: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """Instruction: record what a select stage has counted of a problem. Its group is evaluated."""

    group: str
    problem: SampledProblem


@dataclass(frozen=True, slots=True)
class Decided:
    """Instruction: record what the stage's curriculum observed of a training group's problem."""

    problem: SampledProblem


@dataclass(frozen=True, slots=True)
class Selected:
    """Instruction: a select stage is complete. Record which problems it keeps, by number, and tell the learner."""

    stage: int
    kept: tuple[int, ...]
    figures: SelectionFigures


@dataclass(frozen=True, slots=True)
class Outage:
    """Instruction: end the run with this message. The next start samples the evaluation groups in ``again`` anew."""

    message: str
    again: tuple[str, ...]


Instruction: TypeAlias = (
    Judge | Judged | Decided | Ready | Dropped | Closed | Evaluated | EvaluationGroupDone | Sampled | Selected | Outage
)
