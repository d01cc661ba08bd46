"""The first GRPO: each response's mean, as a mean over responses."""

from __future__ import annotations

from dataclasses import replace

from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms
from agent_rl.learning.losses.grpo import grpo


def sequence_mean(batch: MicroBatch, settings: LossSettings) -> Terms:
    """Every response has the same share, so the tokens of a long one weigh less.

    GRPO's objective in DeepSeekMath (arXiv 2402.03300), of N responses y_i, without its KL term::

        1 / N  *  sum_i  1 / |y_i|  *  sum_t  min(r_it * A_i, clip(r_it, 1 - clip_low, 1 + clip_high) * A_i)
    """
    return replace(grpo(batch, settings), shares=1.0 / (batch.sequences * batch.lengths))
