"""The agent loop as a pure decider: what to generate next, which tools to call, when a rollout ends and how.

::

    Episode.turn() -> tokens and budget --engine--> Episode.wrote(...) -> calls --tools--> Episode.responded(...) -> turn()
                                                                       -> none: ended

Token in, token out: tokens are only ever appended. Every token carries its log-probability, the policy that sampled it and
whether the model wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
)
from agent_rl.parsing import MalformedCall, ParsedCall
from agent_rl.prompts import ChatFormat


class Episode:
    """One rollout under way."""

    def __init__(self, request: RolloutRequest, chat: ChatFormat) -> None:
        self.request = request
        self._chat = chat
        self._prompt = chat.prompt_tokens(request.problem)
        self._tokens: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._policies: list[np.ndarray[tuple[int, int], np.dtype[np.int32]]] = []
        self._records: list[ToolCallRecord] = []
        self._texts: list[str] = []
        self.turns = 0
        self.ended: TrajectoryStatus | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and response so far."""
        return self._prompt + self._tokens

    @property
    def budget(self) -> int:
        """Response tokens left."""
        return self.request.sampling.max_response_tokens - len(self._tokens)

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
        request = self.request
        return Trajectory(
            rollout=request.rollout,
            group=request.group,
            stage=request.stage,
            sample=request.sample,
            attempt=request.attempt,
            purpose=request.purpose,
            status=status,
            reason=reason,
            prompt_tokens=np.array(self._prompt, dtype=np.int32),
            tokens=np.array(self._tokens, dtype=np.int32),
            loss_mask=np.array(self._mask, dtype=np.uint8),
            logprobs=np.concatenate([np.zeros(0, dtype=np.float32), *self._logprobs]),
            policies=np.concatenate([np.zeros((0, 2), dtype=np.int32), *self._policies]),
            text="\n".join(self._texts),
            turns=self.turns,
            calls=tuple(self._records),
            generator=generator,
            seconds=seconds,
        )

    def _append(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix, *, mask: int) -> None:
        self._tokens.extend(tokens.tolist())
        self._mask.extend([mask] * len(tokens))
        self._logprobs.append(logprobs)
        self._policies.append(policies)
