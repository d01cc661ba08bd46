"""The KV cache of the torch engine (one contiguous block with a row for each sequence), and the attention over it.

Rows ``[0, decoding)`` hold the sequences of a decode step, so attention reads slices of the cache without gathering.
The caller keeps these rows dense by swapping. All tokens of a step go through the model as one packed row ``[1, n]``:
linear layers see no padding, and only attention knows which token belongs to which sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from actors.engines.base import EngineError

if TYPE_CHECKING:
    from torch import Tensor, nn


ATTENTION = "agent_rl_contiguous_kv"
"""The attention function's name in transformers' registry. It needs no mask function: a ForwardStep is the mask."""

_STEP = 64


class KVCache:
    """Keys and values of ``rows`` sequences, in one tensor [layers, 2, rows, kv_heads, length, head_dim].

    ``length`` grows by a quarter, in steps of 64, up to ``max_length`` as sequences do. Values in a row beyond its
    sequence are stale but finite, so that an attention weight of 0 cancels them.
    """

    def __init__(
        self,
        *,
        layers: int,
        rows: int,
        kv_heads: int,
        head_dim: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.kv_heads = kv_heads
        self.row_elements = 2 * kv_heads * head_dim
        """Number of values (keys and values) of one token in one layer."""
        self.max_length = max_length
        self.length = min(_STEP, max_length)
        self._data = torch.zeros(layers, 2, rows, kv_heads, self.length, head_dim, dtype=dtype, device=device)

    def keys(self, layer: int) -> Tensor:
        """[rows, kv_heads, length, head_dim], a view."""
        return self._data[layer, 0]

    def values(self, layer: int) -> Tensor:
        """[rows, kv_heads, length, head_dim], a view."""
        return self._data[layer, 1]

    @property
    def device(self) -> torch.device:
        """The device of the cache."""
        return self._data.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the cache."""
        return self._data.dtype

    def reserve(self, length: int) -> None:
        """Make every row at least ``length`` tokens long. Raises EngineError beyond the model's limit."""
        if length <= self.length:
            return
        if length > self.max_length:
            raise EngineError(f"a sequence of {length} tokens is longer than the model allows ({self.max_length})")
        grown_length = max(length, self.length + self.length // 4)
        self.length = min(math.ceil(grown_length / _STEP) * _STEP, self.max_length)
        grown = self._data.new_zeros((*self._data.shape[:4], self.length, self._data.shape[5]))
        grown[..., : self._data.shape[4], :] = self._data
        self._data = grown

    def free(self) -> None:
        """Give the memory back, and forget all tokens. `reserve` takes memory again."""
        self.length = 0
        self._data = self._data.new_empty((*self._data.shape[:4], 0, self._data.shape[5]))

    def swap(self, first: int, second: int, first_cached: int, second_cached: int) -> None:
        """Exchange two rows with the given numbers of tokens. 0: the row's content is not needed."""
        if not first_cached:
            self._data[:, :, first, :, :second_cached] = self._data[:, :, second, :, :second_cached]
            return
        saved = self._data[:, :, first, :, :first_cached]
        if second_cached:
            saved = saved.clone()
            self._data[:, :, first, :, :second_cached] = self._data[:, :, second, :, :second_cached]
        self._data[:, :, second, :, :first_cached] = saved

    def copy(self, source: int, target: int, cached: int) -> None:
        """Copy the first ``cached`` tokens of row ``source`` to row ``target``."""
        self._data[:, :, target, :, :cached] = self._data[:, :, source, :, :cached]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Consecutive cache rows whose sequences get several tokens in this step, padded to the longest of them.

    With p sequences, s new tokens at most, and keys up to l: ``gather`` [p * s] indexes the step's tokens (padding
    repeats one), ``bias`` [p, 1, s, l] is 0 or -inf, and ``scatter`` [m] indexes the p * s positions that are tokens.
    Without ``bias`` no token was cached: s is l, and attention is causal.
    """

    first_row: int
    sequences: int
    new_tokens: int
    length: int
    gather: Tensor
    scatter: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """The sequences of the n tokens of one forward pass, and the places for their keys and values.

    The first ``decoding`` tokens belong to rows 0, 1, ...; those of ``prefills`` follow in order. ``write`` [n *
    kv_heads] indexes the cache's flattened (row, head, position); ``bias`` [decoding * kv_heads, 1, l] is 0 or -inf.
    ``spans`` (first row, row behind the last, length) divide the decoding rows, each as long as the longest in it.
    """

    cache: KVCache
    write: Tensor
    decoding: int
    bias: Tensor | None
    spans: tuple[tuple[int, int, int], ...]
    prefills: tuple[Prefill, ...]


def _prefill_attention(part: Prefill, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Attention of the part's tokens. ``query`` [n, heads, head_dim]: the whole step; returns [m, heads, head_dim]."""
    heads, head_dim = query.shape[1:]
    kv_heads = keys.shape[1]
    share = heads // kv_heads
    rows = slice(part.first_row, part.first_row + part.sequences)
    row_keys, row_values = keys[rows, :, : part.length], values[rows, :, : part.length]
    if part.bias is None:  # a kernel that knows of causality leaves out half of the work
        padded = query[part.gather].view(part.sequences, part.new_tokens, heads, head_dim).transpose(1, 2)
        row_keys, row_values = (tensor.repeat_interleave(share, dim=1) for tensor in (row_keys, row_values))
        out = functional.scaled_dot_product_attention(padded, row_keys, row_values, is_causal=True, scale=scaling)
        return out.transpose(1, 2).reshape(part.sequences * part.new_tokens, heads, head_dim)[part.scatter]
    # Query heads that share a KV head become further queries of this head, so keys and values are not repeated.
    padded = query[part.gather].view(part.sequences, part.new_tokens, kv_heads, share, head_dim).permute(0, 2, 3, 1, 4)
    bias = part.bias[:, :, None].expand(-1, -1, share, -1, -1)
    out = functional.scaled_dot_product_attention(
        padded.reshape(part.sequences, kv_heads, share * part.new_tokens, head_dim),
        row_keys,
        row_values,
        attn_mask=bias.reshape(part.sequences, 1, share * part.new_tokens, part.length),
        scale=scaling,
    )
    out = out.view(part.sequences, kv_heads, share, part.new_tokens, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(part.sequences * part.new_tokens, heads, head_dim)[part.scatter]


def attend(step: ForwardStep, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Store the step's keys and values in the cache, and compute attention.

    ``query`` [n, heads, head_dim], ``key`` and ``value`` [n, kv_heads, head_dim], with padding after the step's tokens.
    Returns [n, heads, head_dim], 0 for padding.
    """
    cache, decoding = step.cache, step.decoding
    heads, head_dim = query.shape[1:]
    keys, values = cache.keys(layer), cache.values(layer)
    count = len(step.write) // cache.kv_heads
    keys.view(-1, head_dim).index_copy_(0, step.write, key[:count].reshape(-1, head_dim))
    values.view(-1, head_dim).index_copy_(0, step.write, value[:count].reshape(-1, head_dim))
    out = query.new_empty(query.shape)
    out[count:] = 0.0
    if step.bias is not None:
        shape = (-1, heads // cache.kv_heads, head_dim)
        flat_keys, flat_values = (part.view(-1, cache.length, head_dim) for part in (keys, values))
        for first, last, length in step.spans:
            here = slice(first * cache.kv_heads, last * cache.kv_heads)
            row_keys, row_values = flat_keys[here, :length], flat_values[here, :length]
            batched = query[first:last].reshape(shape)
            bias = step.bias[here, :, :length]
            if query.dtype == torch.float32 or length == cache.length:
                scores = torch.baddbmm(bias, batched, row_keys.transpose(1, 2), alpha=scaling)
            else:  # oneDNN copies parts of rows, and transposed ones at a higher price
                scores = torch.baddbmm(bias.transpose(1, 2), row_keys, batched.transpose(1, 2), alpha=scaling)
                scores = scores.transpose(1, 2)
            torch.bmm(scores.softmax(-1), row_values, out=out[first:last].view(shape))
    at = decoding
    for part in step.prefills:
        out[at : at + len(part.scatter)] = _prefill_attention(part, query, keys, values, scaling)
        at += len(part.scatter)
    return out


def contiguous_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - a ForwardStep is the mask
    scaling: float,
    *,
    kv_step: ForwardStep,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one packed step, with the signature of transformers' attention functions.

    ``query`` [1, heads, n, head_dim], ``key`` and ``value`` [1, kv_heads, n, head_dim]; returns [1, n, heads,
    head_dim]. No sequence is longer than a sliding window (`agent_rl.models.architectures`). Raises EngineError for
    features that it does not support: soft caps, sinks.
    """
    for unsupported in ("softcap", "s_aux"):
        if kwargs.get(unsupported) is not None:
            raise EngineError(f"the torch engine does not support attention with {unsupported}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    packed = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    return attend(kv_step, layer, packed[0], packed[1], packed[2], scaling)[None], None


AttentionInterface.register(ATTENTION, contiguous_attention)
