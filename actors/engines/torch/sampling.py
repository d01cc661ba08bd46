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


def sample(logits: Tensor, temperatures: NDArray[np.float32], draws: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverting the cumulative distribution; temperature 0 takes the likeliest.

    ``logits`` [n, vocabulary], ``temperatures`` [n], ``draws`` [n] in [0, 1). Returns tokens [n] int64 and their
    log-probabilities [n] float32 under the distribution sampled from (for temperature 0: at temperature 1).
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
        cumulative = logprobs.exp().cumsum(-1)
        targets = torch.from_numpy(draws).to(logits.device)[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[1] - 1)
        if greedy.any():
            is_greedy = torch.from_numpy(greedy).to(logits.device)[:, None]
            tokens = torch.where(is_greedy, logits.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]
