"""Attention over a row in which shared prefixes stand once (`agent_rl.learning.prefixes`), on CPU.

A token attends to the segments on its path: within its own segment causally, and to each ancestor whole. All
descendants of a segment stand behind it, so that two calls a segment do::

    causal(segment, segment)             each segment by itself
    full(descendants, segment)           each shared segment

Each call gives the log of its sum of exponentials, by which the parts are put together. With the output and the sum of
the whole, a call's own backward pass gives its part of the gradients, as FlashAttention (arXiv 2205.14135) does for the
blocks of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agent_rl.learning.prefixes import Shared

_forward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - SDPA without its sums
_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    shared: Sequence[Shared],
    scale: float | None,
) -> Tensor:
    """Attention of each token to its path, [1, n, heads, head_dim] from three of [1, heads, n, head_dim].

    ``lengths`` of the segments sum to n. ``scale`` is 1 / sqrt(head_dim) when None.
    """
    attended: Tensor = _TreeAttention.apply(query, key, value, tuple(lengths), tuple(shared), scale)
    return attended


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: tuple[int, ...],
        shared: tuple[Shared, ...],
        scale: float | None,
    ) -> Tensor:
        segments = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
        parts = [_forward(*segment, 0.0, True, scale=scale) for segment in segments]
        output = torch.cat([part.transpose(1, 2) for part, _ in parts], dim=1).transpose(1, 2)
        sums = torch.cat([part for _, part in parts], dim=2)
        for start, end, last in shared:
            own, below = slice(start, end), slice(end, last)
            part, part_sums = _forward(query[:, :, below], key[:, :, own], value[:, :, own], 0.0, False, scale=scale)
            share = (part_sums - sums[:, :, below]).sigmoid().unsqueeze(-1)
            output[:, :, below].lerp_(part, share.to(part.dtype))
            sums[:, :, below] = torch.logaddexp(sums[:, :, below], part_sums)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.row = lengths, shared, scale
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums = ctx.saved_tensors
        lengths, shared, scale = ctx.row
        gradient = gradients[0].transpose(1, 2)
        tensors = (gradient, query, key, value, output, sums)
        segments = zip(*(tensor.split(lengths, dim=2) for tensor in tensors), strict=True)
        parts = [_backward(*segment, 0.0, True, scale=scale) for segment in segments]
        of_query, of_key, of_value = (torch.cat(each, dim=2) for each in zip(*parts, strict=True))
        for start, end, last in shared:
            own, below = slice(start, end), slice(end, last)
            part = _backward(
                gradient[:, :, below],
                query[:, :, below],
                key[:, :, own],
                value[:, :, own],
                output[:, :, below],
                sums[:, :, below],
                0.0,
                False,
                scale=scale,
            )
            of_query[:, :, below] += part[0]
            of_key[:, :, own] += part[1]
            of_value[:, :, own] += part[2]
        return of_query, of_key, of_value, None, None, None
