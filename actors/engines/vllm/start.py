"""How vLLM is started: its engine arguments, its environment, and a directory for its sockets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_rl.files.leftovers import claimed_directory, sweep_one
from agent_rl.models.architectures import window
from agent_rl.models.model_files import ModelFiles

WORKER = "actors.engines.vllm.worker.PublishedWeightsLoader"
SCHEDULER = "actors.engines.vllm.scheduler.scheduler"
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The first is in GiB; the cache's size is set in blocks. Without the second, a CPU worker gets its own process."""
CPU_STEP_TOKENS = 8192
"""The most tokens of one of vLLM's steps."""
SOCKETS = "VLLM_RPC_BASE_PATH"
"""vLLM's variable for the directory of its sockets."""
LONGEST_DIRECTORY = 107 - len("/01234567-0123-0123-0123-012345678901")
"""In bytes: the longest path of a socket on Linux, less the name that vLLM appends."""


@dataclass(frozen=True)
class VllmStart:
    """See `actors.engines.vllm.engine.VllmEngine`. ``engine_arguments``: the topology's, which override all others."""

    model_path: Path
    max_rollouts: int
    kv_tokens: int | None
    threads: int
    device: str
    dtype: Literal["float32", "bfloat16"]
    block_size: int
    engine_arguments: Mapping[str, Any]

    def never(self) -> dict[int, float] | None:
        """The bias of the logits of tokens without a text, which pad a vocabulary: the lowest that vLLM knows."""
        files = ModelFiles.read(self.model_path)
        return None if files.tokens is None else dict.fromkeys(range(files.tokens, files.config["vocab_size"]), -100.0)

    @property
    def model_length(self) -> int:
        """The most tokens of a sequence of the model."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.model_path, trust_remote_code=False).get_text_config()
        return min(int(config.max_position_embeddings), window(config.to_dict()) or sys.maxsize)

    def environment(self) -> dict[str, str]:
        """Variables for vLLM, unless they are already set."""
        of_cpu = CPU_ENVIRONMENT | {"OMP_NUM_THREADS": str(self.threads)}
        return ENVIRONMENT | (of_cpu if self.device == "cpu" else {})

    def arguments(self) -> dict[str, Any]:
        """VLLM's engine arguments: those of the engine interface and the device, overridden by the topology's."""
        arguments: dict[str, Any] = {
            "model": str(self.model_path),
            "dtype": self.dtype,
            "max_num_seqs": self.max_rollouts,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "skip_tokenizer_init": True,
            "worker_extension_cls": WORKER,
            "scheduler_cls": SCHEDULER,
            "block_size": self.block_size,
            "seed": 0,
        }
        if self.device == "cpu":
            # For a prompt computed in parts vLLM would rewind the random generator, which CPU generators cannot.
            tokens = max(CPU_STEP_TOKENS, self.model_length)
            arguments |= {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": tokens}
            # In the engine's own process: a separate worker would wait for it in a busy loop, on one more core. (The
            # engine still has its own process: of the two, the variable above only affects the worker.)
            arguments["distributed_executor_backend"] = "uni"
        if self.kv_tokens is not None:
            blocks = self.kv_tokens // self.block_size
            arguments["num_gpu_blocks_override"] = blocks + 1  # vLLM reserves one block
            # vLLM requires room for one sequence of the greatest length.
            arguments["max_model_len"] = min(self.model_length, blocks * self.block_size)
        return {**arguments, **self.engine_arguments}

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Set the variables, and make a directory for sockets, because vLLM removes none of its sockets."""
        for name, value in self.environment().items():
            os.environ.setdefault(name, value)
        directory, claim = claimed_directory("vllm")
        ours = SOCKETS not in os.environ and len(os.fsencode(directory)) <= LONGEST_DIRECTORY
        if ours:
            os.environ[SOCKETS] = str(directory)
        try:
            yield
        finally:
            if ours:
                del os.environ[SOCKETS]
            claim.release()
            sweep_one(directory)  # if a process still listens there, the next sweep removes it
