"""The sizes of a decoder by its config.json: numbers of weights, bytes of activations and of KV cache. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_WEIGHTS = 20_000_000
"""Of smaller models the time goes into calls rather than into products: they are computed in the type they are kept in.
"""
DENSE = ("qwen3", "qwen2", "llama", "mistral")
"""The kinds whose layers are as counted here."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of dense layers. Widths are numbers of values."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool
    normed_heads: bool
    """Whether queries and keys are normalised, as in Qwen3."""
    biased: bool
    """Whether queries, keys and values have a bias, as in Qwen2."""
    length: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape | None:
        """The shape that a config.json describes; None for kinds that are not counted here."""
        kind = config.get("model_type")
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            return (
                cls(
                    hidden=hidden,
                    layers=int(config["num_hidden_layers"]),
                    heads=heads,
                    kv_heads=int(config.get("num_key_value_heads") or heads),
                    head_dim=int(config.get("head_dim") or hidden // heads),
                    mlp=int(config["intermediate_size"]),
                    vocabulary=int(config["vocab_size"]),
                    tied=bool(config.get("tie_word_embeddings", False)),
                    normed_heads=kind == "qwen3",
                    biased=kind == "qwen2" or bool(config.get("attention_bias", False)),
                    length=int(config["max_position_embeddings"]),
                )
                if kind in DENSE
                else None
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    @property
    def queries(self) -> int:
        """Values of a token's queries in a layer."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Values of a token's keys in a layer; as many are its values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of one layer."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        small = 2 * self.hidden + 2 * self.head_dim * self.normed_heads
        return attention + 3 * self.hidden * self.mlp + small + (self.queries + 2 * self.keys) * self.biased

    @property
    def embedding(self) -> int:
        """Weights of one embedding."""
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        """All weights."""
        return self.layers * self.layer_weights + (1 if self.tied else 2) * self.embedding + self.hidden

    def kv_bytes(self, width: int) -> int:
        """Bytes of KV cache for each token; ``width``: of a value."""
        return 2 * self.layers * self.keys * width

    def layer_activation_bytes(self, width: int, *, repeated: bool) -> int:
        """Bytes for each token that the forward pass of one layer keeps for the backward pass.

        Norms are computed in float32. ``repeated``: attention repeats keys and values for all heads, as on a processor.
        """
        norm = 12 if width == 4 else 8  # its input and quotient in float32, or the quotient rounded; its output
        of_heads = 2 * width if width == 4 else 6  # the same without the output, which rotation does not need
        heads = (self.queries + self.keys) * (of_heads if self.normed_heads else 0)
        attention = 5 * self.queries if repeated else 3 * self.queries + 2 * self.keys
        return 2 * norm * self.hidden + heads + width * (attention + 4 * self.mlp)

    def outer_activation_bytes(self, width: int) -> int:
        """The same of the last norm, and of the hidden states that are scored."""
        return ((12 if width == 4 else 8) + width) * self.hidden
