"""Groups and their rollouts: what the scheduler asks for, what generators and executors do, and how it is judged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agent_rl.messages.tokens import BodyError, Float32Vector, Int32Matrix, Int32Vector, Tokens

THOUGHT_OPENING, THOUGHT_CLOSING = "<think>", "</think>"
_THOUGHT = re.compile(rf"{THOUGHT_OPENING}.*?(?:{THOUGHT_CLOSING}|\Z)", re.DOTALL)
NEWS_STEPS = 64
"""The steps in which the use of a KV cache is news, in an engine's whole cache."""

Purpose: TypeAlias = Literal["train", "evaluate_sampled", "evaluate_greedy", "select"]
TrajectoryStatus: TypeAlias = Literal[
    "finished", "truncated", "turn_limit", "failed", "cancelled", "prompt_too_long", "environment_failed"
]
LOST = frozenset({"failed", "cancelled", "prompt_too_long", "environment_failed"})
"""Statuses of rollouts that the model did not bring to an end, so that there is nothing to judge."""
ToolOutcome: TypeAlias = Literal[
    "success", "error", "timeout", "memory_limit", "output_limit", "killed", "malformed", "unknown_tool", "unavailable"
]


def beyond_thoughts(text: str) -> str:
    """A turn's text without its thoughts. One that is not closed goes to the turn's end, since it was cut within it."""
    return _THOUGHT.sub("", text)


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """The weights that wrote a token. Each restore raises the epoch, each published update the version."""

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One task: the text that the model reads and, where there is one, the ground truth ``answer``.

    ``payload`` is JSON that the environment needs beside the text.
    """

    id: str
    text: str
    answer: str = ""
    environment: str = ""
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        """The payload, as rewards read it: the columns of a problem's row."""
        return self.payload


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled, and the limits at which a rollout ends.

    ``temperature`` 0 is greedy, ``top_k`` 0 means all. ``max_response_tokens`` counts tool responses too.
    """

    temperature: float
    max_response_tokens: int
    max_turns: int
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: an evaluate or select stage, or within an rl stage the evaluation after ``at_step`` steps."""

    stage: int
    at_step: int | None = None


@dataclass(frozen=True, slots=True)
class GroupOpened:
    """A new group. The journal stores the group before the scheduler requests any of its rollouts.

    ``evaluation`` is None for a training group and for one of a select stage, which alone has ``stage_groups``.
    ``number`` counts the groups of the stage, or of the evaluation within an rl stage. Group id, task and seeds are
    functions of run seed, stage, evaluation and number. ``policy`` is a lower bound for every token of the group.
    ``drawn``: the number of the problem where a curriculum chose it; None: ``number``.
    """

    group: str
    stage: int
    number: int
    purpose: Purpose
    problem: Problem
    samples: int
    policy: PolicyVersion
    evaluation: Evaluation | None = None
    stage_groups: int | None = None
    drawn: int | None = None

    @property
    def at_step(self) -> int | None:
        """The step of the evaluation within an rl stage that the group belongs to; None for all other groups."""
        return None if self.evaluation is None else self.evaluation.at_step


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One tool call of a trajectory, after turn ``turn`` (from 1).

    ``response`` is the text that the model read; ``cut``: the result was longer. A malformed call has neither a tool
    nor arguments.
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


BranchCause: TypeAlias = Literal["rewrite", "again", "sub_agent", "compaction", "side_call"]
"""``rewrite``: what was said before was changed; ``again``: the model was asked once more; ``sub_agent``: a
conversation of its own; ``compaction``: one that goes on from the model's own summary; ``side_call``: what an agent
asks beside its task, as a title."""


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """Where a turn of an agent at the gateway stands.

    ``strand`` numbers its sequence. ``begins``: the turn begins it, and ``cause`` says why, where it is a branch.
    ``digest`` is that of the ``said`` messages that asked for the turn. ``side``: it is beside the rollout's task.
    ``stopped``: it may be continued. ``choice``: its number among the turns of its request.
    """

    strand: int
    begins: bool
    cause: BranchCause | None
    digest: bytes
    said: int
    side: bool
    stopped: bool
    choice: int = 0


@dataclass(frozen=True, slots=True)
class CompletedTurn:
    """A turn of the model with the answer of tools or environment: with all turns before, a rollout can go on from it.

    ``number`` counts from 1. Shapes, with w tokens of the model, r runs of tokens by one policy, and g tokens of the
    answer: ``written`` [w]; ``logprobs`` [w]; ``policies`` [r, 3], the epoch, version and length of each run;
    ``answer`` [g], appended under ``policy``. ``state`` and ``tool_states`` are snapshots of the environment and of
    tools that the turn has changed. ``seconds`` count from the rollout's start. ``after`` and ``before`` are checksums
    of the rollout up to this turn and the turn before, so that turns of two runs of one rollout are never joined.

    With a ``place``, ``answer`` are the tokens given before the turn: all of them, where it begins a sequence.
    """

    number: int
    before: int
    after: int
    written: Int32Vector
    logprobs: Float32Vector
    policies: Int32Matrix
    answer: Int32Vector
    policy: PolicyVersion
    calls: tuple[ToolCallRecord, ...]
    replies: tuple[EnvironmentMessage, ...]
    state: bytes
    tool_states: dict[str, bytes]
    seconds: float
    place: TurnPlace | None = None


@dataclass(frozen=True, slots=True)
class TurnsCompleted:
    """Turns of a running rollout, for the scheduler to keep until the rollout is done, and what the rollout does then.

    ``then``: it goes on with its next turn (``goes_on``); the generator leaves, and has let go of the rollout that the
    request of this ``placement_epoch`` asked for (``left``); the rollout is over (``ended``). ``tokens`` counts the
    rollout's tokens, prompt included; 0: not known, or an end without a result.
    """

    rollout: str
    generator: str
    turns: tuple[CompletedTurn, ...]
    then: Literal["goes_on", "left", "ended"] = "goes_on"
    placement_epoch: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Sample one rollout. Acknowledged when its Trajectory is.

    The rollout goes on from the last of ``turns``. ``placement_epoch`` counts how often it has left or lost its
    generator: of several copies, the one of the highest epoch counts.
    """

    rollout: str
    group: str
    stage: int
    sample: int
    attempt: int
    purpose: Purpose
    problem: Problem
    sampling: Sampling
    seed: int
    turns: tuple[CompletedTurn, ...] = ()
    placement_epoch: int = 0


@dataclass(frozen=True, slots=True)
class GroupsUnwanted:
    """Groups that were dropped, and rollouts that another generator has since theirs was lost.

    Every generator cancels the rollouts of ``groups``, and abandons those of ``moved`` whose request has a lower
    ``placement_epoch``. Groups and rollouts leave the lists once they are not in flight.
    """

    groups: tuple[str, ...]
    moved: dict[str, int] = field(default_factory=dict)


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

    @property
    def answer(self) -> str:
        """What the last turn says beyond its thoughts: within its last pair of answer tags, else all of it."""
        said = beyond_thoughts("".join(self.texts[-1:]))
        before, closed, _ = said.rpartition("</answer>")
        _, opened, within = before.rpartition("<answer>")
        return (within if closed and opened else said).strip()


@dataclass(frozen=True, slots=True)
class Judgement:
    """An environment's judgement of a rollout, made once.

    Advantages are computed from ``reward``; evaluations and RoC's two classes go by ``success``. ``parts`` are named
    figures of the reward, for people. ``format_penalty`` is RoC's p_format, from 0 to 1. maj@k counts equal texts of
    ``answer``, so equivalent answers must be the same text.
    """

    reward: float
    success: bool
    parts: dict[str, float] = field(default_factory=dict)
    format_penalty: float = 0.0
    note: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class TagCounts:
    """Tags in the text of a whole response, control tokens included; ``resampling = "release"`` selects by them.

    ``tool_responses`` are spans from ``<tool_response>`` to ``</tool_response>``, ``error_responses`` those with the
    word "error" in any case; ``answers`` from ``<answer>`` to ``</answer>``, whose tags ``answers_opened`` and
    ``answers_closed`` count by themselves; ``turns`` from ``<|im_start|>assistant`` (of the first turn in the prompt)
    to ``<|im_end|>``.
    """

    tool_responses: int = 0
    error_responses: int = 0
    answers_opened: int = 0
    answers_closed: int = 0
    answers: int = 0
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Branch:
    """Why a branch of a rollout began, and the numbers of the turns, from 1, that were written there."""

    cause: BranchCause
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout from prompt to end: a head, by which the filter decides, and a ``body`` with all tokens.

    The generator packs the body once (`Tokens.pack`), and the learner unpacks it. Lengths count tokens, with those of
    tools. ``oldest`` and ``newest`` are versions of the policies that the model wrote with. ``judgement`` is None where
    an executor has to judge, and for a rollout without a result. ``branches`` are those of the body.
    """

    rollout: str
    group: str
    stage: int
    sample: int
    attempt: int
    purpose: Purpose
    transcript: Transcript
    reason: str
    generator: str
    seconds: float
    prompt_length: int
    response_length: int
    oldest: int | None
    newest: int | None
    body: bytes
    judgement: Judgement | None = None
    tags: TagCounts = field(default_factory=TagCounts)
    branches: tuple[Branch, ...] = ()
    lists_tools: bool = False
    """Whether its agent lists tools at the gateway."""
    written: int = 0
    """Sampled tokens."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Those of them that the body does not mark as the model's, by cause."""

    @property
    def status(self) -> TrajectoryStatus:
        """How the rollout ended."""
        return self.transcript.status

    @property
    def turns(self) -> int:
        """How many turns the model wrote."""
        return len(self.transcript.texts)

    @property
    def turn_order(self) -> list[int]:
        """The turns, by number, in the order in which they stand in the response."""
        elsewhere = [turn for branch in self.branches for turn in branch.turns]
        return [*sorted({*range(1, self.turns + 1)}.difference(elsewhere)), *elsewhere]

    def unpack(self) -> Tokens:
        """The tokens of the body. Raises BodyError, also where head and body have other lengths."""
        found = Tokens.unpack(self.body)
        lengths = len(found.prompt_tokens), len(found.tokens)
        if lengths != (self.prompt_length, self.response_length):
            head = f"{self.prompt_length} and {self.response_length}"
            raise BodyError(f"a body of {lengths[0]} and {lengths[1]} tokens, where its head says {head}")
        return found


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The current load of an engine, in tokens of KV cache and numbers of rollouts.

    Each new process of the generator has a higher ``incarnation``. ``orphans``: rollouts for a former process of the
    scheduler, each with its epoch, until the present process asks for them or they end. Totals since the engine began:
    ``preempted`` turns, which lost their KV cache for want of room; ``cached_tokens`` of prompts that were found in the
    KV cache; ``prefilled_tokens``, which were computed. A load is sent when `news` changes; to others than the
    scheduler, when ``policy`` changes.
    """

    generator: str
    incarnation: int
    policy: PolicyVersion
    kv_tokens_total: int
    kv_tokens_used: int
    max_rollouts: int
    running: int
    waiting: int
    preempted: int
    generated_tokens: int
    orphans: dict[str, int] = field(default_factory=dict)
    prefilled_tokens: int = 0
    cached_tokens: int = 0

    @property
    def news(self) -> tuple[object, ...]:
        """What decisions depend on: another load with the same has nothing new. KV use counts in steps of a 64th."""
        used = NEWS_STEPS * self.kv_tokens_used // max(1, self.kv_tokens_total)
        sizes = self.kv_tokens_total, used, self.max_rollouts
        turns = self.running, self.waiting, self.preempted
        return self.generator, self.incarnation, self.policy, sizes, turns, self.orphans
