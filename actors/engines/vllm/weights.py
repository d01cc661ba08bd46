"""Loads weights into vLLM: between two steps, into all workers or none, under a new version. In the asyncio thread.

In a transfer, every worker receives all tensors before any worker loads them. If it fails, all keep the old weights.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from actors.engines.base import EngineError
from actors.weights.transfer import TransferError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm.v1.engine.async_llm import AsyncLLM

    from agent_rl.messages import TransferOffer

TRANSFER_SECONDS = 600.0
"""Seconds for a whole transfer. The transfer's own deadlines are shorter: a longer one hangs in the library."""


class WorkerError(Exception):
    """A worker could not do what it was told; the message is that of the first one."""


class VllmWeights:
    """The weights of an engine's workers. After a failed load they may be mixed, and no token is written with them."""

    def __init__(self, *, clear_cache: bool = True) -> None:
        """``clear_cache``: an update drops the keys and values of requests in flight and of the prefix cache."""
        self._whole = True
        self._clear_cache = clear_cache

    async def load_file(self, llm: AsyncLLM, path: Path, version: str) -> None:
        """Have every worker read a safetensors file."""
        await llm.pause_generation(mode="keep", clear_cache=self._clear_cache)
        await self._load(llm, "agent_rl_load_file", str(path), version)

    async def load_sent(self, llm: AsyncLLM, offer: TransferOffer, version: str) -> None:
        """Have every worker receive an offer's tensors, then load them. Raises TransferError if a worker lacks one."""
        await llm.pause_generation(mode="keep", clear_cache=self._clear_cache)
        try:
            await asyncio.wait_for(_told(llm, "agent_rl_receive", asdict(offer)), TRANSFER_SECONDS)
        except TimeoutError as error:
            raise EngineError(f"weights by {offer.backend} did not arrive within {TRANSFER_SECONDS:g} s") from error
        except WorkerError as error:
            if self._whole:
                await llm.resume_generation()
            raise TransferError(str(error)) from error
        await self._load(llm, "agent_rl_load_received", offer.key, version)

    async def _load(self, llm: AsyncLLM, method: str, argument: str, version: str) -> None:
        """Load in every worker, then set the version and resume. Until then, or on failure, the engine stays paused."""
        self._whole = False
        await _told(llm, method, argument)
        self._whole = True
        await llm.update_weight_version(version)
        await llm.resume_generation()


async def _told(llm: AsyncLLM, method: str, argument: Any) -> None:
    """Have all workers of all of vLLM's engines do something. Raises WorkerError when one of them could not."""
    core: Any = llm.engine_core  # `AsyncLLM.collective_rpc` returns the answers of one engine alone
    answers = await core.call_utility_all_async("collective_rpc", method, None, (argument,), None)
    for fault in (fault for of_engine in answers for fault in of_engine if fault):
        raise WorkerError(fault)
