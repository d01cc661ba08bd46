"""Dr. GRPO: sums over tokens, divided by a constant."""

from __future__ import annotations

from dataclasses import replace

import torch

from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms
from agent_rl.learning.losses.grpo import grpo


def dr_grpo(batch: MicroBatch, settings: LossSettings) -> Terms:
    """Every token has the same share, which does not depend on the lengths that were sampled.

    Dr. GRPO (arXiv 2503.20783), of N responses y_i; L is the stage's ``max_response_tokens``, as in the
    authors' code::

        1 / (N * L)  *  sum_i sum_t  min(r_it * A_i, clip(r_it, 1 - clip_low, 1 + clip_high) * A_i)

    The paper's advantages are not divided by the standard deviation: set ``advantage_std = false``.
    """
    share = 1.0 / (batch.sequences * batch.max_response_tokens)
    return replace(grpo(batch, settings), shares=torch.full_like(batch.logprobs, share))
