"""The two sides of bench_rollout's first comparison: the embedded engine, and `generate` on padded batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import trio

from actors.engines.base import Engine, TurnRequest
from benchmarks.rollout_models import Workload

if TYPE_CHECKING:
    from torch import Tensor


async def engine_seconds(engine: Engine, work: Workload, seed: int) -> float:
    """All prompts at once, each with its own length, at temperature 1."""
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for index, prompt in enumerate(work.prompts):
            request = TurnRequest(
                rollout=f"{seed}/{index}",
                tokens=prompt,
                max_tokens=int(work.lengths[index]),
                temperature=1.0,
                stop_tokens=frozenset(),
                seed=1000 * seed + index,
            )
            nursery.start_soon(engine.generate, request)
    seconds = time.perf_counter() - began
    for index in range(len(work.prompts)):
        engine.release(f"{seed}/{index}")
    return seconds


class PaddedGenerate:
    """``model.generate`` as usually called: prompts padded on the left, a batch ends with its longest response.

    It has what helps it: SDPA attention (eager was slower), the KV cache, inference mode, no filtering of logits,
    prompts sorted by length when there is more than one batch, a row's end at its own length (from then on it is
    padding), and no log-probabilities, which the engine computes too.
    """

    def __init__(self, path: Path, threads: int) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        self._model.eval()
        self._threads = threads

    def seconds(self, work: Workload, batch: int, seed: int) -> float:
        """In batches of so many, one after the other. Blocks: to be called in a thread."""
        torch.set_num_threads(self._threads)
        order = list(range(len(work.prompts)))
        if batch < len(order):
            order.sort(key=lambda index: len(work.prompts[index]))
        began = time.perf_counter()
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for first in range(0, len(order), batch):
                chosen = order[first : first + batch]
                self._generate([work.prompts[i] for i in chosen], torch.from_numpy(work.lengths[chosen]))
        return time.perf_counter() - began

    def _generate(self, prompts: Sequence[Sequence[int]], lengths: Tensor) -> None:
        width, longest = max(map(len, prompts)), int(lengths.max())
        tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1

        def ended(known: Tensor, _: Any, **__: Any) -> Tensor:
            return lengths <= known.shape[1] - width

        from transformers import StoppingCriteriaList

        written = self._model.generate(
            tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=None,
            pad_token_id=0,
            max_new_tokens=longest,
            stopping_criteria=StoppingCriteriaList([ended]),
        )
        assert written.shape == (len(prompts), width + longest)
