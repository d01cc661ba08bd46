"""A loss of your own: GSPO (arXiv 2507.18071, eq. 5 to 7), whose importance ratio is that of a whole response.

One line of a topology beside this file chooses it::

    [algorithm]
    loss = "sequence_ratio_loss:sequence_ratio"

The ratio of a response is the geometric mean of its tokens' ratios, so it stays much nearer to 1 than theirs: with more
than one update a step, narrow the clip range too (the paper uses ``clip_low = 3e-4`` and ``clip_high = 4e-4``).
"""

from torch import Tensor

from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms, clipped_surrogate


def sequence_ratio(batch: MicroBatch, settings: LossSettings) -> Terms:
    """The clipped surrogate of each response's ratio; a response has the same share whatever its length.

    Stale responses are corrected once, by the capped ratio of the proximal policy to the one sampled from, of the whole
    response too. Tensors are [rows, 1] where a value belongs to a response, [rows, width] where it belongs to a token.
    """

    def of_response(gap: Tensor) -> Tensor:
        return (gap.sum(-1, keepdim=True) / batch.lengths).exp()

    ratio = of_response(batch.logprobs - batch.proximal)
    objective, clipped = clipped_surrogate(ratio, batch.advantages, settings)
    gap = of_response(batch.proximal - batch.behaviour)
    return Terms(
        objective=objective,
        shares=1.0 / (batch.sequences * batch.lengths),
        correction=gap.clamp(max=settings.correction_cap),
        capped=gap > settings.correction_cap,
        ratio=ratio,
        clipped=clipped,
    )
