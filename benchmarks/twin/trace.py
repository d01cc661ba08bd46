"""What a simulation runs: groups of rollouts with their hidden lengths, engines with their speeds, and a learner.

A trace with missing, negative, unsorted or impossible numbers is refused with the name of the field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class TraceError(ValueError):
    """A trace that cannot be simulated, with the place and the reason."""


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
class EngineLife:
    """An engine's name and model, and when it comes and goes, in seconds: it joins, is lost, or drains and leaves."""

    name: str
    model: EngineModel
    joins: float = 0.0
    lost: float = math.inf
    drains: float = math.inf


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
    """A run: its groups in the order in which they are opened, its engines and its learner.

    ``limit`` bounds a rollout's context, in tokens, and is known to policies. ``source`` says where the shape is from.
    """

    name: str
    seed: int
    source: str
    samples: int
    groups_per_step: int
    steps: int
    max_staleness: int
    limit: int
    engines: tuple[EngineLife, ...]
    learner: LearnerModel
    groups: tuple[tuple[Shape, ...], ...] = field(repr=False)
    opens_late: bool = False
    """Groups are opened one by one, while nothing waits to be placed, as in a real run; else as soon as may be."""

    def written(self) -> int:
        """All tokens that the rollouts write."""
        return sum(sum(shape.written) for group in self.groups for shape in group)


def check(trace: Trace, where: str = "") -> Trace:
    """The trace. Raises TraceError, which names the field, when it cannot be simulated."""
    where = where or f"trace {trace.name}"
    for name in ("samples", "groups_per_step", "steps", "limit"):
        _positive(getattr(trace, name), f"{where}, {name}")
    if trace.max_staleness < 0:
        raise TraceError(f"{where}, max_staleness: {trace.max_staleness} is negative")
    if len(trace.groups) != trace.steps * trace.groups_per_step:
        wanted = f"{trace.steps} steps of {trace.groups_per_step} groups need {trace.steps * trace.groups_per_step}"
        raise TraceError(f"{where}: {len(trace.groups)} groups are there; {wanted}")
    _check_learner(trace.learner, f"{where}, learner")
    _check_engines(trace, where)
    for number, group in enumerate(trace.groups):
        _check_group(trace, group, f"{where}, group {number}")
    return trace


def _positive(value: float, what: str) -> None:
    if not 0 < value < math.inf:
        raise TraceError(f"{what}: {value} is no number above 0")


def _check_learner(learner: LearnerModel, where: str) -> None:
    _positive(learner.tokens_per_s, f"{where}, tokens_per_s")
    for name in ("kept", "publish_s", "pause_s"):
        if not 0 <= getattr(learner, name) < math.inf:
            raise TraceError(f"{where}, {name}: {getattr(learner, name)} is negative or no number")


def _check_engines(trace: Trace, where: str) -> None:
    names = [engine.name for engine in trace.engines]
    if len(set(names)) != len(names) or not names:
        raise TraceError(f"{where}, engines: each needs a name of its own, and there must be one")
    if not any(engine.joins == 0 and min(engine.lost, engine.drains) == math.inf for engine in trace.engines):
        raise TraceError(f"{where}, engines: one must be there from the start and stay")
    for engine in trace.engines:
        place = f"{where}, engine {engine.name}"
        for name in ("kv_total", "max_rollouts", "step_s", "page"):
            _positive(getattr(engine.model, name), f"{place}, {name}")
        seconds = "row_s", "context_s", "prefill_s", "prefill_context_s"
        for name in (*seconds, "watermark", "join_share", "join_steps"):
            if not 0 <= getattr(engine.model, name) < math.inf:
                raise TraceError(f"{place}, {name}: {getattr(engine.model, name)} is negative or no number")
        if not 0 <= engine.joins < min(engine.lost, engine.drains):
            raise TraceError(f"{place}: it joins at {engine.joins} s, which is unsorted: it must be before it leaves")
        if engine.model.largest() < trace.limit:
            raise TraceError(f"{place}, kv_total: a rollout of {trace.limit} tokens (limit) does not fit")


def _check_group(trace: Trace, group: tuple[Shape, ...], where: str) -> None:
    if len(group) != trace.samples:
        raise TraceError(f"{where}: {len(group)} rollouts are there; samples says {trace.samples}")
    for sample, shape in enumerate(group):
        place = f"{where}, rollout {sample}"
        if not len(shape.written) - 1 == len(shape.tool_s) == len(shape.tool_tokens):
            turns = f"{len(shape.written)} turns, {len(shape.tool_s)} tool_s, {len(shape.tool_tokens)} tool_tokens"
            raise TraceError(f"{place}: {turns}; tools run between turns, so a number is missing")
        if shape.prompt < 1 or any(tokens < 1 for tokens in shape.written):
            raise TraceError(f"{place}: prompt and written must be above 0, in whole tokens")
        if any(tokens < 0 for tokens in shape.tool_tokens) or any(not 0 <= s < math.inf for s in shape.tool_s):
            raise TraceError(f"{place}: tool_s or tool_tokens is negative or no number")
        if shape.context > trace.limit:
            raise TraceError(f"{place}: {shape.context} tokens are more than the limit of {trace.limit}")
