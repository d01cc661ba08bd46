"""Prefill and decoding by another engine, run by `agent-rl bench limits --peers` in that engine's environment.

    python benchmarks/peer_engines.py ENGINE MODEL THREADS ROWS...

Of this project it imports nothing. Each engine is given what it is fastest with here: `transformers` samples in
bfloat16, with `generate` and with continuous batching; `vllm` samples in bfloat16 with its prefix cache; `llama.cpp`
computes the GGUF file as it is quantized, and its next tokens are drawn without looking at its logits, which costs it
nothing. The last line is a JSON object of tokens a second: ``prefill``, ``decode_ROWS``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

PROMPTS, PROMPT, WRITTEN, ROUNDS = 16, 256, 24, 2
"""As in `bench_limits`; a figure is the best of the rounds."""
Generate = Callable[[Sequence[Sequence[int]], int], None]
"""Continues prompts, each by so many tokens."""


def by_transformers(model: str, threads: int) -> list[Generate]:
    """`generate` of a padded batch, and continuous batching."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(threads)
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, trust_remote_code=False)

    def config(tokens: int) -> GenerationConfig:
        ends = {"max_new_tokens": tokens, "min_new_tokens": tokens, "eos_token_id": -1, "pad_token_id": 0}
        return GenerationConfig(**ends, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)

    def padded(prompts: Sequence[Sequence[int]], tokens: int) -> None:
        rows = torch.tensor(prompts)
        with torch.inference_mode():
            loaded.generate(input_ids=rows, attention_mask=torch.ones_like(rows), generation_config=config(tokens))

    def continuous(prompts: Sequence[Sequence[int]], tokens: int) -> None:
        from transformers import ContinuousBatchingConfig

        blocks = len(prompts) * (PROMPT + 2 * WRITTEN) // 16
        cache = ContinuousBatchingConfig(page_size=16, num_blocks=blocks, max_batch_tokens=1024)
        with torch.inference_mode():
            loaded.generate_batch(
                list(map(list, prompts)),
                generation_config=config(tokens),
                continuous_batching_config=cache,
                progress_bar=False,
            )

    return [padded, continuous]


def by_vllm(model: str, threads: int) -> list[Generate]:
    """An engine of vLLM in this process."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, dtype="bfloat16", max_model_len=1024, max_num_seqs=128)

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> None:
        given: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        engine.generate(given, SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)

    return [generate]


def by_llama(model: str, threads: int) -> list[Generate]:
    """llama.cpp's batches of several sequences."""
    import ctypes

    import llama_cpp as llama

    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> None:
        params = llama.llama_context_default_params()
        params.n_seq_max, params.n_batch, params.n_ubatch = len(prompts), 2048, 512
        params.n_ctx = len(prompts) * (PROMPT + 2 * WRITTEN)
        params.n_threads = params.n_threads_batch = threads
        context = llama.llama_init_from_model(loaded, params)
        batch = llama.llama_batch_init(2048, 0, 1)
        queue = [(token, at, row, at + 1 == len(p)) for row, p in enumerate(prompts) for at, token in enumerate(p)]
        for step in range(tokens):
            for first in range(0, len(queue), 2048):
                part = queue[first : first + 2048]
                batch.n_tokens = len(part)
                for index, (token, at, row, last) in enumerate(part):
                    batch.token[index], batch.pos[index] = token, at
                    batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
                    batch.logits[index] = ctypes.c_int8(last)
                if llama.llama_decode(context, batch):
                    raise RuntimeError("llama_decode failed")
            drawn = random.Random(step)
            queue = [(drawn.randrange(100, 40_000), len(p) + step, row, True) for row, p in enumerate(prompts)]
        llama.llama_batch_free(batch)
        llama.llama_free(context)

    return [generate]


ENGINES = {"transformers": by_transformers, "vllm": by_vllm, "llama.cpp": by_llama}


def seconds(generate: Generate, rows: int, tokens: int, *, equal: bool) -> float:
    """Of one call with prompts that no call had before, equal or different ones."""
    prompts = [[random.randrange(100, 40_000) for _ in range(PROMPT)] for _ in range(1 if equal else rows)]
    began = time.perf_counter()
    generate(prompts * (rows if equal else 1), tokens)
    return time.perf_counter() - began


def main(engine: str, model: str, threads: str, *rows: str) -> None:
    """Measure every way of the engine, and print the best."""
    cores = sorted(os.sched_getaffinity(0))[: int(threads)]
    os.sched_setaffinity(0, cores)
    best: dict[str, float] = {}
    for generate in ENGINES[engine](model, int(threads)):
        seconds(generate, 2, 4, equal=False)
        for _ in range(ROUNDS):
            found = {"prefill": PROMPTS * PROMPT / seconds(generate, PROMPTS, 1, equal=False)}
            for number in map(int, rows):
                more = seconds(generate, number, WRITTEN + 1, equal=True) - seconds(generate, number, 1, equal=True)
                found[f"decode_{number}"] = number * WRITTEN / max(more, 1e-9)
            best = {name: max(value, best.get(name, 0.0)) for name, value in found.items()}
            print(generate.__name__, {name: round(value) for name, value in found.items()}, flush=True)
    print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
