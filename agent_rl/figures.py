"""Every figure that is measured, with its unit: of rollouts, steps, evaluations, and of actors while they work.

A figure is None where there was nothing to compute it from. Shares are in [0, 1], lengths in response tokens, times in
seconds. `numbers` and `row` give the figures names, for files and for people; no decision reads such a name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")

# Rollouts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMeans:
    """Means over rollouts. Those that were lost are counted, and enter nothing else."""

    rollouts: int = 0
    success: float = 0.0
    """Share that succeeded."""
    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """Means of the judgements' named parts, each over the rollouts that have it."""
    response_tokens: float = 0.0
    """Tokens after the prompt, tool responses included."""
    turns: float = 0.0
    tool_calls: float = 0.0
    tool_error_share: float = 0.0
    """Of all tool calls, those that did not end in success."""
    tool_error_share_correct: float = 0.0
    """The same, of the calls in rollouts that succeeded."""
    malformed_call_share: float = 0.0
    unknown_tool_share: float = 0.0
    cut_response_share: float = 0.0
    """Of all tool calls, those whose result was longer than the model is shown."""
    rollouts_failed: int = 0
    """Attempts lost to infrastructure."""
    prompts_too_long: int = 0
    truncated_share: float = 0.0
    """Rollouts that ran out of tokens."""
    rollout_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What the filter says of a step it closed: of all sampled rollouts of the groups it decided, kept or not."""

    sampled: RolloutMeans = field(default_factory=RolloutMeans)
    environments: dict[str, RolloutMeans] = field(default_factory=dict)
    """By environment, where the run has several."""
    groups_decided: int = 0
    groups_trained: int = 0
    groups_dropped_stale: int = 0
    staleness_mean: float | None = None
    """Versions by which the oldest token of a trained group is behind; None where no group was trained."""
    staleness_max: int | None = None
    group_seconds: float | None = None
    """Mean over the trained groups, of the longest rollout of each."""
    stale_group_seconds: float | None = None
    """The same, until they were dropped, of the groups dropped as stale that ended since the step before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigures:
    """Answers to held-out problems. A rollout that never came counts as wrong."""

    problems: int
    success: float
    low: float
    """Of the 95 % interval (`agent_rl.groups.measures.mean_interval`)."""
    high: float
    lost: int
    """Rollouts that failed in all their attempts."""
    answered: RolloutMeans
    """Means over the rollouts that were judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFigures:
    """The result of the evaluation ``name``, by how the answers were drawn; ``greedy`` is None where none were."""

    name: str
    sampled: AnswerFigures
    greedy: AnswerFigures | None = None
    environments: dict[str, AnswerFigures] = field(default_factory=dict)
    """Of the sampled answers, by environment, where the run has several."""
    version_oldest: int | None = None
    """Versions of the policies that answered, in an evaluation within an rl stage."""
    version_newest: int | None = None

    def ways(self) -> dict[str, AnswerFigures]:
        """All answers there are, by way: ``sampled``, ``greedy``, and ``sampled_NAME`` of each environment."""
        found = {"sampled": self.sampled} | ({} if self.greedy is None else {"greedy": self.greedy})
        return found | {f"sampled_{name}": answers for name, answers in self.environments.items()}

    def row(self) -> dict[str, float]:
        """The figures as ``metrics.jsonl`` has them: each named with the evaluation and the way."""
        found: dict[str, float] = {}
        for way, answers in self.ways().items():
            found |= {f"{key}_{self.name}_{way}{end}": value for key, end, value in _answer_names(answers)}
        for bound, version in (("oldest", self.version_oldest), ("newest", self.version_newest)):
            if version is not None:
                found[f"version_{bound}_{self.name}"] = version
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionFigures:
    """The result of the select stage ``name``."""

    name: str
    problems: int
    """Problems that were sampled."""
    kept: int
    """Problems that later stages draw from."""
    dropped: dict[str, int]
    """The other problems, by reason."""
    success: float
    """Share of the samples that were right; a rollout that never came counts as wrong."""
    lost: int
    """Rollouts that failed in all their attempts."""
    response_tokens: float | None
    """Mean over the rollouts that were judged."""

    def row(self) -> dict[str, float]:
        """The figures as ``metrics.jsonl`` and ``summary.json`` have them: each named with the stage."""
        found: dict[str, float] = {
            f"problems_sampled_{self.name}": self.problems,
            f"problems_kept_{self.name}": self.kept,
        }
        found |= {f"problems_{reason}_{self.name}": count for reason, count in sorted(self.dropped.items())}
        found |= {f"success_{self.name}": self.success, f"lost_{self.name}": self.lost}
        tokens = self.response_tokens
        return found | ({} if tokens is None else {f"response_tokens_{self.name}": tokens})


def _answer_names(answers: AnswerFigures) -> Iterator[tuple[str, str, float]]:
    """(name, ending, value) of what is written of some answers."""
    yield from (("success", "", answers.success), ("success", "_low", answers.low), ("success", "_high", answers.high))
    yield from (("problems", "", answers.problems), ("lost", "", answers.lost))
    shown = answers.answered
    yield from (("response_tokens", "", shown.response_tokens), ("tool_calls", "", shown.tool_calls))
    yield from (("tool_error_share", "", shown.tool_error_share), ("truncated_share", "", shown.truncated_share))
    if shown.reward != shown.success:
        yield "reward", "", shown.reward
    yield from ((f"part_{part}", "", value) for part, value in shown.parts.items())


# The learner's work ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchFigures:
    """Engine against learner at the same weights, and the policy's move since, on a sample of a step's tokens.

    Gaps are of natural logarithms of probabilities, in nats; ratios are of the probabilities themselves.
    """

    mismatch_gap: float
    """Mean |log pi_v - log mu|, with pi_v the learner's answer with the weights that sampled the token."""
    mismatch_max: float
    mismatch_ratio: float
    staleness_gap: float
    """Mean |log pi_prox - log pi_v|."""
    staleness_ratio: float
    mismatch_tokens: int
    """How many tokens these are of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFigures:
    """Of the newest policies written and served since the step before; None where there was none."""

    write_seconds: float | None = None
    """Writing a policy's weights."""
    update_version: int | None = None
    update_seconds: float | None = None
    """From the end of the step of ``update_version`` until every engine served it or a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFigures:
    """What the learner says of a step. Means are over trained tokens; None in a step that trained nothing."""

    skipped: bool = False
    """Loss or gradient was not finite, and nothing was changed."""
    trained_tokens: int = 0
    trained_rollouts: int = 0
    loss: float | None = None
    gradient_norm: float | None = None
    """Before clipping; mean over the step's updates."""
    learning_rate: float | None = None
    entropy: float | None = None
    """Nats a token, at the rollouts' temperature."""
    clip_share: float | None = None
    """Tokens whose gradient the ratio's bounds cut."""
    ratio_deviation: float | None = None
    correction_mean: float | None = None
    correction_capped_share: float | None = None
    """Tokens whose correction was cut, to the cap or to 0."""
    policy_gap: float | None = None
    """Mean |log pi_prox - log mu|, in nats."""
    kl: float | None = None
    """Estimated divergence from the reference policy, in nats a token; None without a KL penalty."""
    mismatch: MismatchFigures | None = None
    train_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Of waiting for steps, since the learner's process started."""
    published: PublishFigures = field(default_factory=PublishFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedFigures:
    """A supervised step, and how far its stage is. ``loss`` is the mean cross-entropy of ``tokens`` tokens, in nats."""

    steps: int = 0
    steps_skipped: int = 0
    """Of them, those whose loss or gradient was not finite."""
    loss: float | None = None
    gradient_norm: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """A stage that ended."""

    stage: int
    stage_seconds: float
    supervised: SupervisedFigures | None = None


# Actors while they work -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerFigures:
    """Where the run stands, and the last step. ``stage`` is ``stages`` when the recipe is done."""

    stages: int
    stage: int | None = None
    step: int | None = None
    """Steps of the stage that are done, of ``steps``."""
    steps: int | None = None
    seconds_per_step: float | None = None
    loss: float | None = None
    """Of the last supervised step."""
    success: float | None = None
    entropy: float | None = None
    kl: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    trained_tokens: int = 0
    """Since the process started."""
    train_seconds: float | None = None
    """Of the last step."""
    environments: dict[str, RolloutMeans] = field(default_factory=dict)
    """The last step's rollouts by environment, where the run has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFigures:
    """Groups of the stage, rollouts now, tokens of the engines' KV caches, completed turns kept or left out.

    ``engines`` are here. ``rollouts_moved`` counts rollouts that lost their generator, since the scheduler started.
    """

    groups_opened: int
    rollouts_in_flight: int
    rollouts_pending: int
    kv_promised: int
    kv_total: int
    kept_mib: float = 0.0
    turns_left_out: int = 0
    engines: int = 0
    rollouts_moved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """Training groups and steps by what became of them, since the run began."""

    groups_trained: int = 0
    groups_dropped: int = 0
    steps_skipped: int = 0
    """Not finite: nothing was changed."""
    steps_without_update: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFigures:
    """Groups now, and what waits."""

    groups_open: int
    groups_waiting: int
    """Decided and not yet in a step."""
    held_back_by: int
    """Open groups without which the next step may not be closed."""
    trajectories: int
    """Journalled since the process started."""
    queue: int
    """Messages to be acknowledged with the next commit."""
    checks_failed: int
    fates: Fates
    rows: int = 0
    """Of ``metrics.jsonl``."""
    rollouts_judged: int | None = None
    """In an evaluate stage: of ``rollouts_to_judge``."""
    rollouts_to_judge: int | None = None


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward passes of an engine, added up; `agent-rl calibrate` fits what a pass takes to them."""

    count: int
    seconds: float
    cpu_seconds: float
    """Of the thread or the processes that compute; 0 when the engine does not say."""
    written: int
    """Tokens."""
    prefilled: int
    context: int
    """Tokens of the sequences that were computed, in each pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorFigures:
    """The engine now, rates of the last seconds, and totals since the process started. KV cache in tokens."""

    tokens_per_s: float
    rollouts_per_s: float
    kv_used: int
    kv_total: int
    running: int
    waiting: int
    preempted: int
    generated_tokens: int
    rollouts: int
    rollouts_truncated: int
    rollouts_failed: int
    rollouts_cancelled: int
    prompts_too_long: int
    calls_malformed: int
    calls_unknown_tool: int
    calls_failed: int
    """Attempts at calls that the tool service did not answer."""
    responses_cut: int
    calls_waiting: int
    policy_version: int
    engine_steps: int = 0
    """Forward passes; 0 when the engine does not say. The next two are `EngineFigures`' totals."""
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    passes: dict[str, Passes] = field(default_factory=dict)
    """By size, see `actors.engines.base`; empty when the engine does not say."""
    engine_cpu_seconds: float = 0.0
    """Processor seconds of all passes, in the thread or the processes that compute; 0 when the engine does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFigures:
    """Rates of the last seconds, what is alive now, and totals since the process started."""

    calls_per_s: float
    checks_per_s: float
    children_busy: float
    """Children running code, on the mean of the last seconds."""
    queue: int
    calls: int
    checks: int
    children: int
    checks_failed: int
    checks_timed_out: int
    sessions: int | None = None
    """Of tools that keep some; and how many were ended to make room, and made again."""
    sessions_evicted: int | None = None
    sessions_rebuilt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFigures:
    """An actor's live figures: those of the role that it plays, and ``extra`` ones of a class of your own.

    Extra figures are shown in the timeline and to Prometheus under their names; nothing is decided by them.
    """

    learner: LearnerFigures | None = None
    scheduler: SchedulerFigures | None = None
    filter: FilterFigures | None = None
    generator: GeneratorFigures | None = None
    executor: ExecutorFigures | None = None
    rejected_frames: int | None = None
    """Frames that the actor's node could not read; None where there were none."""
    extra: dict[str, float] = field(default_factory=dict)


OBJECTS = frozenset({"parts", "environments", "passes"})
"""Figures by name, in the figures."""


def numbers(figures: Any) -> dict[str, float]:
    """The figures that are numbers, by name, those of nested ones too; what is None or not finite is left out."""
    found: dict[str, float] = {}
    for name, value in _items(figures):
        if isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
    return found


def row(figures: Any) -> dict[str, Any]:
    """All figures by name, as a row of JSON: `OBJECTS` are objects in it, where there are any."""
    return {name: value for name, value in _items(figures) if value is not None}


def _items(figures: Any) -> Iterator[tuple[str, Any]]:
    """Names and values. A field's own name wins over that of an extra figure, since dictionaries keep the later one."""
    extra: Mapping[str, float] = getattr(figures, "extra", {})
    yield from extra.items()
    for each in fields(figures):
        value = getattr(figures, each.name)
        if is_dataclass(value):
            yield from _items(value)
        elif each.name in OBJECTS:
            if value:
                yield each.name, {key: row(part) if is_dataclass(part) else part for key, part in value.items()}
        elif each.name != "extra":
            yield each.name, value


def to_json(value: Any) -> str:
    """Figures, or a value that JSON holds, as text; `from_json` makes it again."""
    return json.dumps(value, default=_fields)


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def from_json(kind: type[T], text: str) -> T:
    """What `to_json` wrote. Raises ValueError when the text holds no value of this kind."""
    return from_object(kind, json.loads(text))


def from_object(kind: type[T], value: Any) -> T:
    """The same from what JSON's reader made of it."""
    made: T = _reader(cast("Hashable", kind)).validate_python(value)
    return made


@cache
def _reader(kind: Hashable) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cast("Any", kind))
