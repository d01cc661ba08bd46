"""Advantages and losses against the reference, and what each loss promises."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.plugins import ALIASES, ContractError, called, resolve
from agent_rl.learning import advantages
from agent_rl.learning.advantages import group_advantages
from agent_rl.learning.losses.base import LossSettings, MicroBatch, divergence, named_loss, reduced
from agent_rl.learning.losses.check_loss import loss_fault
from agent_rl.learning.losses.grpo import grpo
from agent_rl.learning.sequences import soft_overlong
from tests import builders
from tests.agent_rl.learning import reference_loss


@given(st.lists(st.integers(0, 4), min_size=2, max_size=8), st.sampled_from([1e-6, 1e-2, 1.0, 1e6]), st.booleans())
def test_advantages_are_those_of_the_paper_at_every_scale_of_rewards(rewards, scale, divide):
    given_rewards = np.array(rewards, dtype=np.float32) * np.float32(scale)
    made = group_advantages(given_rewards, divide_by_std=divide)
    assert made.dtype == np.float32
    expected = reference_loss.advantages(given_rewards.tolist(), divide_by_std=divide)
    assert made.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5 * (1.0 if divide else scale))


@given(st.lists(st.integers(-2, 2), min_size=2, max_size=8), st.floats(2**-20, 2**20, width=32), st.booleans())
def test_rewards_that_rounding_alone_tells_apart_are_equal(steps, reward, divide):
    rounded = np.float32(reward) + np.array(steps, np.float32) * np.spacing(np.float32(reward))
    assert not group_advantages(rounded, divide_by_std=divide).any()
    told = group_advantages(rounded + np.float32(reward * 1e-4) * (np.arange(len(steps)) == 0), divide_by_std=divide)
    assert told[0] > 0 > told[1:].min()


@pytest.mark.parametrize(
    ("made", "rewards", "fault"),
    [
        ([1, -1], [1.0, 0.0], None),
        (np.array([True, False]), [1.0, 0.0], "finite numbers"),
        ([0.5, 0.5, 0.5], [1.0, 0.0], "as many"),
        ([[0.5, 0.5]], [1.0, 0.0], "as many"),
        ([1.0, math.nan], [1.0, 0.0], "finite"),
        ([1.0, 1e300], [1.0, 0.0], "finite"),
        ([1.0, math.nan], [1.0, math.inf], None),  # whose rewards are at fault
    ],
)
def test_an_advantage_of_ones_own_is_checked_on_each_group(monkeypatch, made, rewards, fault):
    monkeypatch.setattr(advantages, "resolve", lambda *_: lambda rewards, divide_by_std: made)
    named, given_rewards = advantages.named_advantage("mine"), np.array(rewards, np.float32)
    if fault is None:
        found = named(given_rewards, divide_by_std=True)
        assert (found.dtype, found.tolist()) == (np.float32, pytest.approx(list(made), nan_ok=True))
        return
    with pytest.raises(ContractError, match=f"mine returned .* for the rewards .*{fault}"):
        named(given_rewards, divide_by_std=True)


LOSSES = ("grpo", "sequence_mean", "dr_grpo", "gspo", "cispo")


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    correction=st.sampled_from(["none", "truncated", "masked", "decoupled"]),
    bounds=st.sampled_from([(0.5, 2.0), (0.7, 1.2), (1.0, 1.0)]),
    sequence_mask=st.sampled_from([None, None, (0.9, 1.2), (1.0, 1.0)]),
    clip=st.sampled_from([(0.2, 0.28), (0.01, 0.5), (1.0, 0.05)]),
    kl=st.sampled_from([None, "k1", "k3"]),
)
def test_value_gradient_and_figures_of_a_loss_are_those_of_its_paper(
    loss, seed, correction, bounds, sequence_mask, clip, kl
):
    """Of a part of an update: responses of several lengths, the model's tokens among those of others, and gaps of both
    signs, of which some are 0.
    """
    algorithm = builders.algorithm(
        loss=loss,
        correction=correction,
        sequence_mask=sequence_mask,
        **dict(zip(("correction_floor", "correction_cap"), bounds, strict=True)),
        **dict(zip(("clip_low", "clip_high"), clip, strict=True)),
        kl=kl and {"coefficient": 0.7, "estimator": kl},
    )
    rng = np.random.default_rng(seed)
    mask = rng.random((3, 6)) < 0.6
    mask[np.arange(3), rng.integers(6, size=3)] = True
    proximal = -rng.integers(1, 24, mask.shape) / 8  # so that sums are exact, and a gap of 0 is at the bounds
    gaps = rng.choice([-1.0, -0.25, -0.125, 0.0, 0.125, 0.25, 1.0], (3, *mask.shape))
    gaps *= rng.integers(2, size=(3, 3, 1))  # some responses have none
    gains = rng.choice([-1.5, -0.5, 0.0, 0.5, 1.5], (3, 1))
    logprobs, behaviour, reference = (torch.tensor(proximal + each) for each in gaps)
    logprobs.requires_grad_()
    given = [each.where(torch.tensor(mask), 0.0) for each in (logprobs, torch.tensor(proximal), behaviour, reference)]
    batch = MicroBatch(
        **dict(zip(("logprobs", "proximal", "behaviour", "reference"), given, strict=True)),
        mask=torch.tensor(mask),
        turns=torch.zeros(mask.shape, dtype=torch.int64),
        advantages=torch.tensor(gains),
        rewards=torch.tensor(gains > 0),
        tokens=20,
        sequences=5,
        max_response_tokens=9,
    )
    function, constants = named_loss(algorithm)
    made, sums = reduced(batch, function(batch, constants), constants)
    (gradient,) = torch.autograd.grad(made, logprobs)
    rollouts = [
        reference_loss.Rollout(
            list(logprobs[row][mask[row]]),
            *(each[row][mask[row]].tolist() for each in (proximal, behaviour, reference)),
            float(gains[row, 0]),
        )
        for row in range(3)
    ]
    expected, told = reference_loss.loss_and_sums(rollouts, algorithm, 20, 5, 9)
    (theirs,) = torch.autograd.grad(expected, logprobs)
    assert float(made.detach()) == pytest.approx(float(expected.detach()), rel=1e-6, abs=1e-6)
    assert torch.allclose(gradient, theirs, rtol=1e-6, atol=1e-6)
    found = {name: float(value) for name in told if (value := getattr(sums, name)) is not None}
    assert found == pytest.approx({name: told[name] for name in found}, rel=1e-6, abs=1e-6)
    assert ("kl" in found) == (kl is not None)


def changed(change: Any) -> Any:
    """The loss of the package with something done to what it returns."""

    def loss(batch: MicroBatch, settings: LossSettings) -> Any:
        return change(grpo(batch, settings), batch)

    return loss


@pytest.mark.parametrize("name", ALIASES["loss"])
def test_every_loss_keeps_what_is_asked_of_it(name):
    assert loss_fault(resolve("loss", name), LossSettings()) == ""


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_mean_gradient_of_an_estimate_is_that_of_a_divergence(estimator):
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


def test_the_soft_penalty_falls_in_a_straight_line_before_the_limit():
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
def test_what_a_loss_may_not_do(change, fault):
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
def test_a_loss_that_raises_or_returns_something_else_is_named(change, fault):
    loss = changed(change)
    with pytest.raises(ContractError, match=fault):
        called("mine", lambda: loss_fault(loss, LossSettings()), "on a made-up micro-batch", loss)
