"""Runs inside vLLM's engine process: vLLM's own scheduler, with outputs sent in bundles.

vLLM sends the token and log-probability of every request to the caller's process at each step. Here mostly complete
turns are needed, and with hundreds of requests this traffic takes both processes more time than scheduling. So outputs
are kept until the turn ends or BUNDLE of them have come. Those of turns with a listener (CUMULATIVE) are sent earlier:
in the first step after each TELL_SECONDS. A pause first sends all kept outputs: vLLM notes one weight version for each
message, and it must be the version of all its tokens.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

from actors.engines.base import TELL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

BUNDLE = 32
"""The most outputs of a request that are kept before they are sent."""
BUNDLED = RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE


def scheduler(*, vllm_config: Any, **arguments: Any) -> Scheduler:
    """VLLM's ``scheduler_cls``: the scheduler that vLLM would choose, with bundles."""
    made = _BundlingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else _BundlingScheduler
    return made(vllm_config=vllm_config, **arguments)


class _Bundling(Scheduler):  # type: ignore[misc]
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._kept: dict[str, list[EngineCoreOutput]] = {}
        self._tell_next = 0.0

    def update_from_output(self, *arguments: Any, **named: Any) -> dict[int, EngineCoreOutputs]:
        """The step's outputs without those that are kept, and with those kept earlier of the requests that are sent."""
        by_client: dict[int, EngineCoreOutputs] = super().update_from_output(*arguments, **named)
        for outputs in by_client.values():
            outputs.outputs = self._to_send(outputs.outputs)
        for name in self._due():
            client = self.requests[name].client_index
            by_client.setdefault(client, EngineCoreOutputs()).outputs.append(_joined(self._kept.pop(name)))
        return by_client

    def _due(self) -> list[str]:
        """The requests whose kept outputs are sent now, complete bundles or not."""
        if self.pause_state is PauseState.PAUSED_ALL:
            return list(self._kept)
        if (now := time.monotonic()) < self._tell_next:
            return []
        self._tell_next = now + TELL_SECONDS
        return [name for name in self._kept if _kind(self.requests[name]) is RequestOutputKind.CUMULATIVE]

    def _to_send(self, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Choose the outputs to send. Runs for every request at each step, so it mostly appends to a list."""
        sent = []
        for output in outputs:
            kept = self._kept.get(output.request_id)
            ended = output.finish_reason is not None
            if kept is not None:
                kept.append(output)
                if ended or len(kept) == BUNDLE:
                    sent.append(_joined(self._kept.pop(output.request_id)))
            elif not ended and _kind(self.requests[output.request_id]) in BUNDLED:
                self._kept[output.request_id] = [output]
            else:
                sent.append(output)
        return sent

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> list[Any]:
        """Drop the kept outputs of requests that are aborted."""
        finished: list[Any] = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self._kept.pop(request.request_id, None)
        return finished

    def has_requests(self) -> bool:
        """True also while outputs are kept during a pause: one more step without tokens sends them."""
        return bool(super().has_requests()) or (self.pause_state is PauseState.PAUSED_ALL and bool(self._kept))


class _BundlingScheduler(_Bundling):
    pass


class _BundlingAsyncScheduler(_Bundling, AsyncScheduler):  # type: ignore[misc]
    pass


def _kind(request: Any) -> RequestOutputKind | None:
    parameters = request.sampling_params
    return None if parameters is None else parameters.output_kind


def _joined(outputs: list[EngineCoreOutput]) -> EngineCoreOutput:
    """One output with all tokens. Prompt data comes from the first output, everything else from the last."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
    logprobs = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    if logprobs:
        last.new_logprobs = LogprobsLists(
            *(np.concatenate(parts) for parts in zip(*(each[:3] for each in logprobs), strict=True))
        )
    for output in outputs:
        last.prefill_stats = last.prefill_stats or output.prefill_stats
        last.new_prompt_logprobs_tensors = last.new_prompt_logprobs_tensors or output.new_prompt_logprobs_tensors
    last.events = [event for output in outputs for event in output.events or ()] or None
    return last
