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
    """Which weights: each restore raises the epoch, each published update the version; the order is lexicographic."""

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One task: what the model is asked, and the ground truth its answer is held against, where there is one.

    ``environment`` is the name of the environment that the problem is of, and ``payload`` what that needs beside the text, as JSON.
    """

    id: str
    text: str
    answer: str = ""
    environment: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a rollout is drawn, and where it ends.

    ``temperature`` 0 means greedy. ``max_response_tokens`` counts everything after the prompt, tool responses included.
    """

    temperature: float
    max_response_tokens: int
    max_turns: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the recipe: an evaluate stage, or within an rl stage the one that ``within`` counts from 1."""

    stage: int
    within: int | None = None


@dataclass(frozen=True, slots=True)
class GroupOpened:
    """A group exists from here on; the journal knows it before any of its rollouts is requested.

    ``evaluation`` is None for a group to train. ``number`` counts the groups of the stage from 0, those of evaluations within an
    rl stage by themselves; group id, task and seeds are functions of run seed, stage, evaluation and number.
    ``policy`` is the oldest policy an engine served at opening: a lower bound for every token of the group.
    """

    group: str
    stage: int
    number: int
    purpose: Purpose
    problem: Problem
    samples: int
    policy: Policy
    evaluation: Evaluation | None = None


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
    """Groups nobody wants any more: their rollouts in flight, at whichever generator, are to be cancelled.

    A name leaves the list once none of its rollouts is in flight.
    """

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One tool call of a trajectory: what was called after which turn (from 1), what became of it, and what the model read.

    ``outcome`` is the executor's, never read off a text. ``cut`` says that the result was longer than ``response``, which is what
    the model was shown. A malformed call has neither a tool nor arguments.
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
        """All turns, for people and for counts; an answer is read from ``texts``, since it stands in one turn."""
        return "\n".join(self.texts)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an environment says of a rollout, once and for all.

    ``reward`` is what advantages are made of; ``success`` is what evaluations count and RoC's classes are; ``parts`` are named
    summands or figures of the reward, for people; ``format_penalty`` is RoC's p_format, from 0 to 1; ``note`` says in words how it
    was judged; ``answer`` is what the rollout answered, where there is such a thing, in a form in which answers that count as the same
    are the same text: maj@k votes by it.
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

    Shapes, with p prompt tokens and n response tokens (the model's and the tools'):
    ``prompt_tokens`` [p]; ``tokens`` [n]; ``loss_mask`` [n], 1 where the model wrote the token; ``logprobs`` [n], natural
    logarithm under the distribution sampled from (temperature included), 0 where masked; ``policies`` [n, 2], the (epoch,
    version) that sampled the token, or that was current when a tool's or the environment's token was appended.
    ``judgement`` is None where an executor is to judge, and of a rollout that came to nothing.
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
    """What an engine holds now, in tokens of KV cache and numbers of rollouts.

    ``policy`` is the one served. ``incarnation`` changes when the generator's process is a new one.
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
    """Run a tool of the environment that ``problem`` is of. ``arguments`` is the JSON object the model wrote.

    ``state`` is the snapshot that the rollout's last call of a tool with state left; empty before the first. ``seed`` is the
    rollout's. ``ends`` says that the rollout is over: nothing is run, and nothing of it kept.
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

    ``state`` is the snapshot for the rollout's next call of the tool; None leaves it as it was. ``note`` is what the model is told of that
    state in any case.
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
    """Answer the last turn of a rollout, which called no tool, as the problem's environment does.

    ``state`` is the snapshot that came with the answer before, empty at first: any executor can go on from it.
    """

    rollout: str
    problem: Problem
    transcript: Transcript
    state: bytes
    seed: int


@dataclass(frozen=True, slots=True)
class TurnObserved:
    """What the environment answers, and the snapshot to come back with the next turn. ``done``: the rollout ends here.

    ``fault`` says why there is no answer: what the environment did wrong, with file and line.
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
    """The judgement; or None, and then ``fault`` says what is wrong with the environment, or ``unavailable`` why nothing was judged.

    What was unavailable is asked again; a fault is the environment's, with file and line where they are known.
    """

    rollout: str
    judgement: Judgement | None
    fault: str = ""
    unavailable: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A decided group with signal: the kept trajectories and their rewards [kept], float32.

    Their transcripts are empty: what is trained on is tokens.
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

    ``uncounted`` is how many decided groups a step did not count (replaced ones), net of what short steps forgave: the
    scheduler may open that many more. ``retries`` are rollouts to be sampled again; ``dropped_groups`` are groups that may
    still have rollouts in flight, which nobody wants.
    """

    stage: int
    decided: int
    uncounted: int
    retries: tuple[Retry, ...]
    dropped_groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Sample ``sample`` of ``group`` again, as attempt number ``attempt``; number and evaluation are those of its GroupOpened."""

    group: str
    sample: int
    attempt: int
    number: int
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class PolicyPublished:
    """The newest policy, where its weights are, and where the learner stands in the recipe.

    ``uri`` names an immutable safetensors file; the schemes ``nccl`` and ``gloo`` say that weights are sent to who asks for them
    (TransferWanted). Where generators fetch the file over a link, ``size`` is its bytes and ``checksum`` its CRC-32 (else 0). ``stage`` indexes the recipe's stages (their number when the recipe is
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
    """A part of a published policy's file, from byte ``offset`` on, for a generator that shares no disk with the learner."""

    policy: Policy
    offset: int


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """The part from byte ``offset`` on and its CRC-32; ``data`` [bytes of the part] is empty when the file is not kept any more."""

    offset: int
    checksum: int
    data: Uint8Vector


@dataclass(frozen=True, slots=True)
class TransferWanted:
    """A published policy's weights, sent into the ``ranks`` processes of an engine."""

    policy: Policy
    ranks: int


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """Where the learner waits for the ``ranks`` processes, and the tensors it broadcasts there, in this order.

    ``port`` 0: the policy is not kept any more. ``key`` keeps processes of other transfers out; ``backend`` and ``dtypes`` are
    torch's names.
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
    """The learner is in ``stage`` at ``version``: replay what was decided from there on; drop what other stages left.

    ``stage_version`` is the version the stage began at. ``restored`` says that the learner's process is a new one: the filter
    then raises the epoch. ``left`` is the stage just left, None when there was none. ``run`` and ``last_step`` are
    what the checkpoint it goes on from says of the journal: the run's id, and the version of the last step recorded (-1: none).
    The filter stops the run when its journal is of another run, or older. ``run`` is empty when there is no checkpoint.
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
    """The filter is in the stage too; ``epoch`` is the one in force, ``run`` the id of the run, which checkpoints hold."""

    epoch: int
    run: str = ""


@dataclass(frozen=True, slots=True)
class StepTrained:
    """A step is done: ``groups`` were trained, in order; ``figures`` are the learner's."""

    stage: int
    version: int
    groups: tuple[str, ...]
    figures: TrainingFigures


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is durable; ``oldest_version`` is that of the oldest one kept: no replay starts before it."""

    path: str
    version: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The journal has it."""


@dataclass(frozen=True, slots=True)
class UnfinishedGroups:
    """Asked by a scheduler that enters a stage or starts: what is open, and how far is the stage."""

    stage: int


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """An open group and the samples it still lacks, with the attempt each is at."""

    opened: GroupOpened
    missing: tuple[Retry, ...]


@dataclass(frozen=True, slots=True)
class GroupsUnfinished:
    """The answer: every number below ``opened`` has been opened in this stage, and below ``interim_opened`` of its evaluations."""

    stage: int
    opened: int
    groups: tuple[UnfinishedGroup, ...]
    interim_opened: int = 0


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter (it only grows while the process lives), gauge or histogram of an actor.

    ``values`` is the value alone; of a histogram the counts of its buckets [len(bounds) + 1], not cumulative, and then the sum.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    values: tuple[float, ...]
    labels: dict[str, str] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """What an actor is doing, for the live table and the timeline.

    ``state`` is one word; ``detail`` may say more, also why it ended. ``waiting_for`` names the role and the thing an idle
    actor waits for, as in ``"roc_filter: step 13"``; empty while it works. Seconds are totals since the process started:
    of doing what the role is for (see ``Actor.busy_seconds``), and of processor time with that of its children.
    ``metrics`` is what else it counts, for Prometheus alone.
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
    """From each supervisor to those of other hosts: which incarnation each of its actors has, by node.

    Peers refuse a process that claims a higher one.
    """

    incarnations: dict[str, int]


@dataclass(frozen=True, slots=True)
class RunState:
    """From the learner's host to the supervisors of the others: once ``ending``, they stop their actors too.

    ``exit_code`` is what the whole run ends with.
    """

    ending: bool
    exit_code: int
