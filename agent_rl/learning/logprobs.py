"""Log-probabilities of tokens from hidden states, in pieces: the logits of all tokens never exist at once.

With n tokens, a vocabulary of v and pieces of c tokens, the logits of a micro-batch are n * v floats, and their
gradient n * v more. Here at most 3 * c * v floats exist at once (logits, log-probabilities, probabilities), independent
of n. Where n <= c, the forward pass keeps the probabilities, and the backward pass makes the gradient of them in place.
Elsewhere the backward pass computes them again.

On CPU, a piece is cut further, to what a processor's cache holds: the passes over a piece then read no main memory, and
the memory of a piece comes from the heap. Fresh memory costs more than a pass, since the kernel clears its pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agent_rl.learning.linear import product

CACHED = 2**21
"""Floats of a piece on CPU: three times as many fit into the last cache of a server's processor."""
NEVER = -1e30
"""The logit of a token that is never sampled: finite, so that its share of the entropy is 0."""
LEAST = 64
"""Tokens of a piece on CPU, at least: with fewer, matrix products are slow."""


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float,
    tokens_at_once: int,
    with_entropy: bool = True,
    tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each target under softmax(logits / temperature), both [n] float32, with gradients.

    Without ``with_entropy``, which saves a pass over the logits, the entropies are 0. ``hidden`` [n, d]; ``weight`` [v,
    d] and ``bias`` [v] of the output layer; ``targets`` [n] int64. The temperature must be the rollout's: mu was
    sampled with it, so pi must be evaluated with it. ``tokens``: those from this number on are never sampled.
    """
    pair: tuple[Tensor, Tensor] = _Chunked.apply(
        hidden, weight, bias, targets, temperature, max(1, tokens_at_once), with_entropy, tokens
    )
    return pair


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        tokens_at_once: int,
        with_entropy: bool,  # noqa: FBT001 - autograd passes by position
        known: int | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy = (torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(2))
        keep = any(ctx.needs_input_grad) and len(hidden) <= tokens_at_once
        kept = []
        for rows in _pieces(hidden, weight, tokens_at_once):
            log_p = _log_softmax(hidden[rows], weight, bias, temperature, known)
            logprobs[rows] = log_p.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
            p = log_p.exp() if keep or with_entropy else None
            if p is not None and with_entropy:
                entropy[rows] = -log_p.mul_(p).sum(-1)
            if p is not None and keep:
                kept.append(p)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.known = known
        ctx.kept = kept  # made here, so no cycle of references
        ctx.temperature, ctx.tokens_at_once = temperature, tokens_at_once
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        of_logprobs, of_entropy = gradients
        hidden_needed, weight_needed, bias_needed = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if hidden_needed else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if weight_needed else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias_needed else None
        kept, ctx.kept = ctx.kept[::-1], []  # overwritten here; a second backward pass computes them again
        for rows in _pieces(hidden, weight, ctx.tokens_at_once):
            again = None if kept else _log_softmax(hidden[rows], weight, bias, ctx.temperature, ctx.known)
            of_logits = kept.pop() if again is None else again.exp_()
            if of_entropy is not None:  # d entropy / d logits = -p (log p + entropy), which is 0 where p is
                log_p = of_logits.clamp(min=torch.finfo(torch.float32).tiny).log_()
                factor = log_p.add_(entropy[rows].unsqueeze(-1)).mul_(of_entropy[rows].unsqueeze(-1))
                if of_logprobs is not None:
                    factor.add_(of_logprobs[rows].unsqueeze(-1))
                of_logits.mul_(factor.neg_())
            else:
                assert of_logprobs is not None  # autograd calls this only with a gradient
                of_logits.mul_(-of_logprobs[rows].unsqueeze(-1))
            if of_logprobs is not None:  # d log p(target) / d logits = 1 at the target - p
                of_logits.scatter_add_(-1, targets[rows].unsqueeze(-1), of_logprobs[rows].unsqueeze(-1))
            if ctx.temperature != 1.0:
                of_logits.div_(ctx.temperature)
            of_logits = of_logits.to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[rows] = product(of_logits, weight.t())
            if of_weight is not None:
                _add_product(of_weight, of_logits, hidden[rows])
            if of_bias is not None:
                of_bias += of_logits.sum(0)
            del of_logits, again  # freed before the next is made
        return (
            of_hidden,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            *[None] * 5,
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left.T right to ``total`` [v, d] float32; ``left`` [c, v] and ``right`` [c, d] have the type of products.

    On CPU by rows that a processor's cache holds: a whole product would be fresh memory.
    """
    if total.device.type != "cpu":
        total += left.t() @ right
        return
    rows, right = max(1, CACHED // total.shape[1]), right.t()
    for part, columns in zip(total.split(rows), left.split(rows, dim=1), strict=True):
        part.add_(product(columns.t(), right))


def _pieces(hidden: Tensor, weight: Tensor, tokens_at_once: int) -> Iterator[slice]:
    if hidden.device.type == "cpu":
        tokens_at_once = min(tokens_at_once, max(LEAST, CACHED // len(weight)))
    for start in range(0, len(hidden), tokens_at_once):
        yield slice(start, start + tokens_at_once)


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, known: int | None) -> Tensor:
    """[c, v] float32. ``known``: the rows of ``weight`` before this one are of tokens that are sampled."""
    logits = product(hidden, weight, bias)
    if known is not None:
        logits[:, known:] = NEVER
    if temperature != 1.0:
        logits = logits.float().div_(temperature)
    return torch.log_softmax(logits, -1, dtype=torch.float32)
