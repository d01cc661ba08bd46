"""The paper's loss, and DAPO's: the clipped surrogate of each token, as a mean over all tokens of the update."""

from __future__ import annotations

import torch

from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms, clipped_surrogate, corrections


def grpo(batch: MicroBatch, settings: LossSettings) -> Terms:
    """Every token has the same share, so a response weighs as much as it has tokens.

    DAPO's objective (arXiv 2503.14476), of responses y_i::

        1 / sum_i |y_i|  *  sum_i sum_t  min(r_it * A_i, clip(r_it, 1 - clip_low, 1 + clip_high) * A_i)
    """
    ratio = (batch.logprobs - batch.proximal).exp()
    objective, clipped = clipped_surrogate(ratio, batch.advantages, settings)
    correction, capped = corrections(batch, settings)
    return Terms(
        objective=objective,
        shares=torch.full_like(ratio, 1.0 / batch.tokens),
        correction=correction,
        capped=capped,
        ratio=ratio,
        clipped=clipped,
    )
