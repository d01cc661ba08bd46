"""Settings of TRL 1.16 that change its speed on a CPU, and not what it trains.

Read in its source and in that of transformers 5.23: `GRPOConfig` has no field for training without padding, and
Liger's kernels need Triton, so every candidate trains padded batches. `generate` or transformers' continuous batching
samples; with the latter a turn does not wait for the longest turn of its batch. TRL's client of a vLLM server refuses
devices other than CUDA; vLLM in TRL's own process was not tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One way to run TRL."""

    attention: str = "sdpa"
    """``attn_implementation``."""
    micro_batch: int | None = None
    """``per_device_train_batch_size``; None: all completions of a step."""
    threads: int = 2
    """Of torch."""
    keep_memory: bool = True
    """The allocator keeps freed memory, as in processes of agent_rl."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``GRPOConfig``."""


def continuous(requests: int) -> dict[str, Any]:
    """Continuous batching of so many requests at a time; the cache has room for 256 tokens of each.

    The defaults allot half of the memory to the cache, and size masks for it.
    """
    page = 16
    blocks = {"page_size": page, "num_blocks": requests * 256 // page, "max_batch_tokens": max(256, requests)}
    return {
        "use_transformers_continuous_batching": True,
        "transformers_continuous_batching_config": {**blocks, "max_requests_per_batch": requests},
    }


CANDIDATES: Mapping[str, Setting] = {
    "sdpa": Setting(),
    "eager": Setting(attention="eager"),
    "sdpa, allocator as glibc has it": Setting(keep_memory=False),
    "sdpa, one thread": Setting(threads=1),
    "sdpa, micro-batches of 64": Setting(micro_batch=64),
    "sdpa, two steps sampled at once": Setting(config={"steps_per_generation": 2}),
    "sdpa, continuous batching, 32": Setting(config=continuous(32)),
    "sdpa, continuous batching, 32, one thread": Setting(threads=1, config=continuous(32)),
    "sdpa, continuous batching, 256": Setting(config=continuous(256)),
}
