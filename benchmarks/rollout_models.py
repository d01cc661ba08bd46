"""Models and prompts for bench_rollout: the quickstart's architecture, and one made to call tools.

Weights are random: what a decode step costs does not depend on them. Where it matters what is written (whether a turn
ends, and in a tool call), `save_writer` sets them so that each token depends on the one before it alone.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent_rl.config.load import load_topology
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import CALL_HEAD, CALL_TAIL, END, ROLES, initialise_model
from benchmarks.quickstart import EXAMPLE

MAX_LENGTH = 512
PROMPT_MEDIAN, PROMPT_SPREAD, PROMPT_LIMITS = 48, 0.5, (8, 192)
"""Prompt lengths are log-normal: median in tokens, standard deviation of the logarithm, and what they are cut to."""
RESPONSE_MEDIAN, RESPONSE_SPREAD, RESPONSE_LIMIT = 64, 0.8, 256
"""Response lengths likewise; 4 % reach the limit, which is four times the median."""

Lengths = Literal["log-normal", "uniform", "equal"]


def quickstart_model() -> InitialiseModel:
    """The quickstart's model, for longer sequences: 0.3M parameters."""
    spec = load_topology(EXAMPLE).model.initialise
    assert spec is not None
    return spec.model_copy(update={"max_length": MAX_LENGTH, "tie_embeddings": False})


Size = Literal["135m", "1.7b"]
SHAPES: Mapping[Size, tuple[int, int, int, int, int]] = {
    "135m": (576, 30, 9, 3, 1536),
    "1.7b": (2048, 24, 32, 32, 8192),
}
"""Of SmolLM2: width, layers, heads, heads of keys and values, width of the MLP."""


def fresh_model(directory: Path, size: Size, *, layers: int | None = None) -> None:
    """Save a Llama with fresh weights in the shapes of SmolLM2, in bfloat16, and the quickstart's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    initialise_model(quickstart_model(), directory, seed=0)
    hidden, depth, heads, kv_heads, mlp = SHAPES[size]
    config = AutoConfig.for_model(
        "llama",
        hidden_size=hidden,
        num_hidden_layers=layers or depth,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=mlp,
        vocab_size=49_152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, dtype=torch.bfloat16)
    model.save_pretrained(directory)


@dataclass(frozen=True)
class Workload:
    """Prompts, and how many tokens each response has."""

    prompts: tuple[tuple[int, ...], ...]
    lengths: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """Response tokens in all."""
        return int(self.lengths.sum())


def workload(prompts: int, lengths: Lengths, seed: int, *, scale: float = 1.0) -> Workload:
    """Prompts of random letters with log-normal lengths; response lengths as named, all with the limits stated above.

    "uniform" is 1 to the limit; "equal" gives every response the log-normal's mean. ``scale`` multiplies response
    lengths.
    """
    rng = np.random.default_rng(seed)
    sizes = _log_normal(rng, prompts, PROMPT_MEDIAN, PROMPT_SPREAD, PROMPT_LIMITS)
    limit = max(2, round(scale * RESPONSE_LIMIT))
    drawn = _log_normal(rng, prompts, scale * RESPONSE_MEDIAN, RESPONSE_SPREAD, (1, limit))
    match lengths:
        case "log-normal":
            responses = drawn
        case "uniform":
            responses = rng.integers(1, limit + 1, prompts)
        case "equal":
            mean = scale * RESPONSE_MEDIAN * math.exp(RESPONSE_SPREAD**2 / 2)
            responses = np.full(prompts, max(1, round(mean)))
    tokens = tuple(tuple(rng.integers(10, 100, size).tolist()) for size in sizes)
    return Workload(tokens, responses)


def _log_normal(
    rng: np.random.Generator, count: int, median: float, spread: float, limits: tuple[int, int]
) -> NDArray[np.int64]:
    return rng.lognormal(math.log(median), spread, count).round().astype(np.int64).clip(*limits)


def save_writer(directory: Path, spec: InitialiseModel, *, thinking: float, calling: float) -> None:
    """Save a model whose turns are ``thinking`` letters (mean of a geometric distribution), then a call or an answer.

    A turn calls the tool with probability ``calling``. Attention and MLP are computed but add nothing, so that the next
    token's distribution is a table over the token before, which the output layer holds.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    initialise_model(spec, directory, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    letters = dict.fromkeys(string.ascii_lowercase, (1 - 1 / thinking) / 26)
    leave = {"<tool_call>": calling / thinking, "<answer>": (1 - calling) / thinking}
    table: dict[str, Mapping[str, float]] = dict.fromkeys((ROLES["assistant"], *letters), letters | leave)
    call = ["<tool_call>", CALL_HEAD, "print(", "1", "+", "2", ")", CALL_TAIL, "</tool_call>", END]
    answer = ["<answer>", "\\boxed{", "3", "}", "</answer>", END]
    for text in (call, answer):
        table.update({token: {following: 1.0} for token, following in pairwise(text)})
    path = directory / "model.safetensors"
    weights = load_file(path)
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    embedding = weights["model.embed_tokens.weight"]
    states = embedding[tokenizer.convert_tokens_to_ids(list(table))].double()
    states = states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    logits = torch.full((len(table), embedding.shape[0]), -25.0, dtype=torch.float64)
    for row, following in enumerate(table.values()):
        for token, share in following.items():
            if share > 0:
                logits[row, tokenizer.convert_tokens_to_ids(token)] = math.log(share)
    weights["lm_head.weight"] = (torch.linalg.pinv(states) @ logits).T.float().contiguous()
    save_file(weights, path, metadata={"format": "pt"})
