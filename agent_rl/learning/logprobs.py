"""Log-probabilities of tokens from hidden states, in pieces: the logits of all tokens never exist at once.

With n tokens, a vocabulary of v and pieces of c tokens, the logits of a micro-batch are n * v floats, and their
gradient n * v more. Here at most 3 * c * v floats exist at once (logits, probabilities, gradient), independent of n.
The backward pass computes a piece's logits again, unless one piece holds all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from agent_rl.learning.linear import product


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float,
    tokens_at_once: int,
    with_entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each target under softmax(logits / temperature), both [n] float32, with gradients.

    Without ``with_entropy``, which saves a pass over the logits, the entropies are 0. ``hidden`` [n, d]; ``weight`` [v,
    d] and ``bias`` [v] of the output layer; ``targets`` [n] int64. The temperature must be the rollout's: mu was
    sampled with it, so pi must be evaluated with it.
    """
    pair: tuple[Tensor, Tensor] = _Chunked.apply(
        hidden, weight, bias, targets, temperature, max(1, tokens_at_once), with_entropy
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
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy = (torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(2))
        kept = None
        for rows in _pieces(len(hidden), tokens_at_once):
            kept = None  # freed before the next is made
            kept = _log_softmax(hidden[rows], weight, bias, temperature)
            logprobs[rows] = kept.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
            if with_entropy:
                entropy[rows] = -kept.exp().mul_(kept).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy, kept if len(hidden) <= tokens_at_once else None)
        ctx.temperature, ctx.tokens_at_once = temperature, tokens_at_once
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, kept = ctx.saved_tensors
        of_logprobs, of_entropy = gradients
        hidden_needed, weight_needed, bias_needed = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if hidden_needed else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if weight_needed else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias_needed else None
        for rows in _pieces(len(hidden), ctx.tokens_at_once):
            log_p = _log_softmax(hidden[rows], weight, bias, ctx.temperature) if kept is None else kept
            p = log_p.exp_() if kept is None and of_entropy is None else log_p.exp()
            of_logits: Tensor | None = None
            if of_entropy is not None:  # d entropy / d logits = -p (log p + entropy)
                of_logits = (log_p + entropy[rows].unsqueeze(-1)).mul_(p).mul_(-of_entropy[rows].unsqueeze(-1))
            if of_logprobs is not None:  # d log p(target) / d logits = 1 at the target - p
                upstream = of_logprobs[rows].unsqueeze(-1)
                p.mul_(-upstream).scatter_add_(-1, targets[rows].unsqueeze(-1), upstream)
                of_logits = p if of_logits is None else of_logits.add_(p)
            assert of_logits is not None  # autograd calls this only with a gradient
            of_logits = of_logits.div_(ctx.temperature).to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[rows] = product(of_logits, weight.t())
            if of_weight is not None:
                of_weight += product(of_logits.t(), hidden[rows].t())
            if of_bias is not None:
                of_bias += of_logits.sum(0)
        return (
            of_hidden,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _pieces(count: int, tokens_at_once: int) -> Iterator[slice]:
    for start in range(0, count, tokens_at_once):
        yield slice(start, start + tokens_at_once)


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """[c, v] float32; computed in place, so that logits and log-softmax share one tensor."""
    logits = product(hidden, weight, bias).float()
    if temperature != 1.0:
        logits /= temperature
    logits -= logits.logsumexp(-1, keepdim=True)
    return logits
