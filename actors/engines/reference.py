"""Tiny models for the contract of engines, and the plain forward pass that engines are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent_rl.models.model_files import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np

Architecture: TypeAlias = Literal["qwen3", "qwen2", "llama", "granite"]
TINY_VOCABULARY, TINY_KNOWN = 61, 53
"""Tokens of tiny models, and those of them that their tokenizer knows: the others pad the vocabulary."""
TINY_MAX_LENGTH = 512


class Reference:
    """A plain forward pass of a Hugging Face model, without a cache."""

    def __init__(self, path: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            path, trust_remote_code=False, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._known = ModelFiles.read(path).tokens

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The ``count`` likeliest tokens after ``tokens``, one at a time."""
        known = list(tokens)
        for _ in range(count):
            known.append(int(self._logits(known)[-1].argmax()))
        return known[len(tokens) :]

    def logprobs(
        self, tokens: Sequence[int], written: Sequence[int], temperature: float, top_p: float = 1.0, top_k: int = 0
    ) -> np.ndarray:
        """Log-probabilities of the tokens ``written`` after ``tokens``, as sampled: [n] float32."""
        scaled, of_written = self._of_written(tokens, written, temperature)
        masses = torch.ones(len(written), dtype=torch.float64)
        for at, row in enumerate(scaled.double().exp() if temperature else ()):
            likeliest = row.sort(descending=True).values
            likeliest = likeliest[likeliest >= likeliest[(top_k or len(row)) - 1]]
            reached = (likeliest.cumsum(0) / likeliest.sum() < top_p).sum()
            masses[at] = likeliest[: reached + 1].sum()
        return (of_written - masses.log()).float().numpy()

    def likelier(self, tokens: Sequence[int], written: Sequence[int], temperature: float) -> tuple[int, float]:
        """The most tokens that were likelier than one of ``written``, and the greatest share of such tokens."""
        scaled, of_written = self._of_written(tokens, written, temperature)
        above = scaled > of_written[:, None] + 1e-4  # engines round differently
        return int(above.sum(-1).max()), float((scaled.exp() * above).sum(-1).max())

    def _of_written(
        self, tokens: Sequence[int], written: Sequence[int], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the whole vocabulary [n, vocabulary], and of the tokens ``written`` [n]."""
        logits = self._logits([*tokens, *written])[len(tokens) - 1 : -1]
        scaled = (logits / (temperature or 1.0)).log_softmax(-1)
        return scaled, scaled[torch.arange(len(written)), torch.tensor(list(written))]

    def _logits(self, tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
            if self._known is not None:
                logits[:, self._known :] = -torch.inf
            return logits


def save_tiny_model(path: Path, architecture: Architecture, seed: int, *, head_dim: int = 16) -> None:
    """Save a random model of a few thousand parameters. The architectures cover what engines often get wrong.

    Qwen3 has tied embeddings and normalizes queries and keys, Qwen2 has biases, Llama has neither, Granite scales its
    residuals. ``head_dim`` is for Qwen3, because not every kernel supports every value.
    """
    shared: dict[str, Any] = {
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "max_position_embeddings": TINY_MAX_LENGTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": architecture == "qwen3",
    }
    model: Any
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        match architecture:
            case "qwen3":
                model = Qwen3ForCausalLM(Qwen3Config(**shared, head_dim=head_dim))
            case "qwen2":
                model = Qwen2ForCausalLM(Qwen2Config(**shared))
            case "llama":
                model = LlamaForCausalLM(LlamaConfig(**{**shared, "num_key_value_heads": 4}))
            case "granite":
                model = GraniteForCausalLM(GraniteConfig(**shared, residual_multiplier=0.7, logits_scaling=0.5))
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or name.endswith("bias"):  # else logits are nearly equal, and checks pass by chance
                parameter.data.normal_(std=0.3)
    model.save_pretrained(path)
    known = WordLevel({str(number): number for number in range(TINY_KNOWN)}, unk_token="0")  # noqa: S106 - no secret
    Tokenizer(known).save(str(path / "tokenizer.json"))
