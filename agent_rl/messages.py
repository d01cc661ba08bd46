"""Every message that crosses a link, as plain frozen dataclasses.

The flow, sender to receiver (kind of link in brackets)::

    kv_scheduler       GroupOpened [push] ------------------------> roc_filter
    kv_scheduler       RolloutRequest [push] ---------------------> rollout_generator
    kv_scheduler       GroupsUnwanted [announce] -----------------> rollout_generator
    rollout_generator  ToolCall / ToolResult [call] --------------> tool_executor
    rollout_generator  ObserveTurn / TurnObserved [call] ---------> tool_executor
    rollout_generator  Trajectory [push] -------------------------> roc_filter
    rollout_generator  EngineLoad [announce] ---------------------> kv_scheduler, learner
    roc_filter         JudgementWanted / JudgementReply [call] --> tool_executor
    roc_filter         TrainingGroup, StepReady, EvaluationReady [push] -> learner
    roc_filter         GroupsProgress [announce] -----------------> kv_scheduler
    learner            PolicyPublished [announce] ----------------> kv_scheduler, rollout_generator
    rollout_generator  WeightsWanted / WeightsPart [call] --------> learner
    rollout_generator  TransferWanted / TransferOffer [call] -----> learner
    learner            StageEntered / StageRecorded [call] -------> roc_filter
    learner            StepTrained, CheckpointSaved / Recorded [call] -> roc_filter
    kv_scheduler       UnfinishedGroups / GroupsUnfinished [call]-> roc_filter
    every actor        ActorStatus [announce] --------------------> supervisor
    supervisor         RunState, Incarnations [announce] ---------> supervisors of other hosts

Announcements carry totals or whole states, never differences, so that losing any one of them loses nothing.
Array fields state their dtype and number of dimensions in the annotation, and their shape in the docstring;
the codec checks the former on arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from agent_rl.figures import ActorFigures, EvaluationFigures, StageFigures, StepFigures, TrainingFigures

Int32Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Int32Matrix: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Float32Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float32]]
Uint8Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

Purpose: TypeAlias = Literal["train", "evaluate_sampled", "evaluate_greedy"]
TrajectoryStatus: TypeAlias = Literal[
    "finished", "truncated", "turn_limit", "failed", "cancelled", "prompt_too_long", "environment_failed"
]
ToolOutcome: TypeAlias = Literal[
    "success", "error", "timeout", "memory_limit", "output_limit", "killed", "malformed", "unknown_tool", "unavailable"
]


@dataclass(frozen=True, slots=True, order=True)
class Policy:
    """The weights that wrote a token. Each restore raises the epoch, each published update the version.

    The order is lexicographic.
    """

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One task: the text that the model reads and, where there is one, the ground truth ``answer``.

    ``environment`` names the problem's environment. ``payload`` is JSON that the environment needs beside the text.
    """

    id: str
    text: str
    answer: str = ""
    environment: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled, and the limits at which a rollout ends.

    ``temperature`` 0 means greedy. ``max_response_tokens`` counts everything after the prompt, tool responses included.
    """

    temperature: float
    max_response_tokens: int
    max_turns: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the recipe: an evaluate stage, or within an rl stage the evaluation after ``at_step`` steps."""

    stage: int
    at_step: int | None = None


@dataclass(frozen=True, slots=True)
class GroupOpened:
    """A new group. The journal stores the group before the scheduler requests any of its rollouts.

    ``evaluation`` is None for a training group. ``number`` counts the stage's groups from 0; each evaluation within
    an rl stage has its own count. Group id, task and seeds are functions of run seed, stage, evaluation and number.
    ``policy`` is the oldest policy that an engine served at opening: a lower bound for every token of the group.
    """

    group: str
    stage: int
    number: int
    purpose: Purpose
    problem: Problem
    samples: int
    policy: Policy
    evaluation: Evaluation | None = None

    @property
    def at_step(self) -> int | None:
        """The step of the evaluation within an rl stage that the group belongs to; None for all other groups."""
        return None if self.evaluation is None else self.evaluation.at_step


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Sample one rollout. Acknowledged when its Trajectory is."""

    rollout: str
    group: str
    stage: int
    sample: int
    attempt: int
    purpose: Purpose
    problem: Problem
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class GroupsUnwanted:
    """Groups that were dropped: every generator cancels their rollouts in flight.

    A group leaves the list once none of its rollouts is in flight.
    """

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One tool call of a trajectory, after turn ``turn`` (from 1).

    The executor reports ``outcome``; no code parses it from a text. ``response`` is the text that the model read, and
    ``cut`` says that the result was longer. A malformed call has neither a tool nor arguments.
    """

    turn: int
    tool: str
    outcome: ToolOutcome
    run_seconds: float
    total_seconds: float
    cut: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    response: str = ""


@dataclass(frozen=True, slots=True)
class EnvironmentMessage:
    """A message of the environment, or of a user's own loop, after turn ``turn`` (from 1)."""

    turn: int
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """A rollout as text, for environments and for people. ``texts`` holds what the model wrote, turn by turn."""

    texts: tuple[str, ...]
    calls: tuple[ToolCallRecord, ...] = ()
    replies: tuple[EnvironmentMessage, ...] = ()
    status: TrajectoryStatus = "finished"

    @property
    def text(self) -> str:
        """All turns, for people and for counts. To extract an answer, use ``texts``: an answer is within one turn."""
        return "\n".join(self.texts)


@dataclass(frozen=True, slots=True)
class Judgement:
    """An environment's judgement of a rollout, made once.

    Advantages are computed from ``reward``. Evaluations count ``success``, and RoC's two classes are by ``success``.
    ``parts`` are named summands or figures of the reward, for people. ``format_penalty`` is RoC's p_format, from 0 to
    1. ``note`` says in words how the rollout was judged. ``answer`` is the rollout's answer, where it gave one; maj@k
    counts equal texts, so equivalent answers must be the same text.
    """

    reward: float
    success: bool
    parts: dict[str, float] = field(default_factory=dict)
    format_penalty: float = 0.0
    note: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout from prompt to end, token in and token out.

    Shapes, with p prompt tokens and n response tokens (the model's and the tools'): ``prompt_tokens`` [p]; ``tokens``
    [n]; ``loss_mask`` [n], 1 where the model wrote the token; ``logprobs`` [n], natural logarithm under the
    distribution sampled from (temperature included), 0 where masked; ``policies`` [n, 2], the (epoch, version) that
    sampled the token, or that was current when a tool's or the environment's token was appended. ``judgement`` is None
    where an executor has to judge, and for a rollout without a result.
    """

    rollout: str
    group: str
    stage: int
    sample: int
    attempt: int
    purpose: Purpose
    transcript: Transcript
    reason: str
    prompt_tokens: Int32Vector
    tokens: Int32Vector
    loss_mask: Uint8Vector
    logprobs: Float32Vector
    policies: Int32Matrix
    generator: str
    seconds: float
    judgement: Judgement | None = None

    @property
    def status(self) -> TrajectoryStatus:
        """How the rollout ended."""
        return self.transcript.status

    @property
    def turns(self) -> int:
        """How many turns the model wrote."""
        return len(self.transcript.texts)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The current load of an engine, in tokens of KV cache and numbers of rollouts.

    The engine serves ``policy``. Each new process of the generator has a higher ``incarnation``.
    """

    generator: str
    incarnation: int
    policy: Policy
    kv_tokens_total: int
    kv_tokens_used: int
    max_rollouts: int
    running: int
    waiting: int
    preempted: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Run a tool of the problem's environment. ``arguments`` is the JSON object that the model wrote.

    ``state`` is the snapshot from the rollout's last call of a stateful tool; empty before the first. ``seed`` is the
    rollout's seed. ``ends`` says that the rollout is over: the executor runs nothing and forgets the rollout.
    """

    call: str
    rollout: str
    tool: str
    arguments: dict[str, Any]
    problem: Problem
    seed: int
    state: bytes = b""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool call ended. ``queue_seconds`` is the wait before it ran, ``run_seconds`` the wall time of its code.

    ``state`` is the snapshot for the rollout's next call of the tool; None keeps the previous snapshot. ``note`` is a
    text about that state, which the model always reads.
    """

    call: str
    outcome: ToolOutcome
    stdout: str
    stderr: str
    value: str
    queue_seconds: float
    run_seconds: float
    state: bytes | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ObserveTurn:
    """Let the problem's environment answer the last turn of a rollout, which called no tool.

    ``state`` is the snapshot of the previous answer, empty at first. Any executor can continue from the snapshot.
    """

    rollout: str
    problem: Problem
    transcript: Transcript
    state: bytes
    seed: int


@dataclass(frozen=True, slots=True)
class TurnObserved:
    """The environment's answer, and the snapshot to send with the next turn. ``done`` ends the rollout.

    ``fault`` says why there is no answer: the environment's error, with file and line.
    """

    messages: tuple[EnvironmentMessage, ...] = ()
    state: bytes = b""
    done: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class JudgementWanted:
    """Judge a rollout that its environment left to an executor. Checks of different rollouts take turns."""

    rollout: str
    problem: Problem
    transcript: Transcript
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JudgementReply:
    """The judgement, or None with a reason.

    ``fault`` says what is wrong with the environment, with file and line where they are known. ``unavailable`` says why
    the executor could not judge; then the filter asks again.
    """

    rollout: str
    judgement: Judgement | None
    fault: str = ""
    unavailable: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A decided group with signal: the kept trajectories and their rewards [kept], float32.

    Their transcripts are empty, since training needs only the tokens.
    """

    group: str
    stage: int
    policy: Policy
    trajectories: tuple[Trajectory, ...]
    rewards: Float32Vector


@dataclass(frozen=True, slots=True)
class StepReady:
    """The step that brings the policy from ``version`` to ``version + 1``: its groups in training order.

    ``groups`` may be empty: such a step is counted without an update. ``figures`` describes the rollouts it decided.
    """

    stage: int
    version: int
    groups: tuple[str, ...]
    figures: StepFigures


@dataclass(frozen=True, slots=True)
class EvaluationReady:
    """All rollouts of an evaluation are judged."""

    evaluation: Evaluation
    figures: EvaluationFigures


@dataclass(frozen=True, slots=True)
class GroupsProgress:
    """The filter's state of the current stage, for the scheduler.

    ``uncounted`` is the number of decided groups that no step counted (replaced groups), less those that short steps
    forgave: the scheduler may open that many more. ``retries`` are rollouts to sample again. ``dropped_groups`` may
    still have rollouts in flight, which the scheduler cancels.
    """

    stage: int
    decided: int
    uncounted: int
    retries: tuple[Retry, ...]
    dropped_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Sample ``sample`` of ``group`` again, as attempt ``attempt``; number and evaluation are as in its GroupOpened."""

    group: str
    sample: int
    attempt: int
    number: int
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class PolicyPublished:
    """The newest policy, where its weights are, and the learner's position in the recipe.

    ``uri`` names an immutable safetensors file. With the schemes ``nccl`` and ``gloo`` the learner sends the weights on
    request (TransferWanted). Where generators fetch the file over a link, ``size`` is its size in bytes and
    ``checksum`` its CRC-32 (else 0). ``stage`` indexes the recipe's stages (the number of stages when the recipe is
    done); ``stage_version`` is the version at which the stage began.
    """

    policy: Policy
    uri: str
    stage: int
    stage_version: int
    size: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class WeightsWanted:
    """Send a part of a policy's file, from byte ``offset`` on, to a generator that shares no disk with the learner."""

    policy: Policy
    offset: int


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """The part from byte ``offset`` on and its CRC-32; ``data`` [bytes] is empty when the file was removed."""

    offset: int
    checksum: int
    data: Uint8Vector


@dataclass(frozen=True, slots=True)
class TransferWanted:
    """Send a published policy's weights into the ``ranks`` processes of an engine."""

    policy: Policy
    ranks: int


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """Where the learner waits for the ``ranks`` processes, and the tensors that it broadcasts there, in this order.

    ``port`` 0 means that the learner no longer has the policy. ``key`` keeps processes of other transfers out.
    ``backend`` and ``dtypes`` are torch's names.
    """

    backend: str
    address: str
    port: int
    key: str
    ranks: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageEntered:
    """The learner is in ``stage`` at ``version``: replay groups decided from ``version`` on, drop other stages' groups.

    The stage began at ``stage_version``. ``restored`` says that the learner's process is new: the filter then raises
    the epoch. ``left`` is the stage just left, None when there was none. ``run`` and ``last_step`` come from the
    learner's checkpoint: the run's id, and the version of the last step that the journal had recorded (-1: none).
    ``run`` is empty when there is no checkpoint. The filter stops the run when its journal belongs to another run, or
    is older.
    """

    stage: int
    stage_version: int
    version: int
    restored: bool
    left: StageFigures | None = None
    run: str = ""
    last_step: int = -1


@dataclass(frozen=True, slots=True)
class StageRecorded:
    """The filter has entered the stage.

    ``epoch`` is the current epoch; ``run`` is the run's id, which checkpoints store.
    """

    epoch: int
    run: str = ""


@dataclass(frozen=True, slots=True)
class StepTrained:
    """The learner trained ``groups`` in this order; ``figures`` are the learner's figures of the step."""

    stage: int
    version: int
    groups: tuple[str, ...]
    figures: TrainingFigures


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is durable.

    No replay starts before ``oldest_version``, the version of the oldest checkpoint kept.
    """

    path: str
    version: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The journal has stored the step or the checkpoint."""


@dataclass(frozen=True, slots=True)
class UnfinishedGroups:
    """A scheduler that starts or enters a stage asks which groups are open, and how many were opened."""

    stage: int


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """An open group and the samples that it still lacks, each with its attempt."""

    opened: GroupOpened
    missing: tuple[Retry, ...]


@dataclass(frozen=True, slots=True)
class InterimOpened:
    """The number of groups that were opened for the evaluation after ``at_step`` steps of an rl stage."""

    at_step: int
    groups: int


@dataclass(frozen=True, slots=True)
class GroupsUnfinished:
    """The open groups of a stage.

    Every number below ``opened`` has been opened in this stage. ``interim_opened`` says the same of each evaluation
    within the stage.
    """

    stage: int
    opened: int
    groups: tuple[UnfinishedGroup, ...]
    interim_opened: tuple[InterimOpened, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter (which only grows while the process lives), gauge or histogram of an actor.

    ``values`` holds one value. For a histogram, ``values`` holds the counts of its buckets [len(bounds) + 1], not
    cumulative, and then the sum.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    values: tuple[float, ...]
    labels: dict[str, str] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """The state of an actor, for the live table and the timeline.

    ``state`` is one word; ``detail`` may say more, also why the actor ended. ``waiting_for`` names the role and the
    thing that an idle actor waits for, as in ``"roc_filter: step 13"``; empty while the actor works. Seconds are totals
    since the process started: ``busy_seconds`` of the role's own work (see ``Actor.busy_seconds``), ``cpu_seconds`` of
    processor time, children included. ``metrics`` are further counts, for Prometheus only.
    """

    actor: str
    role: str
    state: str
    detail: str
    figures: ActorFigures
    waiting_for: str
    busy_seconds: float
    cpu_seconds: float
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The incarnation of each actor, by node: each supervisor sends its actors' to the supervisors of other hosts.

    Peers refuse a process that claims a higher incarnation.
    """

    incarnations: dict[str, int]


@dataclass(frozen=True, slots=True)
class RunState:
    """The supervisor of the learner's host tells the supervisors of other hosts to stop their actors (``ending``).

    ``exit_code`` is the exit code of the whole run.
    """

    ending: bool
    exit_code: int
