"""The engine interface: tokens in, tokens out, weights swapped between decode steps.

A generator owns one engine. ``actors/engines/torch/engine.py`` runs in the generator's process; ``actors/engines/vllm``
wraps vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import trio
from numpy.typing import NDArray

from agent_rl.figures import Passes
from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, PolicyVersion, TransferOffer

TELL_SECONDS = 0.05
"""The engines here tell the listeners of turns so often, or after each step if steps take longer."""


class EngineError(Exception):
    """The engine cannot do what was asked, and the model's output is not the cause; the message says why."""


class ModelError(EngineError):
    """The engine can never serve the model on this machine; the message says why, and names a remedy."""


class EngineRefusedError(Exception):
    """The engine did not start with the run. Model, memory or settings must be changed; a restart does not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """Continue ``tokens`` until a stop token, ``max_tokens`` new tokens, or cancellation.

    ``rollout`` names the sequence: if its KV cache is still there from an earlier turn, only new tokens are computed.
    ``temperature`` 0 is greedy. The same seed and weights give the same tokens in any batch, up to rounding. ``top_k``
    (0: all) keeps the k likeliest tokens, and those as likely as the last of them. Of these, ``top_p`` keeps the fewest
    likeliest tokens whose share reaches it.
    """

    rollout: str
    tokens: Sequence[int]
    max_tokens: int
    temperature: float
    stop_tokens: frozenset[int]
    seed: int
    top_p: float = 1.0
    top_k: int = 0
    wrote: Callable[[Int32Vector, Float32Vector, Int32Matrix], None] | None = None
    """A listener, called on the trio thread with the tokens [k], log-probabilities [k] and policies [k, 2] that were
    written since its last call.

    When `Engine.generate` returns, it has been told every token of the turn, once and in order. When `Engine.generate`
    raises, calls have ended. It must return soon and raise nothing. An engine may ignore it: then the caller takes all
    tokens from the result, so compare what was told with the result.
    """
    keeps_cache: bool = False
    """Whether the KV cache stays when the turn is cancelled, since the rollout goes on from a part of it. The caller
    then calls `Engine.release` in the end. An engine may ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The tokens of a turn, n of them: ``tokens`` [n] int32 (with the stop token), ``logprobs`` [n] float32 (natural
    logarithm, under the distribution that was sampled from, or for greedy decoding under the whole vocabulary at
    temperature 1), ``policies`` [n, 2] int32 (epoch, version).

    ``top_p`` and ``top_k`` raise the probability of a token by the share of probability that they keep.
    """

    tokens: Int32Vector
    logprobs: Float32Vector
    policies: Int32Matrix
    finish: Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """Live figures: KV cache in tokens (held now, and capacity), sequences by state, totals since the start.

    ``cached_tokens``: tokens that turns began with and whose KV cache was there, from earlier turns or other sequences.
    ``steps``: forward passes. ``passes``: those by size, as `PassTable` has them. ``compute_bits``: of a value in
    products.
    """

    kv_tokens_total: int
    kv_tokens_used: int = 0
    max_rollouts: int
    running: int = 0
    waiting: int = 0
    preempted: int = 0
    steps: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    busy_seconds: float = 0.0
    passes: Mapping[str, Passes] = field(default_factory=dict)
    compute_bits: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The capacity of a running engine. ``longest``: the most tokens of a sequence, by model and KV cache."""

    longest: int
    model_length: int
    kv_tokens: int
    vocabulary: int

    def check(self, request: TurnRequest, tokens: NDArray[np.int64]) -> None:
        """Raise EngineError when the turn can never be served. ``tokens`` [n] are the request's."""
        count = len(tokens)
        if not count or request.max_tokens < 1 or not 0 <= request.temperature < math.inf:
            raise EngineError(
                f"{request.rollout}: a turn needs tokens ({count}), max_tokens of at least 1 ({request.max_tokens}) "
                f"and a finite temperature of at least 0 ({request.temperature})"
            )
        if not 0 < request.top_p <= 1 or request.top_k < 0:
            raise EngineError(
                f"{request.rollout}: top_p must be above 0 and at most 1 ({request.top_p}), top_k at least 0 "
                f"({request.top_k})"
            )
        if count + request.max_tokens > self.longest:
            raise EngineError(
                f"{request.rollout}: {count} tokens + max_tokens {request.max_tokens} = {count + request.max_tokens} > "
                f"{self.longest} (the model's limit is {self.model_length}, the KV cache holds {self.kv_tokens})"
            )
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise EngineError(
                f"{request.rollout}: tokens {tokens.min()} to {tokens.max()} exceed the vocabulary of {self.vocabulary}"
            )


class Engine(Protocol):
    """The engine interface of a rollout generator. All methods are called from the trio thread."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; call ``started()`` once requests are accepted. Raises when the engine dies."""

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn. Cancelling the call aborts the request and frees its memory.

        Raises EngineError when the request can never fit (longer than the model or the cache allows).
        """

    def release(self, rollout: str) -> None:
        """The rollout has ended: drop its KV cache. Unknown names are ignored."""

    async def load_weights(self, source: Path | TransferOffer, policy: PolicyVersion) -> None:
        """Load weights from a file or a transfer between two decode steps. Requests in flight go on with them.

        Raises EngineError when the file is incomplete or the weights do not fit the model, and TransferError when a
        transfer fails. The engine then keeps serving the old weights.
        """

    @property
    def ranks(self) -> int:
        """Number of processes that receive weights. An engine class without this property only takes files."""

    @property
    def policy(self) -> PolicyVersion:
        """The policy that is served now."""

    @property
    def longest(self) -> int:
        """The most tokens of a sequence with its prompt, by model and cache. Known once ``run`` has started."""

    @property
    def figures(self) -> EngineFigures:
        """The present load."""


class SleepingEngine(Engine, Protocol):
    """An engine that can share its device in time (``share = "time"``), which other engines cannot."""

    async def sleep(self) -> None:
        """Give the device's time and memory back: KV cache and weights. Returns when it is done.

        No token is written until `wake`. Turns in flight are kept, and so are those that come meanwhile; `release` and
        cancelling work as ever. `load_weights` waits for the end of the sleep. An engine that sleeps stays asleep.
        """

    async def wake(self) -> None:
        """Take the memory again. Turns in flight go on from their tokens, whose KV cache is computed again.

        An engine that is awake stays awake. Raises EngineError when the device's memory cannot be had.
        """


class PassTable:
    """Totals since the engine started, by the power of two that holds the tokens written in a pass.

    Passes that prefill have a "+" after it. One thread adds; any reads.
    """

    def __init__(self) -> None:
        self.table: Mapping[str, Passes] = {}
        """Never changed: replaced with each pass."""

    def add(self, seconds: float, cpu_seconds: float, *, written: int, prefilled: int, context: int) -> None:
        """A pass. It wrote and prefilled so many tokens; the sequences that it computed had so many."""
        size = f"{1 << (written - 1).bit_length() if written else 0}{'+' if prefilled else ''}"
        was = self.table.get(size, Passes(0, 0.0, 0.0, 0, 0, 0))
        self.table = {
            **self.table,
            size: Passes(
                was.count + 1,
                was.seconds + seconds,
                was.cpu_seconds + cpu_seconds,
                was.written + written,
                was.prefilled + prefilled,
                was.context + context,
            ),
        }
