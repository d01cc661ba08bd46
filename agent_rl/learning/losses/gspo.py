"""GSPO: importance ratio, clipping and correction of whole responses."""

from __future__ import annotations

from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms, clipped_surrogate, corrections


def gspo(batch: MicroBatch, settings: LossSettings) -> Terms:
    """Every response has one ratio, the geometric mean of its tokens' ratios, and the same share.

    GSPO (arXiv 2507.18071), eq. 5, of N responses y_i with the ratios s_i::

        1 / N  *  sum_i  min(s_i * A_i, clip(s_i, 1 - clip_low, 1 + clip_high) * A_i)
        s_i = exp(1 / |y_i|  *  sum_t  log r_it)

    The correction w is computed from the geometric mean of pi_prox / mu over the response. The ratios s stay much
    nearer to 1 than those of tokens; the paper uses ``clip_low = 3e-4`` and ``clip_high = 4e-4``.
    """
    ratio = ((batch.logprobs - batch.proximal).sum(-1, keepdim=True) / batch.lengths).exp()
    objective, clipped = clipped_surrogate(ratio, batch.advantages, settings)
    correction, capped = corrections(batch, settings, of_responses=True)
    return Terms(
        objective=objective,
        shares=1.0 / (batch.sequences * batch.lengths),
        correction=correction,
        capped=capped,
        ratio=ratio,
        clipped=clipped,
    )
