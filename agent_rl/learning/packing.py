"""Packed sequences: the tokens of a micro-batch in one row without padding, with attention within each sequence only.

A packed row of sequences of lengths l1, l2, ... is [1, l1 + l2 + ...]; position ids start at 0 with each sequence. The
attention function, registered with transformers under `ATTENTION`, computes causal attention within each sequence:

- on CUDA in half precision with one variable-length kernel: flash_attn's if installed, else torch's (untested here);
- elsewhere with one call of scaled dot-product attention for each sequence.

On CPU a row may hold what several sequences share once (`agent_rl.learning.prefixes`); position ids are then places in
the sequences, and `agent_rl.learning.tree_attention` computes the attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agent_rl.learning.prefixes import Prefixes, Shared, tree
from agent_rl.learning.tree_attention import tree_attention

ATTENTION = "agent_rl_packed"
"""The attention function's name in transformers' registry. It has no mask function, since a `Packed` is the mask."""

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Packed:
    """A row of n tokens: ``tokens`` and ``positions`` [1, n] int64, ``bounds`` [parts + 1] int32, from 0 to n."""

    tokens: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    """Tokens of each part: a sequence, or a segment of a tree."""
    bounds: Tensor
    longest: int
    """Tokens of the longest sequence."""
    places: Tensor | None = None
    """[tokens of all sequences] int64: where each stands in the row. None: one after the other."""
    shared: tuple[Shared, ...] = ()
    """The segments that several sequences share."""


def pack(sequences: Sequence[Tensor], device: torch.device, *, block: int = 0) -> Packed:
    """Put sequences of tokens, each [length] int64 on the host, in a packed row.

    With ``block``, prefixes that several sequences share stand in the row once, in multiples of so many tokens.
    """
    lengths = tuple(len(sequence) for sequence in sequences)
    positions = [torch.arange(length) for length in lengths]
    prefixes = Prefixes.of([sequence.numpy() for sequence in sequences], block) if block else Prefixes([], [])
    if not any(prefixes.common):
        return _row(sequences, positions, device, lengths, longest=max(lengths))
    made = tree(lengths, prefixes)
    fresh = list(zip(*prefixes, strict=True))
    tokens, positions = ([each[index][common:] for index, common in fresh] for each in (sequences, positions))
    places = torch.from_numpy(np.concatenate(made.places)).to(device)
    return _row(tokens, positions, device, made.lengths, longest=max(lengths), places=places, shared=made.shared)


def _row(
    tokens: Sequence[Tensor], positions: Sequence[Tensor], device: torch.device, lengths: tuple[int, ...], **more: Any
) -> Packed:
    return Packed(
        tokens=torch.cat(list(tokens)).unsqueeze(0).to(device),
        positions=torch.cat(list(positions)).unsqueeze(0).to(device),
        lengths=lengths,
        bounds=torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32).to(device),
        **more,
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a packed row, as transformers calls it; returns [1, n, heads, head_dim].

    ``query`` [1, heads, n, head_dim]; ``key``, ``value`` [1, kv_heads, n, head_dim]. Raises ValueError for kinds of
    attention that are not computed here.
    """
    del module, ignored
    if softcap or attention_mask is not None or is_causal is False:
        raise ValueError("the learner's packed attention is causal, without softcap and without a mask of its own")
    if sliding_window is not None and sliding_window < packed.longest:
        raise ValueError(
            f"the model attends within {sliding_window} tokens and a sequence has {packed.longest}: the learner's "
            "packed attention has no window; set max_response_tokens so that sequences fit into it"
        )
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, norms of heads leave float32
    groups = query.shape[1] // key.shape[1]
    suits = query.is_cuda and query.dtype in _HALF and not dropout and not packed.shared
    if suits and (kernel := variable_length_kernel()) is not None:
        rows = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value)]
        return kernel(rows[0], rows[1], rows[2], packed, scaling).unsqueeze(0), None
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if packed.shared:
        return tree_attention(query, key, value, packed.lengths, packed.shared, scaling), None
    # The gradient of split is one concatenation; each slice would have a gradient of the whole row's size.
    parts = zip(*(tensor.split(packed.lengths, dim=2) for tensor in (query, key, value)), strict=True)
    attended = [
        scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling) for q, k, v in parts
    ]
    return torch.cat(attended, dim=2).transpose(1, 2), None


Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor, Packed, "float | None"], Tensor]
"""From query [n, heads, head_dim], key and value [n, kv_heads, head_dim] to [n, heads, head_dim]. It only knows
sequences that share nothing."""


@cache
def variable_length_kernel() -> Kernel | None:
    """The kernel for packed rows on CUDA, if one is installed."""
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return _torch_kernel()

    def flash(query: Tensor, key: Tensor, value: Tensor, packed: Packed, scaling: float | None) -> Tensor:
        bounds, longest = packed.bounds, packed.longest
        attended: Tensor = flash_attn_varlen_func(
            query, key, value, bounds, bounds, longest, longest, softmax_scale=scaling, causal=True
        )
        return attended

    return flash


def _torch_kernel() -> Kernel | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    if "window_size" not in signature(varlen_attn).parameters:  # too old a version of torch
        return None

    def attend(query: Tensor, key: Tensor, value: Tensor, packed: Packed, scaling: float | None) -> Tensor:
        bounds, longest = packed.bounds, packed.longest
        causal = (-1, 0)  # everything before, nothing behind
        groups = query.shape[1] // key.shape[1]
        # Not enable_gqa, which not every version of torch has.
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        attended = varlen_attn(query, key, value, bounds, bounds, longest, longest, scale=scaling, window_size=causal)
        assert isinstance(attended, Tensor)
        return attended

    return attend


AttentionInterface.register(ATTENTION, packed_attention)
