"""A learner with another loss: the importance ratio of whole responses, as in GSPO (arXiv 2507.18071), not of tokens.

Two lines of a topology beside it choose it::

    [actors.learner]
    class = "sequence_ratio_learner:SequenceRatioLearner"

The ratio of a response is the geometric mean of its tokens' ratios, so it stays much nearer to 1 than theirs: with more
than one update a step, narrow the clip range too (the paper uses ``clip_low = 3e-4`` and ``clip_high = 4e-4``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.learner import Learner

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.learning.losses import LossSettings, LossSums


class SequenceRatioLearner(Learner):
    """Everything but the loss is the learner's as before."""

    def loss(
        self,
        logprobs: Tensor,
        proximal: Tensor,
        behaviour: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        normaliser: float,
        settings: LossSettings,
    ) -> tuple[Tensor, LossSums]:
        """The clipped surrogate of each response's ratio, weighted by the response's number of tokens.

        Tensors are [rows, width] float32, a row a response (see `agent_rl.learning.losses.Loss`). Stale responses are
        corrected once, by the capped ratio of the proximal policy to the one sampled from, of the whole response too.
        """
        import torch  # here, not above: `agent-rl check` loads this module, and has no need of torch

        from agent_rl.learning.losses import LossSums

        kept = mask > 0
        lengths = mask.sum(-1, keepdim=True)

        def of_response(gap: Tensor) -> Tensor:  # [rows, width] to [rows, 1]: the mean over the response's own tokens
            return torch.where(kept, gap, 0.0).sum(-1, keepdim=True) / lengths.clamp(min=1.0)

        ratio = of_response(logprobs - proximal).exp()
        gap = of_response(proximal - behaviour).exp()
        correction = gap.clamp(max=settings.correction_cap).detach()
        advantage = advantages[:, :1]  # one for all tokens of a response
        clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        loss = -(correction * surrogate * lengths).sum() / normaliser
        with torch.no_grad():
            sums = LossSums(
                clipped=((clipped * advantage < ratio * advantage) * lengths).sum().double(),
                ratio_deviation=((ratio - 1.0).abs() * lengths).sum().double(),
                correction=(correction * lengths).sum().double(),
                correction_capped=((gap > settings.correction_cap) * lengths).sum().double(),
                log_gap=(gap.log().abs() * lengths).sum().double(),
            )
        return loss, sums
