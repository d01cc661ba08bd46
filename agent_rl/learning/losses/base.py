"""The interface of a loss, and what all losses share: the correction for stale tokens, and the sum of a micro-batch.

Three distributions take part. A token was sampled from mu (an older policy, the engine's implementation, the rollout's
temperature, the tokens that ``top_p`` and ``top_k`` kept); pi_prox is the learner's policy before the step's first
update; pi_theta is the policy being updated. A loss says for each token t what is to rise, o_t, and with which share
c_t of the update. The trainer minimises::

    - sum_t  c_t * stop_grad(w_t) * o_t

With a reference policy, ``kl.coefficient * sum_t c_t * KL_t`` is added (see `divergence`).

The weight w corrects the gap x = pi_prox / mu between mu and pi_prox (staleness, and engine against learner). With
r = pi_theta / pi_prox, the ratio in o corrects the gap between pi_prox and pi_theta. The weights, by name::

    none        1
    truncated   min(x, cap)                                truncated importance sampling; the default
    masked      x where floor <= x <= cap, else 0          IcePop (Ring-1T, arXiv 2510.18855)
    decoupled   x                                          decoupled PPO (AReaL, arXiv 2505.24298)

In addition, ``sequence_mask`` sets w to 0 in responses whose geometric mean of x is outside its bounds. Masked tokens
still count in the shares, which are thus known before the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Protocol

import torch
from torch import Tensor

from agent_rl.config.algorithm import Algorithm, KlPenalty
from agent_rl.config.plugins import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Constants of the loss: the keys of ``[algorithm]`` of the same names."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    correction: Literal["none", "truncated", "masked", "decoupled"] = "truncated"
    correction_cap: float = 2.0
    correction_floor: float = 0.5
    sequence_mask: tuple[float, float] | None = None
    entropy_coefficient: float = 0.0
    kl: KlPenalty | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some responses of an update, a row each, padded on the right.

    Tensors are float32 [rows, width] unless their line says otherwise. The trainer sums the losses of an update's
    micro-batches, so a loss divides by ``tokens`` or ``sequences``, which count the whole update. No response is split.
    """

    logprobs: Tensor
    """log pi_theta, with the gradient; 0 outside the mask, as the next two are."""
    proximal: Tensor
    """log pi_prox."""
    behaviour: Tensor
    """log mu."""
    mask: Tensor
    """bool: the tokens that the model wrote."""
    turns: Tensor
    """int64: the number of the turn that wrote the token, from 0; of other tokens, of the turn before (or -1)."""
    advantages: Tensor
    """[rows, 1]."""
    rewards: Tensor
    """[rows, 1]: what the advantages were computed from."""
    tokens: int
    """The model's tokens in the whole update, at least 1."""
    sequences: int
    """The responses in the whole update, at least 1."""
    max_response_tokens: int
    """The most tokens that a response of the stage may have."""
    reference: Tensor | None = None
    """log pi_ref, 0 outside the mask; None without a KL penalty."""

    @property
    def lengths(self) -> Tensor:
        """The model's tokens of each response [rows, 1], at least 1."""
        return self.mask.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The result of a loss for a micro-batch: tensors that broadcast to [rows, width]. Nothing outside the mask
    counts.
    """

    objective: Tensor
    """o, what is to rise, with the gradient."""
    shares: Tensor
    """c, the token's share of the update."""
    correction: Tensor
    """w, without a gradient."""
    capped: Tensor
    """bool: w was reduced, to the cap or to 0."""
    ratio: Tensor
    """r, for the figures."""
    clipped: Tensor
    """bool, for the figures: the bounds of the ratio changed o."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over tokens, each a float64 scalar tensor; divide by the token count of the whole step for means."""

    clip_share: Tensor
    ratio_deviation: Tensor
    correction_mean: Tensor
    correction_capped_share: Tensor
    policy_gap: Tensor
    kl: Tensor | None


class Loss(Protocol):
    """The loss that ``algorithm.loss`` names: one of this package, or a user's function."""

    def __call__(self, batch: MicroBatch, settings: LossSettings) -> Terms:
        """The terms of one micro-batch."""


def named_loss(algorithm: Algorithm) -> tuple[Loss, LossSettings]:
    """The loss that ``algorithm.loss`` names, and its settings. Raises PluginError."""
    settings = LossSettings(**{field.name: getattr(algorithm, field.name) for field in fields(LossSettings)})
    return resolve("loss", algorithm.loss), settings


def reduced(batch: MicroBatch, terms: Terms, settings: LossSettings) -> tuple[Tensor, LossSums]:
    """The loss of a micro-batch with its KL penalty, a scalar with the gradient; and the sums for the figures."""

    def total(values: Tensor) -> Tensor:
        return torch.where(batch.mask, values.detach(), 0.0).sum(dtype=torch.float64)

    loss = -torch.where(batch.mask, terms.shares * terms.correction * terms.objective, 0.0).sum()
    kl = None
    if settings.kl is not None and batch.reference is not None:
        estimates = divergence(batch.logprobs, batch.reference, settings.kl.estimator)
        loss = loss + settings.kl.coefficient * torch.where(batch.mask, terms.shares * estimates, 0.0).sum()
        kl = total(estimates)
    return loss, LossSums(
        clip_share=total(terms.clipped.double()),
        ratio_deviation=total((terms.ratio - 1.0).abs()),
        correction_mean=total(terms.correction),
        correction_capped_share=total(terms.capped.double()),
        policy_gap=total((batch.proximal - batch.behaviour).abs()),
        kl=kl,
    )


def corrections(batch: MicroBatch, settings: LossSettings, *, of_responses: bool = False) -> tuple[Tensor, Tensor]:
    """The weight w of each token, and which weights were reduced; both [rows, width].

    ``of_responses``: of each response, from the geometric mean of its tokens' x; both [rows, 1].
    """
    log_gap = batch.proximal - batch.behaviour
    mean = (log_gap.sum(-1, keepdim=True) / batch.lengths).exp()
    gap = mean if of_responses else log_gap.exp()
    cap, floor = settings.correction_cap, settings.correction_floor
    uncut = torch.zeros_like(gap, dtype=torch.bool)
    match settings.correction:
        case "none":
            weight, cut = torch.ones_like(gap), uncut
        case "truncated":
            weight, cut = gap.clamp(max=cap), gap > cap
        case "masked":
            cut = (gap > cap) | (gap < floor)
            weight = torch.where(cut, 0.0, gap)
        case "decoupled":
            weight, cut = gap, uncut
    if settings.sequence_mask is not None:
        low, high = settings.sequence_mask
        outside = (mean < low) | (mean > high)
        weight, cut = torch.where(outside, 0.0, weight), cut | outside
    return weight, cut


def clipped_surrogate(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """min(r * A, clip(r) * A) of PPO (L^CLIP in arXiv 1707.06347) with two bounds, and where the bound was smaller."""
    bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    surrogate = torch.minimum(ratio * advantages, bounded * advantages)
    return surrogate, (bounded * advantages < ratio * advantages).detach()


def divergence(logprobs: Tensor, reference: Tensor, estimator: Literal["k1", "k3"]) -> Tensor:
    """Estimates of the divergence from a reference policy, in nats, with their gradients; all [rows, width].

    Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html, 2020), with d = log pi_ref - log pi_theta
    of a token that pi_theta sampled: k1 = -d has no bias and high variance, k3 = exp(d) - 1 - d has low variance and is
    never negative. The gradient of k1 itself has the mean 0 and pulls nowhere. So here ``k1`` has the value of k1 and
    the gradient of k2 = d**2 / 2: in the mean that of KL(pi_theta, pi_ref). The gradient of k3 (the KL term of
    DeepSeekMath, arXiv 2402.03300) is that of KL(pi_ref, pi_theta). Tokens are not weighted for having been sampled by
    an older policy.
    """
    d = reference - logprobs
    if estimator == "k1":
        k2 = d.square() / 2
        return k2 + (-d - k2).detach()
    return d.exp() - 1.0 - d
