"""Which problems stages draw from: a filter by the problem, and the rule by how often a policy solves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from agent_rl.config.algorithm import TopP
from agent_rl.config.processes import Part


class TaskFilter(Part):
    """The problems that a stage draws from; without any key, all."""

    max_problem_chars: PositiveInt | None = None
    """Problems of more characters are left out."""
    ids: Path | None = None
    """A text file of ids, one a line (docs/data.md), relative to the topology file."""


@dataclass(frozen=True, slots=True)
class Solved:
    """How many of a problem's samples were right. A sample whose rollout was lost is not right."""

    right: int = 0
    samples: int = 0

    @classmethod
    def counted(cls, successes: Iterable[bool], samples: int) -> Self:
        """Of ``samples`` rollouts that were asked for; ``successes`` are those of the judged ones."""
        return cls(sum(successes), samples)

    def __add__(self, other: Solved) -> Solved:
        return Solved(self.right + other.right, self.samples + other.samples)

    @property
    def share(self) -> Fraction:
        """The share of right samples. Without samples there is none."""
        return Fraction(self.right, self.samples)


class Difficulty(Part):
    """The problems that are kept, by the share of samples that were right; by default, those not always solved."""

    below: float = Field(default=1.0, gt=0, le=1)
    """Problems with a share below this are kept."""
    at_least: float = Field(default=0.0, ge=0, lt=1)
    """And at least this."""
    drop_unsolved: bool = False
    """Whether problems are dropped that are never solved."""

    @model_validator(mode="after")
    def _keeps_something(self) -> Self:
        if not self.at_least < self.below:
            raise ValueError(f"at_least ({self.at_least:g}) is not below below ({self.below:g}): nothing would be kept")
        return self

    def reason(self, solved: Solved) -> str:
        """Why a problem is dropped; empty: it is kept. A problem that always is solved teaches nothing."""
        if not solved.samples:
            return "not_sampled"
        if solved.share >= self.below:
            return "always_solved" if solved.share == 1 else "too_easy"
        if solved.share == 0 and self.drop_unsolved:
            return "never_solved"
        return "" if solved.share >= self.at_least else "too_hard"


class SelectStage(Part):
    """Each training problem is sampled with the policy of the moment; later stages draw from what is kept."""

    kind: Literal["select"]
    name: str = "select"
    """The name shown, and the key of the figures; unique."""
    max_response_tokens: PositiveInt
    """Most tokens of a response, tool responses included."""
    max_turns: PositiveInt
    """Most turns of the model in a rollout."""
    samples: PositiveInt = 8
    """Sampled rollouts of each problem."""
    temperature: PositiveFloat = 1.0
    """As of an evaluate stage."""
    top_p: TopP = 1.0
    """As of an evaluate stage."""
    top_k: PositiveInt | None = None
    """As of an evaluate stage."""
    filter: TaskFilter = TaskFilter()
    """The problems that are sampled; later stages draw from no others."""
    keep: Difficulty = Difficulty()
    """The problems that are kept."""
