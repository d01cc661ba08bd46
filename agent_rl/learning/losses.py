"""The policy loss of GRPO-RoC: token-level clipped surrogate with clip-higher, and the correction for stale tokens.

The loss uses three distributions. A token was sampled from mu (an older policy, the engine's implementation, the
rollout's temperature); pi_prox is the learner's policy before the step's first update; pi_theta is the policy being
updated::

    loss = - sum_t  stop_grad(w(pi_prox / mu)) * min(r * A, clip(r, 1 - low, 1 + high) * A)  /  sum_t 1,
    r = pi_theta / pi_prox

The importance weight w corrects the gap between mu and pi_prox (staleness, and engine against learner). The clipped
ratio r corrects the gap between pi_prox and pi_theta. With pi_prox = mu the loss is the paper's. The weights, by name::

    none        1
    truncated   min(x, cap)                                truncated importance sampling; the default
    masked      x where floor <= x <= cap, else 0          IcePop (Ring-1T, arXiv 2510.18855)
    decoupled   x                                          decoupled PPO (AReaL, arXiv 2505.24298)

In addition, ``sequence_mask`` sets w to 0 in responses whose geometric mean of x is outside its bounds. Masked tokens
still count in the denominator, which is thus known before the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from agent_rl.config.plugins import ContractError, called, defined_at, needs_start


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Constants of the loss; the defaults are the paper's, and ``correction_cap`` the design's C."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    correction: Literal["none", "truncated", "masked", "decoupled"] = "truncated"
    correction_cap: float = 2.0
    correction_floor: float = 0.5
    sequence_mask: tuple[float, float] | None = None
    entropy_coefficient: float = 0.0


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over tokens, each a float64 scalar tensor; divide by the token count of the whole batch for means.

    ``correction_capped`` counts tokens whose correction was reduced to the cap or to 0.
    """

    clipped: Tensor
    ratio_deviation: Tensor
    correction: Tensor
    correction_capped: Tensor
    log_gap: Tensor


class Loss(Protocol):
    """The interface of a loss: `policy_loss`, or a loss of your own that the topology names.

    All tensors are [rows, width] float32 and hold one micro-batch of an update; each row is a trajectory's response,
    padded on the right. ``mask`` is 1 for the model's own tokens and 0 elsewhere; where it is 0, log-probabilities may
    have any value, even infinity. ``logprobs`` carries the gradient. The trainer sums the losses of an update's
    micro-batches, so divide by ``normaliser``, the number of the model's tokens in all of them.
    """

    def __call__(
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
        """The loss, a scalar, and sums for the figures."""


def policy_loss(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    normaliser: float,
    settings: LossSettings,
) -> tuple[Tensor, LossSums]:
    """The loss of one micro-batch, to be summed over the micro-batches of an update.

    See `Loss` for shapes, ``mask`` and ``normaliser`` (which counts the tokens of all ranks). ``logprobs`` is log
    pi_theta, ``proximal`` log pi_prox, ``behaviour`` log mu; ``advantages`` has a value for every token.
    """
    kept = mask > 0
    # Masked inputs may have any value. Replace them before exp, since infinity times the mask's 0 is NaN.
    log_ratio = torch.where(kept, logprobs - proximal, 0.0)
    log_gap = torch.where(kept, proximal - behaviour, 0.0)
    ratio = log_ratio.exp()
    correction, cut = corrections(log_gap.detach(), kept, settings)
    clipped_ratio = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped_ratio * advantages)
    loss = -(correction * surrogate * mask).sum() / normaliser
    with torch.no_grad():
        was_clipped = ((clipped_ratio * advantages < ratio * advantages) & kept).sum()
        sums = LossSums(
            clipped=was_clipped.double(),
            ratio_deviation=((ratio - 1.0).abs() * mask).sum().double(),
            correction=(correction * mask).sum().double(),
            correction_capped=(cut & kept).sum().double(),
            log_gap=(log_gap.abs() * mask).sum().double(),
        )
    return loss, sums


def corrections(log_gap: Tensor, kept: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The weight w of each token, and which weights were reduced; all [rows, width].

    ``log_gap`` is 0 where not ``kept``.
    """
    gap = log_gap.exp()
    cap, floor = settings.correction_cap, settings.correction_floor
    match settings.correction:
        case "none":
            weight, cut = torch.ones_like(gap), torch.zeros_like(kept)
        case "truncated":
            weight, cut = gap.clamp(max=cap), gap > cap
        case "masked":
            cut = (gap > cap) | (gap < floor)
            weight = torch.where(cut, 0.0, gap)
        case "decoupled":
            weight, cut = gap, torch.zeros_like(kept)
    if settings.sequence_mask is not None:
        low, high = settings.sequence_mask
        mean = (log_gap.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True).clamp(min=1)).exp()
        outside = ((mean < low) | (mean > high)).expand_as(kept)
        weight, cut = torch.where(outside, 0.0, weight), cut | outside
    return weight, cut


def try_loss(learner: object, loss: Loss, settings: LossSettings, name: str = "") -> None:
    """Try a learner's loss, or the loss named ``name``, on a made-up micro-batch.

    Raises ContractError for a wrong result.
    """
    name = name or f"{type(learner).__name__}.loss"
    try:
        fault = called(name, lambda: loss_fault(loss, settings), "on a made-up micro-batch", loss)
    except ContractError as error:
        if not needs_start(error, learner):
            raise
        return
    if fault:
        place = defined_at(loss)
        raise ContractError(f"{name} {fault}" + (f" ({place})" if place else ""))


def loss_fault(loss: Loss, settings: LossSettings) -> str:
    """How a loss breaks the contract of `Loss` on a made-up micro-batch; empty if it does not.

    Raises what the loss raises.
    """
    drawn = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1.0, 1, 0, 1, 0], [1, 0, 0, 1, 1], [1, 1, 1, 0, 0]])
    advantages = torch.tensor([[1.3], [-0.7], [-0.2]]).expand_as(mask)
    sampled = -2.0 * torch.rand(mask.shape, generator=drawn)

    def evaluate(rows: slice, elsewhere: float) -> tuple[Tensor, Tensor]:
        behaviour = torch.where(mask > 0, sampled, elsewhere)
        logprobs = behaviour[rows].clone().requires_grad_()
        made = loss(
            logprobs,
            behaviour[rows],
            behaviour[rows],
            advantages[rows],
            mask[rows],
            normaliser=float(mask.sum()),
            settings=settings,
        )
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], LossSums)):
            raise TypeError(f"returned {type(made).__name__}; it must return the loss and its LossSums")
        if not isinstance(made[0], Tensor) or made[0].shape != ():
            raise TypeError("returned a loss that is no scalar tensor")
        gradient = torch.autograd.grad(made[0], logprobs, allow_unused=True)[0] if made[0].requires_grad else None
        return made[0].detach(), torch.zeros_like(mask[rows]) if gradient is None else gradient

    _, gradient = evaluate(slice(None), -7.0)
    if bool(gradient[mask == 0].any()):
        return "has a gradient on tokens the model did not write"
    whole, gradient = evaluate(slice(None), torch.nan)
    if not bool(whole.isfinite()) or not bool(gradient.isfinite().all()):
        return "is not finite, or its gradient is not, where log-probabilities are NaN outside the mask"
    if float((gradient * advantages).sum()) >= 0.0:
        return "does not fall when tokens with a positive advantage become likelier, and others less likely"
    parts = [evaluate(slice(row, row + 1), torch.nan)[0] for row in range(len(mask))]
    if not torch.isclose(torch.stack(parts).sum(), whole, rtol=1e-4, atol=1e-6):
        return "of a whole update is not the sum of its micro-batches' losses; divide by `normaliser`, not by the batch"
    return ""
