"""Samples a token for each row of a batch. A draw depends on the row's seed and position, not on other rows."""

from __future__ import annotations

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
    logprobs = scaled.log_softmax(-1)
    if greedy.all():
        tokens = logits.argmax(-1, keepdim=True)
    else:
        uniform = torch.from_numpy(draws).to(logits.device)[:, None]
        tokens = _draw(logprobs.exp(), uniform)
        if top_p is not None and top_k is not None:
            filtered = np.flatnonzero(~greedy & ((top_p < 1.0) | (top_k > 0)))
            if len(filtered):
                rows = torch.from_numpy(filtered).to(logits.device)
                probabilities, order = logprobs[rows].double().exp().sort(dim=-1, descending=True, stable=True)
                kept = _filtered(probabilities, top_p[filtered], top_k[filtered])
                tokens[rows] = order.gather(1, _draw(kept, uniform[rows].double()))
                mass = (kept.sum(-1, keepdim=True) / probabilities.sum(-1, keepdim=True)).log()
                logprobs[rows] -= mass.float()
        if greedy.any():
            is_greedy = torch.from_numpy(greedy).to(logits.device)[:, None]
            tokens = torch.where(is_greedy, logits.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """A token [n, 1] for each row [n, vocabulary], which need not add up to 1, from ``uniform`` [n, 1]."""
    cumulative = probabilities.cumsum(-1)
    found = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return found.clamp_(max=probabilities.shape[1] - 1)


def _filtered(probabilities: Tensor, top_p: NDArray[np.float32], top_k: NDArray[np.int64]) -> Tensor:
    """``probabilities`` [n, vocabulary], in descending order, with 0 for the tokens that are not sampled."""
    size = probabilities.shape[1]
    last = torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, size), size) - 1).to(probabilities.device)
    probabilities = probabilities.where(probabilities >= probabilities.gather(1, last[:, None]), 0.0)
    share = torch.from_numpy(top_p.astype(np.float64)).to(probabilities.device)[:, None]
    cumulative = probabilities.cumsum(-1)
    return probabilities.where(cumulative - probabilities < share * cumulative[:, -1:], 0.0)
