"""What a twin runs: groups of rollouts with their hidden lengths, the speed of its engines, and a learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class TraceError(ValueError):
    """A run that cannot be simulated, with the place and the reason."""


class Shape(NamedTuple):
    """A rollout's hidden lengths, in tokens: what it writes in each turn, and the results of its tools in between.

    ``written`` has one more entry than ``tool_s``, the seconds that the tools of a turn take, and ``tool_tokens``.
    """

    prompt: int
    written: tuple[int, ...]
    tool_s: tuple[float, ...] = ()
    tool_tokens: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """All tokens of the rollout at its end."""
        return self.prompt + sum(self.written) + sum(self.tool_tokens)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How fast an engine is. A decode step of B rollouts with C tokens of context takes
    ``step_s + B * row_s + C * context_s`` seconds; the prefill of a token that follows x tokens takes
    ``prefill_s + x * prefill_context_s``, and the decode steps wait for it.

    ``kv_total`` is the KV cache in tokens, in pages of ``page`` tokens. A turn is admitted while the share
    ``watermark`` of the cache stays free.

    Turns that wait join the running ones once they are the share ``join_share`` of them, or the first has waited
    ``join_steps`` decode steps.
    """

    kv_total: int
    max_rollouts: int
    step_s: float
    row_s: float
    context_s: float
    prefill_s: float
    prefill_context_s: float
    page: int = 16
    watermark: float = 0.01
    join_share: float = 0.0
    join_steps: int = 0

    def largest(self) -> int:
        """The longest context that an empty engine admits."""
        return int(self.kv_total * (1 - self.watermark)) - self.page


@dataclass(frozen=True, slots=True)
class LearnerModel:
    """A step trains the share ``kept`` of its groups' tokens, and is published ``publish_s`` seconds later.

    The engines then pause ``pause_s`` to load the weights, and keep their KV cache or not.
    """

    tokens_per_s: float
    kept: float = 0.5
    publish_s: float = 10.0
    pause_s: float = 2.0
    kv_kept: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """A run: its groups in the order in which they are opened, the names of its engines, their model, and its learner.

    ``limit`` bounds a rollout's context, in tokens, and is known to policies.
    """

    samples: int
    groups_per_step: int
    steps: int
    max_staleness: int
    limit: int
    engines: tuple[str, ...]
    model: EngineModel
    learner: LearnerModel
    groups: tuple[tuple[Shape, ...], ...] = field(repr=False)

    def written(self) -> int:
        """All tokens that the rollouts write."""
        return sum(sum(shape.written) for group in self.groups for shape in group)
