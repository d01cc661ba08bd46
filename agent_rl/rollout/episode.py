"""The agent loop's decisions: what to generate next, which tools to call, and when a rollout ends and how.

::

    Episode.tokens --engine--> .append_turn --> .begin_calls --> calls --tools-------> .append_tool_results --> .tokens
                                                             --> none --environment--> .append_observation ---> .tokens
                                                             --> none: ended

Tokens are only ever appended. Every token has its log-probability, the policy that sampled it, and a mask that says
whether the model wrote it. `Episode.complete` gives each turn that is answered, and `Episode.resume` takes such turns
in: the episode is then as the one that gave them.

A rollout is a tree of strands. The agent loop has one; a loop of a user's own may leave what was said, and `branch`
then begins another strand, which shares tokens with an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from agent_rl.messages import (
    Branch,
    BranchCause,
    CompletedTurn,
    EnvironmentMessage,
    Float32Vector,
    Int32Matrix,
    Int32Vector,
    PolicyVersion,
    RolloutRequest,
    TagCounts,
    Tokens,
    ToolCallRecord,
    Trajectory,
    TrajectoryStatus,
    Transcript,
    TurnObserved,
    TurnPlace,
)
from agent_rl.rollout.completed import chain_fault, checksum, prompt_check, runs_of, token_by_token
from agent_rl.rollout.parsing import AnyCall, MalformedCall
from agent_rl.rollout.prompts import ChatFormat

if TYPE_CHECKING:
    from agent_rl.rollout.conversation import Plan


def tag_counts(text: str) -> TagCounts:
    """Count the tags of a response, control tokens included."""
    responses = list(_spans(text, "<tool_response>", "</tool_response>"))
    return TagCounts(
        tool_responses=len(responses),
        error_responses=sum("error" in response.lower() for response in responses),
        answers_opened=text.count("<answer>"),
        answers_closed=text.count("</answer>"),
        answers=sum(1 for _ in _spans(text, "<answer>", "</answer>")),
        turns=sum(1 for _ in _spans(text, "<|im_start|>assistant", "<|im_end|>")),
    )


def _spans(text: str, start: str, end: str) -> Iterator[str]:
    """The text between each ``start`` and the next ``end``; a ``start`` within such a span begins none."""
    at = 0
    while (begin := text.find(start, at)) >= 0 and (until := text.find(end, begin + len(start))) >= 0:
        yield text[begin + len(start) : until]
        at = until + len(end)


@dataclass
class RolloutTally:
    """Totals of a generator: its rollouts by status, and their tool calls by outcome."""

    rollouts: int = 0
    calls_failed: int = 0
    """Attempts at calls that no executor answered: each call is made again, or fails its rollout."""
    by_status: Counter[str] = field(default_factory=Counter)
    by_outcome: Counter[str] = field(default_factory=Counter)
    responses_cut: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Count a rollout that has ended."""
        self.rollouts += 1
        self.by_status[trajectory.status] += 1
        self.by_outcome.update(call.outcome for call in trajectory.transcript.calls)
        self.responses_cut += sum(call.cut for call in trajectory.transcript.calls)


def longest_common(strands: Sequence[Strand], tokens: Sequence[int]) -> tuple[Strand, int]:
    """The first of the strands that begin with the most of ``tokens``, and how many."""
    found = [(common_length(each.whole, tokens), -each.number, each) for each in strands]
    shared, _, strand = max(found)
    return strand, shared


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass(slots=True, eq=False)
class Strand:
    """A sequence of a rollout: tokens shared with an earlier one (or the prompt), then its own."""

    number: int
    shared: list[int]
    parent: int = 0
    cause: BranchCause = "rewrite"
    turns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    parts: list[Int32Vector] = field(default_factory=list)
    """Its own tokens again: a turn of the model, its answer, the next turn."""
    logprobs: list[Float32Vector] = field(default_factory=list)
    policies: list[Int32Matrix] = field(default_factory=list)
    room: int = 0
    """Tokens that a turn which is being written may have; 0: what the rollout has left."""
    side: bool = False
    """What was written here is beside the rollout's task: a side call."""
    limited: bool = False
    """The loop asked for fewer tokens than the rollout has left: a turn that ends there does not end the rollout."""

    @property
    def began(self) -> int:
        """Number of tokens before its first turn."""
        return len(self.shared) + self.mask.index(1) if 1 in self.mask else len(self.shared) + len(self.tokens)

    @property
    def whole(self) -> list[int]:
        """All tokens so far."""
        return self.shared + self.tokens

    def append(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix, *, mask: int) -> None:
        """Append own tokens."""
        self.tokens.extend(tokens.tolist())
        self.parts.append(tokens)
        self.mask.extend([mask] * len(tokens))
        self.logprobs.append(logprobs)
        self.policies.append(policies)


class Episode:
    """One running rollout."""

    def __init__(
        self,
        request: RolloutRequest,
        chat: ChatFormat,
        longest: int | None = None,
        *,
        observes: bool = False,
        begun: bool = True,
        calls_per_turn: int | None = None,
    ) -> None:
        """``longest``: the most tokens of a sequence by the engine, with its prompt.

        ``observes``: the environment answers turns that call no tool; otherwise such a turn ends the rollout. ``begun``
        False: the prompt is not the environment's, and the caller calls `begin`. ``calls_per_turn``: tool calls of a
        turn that are run; one error answers all further calls.
        """
        self.request = request
        self.state = b""
        """The environment's last snapshot."""
        self.tool_states: dict[str, bytes] = {}
        """The last snapshots of tools with state, by tool."""
        self.lists_tools = False
        """Whether an agent at the gateway lists tools."""
        self.completed: list[CompletedTurn] = []
        self.resumed: list[tuple[CompletedTurn, Strand, int]] = []
        """Turns that were taken in, each with its strand and the strand's length after it."""
        self.seconds = 0.0
        """Seconds that the rollout took at other generators, up to the turns that were taken in."""
        self._complete: tuple[int, int, dict[str, bytes]] = (0, 0, {})
        """Number of calls and replies of the completed turns, and the snapshots of tools after them."""
        self._answered_under = PolicyVersion(0, 0)
        """The policy of the last answer."""
        self._chat = chat
        self.longest = longest
        self._observes = observes
        self._calls_per_turn = calls_per_turn
        self._calls: tuple[AnyCall, ...] = ()
        """Those of the last turn."""
        self._room = request.sampling.max_response_tokens
        self._begun = begun
        self._reason = ""
        self.strands: list[Strand] = [Strand(0, [])]
        self._records: list[ToolCallRecord] = []
        self._texts: list[str] = []
        self._replies: list[EnvironmentMessage] = []
        self.ended: TrajectoryStatus | None = None
        if begun:
            self.begin(chat.prompt_tokens(request.problem))

    def begin(self, prompt: Sequence[int]) -> None:
        """Set the tokens that the first turn continues.

        A prompt that leaves less than ``max_response_tokens`` reduces the budget to what is left. When nothing is left,
        the rollout ends here.
        """
        self._first.shared = list(prompt)
        if self.longest is not None and self.longest - len(prompt) < self._room:
            self._shrink(self.longest)

    @property
    def _first(self) -> Strand:
        return self.strands[0]

    def branch(
        self, parent: Strand, shared: int, given: Sequence[int], policy: PolicyVersion, cause: BranchCause
    ) -> Strand:
        """Begin a strand with the first ``shared`` tokens of another one and the ``given`` tokens of others.

        The rollout ends if these leave no room. A strand must get a turn of the model before another one begins.
        """
        made = Strand(len(self.strands), parent.whole[:shared], parent.number, cause)
        self.strands.append(made)
        self._append_given(given, policy, made)
        return made

    def _shrink(self, longest: int) -> None:
        count, full = len(self._first.shared), self._room
        left = max(0, longest - count)
        if self._begun:  # of a tree, each sequence is limited by itself
            self._room = left
        self._reason = (
            f"the prompt of problem {self.request.problem.id} has {count} of the {longest} tokens a sequence may have"
        )
        if left:
            self._reason += f": it leaves {left} of {full} response tokens"
        else:
            self.ended = "prompt_too_long"

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and response so far, of the first strand."""
        return self.tokens_of(self._first)

    def tokens_of(self, strand: Strand) -> Sequence[int]:
        """All tokens of a strand so far."""
        return strand.whole

    @property
    def lengths(self) -> tuple[int, int]:
        """The number of tokens of the prompt, and of the response so far."""
        return len(self._first.shared), sum(len(strand.tokens) for strand in self.strands)

    @property
    def budget(self) -> int:
        """Number of response tokens left to the first strand."""
        return self.budget_of(self._first)

    def budget_of(self, strand: Strand) -> int:
        """Number of response tokens left to a strand."""
        left = self._room - self.lengths[1]
        if self.longest is None:
            return left
        return min(left, self.longest - len(strand.shared) - len(strand.tokens))

    def room_after(self, plan: Plan) -> tuple[int, int]:
        """Numbers of response tokens that are left to the rollout after what is planned, and to the sequence.

        Without room they are at most 0.
        """
        count = len(plan.tokens)
        left = self._room - self.lengths[1] - (0 if plan.strand is None else count)
        return left, left if self.longest is None else self.longest - plan.shared - count

    @property
    def turns(self) -> int:
        """Number of turns that the model has written."""
        return len(self._texts)

    @property
    def transcript(self) -> Transcript:
        """The rollout so far as text."""
        status = self.ended or "finished"
        return Transcript(tuple(self._texts), tuple(self._records), tuple(self._replies), status)

    @property
    def may_go_on(self) -> bool:
        """Whether the model may write another turn."""
        return self.turns < self.request.sampling.max_turns

    def text_of(self, written: Int32Vector) -> str:
        """The text of a turn of the model, without the stop token at its end."""
        tokens: list[int] = written.tolist()
        return self._chat.turn_text(tokens[:-1] if tokens[-1] in self._chat.stop_tokens else tokens)

    def append_turn(
        self,
        tokens: Int32Vector,
        logprobs: Float32Vector,
        policies: Int32Matrix,
        *,
        stopped: bool,
        strand: Strand | None = None,
    ) -> str:
        """Append a turn of the model, shapes [n], [n], [n, 2]; returns its text. Without a stop, the rollout ends."""
        strand = strand or self._first
        strand.append(tokens, logprobs, policies, mask=1)
        text = self.text_of(tokens)
        self._texts.append(text)
        strand.turns.append(len(self._texts))
        if not stopped and not strand.limited:
            self.ended = "truncated"
        return text

    def begin_calls(self, text: str) -> tuple[AnyCall, ...]:
        """The calls of the turn, which are to be answered now.

        When there are none and the rollout has not ended, the environment answers the turn.
        """
        if self.ended:
            return ()
        calls = self._chat.sound_calls(text)
        if self._calls_per_turn is not None and len(calls) > self._calls_per_turn:
            count, limit = len(calls), self._calls_per_turn
            rest = f"Error: a turn may make {limit} tool calls, and this turn made {count}: the others were not run."
            calls = (*calls[:limit], MalformedCall(rest))
        self._calls = calls
        if calls and self.may_go_on:
            return calls
        if calls:
            self.ended = "turn_limit"
        elif not self._observes:
            self.ended = "finished"
        return ()

    def turn_fault(
        self,
        tokens: Int32Vector,
        logprobs: Float32Vector,
        policies: Int32Matrix,
        *,
        stopped: bool,
        stop: frozenset[int],
        strand: Strand | None = None,
    ) -> str:
        """Why a turn from an engine, shapes as of `append_turn`, is not valid; or nothing. ``stop``: stop tokens."""
        count = len(tokens)
        if tokens.shape != (count,) or logprobs.shape != (count,) or policies.shape != (count, 2):
            return f"shapes {tokens.shape}, {logprobs.shape} and {policies.shape}, not [n], [n] and [n, 2]"
        strand = strand or self._first
        budget = strand.room or self.budget_of(strand)
        if not 0 < count <= budget:
            return f"{count} tokens, where 1 to {budget} were asked for"
        if tokens.min() < 0:
            return f"the token {tokens.min()}"
        if not np.isfinite(logprobs).all():
            return "log-probabilities that are not finite"
        if stopped and int(tokens[-1]) not in stop:
            return f"a turn with finish 'stop' that ends in the token {tokens[-1]}, which is no stop token"
        if not stopped and count < budget:
            return f"a turn with finish 'length' and {count} tokens, where {budget} were asked for"
        epochs, versions = np.diff(policies, axis=0).T
        if ((epochs < 0) | ((epochs == 0) & (versions < 0))).any():
            return "a turn whose versions fall"
        return ""

    def append_tool_results(
        self, responses: Sequence[str], records: Sequence[ToolCallRecord], policy: PolicyVersion
    ) -> None:
        """Append the turn's tool responses, in the order of the calls. The rollout ends if they exceed the budget."""
        self._records.extend(records)
        tokens = self._chat.response_tokens(responses, self._calls)
        if self._first.tokens[-1] not in self._chat.stop_tokens:  # it was ended where its call was complete
            tokens = [self._chat.end_of_turn, *tokens]
        self._append_given(tokens, policy)

    def append_observation(self, answer: TurnObserved, policy: PolicyVersion) -> None:
        """Take in the environment's answer to the turn. After the last turn that is allowed, no tokens are appended."""
        self.state = answer.state
        if answer.done or not self.may_go_on:
            self._replies.extend(answer.messages)
            self.ended = "finished" if answer.done else "turn_limit"
        else:
            tokens = self._chat.message_tokens([(each.role, each.content) for each in answer.messages])
            self.give(answer.messages, tokens, policy)

    def give(
        self,
        messages: Sequence[EnvironmentMessage],
        tokens: Sequence[int],
        policy: PolicyVersion,
        strand: Strand | None = None,
    ) -> None:
        """Append messages, as tokens, after a turn. The rollout ends if they exceed the budget."""
        self._replies.extend(messages)
        self._append_given(tokens, policy, strand)

    def record_messages(self, messages: Sequence[EnvironmentMessage]) -> None:
        """Record messages whose tokens a branch has."""
        self._replies.extend(messages)

    def record_call(self, record: ToolCallRecord) -> None:
        """Record a tool call of a user's own loop."""
        self._records.append(record)

    def finish(self) -> None:
        """End the rollout after its last turn."""
        self.ended = self.ended or "finished"

    def _append_given(self, added: Sequence[int], policy: PolicyVersion, strand: Strand | None = None) -> None:
        strand, count = strand or self._first, len(added)
        if count >= self.budget_of(strand):
            self.ended = "truncated"
            return
        self._answered_under = policy
        policies = np.tile(np.array([[policy.epoch, policy.version]], dtype=np.int32), (count, 1))
        strand.append(np.array(added, dtype=np.int32), np.zeros(count, dtype=np.float32), policies, mask=0)

    def complete(
        self,
        seconds: float,
        strand: Strand | None = None,
        place: TurnPlace | None = None,
        given: Sequence[int] = (),
    ) -> CompletedTurn:
        """The last turn, which was answered and did not end the rollout. ``seconds`` of this generator have passed.

        With a ``place``, the turn is of an agent at the gateway, which wrote it in this strand after the tokens
        ``given``.
        """
        strand = strand or self._first
        calls, replies, states = self._complete
        if place is None:
            last, prompt, answer, state = -2, strand.shared, strand.parts[-1], self.state
            changed = {name: made for name, made in self.tool_states.items() if states.get(name) != made}
        else:
            last, prompt, answer, state, changed = -1, [], np.array(given, dtype=np.int32), b"", {}
        before = self.completed[-1].after if self.completed else prompt_check(prompt)
        written, logprobs, policies = strand.parts[last], strand.logprobs[last], runs_of(strand.policies[last])
        turn = CompletedTurn(
            number=self.turns,
            before=before,
            after=checksum(before, (written, logprobs, policies, answer), state, changed),
            written=written,
            logprobs=logprobs,
            policies=policies,
            answer=answer,
            policy=self._answered_under,
            calls=tuple(self._records[calls:]),
            replies=tuple(self._replies[replies:]),
            state=state,
            tool_states=changed,
            seconds=self.seconds + seconds,
            place=place,
        )
        self._completed(turn)
        return turn

    def _completed(self, turn: CompletedTurn) -> None:
        self.completed.append(turn)
        self._complete = (len(self._records), len(self._replies), dict(self.tool_states))

    def resume(self, turns: Sequence[CompletedTurn]) -> str:
        """Take turns in that another episode of the same request has completed; this one has none yet.

        Returns why they cannot be taken in, or nothing. With a reason, the episode is of no further use.
        """
        if fault := chain_fault(prompt_check(self._first.shared), turns):
            return fault
        strands: dict[int, Strand] = {}
        for turn in turns:
            if turn.place is None:
                strand: Strand | None = self._first
            else:
                strand = self._placed(turn, turn.place, strands)
            if strand is None:
                return f"turn {turn.number} has no place"
            strand.side = turn.place is not None and turn.place.side
            strand.append(turn.written, turn.logprobs, token_by_token(turn.policies), mask=1)
            self._texts.append(self.text_of(turn.written))
            strand.turns.append(len(self._texts))
            self._records.extend(turn.calls)
            self._replies.extend(turn.replies)
            if turn.place is None:
                self._append_given(turn.answer.tolist(), turn.policy)
                self.state = turn.state
                self.tool_states.update(turn.tool_states)
            self.seconds = turn.seconds
            self._completed(turn)
            self.resumed.append((turn, strand, len(strand.whole)))
        if self.ended is not None or (self._begun and not self.may_go_on):
            return f"{len(turns)} turns leave no room for another"
        return ""

    def _placed(self, turn: CompletedTurn, place: TurnPlace, strands: dict[int, Strand]) -> Strand | None:
        """The strand that a turn of an agent at the gateway was written in, up to the turn. None: it is not known."""
        given = turn.answer.tolist()
        if not place.begins:
            if (strand := strands.get(place.strand)) is not None:
                self._append_given(given, turn.policy, strand)
            return strand
        if not strands:
            self.begin(given)
            strand = self._first
        else:
            parent, shared = longest_common(self.strands, given)
            strand = self.branch(parent, shared, given[shared:], turn.policy, place.cause or "rewrite")
        strands[place.strand] = strand
        return strand

    def trajectory(
        self, *, generator: str, seconds: float, failure: tuple[TrajectoryStatus, str] | None = None
    ) -> Trajectory:
        """The rollout so far, after ``seconds`` here. ``failure`` (status, reason): the infrastructure ended it."""
        status, reason = failure or (self.ended or "failed", "")
        if status in {"truncated", "prompt_too_long"}:
            reason = self._reason
        request = self.request
        tokens = self._packed()
        prompt_length, response_length = self.lengths
        oldest, newest = tokens.versions
        return Trajectory(
            rollout=request.rollout,
            group=request.group,
            stage=request.stage,
            sample=request.sample,
            attempt=request.attempt,
            purpose=request.purpose,
            transcript=replace(self.transcript, status=status),
            reason=reason,
            generator=generator,
            seconds=self.seconds + seconds,
            prompt_length=prompt_length,
            response_length=response_length,
            oldest=oldest,
            newest=newest,
            body=tokens.pack(),
            tags=tag_counts(self._chat.decode(tokens.tokens.tolist())),
            lists_tools=self.lists_tools,
            written=sum(sum(strand.mask) for strand in self.strands),
            excluded=self.excluded,
            branches=tuple(Branch(strand.cause, tuple(strand.turns)) for strand in self._kept[1:]),
        )

    @property
    def _kept(self) -> list[Strand]:
        """The first strand, and those with tokens of their own: each has a turn, or the rollout ended before it."""
        return [strand for strand in self.strands if strand.tokens or not strand.number]

    @property
    def _left_out(self) -> list[Strand]:
        """The strands whose turns are not trained: side calls with which nothing went on.

        An agent that names another model in all its requests has no side calls.
        """
        trained = [strand for strand in self._kept if strand.turns and not strand.side]
        if not trained:
            return []
        went_on = {each.parent for each in trained if len(each.shared) > self.strands[each.parent].began}
        return [strand for strand in self._kept if strand.side and strand.number not in went_on]

    @property
    def excluded(self) -> dict[str, int]:
        """Sampled tokens that are not trained, by cause."""
        count = sum(sum(strand.mask) for strand in self._left_out)
        return {"side_call": count} if count else {}

    def _packed(self) -> Tokens:
        strands, left_out = self._kept, self._left_out
        places = {strand.number: place for place, strand in enumerate(strands)}
        starts = np.cumsum([0, *(len(strand.tokens) for strand in strands)]).tolist()
        rows = []
        for strand, start in zip(strands[1:], starts[1:], strict=False):
            parent = strand.parent
            while parent not in places:  # it has no tokens of its own
                parent = self.strands[parent].parent
            rows.append((places[parent], len(strand.shared), start))
        logprobs = [part for strand in strands for part in strand.logprobs]
        policies = [part for strand in strands for part in strand.policies]
        return Tokens(
            np.array(self._first.shared, dtype=np.int32),
            np.array([token for strand in strands for token in strand.tokens], dtype=np.int32),
            np.array([flag and strand not in left_out for strand in strands for flag in strand.mask], dtype=np.uint8),
            np.concatenate([np.zeros(0, dtype=np.float32), *logprobs]),
            np.concatenate([np.zeros((0, 2), dtype=np.int32), *policies]),
            np.array(rows, dtype=np.int32).reshape(-1, 3),
        )
