"""The agent loop as a pure decider: what to generate next, which tools to call, when a rollout ends and how.

::

    Episode.tokens, .budget --engine--> Episode.wrote(...) -> calls --tools--> Episode.responded(...) -> .tokens, .budget ...
                                                           -> none: ended

Token in, token out: tokens are only ever appended. Every token carries its log-probability, the policy that sampled it and
whether the model wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agent_rl.messages import (
    Float32Vector,
    Int32Matrix,
    Int32Vector,
    Policy,
    RolloutRequest,
    ToolCallRecord,
    Trajectory,
    TrajectoryStatus,
    Transcript,
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

    def __init__(self, request: RolloutRequest, chat: ChatFormat, longest: int | None = None) -> None:
        """``longest``: tokens the engine allows a sequence, prompt included.

        A prompt that leaves less than ``max_response_tokens`` gets a budget of what it leaves; one that leaves nothing ends the
        rollout before it began.
        """
        self.request = request
        self._chat = chat
        self._prompt = chat.prompt_tokens(request.problem)
        self._room = request.sampling.max_response_tokens
        self._reason = ""
        self._tokens: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._policies: list[np.ndarray[tuple[int, int], np.dtype[np.int32]]] = []
        self._records: list[ToolCallRecord] = []
        self._texts: list[str] = []
        self.turns = 0
        self.ended: TrajectoryStatus | None = None
        if longest is not None and longest - len(self._prompt) < self._room:
            self._shrink(longest)

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

    def wrote(
        self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix, *, stopped: bool
    ) -> tuple[ParsedCall | MalformedCall, ...]:
        """The model wrote a turn, shapes [n], [n], [n, 2]; the calls to answer now, none when the rollout has ended."""
        self.turns += 1
        self._append(tokens, logprobs, policies, mask=1)
        text = self._chat.decode((tokens[:-1] if stopped else tokens).tolist())
        self._texts.append(text)
        if not stopped:
            self.ended = "truncated"
            return ()
        calls = self._chat.sound_calls(text)
        if not calls:
            self.ended = "finished"
        elif self.turns >= self.request.sampling.max_turns:
            self.ended = "turn_limit"
            calls = ()
        return calls

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
        added = self._chat.response_tokens(responses)
        if len(added) >= self.budget:
            self.ended = "truncated"
            return
        count = len(added)
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
            transcript=Transcript(tuple(self._texts), tuple(self._records), status=status),
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
