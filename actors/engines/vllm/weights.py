"""How new weights get into vLLM: paused between two steps, all workers or none, and under a new version. In the asyncio thread.

Sent ones are received by every worker whole before any of them loads: a transfer that fails leaves all with the old ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from actors.engines.base import EngineError
from actors.weights.transfer import TransferError

if TYPE_CHECKING:
    from pathlib import Path

    from vllm.v1.engine.async_llm import AsyncLLM

    from agent_rl.messages import TransferOffer

TRANSFER_SECONDS = 600.0
"""How long a whole transfer may take. Its own deadlines are shorter: what passes this one hangs in the collective library."""


class VllmWeights:
    """The weights of an engine's workers: a whole policy's, or not known to be, and then no token is written with them."""

    def __init__(self, *, clear_cache: bool = True) -> None:
        """``clear_cache`` drops what requests in flight and the prefix cache hold of the weights before."""
        self._whole = True
        self._clear_cache = clear_cache

    async def load_file(self, llm: AsyncLLM, path: Path, version: str) -> None:
        """Have every worker read a safetensors file."""
        await llm.pause_generation(mode="keep", clear_cache=self._clear_cache)
        await self._load(llm, "agent_rl_load_file", str(path), version)

    async def load_sent(self, llm: AsyncLLM, offer: TransferOffer, version: str) -> None:
        """Have every worker receive the tensors of an offer, then load them. Raises TransferError when not all came to all."""
        await llm.pause_generation(mode="keep", clear_cache=self._clear_cache)
        try:
            await asyncio.wait_for(llm.collective_rpc("agent_rl_receive", args=(asdict(offer),)), TRANSFER_SECONDS)
        except TimeoutError as error:
            raise EngineError(f"weights by {offer.backend} did not come to an end in {TRANSFER_SECONDS:g} s") from error
        except Exception as error:  # vLLM has exceptions of its own for those of its workers
            if self._whole:
                await llm.resume_generation()
            raise TransferError(str(error)) from error
        await self._load(llm, "agent_rl_load_received", offer.key, version)

    async def _load(self, llm: AsyncLLM, method: str, argument: str, version: str) -> None:
        """Names the version and resumes only when every worker has loaded; until then the engine stays paused."""
        self._whole = False
        await llm.collective_rpc(method, args=(argument,))
        self._whole = True
        await llm.update_weight_version(version)
        await llm.resume_generation()
