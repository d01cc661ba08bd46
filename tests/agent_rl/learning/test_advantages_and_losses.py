"""Advantages, and what each loss promises; test_reference_loss.py compares values and gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from agent_rl.config.plugins import ALIASES, ContractError, called, resolve
from agent_rl.learning.advantages import group_advantages
from agent_rl.learning.losses.base import LossSettings, LossSums, MicroBatch, reduced
from agent_rl.learning.losses.check_loss import loss_fault
from agent_rl.learning.losses.divergence import divergence
from agent_rl.learning.losses.grpo import grpo
from agent_rl.learning.sequences import soft_overlong


def test_advantages_are_standardised_over_the_kept_group() -> None:
    advantages = group_advantages(np.array([1, 0, 0, 0], dtype=np.float32))
    assert advantages.dtype == np.float32
    assert advantages == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-6)
    assert group_advantages(np.array([1, 0, 0, 0], dtype=np.float32), divide_by_std=False) == pytest.approx(
        [0.75, -0.25, -0.25, -0.25]
    )


def test_equal_rewards_have_no_advantage() -> None:
    assert group_advantages(np.ones(4, dtype=np.float32)).tolist() == [0.0] * 4


def micro_batch(logprobs: Any, proximal: Any, behaviour: Any, advantages: Any, mask: Any, **counts: int) -> MicroBatch:
    """A micro-batch that is a whole update, unless ``counts`` says otherwise."""
    given = [torch.as_tensor(each).masked_fill(~mask, 0.0) for each in (logprobs, proximal, behaviour)]
    starts = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return MicroBatch(
        logprobs=given[0],
        proximal=given[1],
        behaviour=given[2],
        mask=mask,
        turns=starts.cumsum(-1) - 1,
        advantages=advantages,
        rewards=(advantages > 0).float(),
        max_response_tokens=mask.shape[1],
        **{"tokens": int(mask.sum()), "sequences": len(mask), **counts},
    )


def random_inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (4, 9)
    draws = {name: -3 * torch.rand(shape, generator=generator) for name in ("logprobs", "proximal", "behaviour")}
    draws["advantages"] = torch.randn((4, 1), generator=generator)
    draws["mask"] = torch.rand(shape, generator=generator) < 0.7
    return draws


def evaluate(batch: MicroBatch, settings: LossSettings = LossSettings()) -> tuple[torch.Tensor, LossSums]:  # noqa: B008 - it cannot change
    return reduced(batch, grpo(batch, settings), settings)


def test_on_policy_the_ratio_is_one_and_the_gradient_is_the_policy_gradient() -> None:
    inputs = random_inputs()
    inputs |= {"proximal": inputs["logprobs"], "behaviour": inputs["logprobs"]}
    inputs["logprobs"] = logprobs = inputs["logprobs"].clone().requires_grad_()
    loss, sums = evaluate(micro_batch(**inputs))
    loss.backward()
    tokens = float(inputs["mask"].sum())
    assert torch.allclose(logprobs.grad, -inputs["advantages"] * inputs["mask"] / tokens)
    assert float(sums.clip_share) == 0
    assert float(sums.correction_mean) == tokens


def test_the_correction_is_capped_and_carries_no_gradient() -> None:
    logprobs = torch.tensor([[-0.5]], requires_grad=True)
    one = torch.ones(1, 1)
    batch = micro_batch(logprobs, [[-0.5]], [[-5.0]], one, one > 0)
    loss, sums = evaluate(batch, LossSettings(correction_cap=2.0))
    loss.backward()
    assert float(loss.detach()) == -2.0
    assert float(logprobs.grad) == -2.0  # d(-2 r)/d log r at r = 1
    assert float(sums.correction_capped_share) == 1


@pytest.mark.parametrize(
    ("advantage", "ratio", "stopped"), [(1, 1.3, True), (1, 0.5, False), (-1, 0.7, True), (-1, 1.5, False)]
)
def test_clip_higher_stops_only_what_goes_too_far(advantage: float, ratio: float, stopped: bool) -> None:
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    loss, sums = evaluate(micro_batch(logprobs, zero, zero, advantage * one, one > 0))
    loss.backward()
    assert (float(logprobs.grad) == 0.0) == stopped
    assert (float(sums.clip_share) == 1) == stopped


def changed(change: Any) -> Any:
    """The loss of the package with something done to what it returns."""

    def loss(batch: MicroBatch, settings: LossSettings) -> Any:
        return change(grpo(batch, settings), batch)

    return loss


@pytest.mark.parametrize("name", ALIASES["loss"])
def test_every_loss_keeps_what_is_asked_of_it(name: str) -> None:
    assert loss_fault(resolve("loss", name), LossSettings()) == ""


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_mean_gradient_of_an_estimate_is_that_of_a_divergence(estimator: Literal["k1", "k3"]) -> None:
    """k1's of KL(pi_theta, pi_ref), k3's of KL(pi_ref, pi_theta): over all tokens, weighted by pi_theta."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.5, 0.7, 0.2, 0.4], dtype=torch.float64).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    estimates = divergence(logprobs, reference, estimator)
    (made,) = torch.autograd.grad((logprobs.detach().exp() * estimates).sum(), logits, retain_graph=True)
    reverse, forward = (logprobs.exp() * (logprobs - reference)).sum(), (reference.exp() * (reference - logprobs)).sum()
    (expected,) = torch.autograd.grad(reverse if estimator == "k1" else forward, logits, retain_graph=True)
    assert torch.allclose(made, expected, atol=1e-12)
    assert float((logprobs.exp() * estimates).sum().detach()) == pytest.approx(float(reverse.detach()), abs=1e-12)


def test_the_soft_penalty_falls_in_a_straight_line_before_the_limit() -> None:
    assert soft_overlong(np.array([10, 80, 90, 100, 101]), 100, 20).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda terms, _: replace(terms, objective=-terms.objective), "does not fall"),
        (lambda terms, _: replace(terms, objective=0.0 * terms.objective), "does not fall"),
        (lambda terms, batch: replace(terms, objective=terms.objective / 0.0), "is not finite"),
        (lambda terms, batch: replace(terms, shares=terms.shares / batch.mask.shape[1]), "sum of its micro-batches"),
        (lambda terms, batch: replace(terms, shares=terms.shares / len(batch.mask)), "sum of its micro-batches"),
    ],
)
def test_what_a_loss_may_not_do(change: Any, fault: str) -> None:
    assert fault in loss_fault(changed(change), LossSettings())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda terms, _: (terms.objective, terms),
            r"returned tuple; it must return agent_rl.learning.losses.base.Terms",
        ),
        (lambda terms, _: replace(terms, clipped=0.5), "returned clipped = 0.5; it must be a tensor"),
        (lambda terms, _: replace(terms, ratio=terms.ratio[None]), r"returned ratio of shape \[1, 3, 5\] for \[3, 5\]"),
        (lambda terms, _: {}["nothing"], r"KeyError: 'nothing' \(test_advantages_and_losses.py, line"),
    ],
)
def test_a_loss_that_raises_or_returns_something_else_is_named(change: Any, fault: str) -> None:
    loss = changed(change)
    with pytest.raises(ContractError, match=fault):
        called("mine", lambda: loss_fault(loss, LossSettings()), "on a made-up micro-batch", loss)
