"""How far an update moves the policy, and what is taken back of it."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.learning.finite import NotFiniteError
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.step_size import FASTEST, LEAST, MOST, SLOWEST, Moved, StepSize
from agent_rl.learning.step_size import moved as moved_by
from agent_rl_contract import builders
from tests.agent_rl.learning.test_training import groups, scaled
from tests.agent_rl.learning.trainers import before_updates, small_trainer

TARGET = 1e-3


@given(st.floats(1 / 200, 10), st.floats(0.1, 1))
def test_a_rate_that_is_off_comes_to_the_target_and_what_is_too_far_is_kept_to_it(rate, full):
    """The policy moves as far as the rate says, so that the divergence is the square."""
    size, aim = StepSize(), TARGET * full
    assert size.kept(Moved(3.9 * aim), aim) == 1.0 > size.kept(Moved(4.1 * aim), aim)
    for _ in range(60):
        nats = aim * (size.factor / rate) ** 2
        kept = size.kept(Moved(nats), aim)
        assert nats * kept**2 <= 4.0001 * aim
        assert kept == 1.0 or nats * kept**2 == pytest.approx(aim)
        size.follow(Moved(nats), aim)
    assert size.factor == pytest.approx(rate, rel=0.01)


@given(st.sampled_from([0.0, float("inf"), float("nan"), 1e-30, 1e30, TARGET, -TARGET]), st.floats(LEAST, MOST))
def test_one_update_changes_the_factor_within_bounds_and_none_without_signal(nats, factor):
    size, moved = StepSize(factor), Moved(nats)
    size.follow(moved, TARGET)
    assert LEAST <= size.factor <= MOST
    assert SLOWEST - 1e-9 <= size.factor / factor <= FASTEST + 1e-9
    assert 0.0 <= size.kept(moved, TARGET) <= 1.0
    before = size.factor
    size.follow(Moved(0.0), 0.0)
    assert size.factor == before


def test_what_is_not_known_changes_little():
    """A few tokens in half precision say little: an update is not taken back for them, and the rate stays about."""
    for nats in (8 * TARGET, TARGET / 40, -TARGET):
        size, moved = StepSize(), Moved(nats, 100 * TARGET)
        size.follow(moved, TARGET)
        assert size.factor == pytest.approx(1.0, abs=0.04)
        assert size.kept(moved, TARGET) == 1.0


@given(st.integers(2, 40), st.integers(1, 3), st.integers())
def test_a_divergence_is_known_as_well_as_rollouts_agree(rollouts, ranks, seed):
    rng = random.Random(seed)
    rows = np.array([[rng.gauss(1e-3, 1e-3) * (n := rng.randrange(1, 90)), n] for _ in range(rollouts)])
    parts = np.array_split(rows, ranks)
    sums: list[list[float]] = []

    def total(values: list[float]) -> list[float]:
        sums.append(values)
        return [sum(column) for column in zip(*sums, strict=True)]

    together = SimpleNamespace(total=total)
    *_, found = [moved_by(together, part) for part in parts]
    mean = rows[:, 0].sum() / rows[:, 1].sum()
    off = rows[:, 0] - mean * rows[:, 1]
    error = math.sqrt((off**2).sum() * rollouts / (rollouts - 1)) / rows[:, 1].sum()
    assert found == pytest.approx((mean, error), rel=1e-6, abs=1e-9)


def test_one_rollout_alone_says_little():
    assert moved_by(Ranks(), np.array([[0.02, 10.0]])) == (0.002, 0.001)
    assert moved_by(Ranks(), np.zeros((0, 2))) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_share_of_a_step_is_taken_back(dtype, decay):
    drawn = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn((3, 4), generator=drawn).to(dtype))
    made = Optimizer([("a", weight)], weight_decay=decay, half=True)

    def master() -> torch.Tensor:
        return made.state(copy=True)[0]["a.master"]

    for step in range(4):
        made.zero_grad()
        (weight * torch.randn(weight.shape, generator=drawn).to(dtype)).sum().backward()
        before = master()
        made.step(0.1, 1.0)
        after = master()
        made.take_back(0.25 * step)
        assert torch.allclose(master(), after + 0.25 * step * (before - after), atol=1e-6)
        assert torch.equal(weight.detach(), master().to(dtype))


@pytest.mark.parametrize(("rate", "kept"), [(1e-6, 1.0), (1e-2, 0.03), (1e-1, 0.003)])
def test_a_step_moves_no_further_than_it_should(model, rate, kept):
    """At a rate that is a thousand times too high too: what moves so far is no line any more, and is measured again."""
    bound, free = small_trainer(model), small_trainer(model)
    batch = groups(free)
    for each in (bound, free):
        each.rl_step(batch, builders.rl_stage(learning_rate=1e-3, warmup_steps=0), 0)  # no embedding is zero from here
    bound.enter(builders.algorithm(target_kl=TARGET, groups_per_step=2))
    stage = builders.rl_stage(learning_rate=rate, warmup_steps=0)
    figures, plain = bound.rl_step(batch, stage, 1), free.rl_step(batch, stage, 1)
    assert (plain.update_kl, plain.update_kept) == (None, None)
    assert figures.update_kl - figures.update_kl_error <= 4 * TARGET
    assert 0.3 * kept <= figures.update_kept <= kept
    assert (figures.loss, figures.gradient_norm) == (plain.loss, plain.gradient_norm)
    following = bound.rl_step(batch, stage, 2)
    factor = following.learning_rate / rate
    assert FASTEST >= factor > 1.1 if kept == 1.0 else SLOWEST <= factor < 0.85
    bound.reset_optimizer()
    assert bound.rl_step(batch, stage, 3).learning_rate == rate


def test_what_moved_is_measured_on_a_part_of_the_tokens_in_every_layout_of_micro_batches(model):
    stage = builders.rl_stage(learning_rate=1e-4, warmup_steps=0)
    found = []
    for tokens in (16384, 40):
        trained = small_trainer(model, target_kl=1e9, microbatch_tokens=tokens)
        found.append(trained.rl_step(groups(small_trainer(model)), stage, 0).update_kl)
    assert found[0] == pytest.approx(found[1], rel=0.6)
    assert found[0] > 0.0


def test_a_step_that_is_not_finite_leaves_the_rate_as_it_was(model):
    stage = builders.rl_stage(learning_rate=1e-2, warmup_steps=0)
    trained = small_trainer(model, target_kl=TARGET, updates_per_step=2)
    batch, loss = groups(trained), trained.loss
    rates: list[float] = []
    before_updates(trained, rates.append)
    trained.loss = lambda given, settings: scaled(loss(given, settings), math.nan if rates else 1.0)
    with pytest.raises(NotFiniteError):
        trained.rl_step(batch, stage, 0)
    trained.loss = loss
    trained.rl_step(batch, stage, 0)
    assert rates[1] == rates[0] != rates[2]


def test_in_half_precision_roundings_are_no_movement(model):
    """Their square is many times that of a small update, and would take back all of it."""
    found = []
    for compute, rounds in (("float32", True), ("bfloat16", True), ("bfloat16", False)):
        made = small_trainer(model, compute=compute, target_kl=1e9)
        if not rounds:
            made.model.shaken = nullcontext
        batch = groups(small_trainer(model), count=80)
        made.rl_step(batch, builders.rl_stage(learning_rate=1e-3, warmup_steps=0), 0)  # no embedding is zero from here
        stage = builders.rl_stage(learning_rate=1e-6, warmup_steps=0)
        found.append(made.rl_step(batch, stage, 1).update_kl)
    exact, shaken, plain = found
    assert exact < 0.1 * plain
    assert shaken < 0.5 * plain


def test_an_update_without_signal_moves_nothing(model):
    """The moments of earlier updates would go on moving the policy."""
    made = small_trainer(model, target_kl=1e9)
    stage = builders.rl_stage(learning_rate=1e-2, warmup_steps=0)
    batch = groups(made)
    made.rl_step(batch, stage, 0)
    made.enter(builders.algorithm(target_kl=TARGET))
    held = {name: weight.clone() for name, weight in made.model.served()}
    equal = [replace(group, rewards=np.ones_like(group.rewards)) for group in batch]
    figures = made.rl_step(equal, stage, 1)
    assert (figures.learning_rate, figures.update_kl) == (0.0, 0.0)
    for name, weight in made.model.served():
        assert torch.equal(weight, held[name])
