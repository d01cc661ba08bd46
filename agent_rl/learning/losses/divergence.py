"""Estimates of the divergence of the policy from a reference policy, for the KL penalty.

Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html, 2020), with d = log pi_ref - log pi_theta of a
token that pi_theta sampled::

    k1   -d                   without bias, of high variance, and may be negative
    k3   exp(d) - 1 - d       without bias, of low variance, and never negative

The gradient of k1 itself has the mean 0 and pulls nowhere. So here ``k1`` has the value of k1 and the gradient of
k2 = d**2 / 2, which is -d * grad log pi_theta: in the mean the gradient of KL(pi_theta, pi_ref). The gradient of k3
(the KL term of DeepSeekMath, arXiv 2402.03300) is (1 - exp(d)) * grad log pi_theta: that of KL(pi_ref, pi_theta).
Tokens are not weighted for having been sampled by an older policy.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor


def divergence(logprobs: Tensor, reference: Tensor, estimator: Literal["k1", "k3"]) -> Tensor:
    """The estimate of each token, in nats, with its gradient; all [rows, width]."""
    d = reference - logprobs
    if estimator == "k1":
        k2 = d.square() / 2
        return k2 + (-d - k2).detach()
    return d.exp() - 1.0 - d
