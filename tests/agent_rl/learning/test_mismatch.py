"""Engine against learner at the same weights, apart from staleness: with engines that are right, and off by a known
amount.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agent_rl.learning.advantages import group_advantages
from agent_rl.learning.mismatch import OlderWeights, measure
from agent_rl.learning.sequences import training_sequences
from agent_rl_contract import builders
from tests.agent_rl.learning import reference_loss
from tests.agent_rl.learning.test_reference_loss import sampled as random_groups
from tests.agent_rl.learning.test_training import groups
from tests.agent_rl.learning.trainers import small_trainer

STAGE = builders.rl_stage(learning_rate=3e-2, warmup_steps=0)


@pytest.mark.parametrize("max_tokens", [10_000, 60])
def test_figures_are_those_of_each_token_by_the_weights_that_sampled_it(model, max_tokens):
    """Of rollouts of several versions with branches, of which the weights of the last four are here."""
    temperature = 0.7
    trained = small_trainer(model, temperature=temperature, max_staleness=1)
    rng = torch.Generator().manual_seed(0)
    older, plain = OlderWeights(3), {}
    for version in range(3, 9):
        for weight in trained.model.trained().values():
            weight.add_(torch.randn(weight.shape, generator=rng), alpha=0.02)
        older.remember(version, {name: weight.clone() for name, weight in trained.model.trained().items()})
        plain[version] = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")
        for name, weight in plain[version].named_parameters():
            weight.data = trained.model.trained()[name].double()
    sampled = random_groups(3)
    sequences = [s for group in sampled for s in training_sequences(group, group_advantages, trained.algorithm, 14)]
    trained._fill("proximal", [sequences], trained.model)
    figures = measure(
        trained.model, sequences, older, temperature=temperature, max_tokens=max_tokens, microbatch_tokens=40
    )
    gaps, moves = [], []
    rollouts = [rollout for group in sampled for rollout in group.trajectories]
    every = math.ceil(sum(len(each.tokens) for each in sequences) / max_tokens)
    for rollout in rollouts[::every]:
        said = {version: reference_loss.logprobs(plain[version], rollout, temperature) for version in range(5, 9)}
        for number, (place, _, behaviour) in enumerate(reference_loss.written(rollout)):
            if (version := int(rollout.unpack().policies[place, 1])) in said:
                gaps.append(said[version][number] - behaviour)
                moves.append(said[8][number] - said[version][number])
    assert figures is not None
    assert figures.mismatch_tokens == len(gaps) > 10
    expected = {
        "mismatch_gap": np.mean(np.abs(gaps)),
        "mismatch_max": np.max(np.abs(gaps)),
        "mismatch_ratio": np.mean(np.exp(gaps)),
        "staleness_gap": np.mean(np.abs(moves)),
        "staleness_ratio": np.mean(np.exp(moves)),
    }
    assert {name: getattr(figures, name) for name in expected} == pytest.approx(expected, rel=1e-3)


def test_the_engines_part_of_the_gap_is_told_from_the_policys_move(model):
    """One step on, rollouts of the version before: the learner still knows what it would have said then."""
    off, trained = 0.3, small_trainer(model, max_staleness=1)
    trained.copy_weights(0)
    batch = groups(trained)
    figures = trained.rl_step(batch, STAGE, 0)
    assert figures.mismatch.mismatch_tokens == figures.trained_tokens
    assert figures.mismatch.mismatch_max < 1e-4
    assert (figures.mismatch.mismatch_ratio, figures.correction_mean) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert (figures.mismatch.staleness_gap, figures.mismatch.staleness_ratio) == (0.0, 1.0)
    trained.copy_weights(1)
    for number, group in enumerate(batch):
        rollouts = [builders.repacked(t, logprobs=t.unpack().logprobs - np.float32(off)) for t in group.trajectories]
        batch[number] = replace(group, trajectories=tuple(rollouts))
    figures = trained.rl_step(batch, STAGE, 1)
    assert figures.mismatch.mismatch_tokens == figures.trained_tokens
    assert figures.mismatch.mismatch_gap == pytest.approx(off, abs=1e-4)
    assert figures.mismatch.mismatch_ratio == pytest.approx(math.exp(off), abs=1e-4)
    assert figures.mismatch.staleness_gap > 0.1  # a step of 0.03 moved the policy far
    assert figures.policy_gap != pytest.approx(figures.mismatch.mismatch_gap, abs=0.05)


def test_measuring_changes_nothing_that_is_trained(model):
    ends = []
    for tokens in (0, 1024):
        trained = small_trainer(model, mismatch_tokens=tokens, max_staleness=1)
        stale = groups(trained)
        for version in range(2):
            trained.copy_weights(version)
            figures = trained.rl_step(stale, STAGE, version)
            assert (figures.mismatch is not None) == (tokens > 0)
        assert [trained.older.of(version) is not None for version in range(2)] == [tokens > 0] * 2
        ends.append(trained.copy_weights(2))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_only_so_many_older_versions_are_kept_and_of_unknown_ones_nothing_is_told(model):
    older = OlderWeights(2)
    for version in range(5):
        older.remember(version, {"w": torch.tensor(version)})
    assert [version for version in range(5) if older.of(version) is not None] == [2, 3, 4]
    trained = small_trainer(model, max_staleness=1)
    trained.copy_weights(7)
    assert trained.rl_step(groups(trained), STAGE, 0).mismatch is None
