"""The engine interface: tokens in, tokens out, weights swapped between decode steps.

A generator owns one engine. ``actors/engines/torch/engine.py`` implements it in the process; vLLM fits the same interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import trio

from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, Policy, TransferOffer


class EngineError(Exception):
    """The engine cannot do what it was asked, through no fault of the model's output; the message says why."""


class ModelError(EngineError):
    """The model cannot be served by this engine on this machine, however often it is tried; the message says why, and what helps."""


class EngineRefusedError(Exception):
    """The engine did not start when the run did: its model, memory or settings are to be mended, and a restart helps nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """Continue ``tokens`` until a stop token, ``max_tokens`` new tokens, or cancellation.

    ``rollout`` names the sequence: when its KV cache is still held from an earlier turn, only what is new is computed.
    ``temperature`` 0 is greedy. The same seed and weights give the same tokens, whatever shares the batch, up to rounding.
    """

    rollout: str
    tokens: Sequence[int]
    max_tokens: int
    temperature: float
    stop_tokens: frozenset[int]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What the engine wrote, n tokens: ``tokens`` [n] int32 (the stop token included), ``logprobs`` [n] float32 (natural
    logarithm, under the distribution sampled from; for greedy decoding under the model's own at temperature 1),
    ``policies`` [n, 2] int32 (epoch, version).
    """

    tokens: Int32Vector
    logprobs: Float32Vector
    policies: Int32Matrix
    finish: Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """Live figures: KV cache in tokens (held by sequences now, and capacity), sequences by state, totals since start."""

    kv_tokens_total: int
    kv_tokens_used: int = 0
    max_rollouts: int
    running: int = 0
    waiting: int = 0
    preempted: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    busy_seconds: float = 0.0


class Engine(Protocol):
    """What a rollout generator asks of an engine. All methods are called from the trio thread."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ``started()`` once requests are accepted. An engine that dies raises here."""

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn. Cancelling the call aborts the request and frees what it held.

        Raises EngineError when the request can never fit (longer than the model or the cache allows).
        """

    def release(self, rollout: str) -> None:
        """The rollout has ended: forget its KV cache. Unknown names are ignored."""

    async def load_weights(self, source: Path | TransferOffer, policy: Policy) -> None:
        """Swap in a file's weights, or those it is sent, between two decode steps; requests in flight go on under the new policy.

        Raises EngineError when the file is not whole, or the weights do not fit the model, and TransferError when what was
        to be sent did not come; it keeps serving the old weights then.
        """

    @property
    def ranks(self) -> int:
        """Processes into which weights are sent. An engine whose class has no such property takes files alone."""

    @property
    def policy(self) -> Policy:
        """The policy served now."""

    @property
    def longest(self) -> int:
        """Tokens a sequence may have, its prompt included: what model and cache allow. Known once ``run`` has started."""

    @property
    def figures(self) -> EngineFigures:
        """The load now."""
