"""The forward pass of a Llama-like decoder in few torch calls, with the weights of a Hugging Face model.

A decode step of a small model has little arithmetic. Most time goes into calls of Python and torch, and into passing on
the interpreter's lock at each call. Here query, key and value are one product, and so are gate and up. Rotations come
from a table, and no module is called. The result is the same as that of transformers' own forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from actors.engines.torch.kv_cache import attend

if TYPE_CHECKING:
    from torch import Tensor, nn

    from actors.engines.torch.kv_cache import ForwardStep

ARCHITECTURES = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
STATIC_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles do not depend on the length of the sequence."""


def can_fuse(model: nn.Module) -> bool:
    """Whether this module can compute ``model``."""
    config: Any = model.config
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    return (
        type(model).__name__ in ARCHITECTURES
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in STATIC_ROTATIONS
        and set(layer_types) == {"full_attention"}
    )


class Projection:
    """Linear layers with one input as one product: [n, in_features] -> [n, sum of out_features].

    ``one_dnn`` uses oneDNN on CPU, with a reordered copy of the weights, since reordering takes up to half of the time
    of a small batch. (For float32 torch's default is MKL, which leaves half of an AMD processor's vector width unused.)
    In other cases the layers' parameters become parts of one tensor, without a copy.
    """

    def __init__(self, *layers: nn.Linear, one_dnn: bool) -> None:
        self._layers = layers
        self._one_dnn = one_dnn
        self._weight, self._bias = self._whole("weight"), self._whole("bias")
        self.refresh()

    def refresh(self) -> None:
        """Read changed values of the layers' parameters."""
        if self._one_dnn:
            weight, self._bias = self._whole("weight"), self._whole("bias")
            reorder = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001 - as torch's compiler does
            self._weight = reorder(weight)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[n, in_features] -> [n, out_features]."""
        if self._one_dnn:
            product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - as above
            output: Tensor = product(inputs, self._weight, self._bias, "none", [], "")
            return output
        return functional.linear(inputs, self._weight, self._bias)

    def _whole(self, name: str) -> Any:
        """The weights or biases of the layers as one tensor; None when they have none."""
        parts = [getattr(layer, name) for layer in self._layers]
        if len(parts) == 1 or parts[0] is None:
            return parts[0]
        whole = torch.cat([part.data for part in parts])
        if not self._one_dnn:
            for part, rows in zip(parts, whole.split([len(part) for part in parts]), strict=True):
                part.data = rows
        return whole


class _Layer:
    """The parameters of one decoder layer."""

    def __init__(self, layer: Any, *, one_dnn: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.attention_norm: Tensor = layer.input_layernorm.weight
        self.mlp_norm: Tensor = layer.post_attention_layernorm.weight
        self.qkv = Projection(attention.q_proj, attention.k_proj, attention.v_proj, one_dnn=one_dnn)
        self.output = Projection(attention.o_proj, one_dnn=one_dnn)
        self.gate_up = Projection(mlp.gate_proj, mlp.up_proj, one_dnn=one_dnn)
        self.down = Projection(mlp.down_proj, one_dnn=one_dnn)
        self.scaling: float = attention.scaling
        self._norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self.qk_norm: Tensor | None = None
        """[heads + kv_heads, head_dim]: the factors of normalized queries and keys; None without normalization."""

    def refresh(self, heads: int, kv_heads: int) -> None:
        for projection in (self.qkv, self.output, self.gate_up, self.down):
            projection.refresh()
        if self._norms is not None:
            query, key = (norm.weight for norm in self._norms)
            self.qk_norm = torch.cat([query.expand(heads, -1), key.expand(kv_heads, -1)])


class FusedDecoder:
    """Computes logits from the model's own parameters. Call ``refresh`` after the parameters have changed."""

    def __init__(self, model: Any, *, kv_heads: int, head_dim: int, max_length: int, one_dnn: bool) -> None:
        decoder, config = model.model, model.config
        self._heads: int = config.num_attention_heads
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._epsilon: float = config.rms_norm_eps
        self._embedding: Tensor = decoder.embed_tokens.weight
        self._norm: Tensor = decoder.norm.weight
        self._head = Projection(model.lm_head, one_dnn=one_dnn)
        self._layers = [_Layer(layer, one_dnn=one_dnn) for layer in decoder.layers]
        positions = torch.arange(max_length, device=self._embedding.device)[None]
        cosines, sines = decoder.rotary_emb(self._embedding[:1], positions)
        half = head_dim // 2
        signed = torch.cat([-sines[0, :, :half], sines[0, :, half:]], dim=-1)
        self._rotations = torch.stack([cosines[0], signed], dim=1)[:, :, None]
        """[max_length, 2, 1, head_dim]: cosines, and sines with the sign for each half."""
        self.refresh()

    def refresh(self) -> None:
        """Read changed values of the model's parameters."""
        self._head.refresh()
        for layer in self._layers:
            layer.refresh(self._heads, self._kv_heads)

    def forward(self, tokens: Tensor, positions: Tensor, ends: Tensor, step: ForwardStep) -> Tensor:
        """Logits [w, vocabulary] after the tokens at ``ends`` [w]; ``tokens`` and ``positions`` [n], all int64."""
        count, rotated = len(tokens), self._heads + self._kv_heads
        rotations = self._rotations[positions]
        cosines, sines = rotations[:, 0], rotations[:, 1]
        hidden = functional.embedding(tokens, self._embedding)
        for number, layer in enumerate(self._layers):
            qkv = layer.qkv(self._normalize(hidden, layer.attention_norm))
            qkv = qkv.view(count, rotated + self._kv_heads, self._head_dim)
            pairs = qkv[:, :rotated]
            if layer.qk_norm is not None:
                pairs = self._normalize(pairs, None) * layer.qk_norm
            swapped = pairs.unflatten(2, (2, -1)).flip(2).flatten(2)
            pairs = torch.addcmul(pairs * cosines, swapped, sines)
            query, key = pairs[:, : self._heads], pairs[:, self._heads :]
            attended = attend(step, number, query, key, qkv[:, rotated:], layer.scaling)
            hidden = hidden + layer.output(attended.view(count, -1))
            gate, up = layer.gate_up(self._normalize(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return self._head(self._normalize(hidden[ends], self._norm))

    def _normalize(self, values: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(values, (values.shape[-1],), weight, self._epsilon)
