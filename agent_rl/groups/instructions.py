"""What the group book tells the filter's shell to do, and the reasons for which groups are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from agent_rl.figures import EvaluationFigures, StepFigures
from agent_rl.messages import Evaluation, Judgement, Problem, Trajectory
from agent_rl.scheduling.staleness import Step

EQUAL_REWARDS = "equal_rewards"
TOO_FEW_ROLLOUTS = "too_few_rollouts"
PROMPT_TOO_LONG = "prompt_too_long"
STALE = "stale"
NOT_SELECTED = "not_selected"
STAGE_BOUNDARY = "stage_boundary"
NOT_FINITE = "not_finite"
"""Of the groups of a step that the learner skipped: its loss or gradient was not finite, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Instruction: have this rollout judged by an executor, then tell `judged`, or `failed` when its environment fails."""

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
    """Instruction: the group is to be trained; record it and send these samples (attempt by sample) with their rewards."""

    group: str
    kept: tuple[tuple[int, int], ...]
    rewards: tuple[float, ...]
    oldest: int
    order: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Instruction: record why the group is not trained, with its mean response length and success so far.

    ``order`` places it among the decided groups when it counts towards a step, else it is 0.
    """

    group: str
    reason: str
    mean_length: float
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
    """Instruction: an evaluation is complete; record its figures and send them to the learner."""

    evaluation: Evaluation
    figures: EvaluationFigures


@dataclass(frozen=True, slots=True)
class EvaluationGroupDone:
    """Instruction: record an evaluation group as evaluated."""

    group: str


@dataclass(frozen=True, slots=True)
class Outage:
    """Instruction: end the run with this message; evaluation groups named in ``again`` are asked anew by the next start."""

    message: str
    again: tuple[str, ...]


Instruction: TypeAlias = Judge | Judged | Ready | Dropped | Closed | Evaluated | EvaluationGroupDone | Outage
