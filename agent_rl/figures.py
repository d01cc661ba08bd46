"""All figures that are measured: of rollouts, steps and evaluations, and of actors while they work.

A figure is None where there was nothing to compute it from. Shares are in [0, 1], lengths in response tokens, times in
seconds. `numbers` and `row` name the figures, for files and for people. No decision reads such a name.

A new figure of steps is a field of `StepFigures` or `TrainingFigures`, the code that computes it, and a curve in
`agent_rl.observe.report.charts.PANELS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

T = TypeVar("T")

# Rollouts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMeans:
    """Means over rollouts. Lost rollouts are counted and enter no mean."""

    rollouts: int = 0
    success: float = 0.0
    """Share of the rollouts that succeeded."""
    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """Means of the judgements' named parts, each over the rollouts that have it."""
    response_tokens: float = 0.0
    """Tokens after the prompt, tool responses included."""
    turns: float = 0.0
    tool_calls: float = 0.0
    tool_error_share: float = 0.0
    """Share of all tool calls that did not end in success."""
    tool_error_share_correct: float = 0.0
    """Share of the calls in successful rollouts that did not end in success."""
    unaided_share_correct: float = 0.0
    """Share of the successful rollouts in which no tool call ended in success."""
    malformed_call_share: float = 0.0
    unknown_tool_share: float = 0.0
    cut_response_share: float = 0.0
    """Share of all tool calls whose result was cut because it was too long for the model."""
    rollouts_failed: int = 0
    """Attempts that failed because of the infrastructure."""
    prompts_too_long: int = 0
    truncated_share: float = 0.0
    """Share of the rollouts that ran out of tokens."""
    rollout_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """The filter's figures of a step: all sampled rollouts of the groups that the step decided, kept or not."""

    sampled: RolloutMeans = field(default_factory=RolloutMeans)
    environments: dict[str, RolloutMeans] = field(default_factory=dict)
    """The same by environment, where the run has several."""
    groups_decided: int = 0
    groups_trained: int = 0
    groups_dropped_stale: int = 0
    staleness_mean: float | None = None
    """Staleness of a trained group's oldest token, in policy versions; None if no group was trained."""
    staleness_max: int | None = None
    staleness_limit: int | None = None
    """The most that the rule permits: `max_staleness`, or `max_corrected_staleness` where that is in force."""
    group_seconds: float | None = None
    """Seconds of a trained group's longest rollout, as the mean over groups."""
    stale_group_seconds: float | None = None
    """Seconds until a group was dropped as stale, as the mean over those dropped since the last step."""
    delivered: dict[str, int] = field(default_factory=dict)
    """Sampled tokens: all (``sampled``), those that are trained, and the others by cause."""
    lists_tools: bool = False
    """Whether an agent at the gateway lists tools."""
    branches: dict[str, int] = field(default_factory=dict)
    """Branches of rollouts, by cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigures:
    """Answers to held-out problems. A rollout that never came counts as wrong."""

    problems: int
    success: float
    low: float
    """Lower end of the 95 % interval (`agent_rl.groups.measures.mean_interval`)."""
    high: float
    lost: int
    """Rollouts that failed in all their attempts."""
    answered: RolloutMeans
    """Means over the rollouts that were judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFigures:
    """The result of the evaluation ``name``, by how answers were drawn; ``greedy`` is None if no answer was greedy."""

    name: str
    sampled: AnswerFigures
    greedy: AnswerFigures | None = None
    environments: dict[str, AnswerFigures] = field(default_factory=dict)
    """Sampled answers by environment, where the run has several."""
    version_oldest: int | None = None
    """Oldest policy version that answered, in an evaluation within an rl stage."""
    version_newest: int | None = None

    def ways(self) -> dict[str, AnswerFigures]:
        """All answers there are, by way: ``sampled``, ``greedy``, and ``sampled_NAME`` of each environment."""
        found = {"sampled": self.sampled} | ({} if self.greedy is None else {"greedy": self.greedy})
        return found | {f"sampled_{name}": answers for name, answers in self.environments.items()}

    def row(self) -> dict[str, float]:
        """The figures as ``metrics.jsonl`` has them: each named with the evaluation and the way."""
        found: dict[str, float] = {}
        for way, answers in self.ways().items():
            of, shown = f"{self.name}_{way}", answers.answered
            found |= {f"{key}_{of}{end}": getattr(answers, name) for name, (key, end) in SHARE_NAMES.items()}
            found |= {f"{name}_{of}": getattr(shown, name) for name in MEAN_NAMES}
            found |= {f"reward_{of}": shown.reward} if shown.reward != shown.success else {}
            found |= {f"part_{part}_{of}": value for part, value in shown.parts.items()}
        versions = {"oldest": self.version_oldest, "newest": self.version_newest}
        return found | {f"version_{end}_{self.name}": at for end, at in versions.items() if at is not None}

    @classmethod
    def of_row(cls, name: str, row: Mapping[str, Any]) -> EvaluationFigures:
        """The figures that `row` named, but for rewards and their parts. Raises ValueError for another row."""
        begin, end = f"success_{name}_", "_low"
        found: dict[str, AnswerFigures] = {}
        for way in (key[len(begin) : -len(end)] for key in row if key.startswith(begin) and key.endswith(end)):
            share = {each: row.get(f"{key}_{name}_{way}{end}") for each, (key, end) in SHARE_NAMES.items()}
            means = {mean: row[key] for mean in MEAN_NAMES if (key := f"{mean}_{name}_{way}") in row}
            found[way] = from_object(AnswerFigures, {**share, "answered": means})
        if "sampled" not in found:
            raise ValueError(f"the row has no sampled answers of {name!r}")
        return cls(
            name=name,
            sampled=found.pop("sampled"),
            greedy=found.pop("greedy", None),
            environments={way.removeprefix("sampled_"): answers for way, answers in found.items()},
            version_oldest=row.get(f"version_oldest_{name}"),
            version_newest=row.get(f"version_newest_{name}"),
        )


SHARE_NAMES = {
    "success": ("success", ""), "low": ("success", "_low"), "high": ("success", "_high"), "problems": ("problems", ""),
    "lost": ("lost", ""),
}  # fmt: skip
"""Fields of `AnswerFigures` with the beginning and the end of their names in rows."""
MEAN_NAMES = ("response_tokens", "tool_calls", "tool_error_share", "truncated_share")
"""Fields of `RolloutMeans` that rows of evaluations have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionFigures:
    """The result of the select stage ``name``."""

    name: str
    problems: int
    """Problems that were sampled."""
    kept: int
    """Problems that later stages draw from."""
    dropped: dict[str, int]
    """Numbers of the other problems, by reason."""
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


# The learner's work ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchFigures:
    """How far engine and learner differ at the same weights, and how far the policy moved since.

    Computed on a sample of a step's tokens.
    Gaps are of natural logarithms of probabilities, in nats; ratios are of the probabilities themselves.
    """

    mismatch_gap: float
    """Mean |log pi_v - log mu|. pi_v is the learner's probability with the weights that sampled the token."""
    mismatch_max: float
    mismatch_ratio: float
    staleness_gap: float
    """Mean |log pi_prox - log pi_v|."""
    staleness_ratio: float
    mismatch_tokens: int
    """Number of tokens in the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFigures:
    """Times of the newest published policy. None if no policy was published since the last step."""

    write_seconds: float | None = None
    """Seconds to write the newest published policy."""
    update_version: int | None = None
    update_seconds: float | None = None
    """Seconds from the end of the step of ``update_version`` until every engine served that version or a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFigures:
    """The learner's figures of a step. Means are over trained tokens; None if the step trained nothing."""

    skipped: bool = False
    """Whether the update was skipped because loss or gradient was not finite."""
    trained_tokens: int = 0
    trained_rollouts: int = 0
    loss: float | None = None
    gradient_norm: float | None = None
    """Gradient norm before clipping, as the mean over the step's updates."""
    learning_rate: float | None = None
    """As it was used, the mean over the step's updates."""
    update_kl: float | None = None
    """Estimated KL divergence by an update, in nats for each token; the mean over updates. With ``target_kl`` only."""
    update_kl_error: float | None = None
    """Standard error of ``update_kl``, by the differences between rollouts."""
    update_kept: float | None = None
    """Share of the step's updates that was not taken back."""
    entropy: float | None = None
    """Entropy in nats for each token, at the rollouts' temperature."""
    clip_share: float | None = None
    """Share of tokens whose gradient the bounds of the ratio cut."""
    ratio_deviation: float | None = None
    correction_mean: float | None = None
    correction_capped_share: float | None = None
    """Share of tokens whose correction was cut to the cap or to 0."""
    policy_gap: float | None = None
    """Mean |log pi_prox - log mu|, in nats."""
    kl: float | None = None
    """Estimated KL divergence from the reference policy, in nats for each token; None without a KL penalty."""
    mismatch: MismatchFigures | None = None
    mismatch_cause: str | None = None
    """What is wrong with the engine's log-probabilities (`agent_rl.learning.guard`); None where nothing was found."""
    lora_delta_kept: float | None = None
    """Share of the adapters' change D that the last published bfloat16 weights P have: <P - base, D> / <D, D>."""
    train_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Seconds that the learner waited for steps, since its process started."""
    published: PublishFigures = field(default_factory=PublishFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedFigures:
    """A supervised step and the progress of its stage. ``loss``: mean cross-entropy of ``tokens`` tokens, in nats."""

    steps: int = 0
    steps_skipped: int = 0
    """Steps that were skipped because loss or gradient was not finite."""
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
    """The position of the run and its last step. ``stage`` equals ``stages`` when the recipe is done."""

    stages: int
    stage: int | None = None
    step: int | None = None
    """Finished steps of the stage, out of ``steps``."""
    steps: int | None = None
    seconds_per_step: float | None = None
    forecast: str = ""
    """What the rl stage takes, where an evaluation before it told the pace of sampling."""
    loss: float | None = None
    """Loss of the last supervised step."""
    success: float | None = None
    reward: float | None = None
    entropy: float | None = None
    kl: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    trained_tokens: int = 0
    """Tokens trained since the process started."""
    train_seconds: float | None = None
    """Training time of the last step."""
    environments: dict[str, RolloutMeans] = field(default_factory=dict)
    """Rollouts of the last step by environment, where the run has several."""
    alarms: dict[str, str] = field(default_factory=dict)
    """What is wrong with the stage's last steps, by name (`agent_rl.records.health`)."""
    compute_bits: int | None = None
    """Bits of a value in matrix products: 32 for float32, 16 for bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFigures:
    """The scheduler's groups, rollouts and engines. KV caches are in tokens.

    ``rollouts_moved`` counts the rollouts that lost their generator since the scheduler started.
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
    """Numbers of training groups and steps by their fate, since the run began."""

    groups_trained: int = 0
    groups_dropped: int = 0
    steps_skipped: int = 0
    """Steps whose update was skipped because it was not finite."""
    steps_without_update: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFigures:
    """The filter's groups and messages that wait now."""

    groups_open: int
    groups_waiting: int
    """Groups that are decided and not yet in a step."""
    held_back_by: int
    """Open groups that the next step waits for."""
    trajectories: int
    """Trajectories written to the journal since the process started."""
    queue: int
    """Messages that the next commit will acknowledge."""
    checks_failed: int
    fates: Fates
    rows: int = 0
    """Rows of ``metrics.jsonl``."""
    rollouts_judged: int | None = None
    """Judged rollouts of an evaluate stage, out of ``rollouts_to_judge``."""
    rollouts_to_judge: int | None = None


@dataclass(frozen=True, slots=True)
class Passes:
    """Sums over forward passes of an engine. The time of a pass can be fitted to them."""

    count: int
    seconds: float
    cpu_seconds: float
    """Processor time of the thread or the processes that compute; 0 if the engine does not report it."""
    written: int
    """Tokens written by the model."""
    prefilled: int
    context: int
    """Sum over passes of the lengths of the computed sequences, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorFigures:
    """The engine's state, rates over the last seconds, and totals since its start. KV caches are in tokens."""

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
    """Attempts of tool calls that the tool service did not answer."""
    responses_cut: int
    calls_waiting: int
    policy_version: int
    engine_steps: int = 0
    """Forward passes; 0 if the engine does not report them."""
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    passes: dict[str, Passes] = field(default_factory=dict)
    """Forward passes by size (see `actors.engines.base`); empty if the engine does not report them."""
    engine_cpu_seconds: float = 0.0
    """Processor time of all passes; 0 if the engine does not report it."""
    compute_bits: int | None = None
    """Bits of a value in matrix products, if the engine says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFigures:
    """The executor's rates over the last seconds, its live children, and totals since the process started."""

    calls_per_s: float
    checks_per_s: float
    children_busy: float
    """Mean number of children that run code, over the last seconds."""
    queue: int
    calls: int
    checks: int
    children: int
    checks_failed: int
    checks_timed_out: int
    sessions: int | None = None
    """Live sessions of tools that keep sessions. Below: sessions that were ended to make room, and made again."""
    sessions_evicted: int | None = None
    sessions_rebuilt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFigures:
    """The live figures of an actor: those of its role, and ``extra`` ones of a user's class.

    The timeline and Prometheus show extra figures under their names. No decision uses them.
    """

    learner: LearnerFigures | None = None
    scheduler: SchedulerFigures | None = None
    filter: FilterFigures | None = None
    generator: GeneratorFigures | None = None
    executor: ExecutorFigures | None = None
    rejected_frames: int | None = None
    """Frames that the actor's node could not read; None if there were none."""
    extra: dict[str, float] = field(default_factory=dict)


OBJECTS = frozenset({"parts", "environments", "passes", "delivered", "branches"})
"""Fields that hold figures by name."""


def numbers(figures: Any) -> dict[str, float]:
    """The figures that are numbers, by name, nested ones too. Figures that are None or not finite are left out."""
    found: dict[str, float] = {}
    for name, value in _items(figures):
        if isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
    return found


def row(figures: Any) -> dict[str, Any]:
    """All figures by name, as a row of JSON. `OBJECTS` become objects in the row."""
    return {name: value for name, value in _items(figures) if value is not None}


def from_row(kind: type[T], found: Mapping[str, Any]) -> T:
    """The record whose figures `row` named, beside others. Raises ValueError where one is missing, or no figure."""
    return from_object(kind, _gathered(cast("Hashable", kind), found))


def _gathered(kind: Hashable, found: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, record in _places(kind):
        if record is None:
            if name in found:
                values[name] = found[name]
        elif inner := _gathered(record, found):
            values[name] = inner
    return values


@cache
def _places(kind: Hashable) -> tuple[tuple[str, Any], ...]:
    """The fields of a record, each with the type of the record in it, or None."""
    kinds = ((name, (get_args(hint) or (hint,))[0]) for name, hint in get_type_hints(kind).items())
    return tuple((name, None if name in OBJECTS or not is_dataclass(each) else each) for name, each in kinds)


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
    """The value that `to_json` wrote. Raises ValueError when the text holds no value of this kind."""
    return from_object(kind, json.loads(text))


def from_object(kind: type[T], value: Any) -> T:
    """The same from what JSON's reader made of it."""
    made: T = _reader(cast("Hashable", kind)).validate_python(value)
    return made


@cache
def _reader(kind: Hashable) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cast("Any", kind))
