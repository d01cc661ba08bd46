"""Advantages, losses and the trainer against the reference, and what each loss promises.

The same gradients and figures, whatever the micro-batches, pieces and packing.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoModelForCausalLM

from agent_rl.config.plugins import ALIASES, ContractError, called, resolve
from agent_rl.config.topology import InitialiseModel, Lora
from agent_rl.learning import advantages
from agent_rl.learning.advantages import group_advantages
from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms, divergence, named_loss, reduced
from agent_rl.learning.losses.check_loss import loss_fault
from agent_rl.learning.losses.grpo import grpo
from agent_rl.learning.packing import pack
from agent_rl.learning.policy_model import ModelOptions
from agent_rl.learning.sequences import soft_overlong, training_sequences
from agent_rl.learning.tiny import initialise_model
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup, Trajectory
from agent_rl_contract import builders
from tests.agent_rl.learning import reference_loss
from tests.agent_rl.learning.trainers import small_trainer

FAR = 0.5
"""How far the plain gradient descent between updates goes: so far that ratios leave 1, and some the clip range."""
LONGEST = 14
"""The most tokens that a response may have."""
LOSSES = ("grpo", "sequence_mean", "dr_grpo", "gspo", "cispo")
CORRECTIONS = ("none", "truncated", "masked", "decoupled")
REWARDS = ([1.0, 0.0, 0.25, 0.0], [0.0, 3.0], [0.5, 0.5, 0.75])
"""Of groups of several sizes. The second rollout of each of the first two groups ends in another way."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "overlong": ("train", "mask", "penalty"),
    "epochs": (1, 2),
    "updates_per_step": (1, 2, 4),
    "sequence_mask": (None, (0.5, 2.0)),
    "kl": (None, "k1", "k3"),
    "entropy_coefficient": (0.0, 0.5),
    "advantage_std": (True, False),
    "temperature": (1.0, 0.8),
    "microbatch_tokens": (1, 40, 10_000),
    "logits_mib": (0, 256),
    "block": (0, 1, 3),
    "lora": (None, None, None, Lora(rank=2, alpha=4, targets=("all-linear",))),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model, and a reference policy: another architecture with the same tokenizer."""
    made = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("other")
    spec = InitialiseModel(hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=48)
    initialise_model(spec, made[0], 0)
    spec = InitialiseModel(hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_size=32)
    initialise_model(spec, made[1], 7)
    return made


def sampled(seed: int) -> list[TrainingGroup]:
    """Groups of `REWARDS`: tokens at random, mu near what a new model says; rollouts begin as the one before did.

    A rollout may be the same as the one before, or a part of it. Its tokens are on a first sequence and up to two
    branches, some of them of branches, and of several versions.
    """
    rng = np.random.default_rng(seed)

    def grown(plain: Trajectory, prompt: Any, before: Any, status: Any) -> Trajectory:
        size = plain.response_length
        tokens = rng.integers(7, 100, size).astype(np.int32)
        shared = int(rng.integers(min(size, len(before)) + 1))
        tokens[:shared] = before[:shared]
        mask = (rng.random(size) < 0.7).astype(np.uint8)
        mask[-1] = 1
        cuts = sorted(rng.choice(np.arange(1, size), min(int(rng.integers(3)), size - 1), replace=False))
        lengths, rows = [len(prompt) + int([*cuts, size][0])], []
        for start, end in zip(cuts, [*cuts[1:], size], strict=False):
            parent = int(rng.integers(len(lengths)))
            rows.append((parent, int(rng.integers(1, lengths[parent] + 1)), int(start)))
            lengths.append(rows[-1][1] + int(end - start))
        return builders.repacked(
            replace(plain, transcript=replace(plain.transcript, status=status)),
            prompt_tokens=prompt,
            tokens=tokens,
            loss_mask=mask,
            logprobs=(mask * (-4.6 + rng.choice([0.3, 1.0]) * rng.standard_normal(size))).astype(np.float32),
            policies=np.stack([np.full(size, 4), np.sort(rng.integers(9, size=size))], 1).astype(np.int32),
            branches=np.array(rows, np.int32).reshape(-1, 3),
        )

    made = []
    for number, rewards in enumerate(REWARDS):
        opened, rollouts, before = builders.opened(number), [], np.zeros(0, np.int32)
        prompt = np.concatenate([[7, 8, 9], rng.integers(7, 100, rng.integers(1, 20))]).astype(np.int32)
        for sample in range(len(rewards)):
            status = ("truncated", "turn_limit", "finished")[number] if sample == 1 else "finished"
            plain = builders.trajectory(opened, sample, tokens=int(rng.integers(3, LONGEST)))
            rollouts.append(grown(plain, prompt, before, status))
            before = rollouts[-1].unpack().tokens
        given = np.array(rewards, dtype=np.float32)
        made.append(TrainingGroup(opened.group, 0, opened.policy, tuple(rollouts), given))
    return made


def adapted(model: Any, trained: Trainer, lora: Lora) -> Any:
    """The plain model with the adapters that the trainer begins with."""
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
    )
    made = inject_adapter_in_model(config, model)
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            parameter.data = trained.model.trained()[name].double()
    return made


@pytest.mark.parametrize("seed", range(10))
def test_gradients_and_figures_of_a_step_are_the_references(models, seed):
    """Each loss with two corrections, and what else a step may have chosen at random; plain gradient descent is in the
    optimizer's place.
    """
    loss, correction = LOSSES[seed % 5], CORRECTIONS[seed % 4]
    drawn = random.Random(seed)
    asked = {name: drawn.choice(values) for name, values in CHOICES.items()}
    logits_mib, block, lora = (asked.pop(name) for name in ("logits_mib", "block", "lora"))
    if asked["overlong"] != "mask":  # which leaves 8 of 9 rollouts
        asked["updates_per_step"] = drawn.choice((1, 3))
    asked["kl"] = asked["kl"] and {"coefficient": 0.7, "estimator": asked["kl"], "reference": str(models[1])}
    low, high = (0.01, 0.02) if loss == "gspo" else (0.02, 0.05)  # so narrow that ratios leave the range
    algorithm = builders.algorithm(
        loss=loss, correction=correction, clip_low=low, clip_high=high, overlong_cache=8, gradient_clip=3.0, **asked
    )
    groups = sampled(seed)
    options = {"options": ModelOptions(logits_mib=logits_mib), "lora": lora, "mismatch_tokens": 0}
    trained = small_trainer(models[0], algorithm=algorithm, reference=models[1], **options)
    trained.model.block = block
    loss_of, rewards = trained.loss, []

    def watched(batch: MicroBatch, settings: LossSettings) -> Terms:
        rewards.extend(batch.rewards[:, 0].tolist())
        return loss_of(batch, settings)

    trained.loss = watched
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float64, attn_implementation="eager") for each in models
    )
    policy = adapted(policy, trained, lora) if lora else policy
    gradients = []

    def descend(rate: float, clip: float) -> float:
        named = dict(trained.model.named_parameters())
        gradients.append({name: p.grad.double() for name, p in named.items() if p.grad is not None})
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients[-1].values()))
        with torch.no_grad():
            for p in named.values():
                p.sub_(FAR / max(1.0, norm) * p.grad)
        assert (rate, clip) == (0.001, 3.0)
        return norm

    trained.optimizer.step = descend
    stage = builders.rl_stage(max_response_tokens=LONGEST, learning_rate=0.001, warmup_steps=0)
    figures = trained.rl_step(groups, stage, 0)
    expected, told = reference_loss.step(policy, groups, algorithm, FAR, reference=reference, longest=LONGEST)
    assert len(gradients) == len(expected) == algorithm.updates_per_step * algorithm.epochs
    largest = max(float(g.abs().max()) for theirs in expected for g in theirs.values())
    for ours, theirs in zip(gradients, expected, strict=True):
        assert ours.keys() == theirs.keys()
        # fp32 rounds by the gradient's own size; after a long descent the weights themselves differ by that too.
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-4 * largest
    assert (figures.kl is None) == (algorithm.kl is None)
    sequences = [s for each in groups for s in training_sequences(each, group_advantages, algorithm, LONGEST)]
    assert sorted(rewards) == sorted([s.reward for s in sequences] * algorithm.epochs)
    found = {name: getattr(figures, name) or 0.0 for name in told}
    assert found == pytest.approx(told, rel=1e-3, abs=1e-4)
    assert (found["clip_share"] > 0) == (len(expected) > 1)


@pytest.mark.parametrize("overlong", CHOICES["overlong"])
def test_what_the_trainer_computes_with_is_what_the_trajectory_says(overlong):
    """A turn begins where the model's tokens do, and with a branch; truncated rollouts alone are left out."""
    algorithm = builders.algorithm(overlong=overlong, overlong_cache=8)
    for group in (group for seed in range(4) for group in sampled(seed)):
        chosen = list(zip(group.trajectories, group.rewards.tolist(), strict=True))
        chosen = [each for each in chosen if overlong != "mask" or each[0].status != "truncated"]
        made = training_sequences(group, group_advantages, algorithm, LONGEST)
        assert [each.name for each in made] == [f"{group.group}, sample {rollout.sample}" for rollout, _ in chosen]
        for sequence, (rollout, reward) in zip(made, chosen, strict=True):
            body, number, turns = rollout.unpack(), -1, []
            for place, own in enumerate(body.loss_mask):
                begins = place == 0 or not body.loss_mask[place - 1] or place in body.branches[:, 2]
                number += bool(own and begins)
                turns.append(number)
            assert sequence.turns.tolist() == turns
            assert sequence.versions.tolist() == body.policies[:, 1].tolist()
            paths = [tokens for tokens, _ in sequence.paths(sequence.mask)]
            for block in (0, 1):
                row = pack(paths, torch.device("cpu"), block=block).tokens.shape[1]
                most = len(sequence.tokens) + sequence.beside(shared_once=bool(block))
                assert row <= most if block else row == most
            over = min(1.0, max(0, len(turns) - 6) / 8) if overlong == "penalty" else 0.0
            assert (sequence.reward, sequence.generator) == (reward - over, rollout.generator)


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
        (lambda terms, _: {}["nothing"], r"KeyError: 'nothing' \(test_reference_loss.py, line"),
    ],
)
def test_a_loss_that_raises_or_returns_something_else_is_named(change, fault):
    loss = changed(change)
    with pytest.raises(ContractError, match=fault):
        called("mine", lambda: loss_fault(loss, LossSettings()), "on a made-up micro-batch", loss)
