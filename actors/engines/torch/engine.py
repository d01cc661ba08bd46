"""The engine in the process: continuous batching over a Hugging Face model on torch, in one thread of its own.

The trio thread and the decoding thread share a queue of commands (trio to decoder), callbacks with complete turns
(decoder to trio, at most one for each step), and immutable values. So trio's event loop and its heartbeats continue
while torch computes.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
import trio

from actors.engines.base import EngineError, EngineFigures, ModelError, TurnRequest, TurnResult
from actors.engines.torch.decode import Decoder
from actors.engines.torch.model import CausalModel, TensorSpec, check_offer, check_ties, read_weights
from actors.engines.torch.sequences import SequenceTurn
from actors.weights.transfer import receive
from agent_rl.learning.device import usable_device
from agent_rl.messages import TransferOffer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from agent_rl.messages import Policy


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of the loaded model, for checks in the trio thread."""

    longest: int
    max_length: int
    kv_tokens: int
    vocabulary: int
    specs: Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class _Submit:
    turn: SequenceTurn


@dataclass(frozen=True, slots=True)
class _Cancel:
    turn: SequenceTurn


@dataclass(frozen=True, slots=True)
class _Release:
    rollout: str


@dataclass(frozen=True, slots=True)
class _Replace:
    weights: dict[str, Tensor]
    policy: Policy
    reply: _Reply


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command: TypeAlias = _Submit | _Cancel | _Release | _Replace | _Stop


@dataclass(eq=False, slots=True)
class _Reply:
    """The reply that a trio task waits for. Only the trio thread touches it."""

    event: trio.Event = field(default_factory=trio.Event)
    result: TurnResult | None = None
    error: str | None = None

    def set(self, result: TurnResult | None = None, error: str | None = None) -> None:
        self.result, self.error = result, error
        self.event.set()

    async def wait(self) -> TurnResult | None:
        await self.event.wait()
        if self.error is not None:
            raise EngineError(self.error)
        return self.result


class TorchEngine:
    """Engine for decoder-only Hugging Face models with standard attention, on CPU or one GPU.

    ``max_rollouts`` sequences are held at once, with ``kv_tokens`` tokens of KV cache in all (None: enough for
    ``max_rollouts`` sequences of full length). All rows of the cache are as long as the longest sequence so far, so
    memory is ``max_rollouts`` times this length. The engine is meant for small models and short sequences. A sequence
    preempted for lack of room is computed again later, with the same tokens.

    ``kv_on_update``: after new weights, "keep" continues with the old keys and values of sequences in flight,
    "recompute" prefills them again. ``threads``: torch's threads in the decoding thread. "float32" agrees with a plain
    forward pass to about 1e-5 in log-probability, "bfloat16" to about 1e-1.

    A rollout's tokens depend on its seed and not on the rest of the batch, up to rounding: torch's sums may differ in
    the last bit between batch sizes.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        max_rollouts: int,
        kv_tokens: int | None,
        threads: int = 1,
        device: str = "cpu",
        dtype: Literal["float32", "bfloat16"],
        kv_on_update: Literal["keep", "recompute"] = "keep",
        initial_policy: Policy,
    ) -> None:
        if max_rollouts < 1 or threads < 1 or (kv_tokens is not None and kv_tokens < 1):
            raise ValueError("max_rollouts, threads and kv_tokens must be at least 1")
        self._model_path = model_path
        self._max_rollouts = max_rollouts
        self._kv_tokens = kv_tokens
        self._threads = threads
        self._device = device
        self._dtype: Literal["float32", "bfloat16"] = dtype
        self._kv_on_update: Literal["keep", "recompute"] = kv_on_update
        self._policy = initial_policy
        self._figures = EngineFigures(kv_tokens_total=kv_tokens or 0, max_rollouts=max_rollouts)
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._limits: _Limits | None = None
        self._longest = 0
        self._turns: dict[str, SequenceTurn] = {}
        self._replies: dict[SequenceTurn | _Reply, _Reply] = {}
        self._submitted = 0

    @property
    def policy(self) -> Policy:
        """The policy served now."""
        return self._policy

    @property
    def longest(self) -> int:
        """The most tokens of a sequence; 0 before the model is loaded."""
        return self._longest

    @property
    def figures(self) -> EngineFigures:
        """The load after the last step."""
        return self._figures

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the model and serve until cancelled; ``started()`` once requests are accepted. At most once per engine.

        Raises EngineError when the model cannot be loaded, and when the decoding thread dies.
        """
        token, ready = trio.lowlevel.current_trio_token(), trio.Event()
        reason = "the engine has stopped"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_when_cancelled)
                nursery.start_soon(self._report_started, ready, task_status)
                error = await trio.to_thread.run_sync(self._serve, token, ready, limiter=trio.CapacityLimiter(1))
                nursery.cancel_scope.cancel()
            if error is not None:
                reason = f"the engine died: {error}"
                raise (ModelError if isinstance(error, ModelError) else EngineError)(reason) from error
        finally:
            self._limits = None
            for reply in self._replies.values():
                reply.set(error=reason)

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn. Cancelling the call aborts the request and frees the rollout's cache.

        Raises EngineError when the sequence can never fit, a token is not in the vocabulary, the rollout already has a
        turn in flight, or the engine does not run.
        """
        tokens = np.asarray(request.tokens, np.int64)
        self._check(request, tokens)
        self._submitted += 1
        turn = SequenceTurn(request, self._submitted, tokens)
        self._turns[request.rollout] = turn
        reply = self._replies[turn] = _Reply()
        self._commands.put(_Submit(turn))
        try:
            result = await reply.wait()
        except trio.Cancelled:
            self._commands.put(_Cancel(turn))
            raise
        finally:
            del self._turns[request.rollout], self._replies[turn]
        if result is None:
            raise AssertionError("a turn ended without a result")
        return result

    def release(self, rollout: str) -> None:
        """The rollout has ended: drop its KV cache. Unknown names are ignored.

        Raises ValueError while a turn of the rollout is in flight; cancel that turn instead.
        """
        if rollout in self._turns:
            raise ValueError(f"{rollout} has a turn in flight: cancel it instead")
        self._commands.put(_Release(rollout))

    @property
    def ranks(self) -> int:
        """1: weights are sent into this process."""
        return 1

    async def load_weights(self, source: Path | TransferOffer, policy: Policy) -> None:
        """Load weights from a safetensors file or a transfer between two decode steps. Requests in flight continue.

        Raises EngineError when the file is incomplete, the weights do not fit the model in names, shapes or dtypes, or
        the engine does not run, and TransferError when a transfer fails. The engine then keeps serving the old weights.
        """
        specs = self._running().specs
        weights = await trio.to_thread.run_sync(self._read, source, specs, abandon_on_cancel=True)
        self._running()
        reply = _Reply()
        self._replies[reply] = reply
        self._commands.put(_Replace(weights, policy, reply))
        try:
            await reply.wait()
        finally:
            del self._replies[reply]

    def _read(self, source: Path | TransferOffer, specs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        if not isinstance(source, TransferOffer):
            return read_weights(source, specs)
        check_offer(source, specs)
        weights = receive(source, 1, self._device)
        check_ties(weights, specs, "what was sent")
        return weights

    def _running(self) -> _Limits:
        if self._limits is None:
            raise EngineError("the engine is not running")
        return self._limits

    def _check(self, request: TurnRequest, tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        limits = self._running()
        if not len(tokens) or request.max_tokens < 1 or not 0 <= request.temperature < math.inf:
            raise EngineError(
                f"{request.rollout}: a turn needs tokens ({len(tokens)}), max_tokens of at least 1 "
                f"({request.max_tokens}) and a finite temperature of at least 0 ({request.temperature})"
            )
        if len(tokens) + request.max_tokens > limits.longest:
            raise EngineError(
                f"{request.rollout}: {len(tokens)} tokens + max_tokens {request.max_tokens} = "
                f"{len(tokens) + request.max_tokens} > {limits.longest} "
                f"(the model's max_position_embeddings is {limits.max_length}, the KV cache holds {limits.kv_tokens})"
            )
        if tokens.min() < 0 or tokens.max() >= limits.vocabulary:
            raise EngineError(
                f"{request.rollout}: tokens {tokens.min()} to {tokens.max()} exceed the vocabulary of "
                f"{limits.vocabulary}"
            )
        if request.rollout in self._turns:
            raise EngineError(f"{request.rollout} has a turn in flight already")

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._commands.put(_Stop())

    async def _report_started(self, ready: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        await ready.wait()
        task_status.started()

    def _deliver(self, ended: list[tuple[SequenceTurn, TurnResult]]) -> None:
        for turn, result in ended:
            if turn in self._replies:  # else its call was cancelled
                self._replies[turn].set(result)

    # The methods below run in the decoding thread.

    def _serve(self, token: trio.lowlevel.TrioToken, ready: trio.Event) -> Exception | None:
        """Returns the fatal error instead of raising it: the nursery would wrap it in a group."""
        try:
            with suppress(trio.RunFinishedError), torch.inference_mode():
                torch.set_num_threads(self._threads)
                device = self._usable_device()
                decoder = Decoder(
                    CausalModel(self._model_path, dtype=self._dtype, device=device),
                    max_rollouts=self._max_rollouts,
                    kv_tokens=self._kv_tokens,
                    kv_on_update=self._kv_on_update,
                    policy=self._policy,
                )
                model = decoder.model
                self._limits = _Limits(
                    decoder.longest, model.max_length, decoder.kv_tokens, model.vocabulary, model.specs
                )
                self._longest = decoder.longest
                self._publish(decoder, 0.0)
                token.run_sync_soon(ready.set)
                self._decode(decoder, token)
        except Exception as error:  # noqa: BLE001 - handed to run(), which raises from it
            return error
        return None

    def _usable_device(self) -> torch.device:
        try:
            return usable_device(self._device)
        except ValueError as error:
            raise ModelError(str(error)) from error

    def _decode(self, decoder: Decoder, token: trio.lowlevel.TrioToken) -> None:
        busy = 0.0
        while True:
            command = self._next_command(wait=not decoder.has_work)
            began = time.perf_counter()
            while command is not None:
                if isinstance(command, _Stop):
                    return
                self._perform(command, decoder, token)
                command = self._next_command(wait=False)
            ended = decoder.step() if decoder.has_work else []
            busy += time.perf_counter() - began
            self._publish(decoder, busy)
            if ended:
                token.run_sync_soon(self._deliver, ended)

    def _next_command(self, *, wait: bool) -> _Command | None:
        try:
            return self._commands.get(block=wait)
        except Empty:
            return None

    def _perform(self, command: _Command, decoder: Decoder, token: trio.lowlevel.TrioToken) -> None:
        if isinstance(command, _Submit):
            decoder.submit(command.turn)
        elif isinstance(command, _Cancel):
            decoder.cancel(command.turn)
        elif isinstance(command, _Release):
            decoder.release(command.rollout)
        elif isinstance(command, _Replace):
            decoder.replace_weights(command.weights, command.policy)
            self._policy = command.policy
            token.run_sync_soon(command.reply.set)

    def _publish(self, decoder: Decoder, busy_seconds: float) -> None:
        self._figures = EngineFigures(
            kv_tokens_total=decoder.kv_tokens,
            kv_tokens_used=decoder.kv_tokens_used,
            max_rollouts=self._max_rollouts,
            running=decoder.running,
            waiting=decoder.waiting,
            preempted=decoder.preempted,
            generated_tokens=decoder.generated_tokens,
            prefilled_tokens=decoder.prefilled_tokens,
            busy_seconds=busy_seconds,
        )
