"""The state of an engine's sequences as arrays over slots, so that a step handles all sequences at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from actors.engines.base import TurnResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from actors.engines.base import TurnRequest
    from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, PolicyVersion

_SEED_MASK = 2**64 - 1
LEAST_SHARED = 16
"""A shorter prefix is computed again rather than copied."""


@dataclass(eq=False, slots=True)
class SequenceTurn:
    """A turn in progress. ``tokens`` [n] are all known tokens of the sequence; ``number`` counts turns by arrival.

    ``logprobs`` and ``policies`` belong to the tokens that were written before a preemption. ``told``: how many of the
    written tokens the listener of the request has, or will have before the result.
    """

    request: TurnRequest
    number: int
    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    policies: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    told: int = 0

    @property
    def rollout(self) -> str:
        """The name of the sequence."""
        return self.request.rollout


class Sequences:
    """Arrays over ``slots`` slots. ``cached`` tokens of a sequence are in the KV cache, ``total`` tokens are known.

    A decoding sequence has ``total == cached + 1``; a free slot has ``total == cached == 0``.
    """

    def __init__(self, slots: int) -> None:
        self.rollouts = [""] * slots
        self.cached = np.zeros(slots, np.int64)
        self.total = np.zeros(slots, np.int64)
        self.temperature = np.zeros(slots, np.float32)
        self.top_p = np.ones(slots, np.float32)
        self.top_k = np.zeros(slots, np.int64)
        self.seed = np.zeros(slots, np.uint64)
        self.tokens = np.zeros((slots, 64), np.int64)
        self._start = np.zeros(slots, np.int64)
        self._end = np.zeros(slots, np.int64)
        self._stop = np.full((slots, 1), -1, np.int64)
        self._logprobs = np.zeros((slots, 64), np.float32)
        self._policies = np.zeros((slots, 64, 2), np.int32)

    def admit(self, slot: int, turn: SequenceTurn) -> None:
        """Put a sequence without cached tokens into a free slot."""
        self.rollouts[slot] = turn.rollout
        self.cached[slot] = 0
        self._set(slot, turn)

    def resume(self, slot: int, turn: SequenceTurn) -> None:
        """Continue a parked sequence: keep the cached tokens that match. At least one token is always computed."""
        comparable = min(int(self.cached[slot]), len(turn.tokens) - 1)
        differ = np.flatnonzero(self.tokens[slot, :comparable] != turn.tokens[:comparable])
        self.cached[slot] = differ[0] if len(differ) else comparable
        self._set(slot, turn)

    def common(self, slot: int, others: NDArray[np.int64], known: NDArray[np.int64]) -> tuple[int, int]:
        """The longest prefix of a slot's tokens among other slots, of which so many tokens count: (slot, length).

        ``others`` and ``known`` [n] int64. At least one token of the slot is left to compute. (-1, 0) without any.
        """
        most = int(self.total[slot]) - 1
        near = (known >= LEAST_SHARED) & (self.tokens[others, :LEAST_SHARED] == self.tokens[slot, :LEAST_SHARED]).all(1)
        others, known = others[near], np.minimum(known[near], most)
        if most < LEAST_SHARED or not len(others):
            return -1, 0
        longest = int(known.max())
        differ = self.tokens[others, :longest] != self.tokens[slot, :longest]
        lengths = np.minimum(known, np.where(differ.any(1), differ.argmax(1), longest))
        best = int(lengths.argmax())
        return int(others[best]), int(lengths[best])

    def _set(self, slot: int, turn: SequenceTurn) -> None:
        request, known = turn.request, len(turn.tokens)
        start = len(request.tokens)
        self._reserve(start + request.max_tokens, len(request.stop_tokens))
        self.total[slot] = known
        self.temperature[slot] = request.temperature
        self.top_p[slot], self.top_k[slot] = request.top_p, request.top_k
        self.seed[slot] = request.seed & _SEED_MASK
        self.tokens[slot, :known] = turn.tokens
        self._start[slot] = start
        self._end[slot] = start + request.max_tokens
        self._stop[slot] = -1
        self._stop[slot, : len(request.stop_tokens)] = sorted(request.stop_tokens)
        self._logprobs[slot, start:known] = turn.logprobs
        self._policies[slot, start:known] = turn.policies

    def _reserve(self, length: int, stop_tokens: int) -> None:
        if length > self.tokens.shape[1]:
            more = max(length, 2 * self.tokens.shape[1]) - self.tokens.shape[1]
            self.tokens = np.pad(self.tokens, ((0, 0), (0, more)))
            self._logprobs = np.pad(self._logprobs, ((0, 0), (0, more)))
            self._policies = np.pad(self._policies, ((0, 0), (0, more), (0, 0)))
        if stop_tokens > self._stop.shape[1]:
            more = stop_tokens - self._stop.shape[1]
            self._stop = np.pad(self._stop, ((0, 0), (0, more)), constant_values=-1)

    def append(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], logprobs: NDArray[np.float32], policy: PolicyVersion
    ) -> list[tuple[int, Literal["stop", "length"]]]:
        """Add a sampled token to each of ``slots``, whose known tokens are now cached. Returns the ended ones."""
        total = self.total[slots]
        self.cached[slots] = total
        self.tokens[slots, total] = tokens
        self._logprobs[slots, total] = logprobs
        self._policies[slots, total] = (policy.epoch, policy.version)
        self.total[slots] = total + 1
        stopped = (self._stop[slots] == tokens[:, None]).any(1)
        ended = np.flatnonzero(stopped | (total + 1 == self._end[slots]))
        return [(int(slots[i]), "stop" if stopped[i] else "length") for i in ended]

    def written(self, slot: int, told: int = 0) -> tuple[Int32Vector, Float32Vector, Int32Matrix]:
        """What the turn in ``slot`` wrote after its first ``told`` tokens: arrays as in `TurnResult`."""
        part = slice(int(self._start[slot]) + told, int(self.total[slot]))
        tokens = self.tokens[slot, part].astype(np.int32)
        return tokens, self._logprobs[slot, part].copy(), self._policies[slot, part].copy()

    def result(self, slot: int, finish: Literal["stop", "length"]) -> TurnResult:
        """The result of the turn in ``slot``."""
        tokens, logprobs, policies = self.written(slot)
        return TurnResult(tokens=tokens, logprobs=logprobs, policies=policies, finish=finish)

    def save(self, slot: int, turn: SequenceTurn) -> None:
        """Store the tokens of ``slot`` in its turn, which is admitted again later."""
        start, total = int(self._start[slot]), int(self.total[slot])
        turn.tokens = self.tokens[slot, :total].copy()
        turn.logprobs = self._logprobs[slot, start:total].copy()
        turn.policies = self._policies[slot, start:total].copy()

    def park(self, slot: int) -> None:
        """The turn has ended: only the cached tokens stay known."""
        self.total[slot] = self.cached[slot]

    def clear(self, slot: int) -> None:
        """Free the slot."""
        self.rollouts[slot] = ""
        self.cached[slot] = self.total[slot] = 0
