"""CISPO: the ratio's clipping bounds a token's weight, and no token loses its gradient."""

from __future__ import annotations

import torch

from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms, corrections


def cispo(batch: MicroBatch, settings: LossSettings) -> Terms:
    """REINFORCE with clipped importance weights; every token has the same share.

    MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5, of responses y_i::

        1 / sum_i |y_i|  *  sum_i sum_t  stop_grad(clip(r_it, 1 - clip_low, 1 + clip_high)) * A_i * log pi_theta(y_it)

    The paper has no lower bound: set ``clip_low = 1``.
    """
    ratio = (batch.logprobs - batch.proximal).detach().exp()
    bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    correction, capped = corrections(batch, settings)
    return Terms(
        objective=bounded * batch.advantages * batch.logprobs,
        shares=torch.full_like(ratio, 1.0 / batch.tokens),
        correction=correction,
        capped=capped,
        ratio=ratio,
        clipped=bounded != ratio,
    )
