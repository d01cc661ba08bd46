"""The engine in the process: continuous batching over a Hugging Face model on torch, in one thread of its own.

The trio thread and the decoding thread share a queue of commands (trio to decoder), callbacks with complete turns
(decoder to trio, at most one for each step), and immutable values. So trio's event loop and its heartbeats continue
while torch computes. The listeners of turns are all told in one callback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
import trio

from actors.engines.base import EngineError, EngineFigures, EngineLimits, ModelError, PassTable, TurnRequest, TurnResult
from actors.engines.torch.decode import Decoder, News
from actors.engines.torch.model import CausalModel, check_ties, read_weights
from actors.engines.torch.sequences import SequenceTurn
from actors.engines.weight_files import TensorSpecs, check_offer
from actors.weights.transfer import receive
from agent_rl.learning.policy_model import usable_device
from agent_rl.learning.spare_cores import SpareCores
from agent_rl.messages import TransferOffer

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from agent_rl.figures import Passes
    from agent_rl.learning.rates import Compute, Type
    from agent_rl.messages import PolicyVersion


_Command: TypeAlias = Callable[[Decoder], None] | None
"""Work for the decoding thread between two steps. None: stop."""


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

    ``kv_on_update``: after new weights, "recompute" prefills sequences in flight again, "keep" continues with their old
    keys and values. ``threads``: torch's threads in the decoding thread; up to ``most_threads`` while cores are
    idle. ``dtype`` is that of weights that come, ``compute`` that of products: "float32" agrees with a plain forward
    pass to about 1e-5 in log-probability, "bfloat16" to about 1e-1.

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
        most_threads: int = 0,
        device: str = "cpu",
        dtype: Type,
        compute: Literal["auto"] | Type = "auto",
        kv_on_update: Literal["keep", "recompute"] = "recompute",
        initial_policy: PolicyVersion,
    ) -> None:
        if max_rollouts < 1 or threads < 1 or (kv_tokens is not None and kv_tokens < 1):
            raise ValueError("max_rollouts, threads and kv_tokens must be at least 1")
        self._model_path = model_path
        self._max_rollouts = max_rollouts
        self._kv_tokens = kv_tokens
        self._cores = SpareCores(threads, most_threads if device == "cpu" else 0)
        self._device = device
        self._dtype: Type = dtype
        self._compute: Literal["auto"] | Type = compute
        self.compute: Compute | None = None
        """The type of products, once the model is loaded."""
        self._kv_on_update: Literal["keep", "recompute"] = kv_on_update
        self._policy = initial_policy
        self._figures = EngineFigures(kv_tokens_total=kv_tokens or 0, max_rollouts=max_rollouts)
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._put_off: list[Callable[[Decoder], None]] = []
        """Work for the decoding thread when the engine wakes."""
        self._limits: EngineLimits | None = None
        self._specs: TensorSpecs = {}
        self._longest = 0
        self._turns: dict[str, SequenceTurn] = {}
        self._replies: dict[SequenceTurn | _Reply, _Reply] = {}
        self._submitted = 0
        self._listeners = 0

    @property
    def policy(self) -> PolicyVersion:
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
        """Write one turn. Cancelling the call aborts it, and frees the rollout's cache unless the request keeps that.

        Raises EngineError when the sequence can never fit, a token is not in the vocabulary, the rollout already has a
        turn in flight, or the engine does not run.
        """
        tokens = np.asarray(request.tokens, np.int64)
        self._running().check(request, tokens)
        if request.rollout in self._turns:
            raise EngineError(f"{request.rollout} has a turn in flight already")
        self._submitted += 1
        turn = SequenceTurn(request, self._submitted, tokens)
        self._turns[request.rollout] = turn
        reply = self._replies[turn] = _Reply()
        listens = request.wrote is not None
        self._listeners += listens
        self._commands.put(lambda decoder: decoder.submit(turn))
        try:
            result = await reply.wait()
        except trio.Cancelled:
            self._commands.put(lambda decoder: decoder.cancel(turn))
            raise
        finally:
            self._listeners -= listens
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
        self._commands.put(lambda decoder: decoder.release(rollout))

    @property
    def ranks(self) -> int:
        """1: weights are sent into this process."""
        return 1

    async def load_weights(self, source: Path | TransferOffer, policy: PolicyVersion) -> None:
        """Load weights from a safetensors file or a transfer between two decode steps. Requests in flight continue.

        Raises EngineError when the file is incomplete, the weights do not fit the model in names, shapes or dtypes, or
        the engine does not run, and TransferError when a transfer fails. The engine then keeps serving the old weights.
        """
        self._running()
        weights = await trio.to_thread.run_sync(self._read, source, abandon_on_cancel=True)
        self._running()

        def replace(decoder: Decoder) -> None:
            decoder.replace_weights(weights, policy)
            self._policy = policy

        await self._done(replace, awake=True)

    async def sleep(self) -> None:
        """Give the device's time and memory back. See `SleepingEngine`. On a processor, weights stay where they are."""
        await self._done(Decoder.sleep)

    async def wake(self) -> None:
        """Take the memory again, load the weights that came meanwhile, and go on. See `SleepingEngine`."""

        def wake(decoder: Decoder) -> None:
            decoder.wake()
            put_off, self._put_off = self._put_off, []
            for work in put_off:
                work(decoder)

        await self._done(wake)

    async def _done(self, work: Callable[[Decoder], None], *, awake: bool = False) -> None:
        """Have the decoding thread do this between two steps, and wait. ``awake``: not while the engine sleeps."""
        self._running()
        token, reply = trio.lowlevel.current_trio_token(), _Reply()

        def perform(decoder: Decoder) -> None:
            if awake and decoder.asleep:
                self._put_off.append(perform)
                return
            work(decoder)
            token.run_sync_soon(reply.set)

        self._replies[reply] = reply
        self._commands.put(perform)
        try:
            await reply.wait()
        finally:
            del self._replies[reply]

    def _read(self, source: Path | TransferOffer) -> dict[str, Tensor]:
        if not isinstance(source, TransferOffer):
            return read_weights(source, self._specs)
        check_offer(source, self._specs)
        weights = receive(source, 0, self._device)
        check_ties(weights, self._specs, "what was sent")
        return weights

    def _running(self) -> EngineLimits:
        if self._limits is None:
            raise EngineError("the engine is not running")
        return self._limits

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._commands.put(None)

    async def _report_started(self, ready: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        await ready.wait()
        task_status.started()

    def _deliver(self, ended: list[tuple[SequenceTurn, TurnResult]]) -> None:
        for turn, result in ended:
            if turn in self._replies:  # else its call was cancelled
                told, wrote = turn.told, turn.request.wrote
                if wrote is not None:
                    wrote(result.tokens[told:], result.logprobs[told:], result.policies[told:])
                self._replies[turn].set(result)

    def _tell(self, news: list[News]) -> None:
        for turn, written in news:
            if turn in self._replies and turn.request.wrote is not None:
                turn.request.wrote(*written)

    # The methods below run in the decoding thread.

    def _serve(self, token: trio.lowlevel.TrioToken, ready: trio.Event) -> Exception | None:
        """Returns the fatal error instead of raising it: the nursery would wrap it in a group."""
        try:
            with suppress(trio.RunFinishedError), torch.inference_mode():
                self._cores.take()
                device = self._usable_device()
                decoder = Decoder(
                    CausalModel(self._model_path, dtype=self._dtype, device=device, compute=self._compute),
                    max_rollouts=self._max_rollouts,
                    kv_tokens=self._kv_tokens,
                    kv_on_update=self._kv_on_update,
                    policy=self._policy,
                )
                model = decoder.model
                self._specs, self.compute = model.specs, model.compute
                self._limits = EngineLimits(decoder.longest, model.max_length, decoder.kv_tokens, model.vocabulary)
                self._longest = decoder.longest
                self._publish(decoder, 0.0, {})
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
        busy, passes = 0.0, PassTable()
        while (began := self._perform(decoder)) is not None:
            self._cores.take()
            ended = self._step(decoder, passes) if decoder.has_work else []
            busy += time.perf_counter() - began
            self._publish(decoder, busy, passes.table)
            if self._listeners and (news := decoder.news()):
                token.run_sync_soon(self._tell, news)
            if ended:
                token.run_sync_soon(self._deliver, ended)

    @staticmethod
    def _step(decoder: Decoder, passes: PassTable) -> list[tuple[SequenceTurn, TurnResult]]:
        began, cpu_began = time.perf_counter(), time.thread_time()
        steps, context = decoder.steps, decoder.context_tokens
        written, prefilled = decoder.generated_tokens, decoder.prefilled_tokens
        ended = decoder.step()
        if decoder.steps > steps:
            passes.add(
                time.perf_counter() - began,
                time.thread_time() - cpu_began,
                written=decoder.generated_tokens - written,
                prefilled=decoder.prefilled_tokens - prefilled,
                context=decoder.context_tokens - context,
            )
        return ended

    def _perform(self, decoder: Decoder) -> float | None:
        """Run all commands in the queue; an idle decoder waits for the first. Returns when it came; None: stop.

        When this method returns, nothing refers to the weights that a command has brought.
        """
        commands, wait = [], not decoder.has_work
        with suppress(Empty):
            while True:
                commands.append(self._commands.get(block=wait))
                wait = False
        began = time.perf_counter()
        for command in commands:
            if command is None:
                return None
            command(decoder)
        return began

    def _publish(self, decoder: Decoder, busy_seconds: float, passes: Mapping[str, Passes]) -> None:
        self._figures = EngineFigures(
            compute_bits=decoder.model.compute.bits,
            kv_tokens_total=decoder.kv_tokens,
            kv_tokens_used=decoder.kv_tokens_used,
            max_rollouts=self._max_rollouts,
            running=decoder.running,
            waiting=decoder.waiting,
            preempted=decoder.preempted,
            steps=decoder.steps,
            generated_tokens=decoder.generated_tokens,
            prefilled_tokens=decoder.prefilled_tokens,
            cached_tokens=decoder.cached_tokens,
            busy_seconds=busy_seconds,
            passes=passes,
        )
