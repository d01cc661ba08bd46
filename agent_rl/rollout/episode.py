"""The agent loop as a pure decider: what to generate next, which tools to call, when a rollout ends and how.

::

    Episode.tokens, .budget --engine--> Episode.wrote(...) -> calls --tools--------> Episode.responded(...) -> .tokens, .budget ...
                                                           -> none --environment---> Episode.observed(...)  -> .tokens, .budget ...
                                                           -> none: ended

Token in, token out: tokens are only ever appended. Every token carries its log-probability, the policy that sampled it and
whether the model wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agent_rl.messages import (
    EnvironmentMessage,
    Float32Vector,
    Int32Matrix,
    Int32Vector,
    Policy,
    RolloutRequest,
    ToolCallRecord,
    Trajectory,
    TrajectoryStatus,
    Transcript,
    TurnObserved,
)
from agent_rl.rollout.parsing import MalformedCall, ParsedCall
from agent_rl.rollout.prompts import ChatFormat


@dataclass
class RolloutTally:
    """What became of a generator's rollouts and of their tool calls, in totals."""

    rollouts: int = 0
    calls_failed: int = 0
    """Attempts at calls that the tool service did not answer: each is made again, or fails its rollout."""
    by_status: Counter[str] = field(default_factory=Counter)
    by_outcome: Counter[str] = field(default_factory=Counter)
    responses_cut: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """A rollout has ended."""
        self.rollouts += 1
        self.by_status[trajectory.status] += 1
        self.by_outcome.update(call.outcome for call in trajectory.transcript.calls)
        self.responses_cut += sum(call.cut for call in trajectory.transcript.calls)


class Episode:
    """One rollout under way."""

    def __init__(
        self,
        request: RolloutRequest,
        chat: ChatFormat,
        longest: int | None = None,
        *,
        observes: bool = False,
        begun: bool = True,
    ) -> None:
        """``longest``: tokens the engine allows a sequence, prompt included.

        ``observes``: the environment answers turns that call no tool; otherwise such a turn ends the rollout. ``begun`` False: the
        prompt is not the environment's, and `begin` is to be called.
        """
        self.request = request
        self.state = b""
        """The environment's snapshot, which travels with the rollout."""
        self._chat = chat
        self._longest = longest
        self._observes = observes
        self._prompt: list[int] = []
        self._room = request.sampling.max_response_tokens
        self._reason = ""
        self._tokens: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._policies: list[np.ndarray[tuple[int, int], np.dtype[np.int32]]] = []
        self._records: list[ToolCallRecord] = []
        self._texts: list[str] = []
        self._replies: list[EnvironmentMessage] = []
        self.ended: TrajectoryStatus | None = None
        if begun:
            self.begin(chat.prompt_tokens(request.problem))

    def begin(self, prompt: Sequence[int]) -> None:
        """Take the tokens that the first turn continues.

        A prompt that leaves less than ``max_response_tokens`` gets a budget of what it leaves; one that leaves nothing ends the
        rollout before it began.
        """
        self._prompt = list(prompt)
        if self._longest is not None and self._longest - len(self._prompt) < self._room:
            self._shrink(self._longest)

    def _shrink(self, longest: int) -> None:
        prompt, wanted = len(self._prompt), self._room
        self._room = max(0, longest - prompt)
        said = (
            f"the prompt of problem {self.request.problem.id} has {prompt} of the {longest} tokens a sequence may have"
        )
        if self._room == 0:
            self.ended, self._reason = "prompt_too_long", said
        else:
            self._reason = f"{said}: it leaves {self._room} of {wanted} response tokens"

    @property
    def tokens(self) -> list[int]:
        """Prompt and response so far."""
        return self._prompt + self._tokens

    @property
    def budget(self) -> int:
        """Response tokens left."""
        return self._room - len(self._tokens)

    @property
    def turns(self) -> int:
        """How many turns the model has written."""
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

    def wrote_text(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix, *, stopped: bool) -> str:
        """The model wrote a turn, shapes [n], [n], [n, 2]; its text. A turn that did not stop ends the rollout."""
        self._append(tokens, logprobs, policies, mask=1)
        text = self._chat.decode((tokens[:-1] if stopped else tokens).tolist())
        self._texts.append(text)
        if not stopped:
            self.ended = "truncated"
        return text

    def wrote(
        self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix, *, stopped: bool
    ) -> tuple[ParsedCall | MalformedCall, ...]:
        """The model wrote a turn, as of `wrote_text`; the calls to answer now.

        Where there are none, and the rollout has not ended, it is for the environment to answer.
        """
        text = self.wrote_text(tokens, logprobs, policies, stopped=stopped)
        if self.ended:
            return ()
        calls = self._chat.sound_calls(text)
        if calls and self.may_go_on:
            return calls
        if calls:
            self.ended = "turn_limit"
        elif not self._observes:
            self.ended = "finished"
        return ()

    def rubbish(
        self,
        tokens: Int32Vector,
        logprobs: Float32Vector,
        policies: Int32Matrix,
        *,
        stopped: bool,
        stop: frozenset[int],
    ) -> str:
        """What is wrong with a turn that an engine returned, shapes as of `wrote`; empty for a sound one. ``stop``: its stop tokens."""
        count = len(tokens)
        if tokens.shape != (count,) or logprobs.shape != (count,) or policies.shape != (count, 2):
            return f"shapes {tokens.shape}, {logprobs.shape} and {policies.shape}, not [n], [n] and [n, 2]"
        if not 0 < count <= self.budget:
            return f"{count} tokens, where 1 to {self.budget} were asked for"
        if tokens.min() < 0:
            return f"the token {tokens.min()}"
        if not np.isfinite(logprobs).all():
            return "log-probabilities that are not finite"
        if stopped and int(tokens[-1]) not in stop:
            return f"a turn that is said to have stopped, and ends in the token {tokens[-1]}"
        return ""

    def responded(self, responses: Sequence[str], records: Sequence[ToolCallRecord], policy: Policy) -> None:
        """The turn's tool responses are there, in the order of the calls. One that overflows the budget ends the rollout."""
        self._records.extend(records)
        self._give(self._chat.response_tokens(responses), policy)

    def observed(self, answer: TurnObserved, policy: Policy) -> None:
        """The environment has answered the turn; an answer to the last turn that is allowed is not read by the model."""
        self.state = answer.state
        if answer.done or not self.may_go_on:
            self._replies.extend(answer.messages)
            self.ended = "finished" if answer.done else "turn_limit"
        else:
            self.told(answer.messages, policy)

    def told(self, messages: Sequence[EnvironmentMessage], policy: Policy) -> None:
        """Messages follow the turn. Those that overflow the budget end the rollout."""
        self._replies.extend(messages)
        self._give(self._chat.message_tokens([(each.role, each.content) for each in messages]), policy)

    def called(self, record: ToolCallRecord) -> None:
        """A user's own loop has called a tool."""
        self._records.append(record)

    def finish(self) -> None:
        """The rollout ends with its last turn."""
        self.ended = self.ended or "finished"

    def _give(self, added: Sequence[int], policy: Policy) -> None:
        count = len(added)
        if count >= self.budget:
            self.ended = "truncated"
            return
        policies = np.tile(np.array([[policy.epoch, policy.version]], dtype=np.int32), (count, 1))
        self._append(np.array(added, dtype=np.int32), np.zeros(count, dtype=np.float32), policies, mask=0)

    def trajectory(
        self, *, generator: str, seconds: float, failure: tuple[TrajectoryStatus, str] | None = None
    ) -> Trajectory:
        """The rollout as it stands; ``failure`` (status, reason) when the infrastructure ended it, not the model."""
        status, reason = failure or (self.ended or "failed", "")
        if status in {"truncated", "prompt_too_long"}:
            reason = self._reason
        request = self.request
        return Trajectory(
            rollout=request.rollout,
            group=request.group,
            stage=request.stage,
            sample=request.sample,
            attempt=request.attempt,
            purpose=request.purpose,
            transcript=replace(self.transcript, status=status),
            reason=reason,
            prompt_tokens=np.array(self._prompt, dtype=np.int32),
            tokens=np.array(self._tokens, dtype=np.int32),
            loss_mask=np.array(self._mask, dtype=np.uint8),
            logprobs=np.concatenate([np.zeros(0, dtype=np.float32), *self._logprobs]),
            policies=np.concatenate([np.zeros((0, 2), dtype=np.int32), *self._policies]),
            generator=generator,
            seconds=seconds,
        )

    def _append(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix, *, mask: int) -> None:
        self._tokens.extend(tokens.tolist())
        self._mask.extend([mask] * len(tokens))
        self._logprobs.append(logprobs)
        self._policies.append(policies)
