"""Advantages and the policy loss against slow, readable references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from agent_rl.config.plugins import ContractError
from agent_rl.learning.advantages import group_advantages
from agent_rl.learning.losses import LossSettings, loss_fault, policy_loss, try_loss


def test_advantages_are_standardised_over_the_kept_group() -> None:
    advantages = group_advantages(np.array([1, 0, 0, 0], dtype=np.float32))
    assert advantages.dtype == np.float32
    assert advantages == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-6)
    assert group_advantages(np.array([1, 0, 0, 0], dtype=np.float32), divide_by_std=False) == pytest.approx(
        [0.75, -0.25, -0.25, -0.25]
    )


def test_equal_rewards_have_no_advantage() -> None:
    assert group_advantages(np.ones(4, dtype=np.float32)).tolist() == [0.0] * 4


def reference(logprobs, proximal, behaviour, advantages, mask, settings):
    """The loss as written in the module's docstring, token by token."""
    total, count = 0.0, 0
    for row in range(len(mask)):
        for t in range(len(mask[row])):
            if not mask[row][t]:
                continue
            count += 1
            r = math.exp(logprobs[row][t] - proximal[row][t])
            a = advantages[row][t]
            clipped = min(max(r, 1 - settings.clip_low), 1 + settings.clip_high)
            correction = min(math.exp(proximal[row][t] - behaviour[row][t]), settings.correction_cap)
            total += correction * min(r * a, clipped * a)
    return -total / count


def random_inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (4, 9)
    draws = {name: -3 * torch.rand(shape, generator=generator) for name in ("logprobs", "proximal", "behaviour")}
    draws["advantages"] = torch.randn(shape, generator=generator)
    draws["mask"] = (torch.rand(shape, generator=generator) < 0.7).float()
    return draws


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_equals_the_reference(seed: int) -> None:
    inputs = random_inputs(seed)
    settings = LossSettings()
    loss, _ = policy_loss(**inputs, normaliser=float(inputs["mask"].sum()), settings=settings)
    expected = reference(*(value.tolist() for value in inputs.values()), settings)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_micro_batches_sum_to_the_whole_batch() -> None:
    inputs = random_inputs()
    normaliser = float(inputs["mask"].sum())
    logprobs = inputs.pop("logprobs").requires_grad_()
    whole, _ = policy_loss(logprobs, **inputs, normaliser=normaliser, settings=LossSettings())
    whole.backward()
    gradient, logprobs.grad = logprobs.grad.clone(), None
    for rows in ([0], [1, 2], [3]):
        part = {name: value[rows] for name, value in inputs.items()}
        loss, _ = policy_loss(logprobs[rows], **part, normaliser=normaliser, settings=LossSettings())
        loss.backward()
    assert torch.allclose(gradient, logprobs.grad, atol=1e-7)


def test_on_policy_the_ratio_is_one_and_the_gradient_is_the_policy_gradient() -> None:
    inputs = random_inputs()
    logprobs = inputs["logprobs"].clone().requires_grad_()
    normaliser = float(inputs["mask"].sum())
    loss, sums = policy_loss(
        logprobs,
        logprobs.detach(),
        logprobs.detach(),
        inputs["advantages"],
        inputs["mask"],
        normaliser=normaliser,
        settings=LossSettings(),
    )
    loss.backward()
    assert torch.allclose(logprobs.grad, -inputs["advantages"] * inputs["mask"] / normaliser)
    assert float(sums.clipped) == 0
    assert float(sums.correction) == normaliser


def test_masked_tokens_may_hold_anything() -> None:
    inputs = random_inputs()
    inputs["mask"][0, 0] = 0.0
    clean, _ = policy_loss(**inputs, normaliser=1.0, settings=LossSettings())
    for name in ("logprobs", "proximal", "behaviour"):
        inputs[name] = inputs[name].clone()
        inputs[name][0, 0] = -math.inf
    inputs["logprobs"].requires_grad_()
    loss, _ = policy_loss(**inputs, normaliser=1.0, settings=LossSettings())
    loss.backward()
    assert float(loss.detach()) == float(clean)
    assert torch.isfinite(inputs["logprobs"].grad).all()


def test_the_correction_is_capped_and_carries_no_gradient() -> None:
    behaviour = torch.tensor([[-5.0]])
    proximal = torch.tensor([[-0.5]])
    logprobs = torch.tensor([[-0.5]], requires_grad=True)
    one = torch.ones(1, 1)
    loss, sums = policy_loss(
        logprobs, proximal, behaviour, one, one, normaliser=1.0, settings=LossSettings(correction_cap=2.0)
    )
    loss.backward()
    assert float(loss.detach()) == -2.0
    assert float(logprobs.grad) == -2.0  # d(-2 r)/d log r at r = 1
    assert float(sums.correction_capped) == 1


@pytest.mark.parametrize(
    ("advantage", "ratio", "stopped"), [(1, 1.3, True), (1, 0.5, False), (-1, 0.7, True), (-1, 1.5, False)]
)
def test_clip_higher_stops_only_what_goes_too_far(advantage: float, ratio: float, stopped: bool) -> None:
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    loss, sums = policy_loss(logprobs, zero, zero, advantage * one, one, normaliser=1.0, settings=LossSettings())
    loss.backward()
    assert (float(logprobs.grad) == 0.0) == stopped
    assert (float(sums.clipped) == 1) == stopped


def changed(change: Any) -> Any:
    """The loss of the package with something done to what it returns."""

    def loss(logprobs: Any, *tensors: Any, normaliser: float, settings: Any) -> Any:
        made, sums = policy_loss(logprobs, *tensors, normaliser=normaliser, settings=settings)
        return change(made, sums, logprobs, tensors[-1])

    return loss


def test_the_loss_keeps_what_is_asked_of_every_loss() -> None:
    assert loss_fault(policy_loss, LossSettings()) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda loss, sums, logprobs, mask: (-loss, sums), "does not fall"),
        (lambda loss, sums, logprobs, mask: (0.0 * loss, sums), "does not fall"),
        (
            lambda loss, sums, logprobs, mask: (loss + 0.0 * (logprobs.detach() * (1 - mask)).sum(), sums),
            "is not finite",
        ),
        (lambda loss, sums, logprobs, mask: (loss + 0.1 * logprobs.sum(), sums), "did not write"),
        (lambda loss, sums, logprobs, mask: (3.0 * loss / len(mask), sums), "sum of its micro-batches"),
    ],
)
def test_what_a_loss_may_not_do(change: Any, said: str) -> None:
    assert said in loss_fault(changed(change), LossSettings())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda loss, sums, logprobs, mask: loss, "returned Tensor; it must return the loss and its LossSums"),
        (lambda loss, sums, logprobs, mask: (loss[None], sums), "no scalar tensor"),
        (lambda loss, sums, logprobs, mask: {}["nothing"], "KeyError: 'nothing' (test_advantages_and_losses.py, line"),
    ],
)
def test_a_learner_whose_loss_raises_is_told_of_it(change: Any, said: str) -> None:
    with pytest.raises(ContractError) as told:
        try_loss(object(), changed(change), LossSettings())
    assert said in str(told.value)
