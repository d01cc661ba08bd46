"""The trainer against the reference: the same gradients, whatever the micro-batches, pieces and order of packing."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoModelForCausalLM

from agent_rl.config.plugins import ALIASES
from agent_rl.config.topology import InitialiseModel, Lora
from agent_rl.environments.maths.environment import format_penalty
from agent_rl.figures import TrainingFigures
from agent_rl.groups.book import SampleState
from agent_rl.groups.resampling import named_selection
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.learning.packing import Packed, pack
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import Judgement, TagCounts, TrainingGroup, Trajectory
from tests import builders
from tests.agent_rl.learning import reference_loss

RATE = 0.5
"""Of the plain gradient descent between updates: far enough that ratios leave 1, and some the clip range."""
LONGEST = 14
"""The most tokens that a response may have."""
LOSSES = ("grpo", "sequence_mean", "dr_grpo", "gspo", "cispo")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    spec = InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48)
    initialise_model(spec, directory, 0)
    return directory


def sampled(seed: int, *, spread: float, mode: str = "release", count: int = 2) -> list[TrainingGroup]:
    """Groups of 8 rollouts, 4 kept by RoC: tokens at random, mu near what a new model says, off by ``spread``."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        opened = builders.opened(number)
        rollouts = []
        for sample in range(8):
            calls = tuple(builders.call("success" if rng.random() < 0.6 else "error") for _ in range(rng.integers(3)))
            plain = builders.trajectory(opened, sample, tokens=int(rng.integers(3, 14)), calls=calls)
            size = plain.response_length
            mask = (rng.random(size) < 0.7).astype(np.uint8)
            mask[-1] = 1
            rollouts.append(
                builders.repacked(
                    plain,
                    tags=TagCounts(2, int(rng.integers(3)), *[int(rng.integers(1, 4))] * 3, int(rng.integers(3))),
                    prompt_tokens=rng.integers(7, 100, rng.integers(1, 6)).astype(np.int32),
                    tokens=rng.integers(7, 100, size).astype(np.int32),
                    loss_mask=mask,
                    logprobs=(mask * (-4.6 + spread * rng.standard_normal(size))).astype(np.float32),
                )
            )
        rewards = [1.0, 0.0] * 4
        kept = kept_of(rollouts, rewards, mode)
        made.append(
            TrainingGroup(
                opened.group,
                0,
                opened.policy,
                tuple(rollouts[i] for i in kept),
                np.array([rewards[i] for i in kept], dtype=np.float32),
            )
        )
    return made


def kept_of(rollouts: list[Trajectory], rewards: list[float], mode: str) -> list[int]:
    candidates = [
        SampleState(
            ended=RolloutFigures.of(rollout, builders.opened()),
            judgement=Judgement(reward, success=reward > 0, format_penalty=format_penalty(rollout.transcript.texts)),
        ).candidate(position)
        for position, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True))
    ]
    kept = list(named_selection(mode, 4)(candidates, random.Random(0)))
    if mode == "release":
        assert kept == reference_loss.release_keeps(rollouts, rewards, keep=4)
    return kept


def production(
    model: Path,
    groups: list[TrainingGroup],
    logits_mib: int = 256,
    reference: Path | None = None,
    block: int | None = None,
    lora: Lora | None = None,
    **changes: Any,
) -> Any:
    """The gradient of each update of the trainer's step, with plain gradient descent in the optimizer's place; and the
    figures.
    """
    algorithm = builders.algorithm(**changes)
    trained = Trainer(
        model,
        dtype="float32",
        device="cpu",
        algorithm=algorithm,
        threads=1,
        seed=0,
        options=ModelOptions(logits_mib=logits_mib),
        reference=reference,
        lora=lora,
    )
    if block is not None:
        trained.model.block = block
    gradients = []

    def descend(rate: float, clip: float) -> float:
        named = dict(trained.model.named_parameters())
        gradients.append({name: p.grad.double() for name, p in named.items() if p.grad is not None})
        with torch.no_grad():
            for p in named.values():
                p.sub_(RATE * p.grad)
        return 0.0

    trained.optimizer.step = descend  # type: ignore[method-assign]
    figures = trained.rl_step(groups, builders.rl_stage(max_response_tokens=LONGEST), 0)
    return gradients, figures


def plain(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")


def adapted(model: Path, lora: Lora) -> Any:
    """The plain model with the adapters that a run with seed 0 begins with."""
    made = plain(model)
    targets = PolicyModel(model, dtype="float32", device="cpu", options=ModelOptions(), lora=lora).trained()
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
    )
    made = inject_adapter_in_model(config, made)
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            parameter.data = targets[name].double()
    return made


def assert_equal_to_the_reference(
    model: Path, groups: list[TrainingGroup], reference: Path | None = None, least: float = 1e-2, **changes: Any
) -> TrainingFigures:
    made, figures = production(model, groups, reference=reference, **changes)
    lora = changes.pop("lora", None)
    for name in ("logits_mib", "block"):
        changes.pop(name, None)
    algorithm = builders.algorithm(**changes)
    fixed = plain(reference) if reference is not None else None
    expected, loss = reference_loss.step_gradients(
        plain(model) if lora is None else adapted(model, lora),
        groups,
        algorithm,
        RATE,
        reference=fixed,
        longest=LONGEST,
    )
    assert figures.loss == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert len(made) == len(expected)
    for update, (ours, theirs) in enumerate(zip(made, expected, strict=True)):
        assert ours.keys() == theirs.keys()
        worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
        # fp32 rounds by the gradient's own size; after a long descent the weights themselves differ by that too.
        norm = math.sqrt(sum(float(g.square().sum()) for g in theirs.values()))
        assert worst < (1e-5 * max(1.0, norm) if update else 1e-6 * max(10.0, norm))
    assert max(float(g.abs().max()) for theirs in expected for g in theirs.values()) > least  # else little is compared
    return figures


@pytest.mark.parametrize("mode", sorted(ALIASES["selection"]))
@pytest.mark.parametrize("divide_by_std", [True, False])
@pytest.mark.parametrize("updates", [1, 2, 4])
def test_gradients_are_the_references(model: Path, mode: str, *, divide_by_std: bool, updates: int) -> None:
    groups = sampled(3, spread=0.5, mode=mode)
    figures = assert_equal_to_the_reference(
        model, groups, advantage_std=divide_by_std, updates_per_step=updates, microbatch_tokens=40, temperature=0.8
    )
    assert figures.trained_rollouts == 8
    assert (figures.clip_share > 0) == (updates > 1)


@pytest.mark.parametrize("updates", [1, 2])
def test_further_epochs_go_on_from_the_proximal_policy_of_the_first(model: Path, updates: int) -> None:
    figures = assert_equal_to_the_reference(model, sampled(3, spread=0.5), epochs=3, updates_per_step=updates)
    assert 0 < figures.clip_share < 1
    assert figures.trained_rollouts == 8


@pytest.mark.parametrize("correction", ["none", "truncated", "masked", "decoupled"])
@pytest.mark.parametrize("sequence_mask", [None, (0.7, 1.4)])
def test_gradients_are_the_references_under_every_correction(
    model: Path, correction: str, sequence_mask: tuple[float, float] | None
) -> None:
    figures = assert_equal_to_the_reference(
        model, sampled(4, spread=1.0), correction=correction, sequence_mask=sequence_mask, updates_per_step=2
    )
    cuts = correction in {"truncated", "masked"} or sequence_mask is not None
    assert (figures.correction_capped_share > 0) == cuts
    if correction == "none" and sequence_mask is None:
        assert figures.correction_mean == 1.0


@pytest.mark.parametrize("updates", [1, 2])
def test_gradients_are_the_references_with_an_entropy_bonus(model: Path, updates: int) -> None:
    """The bonus is on the model's own tokens alone, whatever their weights."""
    asked = {"entropy_coefficient": 0.5, "updates_per_step": updates, "microbatch_tokens": 40, "temperature": 0.8}
    groups = sampled(5, spread=1.0)
    assert_equal_to_the_reference(model, groups, correction="masked", logits_mib=0, **asked)
    with_bonus, _ = production(model, groups, **asked)
    without, _ = production(model, groups, **{**asked, "entropy_coefficient": 0.0})
    assert max(float((with_bonus[0][name] - without[0][name]).abs().max()) for name in without[0]) > 1e-2


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    microbatch_tokens=st.integers(1, 200),
    logits_mib=st.sampled_from([0, 256]),
    updates=st.sampled_from([1, 2]),
    order=st.randoms(use_true_random=False),
)
def test_no_split_order_or_piece_changes_the_gradient(
    model: Path, seed: int, microbatch_tokens: int, logits_mib: int, updates: int, order: random.Random
) -> None:
    groups = sampled(seed, spread=0.3)
    if updates == 1:  # with several, the order of rollouts decides which update they are in
        order.shuffle(groups)
    assert_equal_to_the_reference(
        model, groups, microbatch_tokens=microbatch_tokens, logits_mib=logits_mib, updates_per_step=updates
    )


def branching(groups: list[TrainingGroup], seed: int) -> list[TrainingGroup]:
    """The groups with one prompt each, of a common beginning, and with rollouts that begin as the one before did.

    A rollout may be the same as the one before, or a part of it.
    """
    rng = np.random.default_rng(seed)
    system = rng.integers(7, 100, 3).astype(np.int32)
    made = []
    for group in groups:
        prompt = np.concatenate([system, rng.integers(7, 100, rng.integers(1, 20)).astype(np.int32)])
        rollouts: list[Trajectory] = []
        for number, rollout in enumerate(group.trajectories):
            tokens = rollout.unpack().tokens.copy()
            if number:
                before = rollouts[-1].unpack().tokens
                shared = int(rng.integers(min(len(tokens), len(before)) + 1))
                tokens[:shared] = before[:shared]
            rollouts.append(builders.repacked(rollout, prompt_tokens=prompt, tokens=tokens))
        made.append(replace(group, trajectories=tuple(rollouts)))
    return made


@pytest.mark.parametrize(
    ("seed", "changes"),
    [
        (0, {}),
        (1, {"loss": "gspo", "correction": "masked", "clip_low": 3e-4, "clip_high": 4e-4, "updates_per_step": 2}),
        (2, {"loss": "sequence_mean", "entropy_coefficient": 0.5, "microbatch_tokens": 40}),
        (3, {"loss": "cispo", "kl": 0.7, "temperature": 0.8, "block": 3}),
        (4, {"loss": "dr_grpo", "microbatch_tokens": 1}),
        (5, {"lora": Lora(rank=2, alpha=4, targets=("all-linear",)), "kl": 0.7, "entropy_coefficient": 0.5}),
    ],
    ids=str,
)
def test_gradients_with_shared_prefixes_computed_once_are_the_references(
    model: Path, other: Path, monkeypatch: pytest.MonkeyPatch, seed: int, changes: dict[str, Any]
) -> None:
    shared = []

    def watched(*given: Any, **named: Any) -> Packed:
        made = pack(*given, **named)
        shared.append(len(made.shared))
        return made

    monkeypatch.setattr("agent_rl.learning.policy_model.pack", watched)
    asked = {"block": 1, **changes}
    if "kl" in asked:
        asked["kl"] = {"coefficient": asked["kl"], "reference": str(other)}
    groups = branching(sampled(seed, spread=0.5), seed)
    assert_equal_to_the_reference(model, groups, other if "kl" in asked else None, least=3e-3, **asked)
    assert (max(shared) > 0) == ("microbatch_tokens" not in asked or asked["microbatch_tokens"] > 1)


def with_branches(groups: list[TrainingGroup], seed: int) -> list[TrainingGroup]:
    """The groups, the tokens of each rollout on a first sequence and up to three branches, some of them of branches."""
    rng = np.random.default_rng(seed)

    def grown(rollout: Trajectory) -> Trajectory:
        body = rollout.unpack()
        cuts = sorted(
            rng.choice(np.arange(1, len(body.tokens)), min(int(rng.integers(4)), len(body.tokens) - 1), False)
        )
        lengths, rows = [len(body.prompt_tokens) + int([*cuts, len(body.tokens)][0])], []
        for start, end in zip(cuts, [*cuts[1:], len(body.tokens)], strict=False):
            parent = int(rng.integers(len(lengths)))
            shared = int(rng.integers(1, lengths[parent] + 1))
            rows.append((parent, shared, int(start)))
            lengths.append(shared + int(end - start))
        return builders.repacked(rollout, branches=np.array(rows, np.int32).reshape(-1, 3))

    return [replace(group, trajectories=tuple(map(grown, group.trajectories))) for group in groups]


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_over_branches_are_the_references(model: Path, other: Path, loss: str, block: int) -> None:
    """Each token is trained once in its place, and a rollout counts as one, however many branches it has."""
    groups = with_branches(branching(sampled(4, spread=0.5), 4), 4)
    assert sum(len(each.unpack().branches) for group in groups for each in group.trajectories) > 4
    changes = {"loss": loss, "correction": "masked", "updates_per_step": 2, "entropy_coefficient": 0.5}
    kl = {"coefficient": 0.7, "reference": str(other)}
    figures = assert_equal_to_the_reference(
        model, groups, other, least=3e-3, microbatch_tokens=40, block=block, kl=kl, **changes
    )
    assert figures.trained_rollouts == 8
    assert figures.mismatch is None or figures.mismatch.mismatch_tokens > 0


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference policy: another architecture with the same tokenizer."""
    directory = tmp_path_factory.mktemp("other")
    initialise_model(
        InitialiseModel(hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_size=32), directory, 7
    )
    return directory


@pytest.mark.parametrize("loss", LOSSES)
def test_values_and_gradients_of_every_loss_are_the_references(model: Path, loss: str) -> None:
    low, high = (3e-4, 4e-4) if loss == "gspo" else (0.02, 0.03)  # so narrow that ratios leave the range
    changes = {"loss": loss, "clip_low": low, "clip_high": high, "correction": "masked", "temperature": 0.8}
    figures = assert_equal_to_the_reference(
        model, sampled(4, spread=1.0), updates_per_step=4, microbatch_tokens=40, least=3e-3, **changes
    )
    assert 0 < figures.clip_share < 1
    assert 0 < figures.correction_capped_share < 1


@pytest.mark.parametrize(("loss", "estimator"), list(zip(LOSSES, ("k1", "k3", "k1", "k3", "k3"), strict=True)))
def test_values_and_gradients_with_a_kl_penalty_are_the_references(
    model: Path, other: Path, loss: str, estimator: str
) -> None:
    kl = {"coefficient": 0.7, "estimator": estimator, "reference": str(other)}
    asked = {"loss": loss, "updates_per_step": 2, "microbatch_tokens": 40, "least": 3e-3}
    figures = assert_equal_to_the_reference(model, sampled(6, spread=0.3), other, kl=kl, **asked)
    assert figures.kl not in {None, 0.0}


@pytest.mark.parametrize(("loss", "overlong"), [("grpo", "mask"), ("gspo", "mask"), ("dr_grpo", "penalty")])
def test_long_responses_are_left_out_or_punished_as_in_the_reference(model: Path, loss: str, overlong: str) -> None:
    groups = [
        replace(
            group,
            trajectories=tuple(
                replace(t, transcript=replace(t.transcript, status="truncated" if index == 1 else "finished"))
                for index, t in enumerate(group.trajectories)
            ),
        )
        for group in sampled(8, spread=0.3)
    ]
    asked = {"loss": loss, "overlong_cache": 8, "updates_per_step": 2}
    figures = assert_equal_to_the_reference(model, groups, overlong=overlong, least=3e-3, **asked)
    assert figures.trained_rollouts == (6 if overlong == "mask" else 8)
    assert production(model, groups, **asked)[1].loss != pytest.approx(figures.loss, rel=0.01)
    assert figures.kl is None


@pytest.mark.parametrize("loss", LOSSES)
def test_no_cut_into_micro_batches_changes_a_loss(model: Path, other: Path, loss: str) -> None:
    kl = {"coefficient": 0.7, "reference": str(other)}
    groups = sampled(9, spread=0.5)
    runs = [
        production(model, groups, reference=other, loss=loss, kl=kl, microbatch_tokens=tokens, overlong="mask")
        for tokens in (1, 45, 10_000)
    ]
    (first,), figures = runs[-1]
    for (gradient,), others in runs[:-1]:
        assert others.loss == pytest.approx(figures.loss, rel=1e-5, abs=1e-7)
        assert max(float((gradient[name] - first[name]).abs().max()) for name in first) < 1e-6
