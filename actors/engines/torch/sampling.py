"""Samples a token for each row of a batch. A draw depends on the row's seed and position, not on other rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_BITS = 23
"""Uniforms of 23 bits: ``u * total`` in float32 then stays below ``total``, so a draw never exceeds the last token."""

_BLOCK, _LEAST_BLOCK, _LARGE = 256, 32, 4096
"""Tokens of a block of a vocabulary that is drawn from in two steps, at most and at least, and of such a vocabulary."""


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """A uniform number in [0, 1) for each (seed, position): [n], [n] -> [n]. A hash, without state."""
    counters = positions.astype(np.uint64) * _INCREMENT
    mixed = _mix(_mix(seeds + _INCREMENT) + counters)
    return ((mixed >> np.uint64(64 - _BITS)).astype(np.float32)) * np.float32(2.0**-_BITS)


def sample(
    logits: Tensor,
    temperatures: NDArray[np.float32],
    draws: NDArray[np.float32],
    top_p: NDArray[np.float32] | None = None,
    top_k: NDArray[np.int64] | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverting the cumulative distribution; temperature 0 takes the likeliest.

    ``logits`` [n, vocabulary], ``temperatures`` [n], ``draws`` [n] in [0, 1), ``top_p`` and ``top_k`` [n] as of
    `actors.engines.base.TurnRequest`. Returns tokens [n] int64 and their log-probabilities [n] float32 under the
    distribution that was sampled from (for temperature 0: under the whole vocabulary at temperature 1).
    """
    logits = logits.float()
    greedy = temperatures == 0.0
    scaled = logits
    if not (greedy | (temperatures == 1.0)).all():
        scale = torch.from_numpy(np.where(greedy, np.float32(1.0), temperatures)).to(logits.device)
        scaled = logits / scale[:, None]
    top = scaled.amax(-1, keepdim=True)
    weights = (scaled - top).exp_()
    lost = torch.zeros_like(top)  # log of the probability that filters leave
    if greedy.all():
        tokens = logits.argmax(-1, keepdim=True)
    else:
        uniform = torch.from_numpy(draws).to(logits.device)[:, None]
        tokens = _draw(weights, uniform)
        if top_p is not None and top_k is not None:
            filtered = np.flatnonzero(~greedy & ((top_p < 1.0) | (top_k > 0)))
            if len(filtered):
                rows = torch.from_numpy(filtered).to(logits.device)
                of_rows = scaled[rows].log_softmax(-1).double().exp()
                probabilities, order = of_rows.sort(dim=-1, descending=True, stable=True)
                kept = _filtered(probabilities, top_p[filtered], top_k[filtered])
                tokens[rows] = order.gather(1, _draw(kept, uniform[rows].double()))
                lost[rows] = (kept.sum(-1, keepdim=True) / probabilities.sum(-1, keepdim=True)).log().float()
        if greedy.any():
            is_greedy = torch.from_numpy(greedy).to(logits.device)[:, None]
            tokens = torch.where(is_greedy, logits.argmax(-1, keepdim=True), tokens)
    logprobs = scaled.gather(1, tokens) - top - weights.sum(-1, keepdim=True).log() - lost
    return tokens[:, 0], logprobs[:, 0]


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """A token [n, 1] for each row [n, vocabulary], which need not add up to 1, from ``uniform`` [n, 1].

    In a large vocabulary a block is drawn first, then a token of it: torch's running sums are slow on CPU.
    """
    rows, vocabulary = weights.shape
    block = math.gcd(vocabulary, _BLOCK)
    if vocabulary < _LARGE or block < _LEAST_BLOCK or weights.device.type != "cpu":
        return _reached(weights.cumsum(-1), uniform)[0]
    blocks = weights.view(rows, -1, block)
    sums = blocks.sum(-1)
    chosen, target = _reached(running := sums.cumsum(-1), uniform)
    rest = target - (running - sums).gather(1, chosen)
    inside = blocks[torch.arange(rows), chosen[:, 0]].cumsum(-1)
    # Rounding must not lead out of the block, nor to a token without weight.
    return chosen * block + _reached(inside, (rest / inside[:, -1:]).clamp_(0.0, 1.0 - 2.0**-_BITS))[0]


def _reached(running: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Where running sums [n, m] exceed a share of the whole, which is ``uniform`` [n, 1], and this share."""
    target = uniform * running[:, -1:]
    return torch.searchsorted(running, target, right=True).clamp_(max=running.shape[1] - 1), target


def _filtered(probabilities: Tensor, top_p: NDArray[np.float32], top_k: NDArray[np.int64]) -> Tensor:
    """``probabilities`` [n, vocabulary], in descending order, with 0 for the tokens that are not sampled."""
    size = probabilities.shape[1]
    last = torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, size), size) - 1).to(probabilities.device)
    probabilities = probabilities.where(probabilities >= probabilities.gather(1, last[:, None]), 0.0)
    share = torch.from_numpy(top_p.astype(np.float64)).to(probabilities.device)[:, None]
    cumulative = probabilities.cumsum(-1)
    return probabilities.where(cumulative - probabilities < share * cumulative[:, -1:], 0.0)
