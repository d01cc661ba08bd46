"""The trainer on a tiny model: gradients, steps, checkpoints, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rl.messages import TrainingGroup
from agent_rl.tiny import initialise_model
from agent_rl.topology import InitialiseModel, SftStage
from agent_rl.training import Position, Trainer, read_position
from tests import builders


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    initialise_model(
        InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48), directory, 0
    )
    return directory


def trainer(model: Path, **changes: Any) -> Trainer:
    return Trainer(model, dtype="float32", device="cpu", algorithm=builders.algorithm(**changes), threads=1, seed=0)


def groups(trained: Trainer, *, count: int = 2, version: int = 0) -> list[TrainingGroup]:
    """Groups whose behaviour log-probabilities are the model's own, with lengths that differ."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        opened = builders.opened(number)
        trajectories = []
        for sample in range(4):
            plain = builders.trajectory(opened, sample, tokens=int(rng.integers(4, 12)), version=version)
            tokens = rng.integers(7, 100, len(plain.tokens)).astype(np.int32)
            ids = torch.tensor(np.concatenate([plain.prompt_tokens, tokens]).astype(np.int64))[None]
            with torch.no_grad():
                logprobs = trained.model(ids).logits.log_softmax(-1)[0, 2:-1].gather(-1, ids[0, 3:, None])[:, 0]
            fields = {name: getattr(plain, name) for name in plain.__slots__}
            trajectories.append(type(plain)(**{**fields, "tokens": tokens, "logprobs": logprobs.numpy()}))
        rewards = np.array([1, 0, 0, 1], dtype=np.float32)
        made.append(TrainingGroup(opened.group, 0, opened.policy, tuple(trajectories), rewards))
    return made


def gradient(trained: Trainer) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in trained.model.parameters() if p.grad is not None])


def reference_gradient(trained: Trainer, batch: list[TrainingGroup]) -> torch.Tensor:
    """One sequence at a time, no padding, the plain policy gradient (the first update is on policy)."""
    trained.model.zero_grad()
    total = sum(float(t.loss_mask.sum()) for group in batch for t in group.trajectories)
    for group in batch:
        advantages = (group.rewards - group.rewards.mean()) / group.rewards.std()
        for t, advantage in zip(group.trajectories, advantages, strict=True):
            ids = torch.tensor(np.concatenate([t.prompt_tokens, t.tokens]).astype(np.int64))[None]
            logprobs = trained.model(ids).logits[0].log_softmax(-1)
            picked = logprobs[len(t.prompt_tokens) - 1 : -1].gather(-1, ids[0, len(t.prompt_tokens) :, None])[:, 0]
            (-(picked * torch.tensor(t.loss_mask.astype(np.float32))).sum() * float(advantage) / total).backward()
    return gradient(trained)


@pytest.mark.parametrize("microbatch_tokens", [1, 40, 100_000])
def test_the_gradient_is_the_references_whatever_the_micro_batches(model: Path, microbatch_tokens: int) -> None:
    trained = trainer(model, microbatch_tokens=microbatch_tokens)
    batch = groups(trained)
    expected = reference_gradient(trained, batch)
    trained._apply = lambda: 0.0  # type: ignore[method-assign]  # keep the gradient, change nothing
    figures = trained.rl_step(batch, builders.rl_stage(), 0)
    assert torch.allclose(gradient(trained), expected, atol=1e-5)
    assert figures["policy_gap"] < 1e-5
    assert figures["correction_mean"] == pytest.approx(1.0, abs=1e-5)
    assert figures["trained_rollouts"] == 8


def test_a_step_makes_rewarded_tokens_likelier(model: Path) -> None:
    trained = trainer(model)
    batch = groups(trained)

    def advantage_weighted() -> float:
        sequences = [s for group in batch for s in trained._sequences(group)]
        trained._fill_proximal(sequences)
        return sum(float((s.proximal * s.mask).sum()) * s.advantage for s in sequences if s.proximal is not None)

    before = advantage_weighted()
    for step in range(3):
        trained.rl_step(batch, builders.rl_stage(learning_rate=1e-3, warmup_steps=0), step)
    assert advantage_weighted() > before + 0.1


def test_an_empty_step_changes_nothing(model: Path) -> None:
    trained = trainer(model)
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    figures = trained.rl_step([], builders.rl_stage(), 0)
    assert figures["trained_tokens"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.model.state_dict().items())


def test_an_update_that_is_not_finite_is_skipped_and_counted(model: Path) -> None:
    trained = trainer(model)
    batch = groups(trained)
    batch[0].trajectories[0].logprobs[0] = np.nan
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    assert trained.rl_step(batch, builders.rl_stage(), 0)["skipped_updates"] == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.model.state_dict().items())


def test_warm_up_is_linear(model: Path) -> None:
    trained = trainer(model)
    rates = [
        trained.rl_step(groups(trained), builders.rl_stage(learning_rate=1e-4, warmup_steps=4), step)["learning_rate"]
        for step in (0, 1, 3, 9)
    ]
    assert rates == pytest.approx([0.25e-4, 0.5e-4, 1e-4, 1e-4])


def test_a_cosine_ends_near_zero_at_the_stages_last_step(model: Path) -> None:
    trained = trainer(model)
    stage = builders.rl_stage(learning_rate=1e-4, warmup_steps=0, steps=10, schedule="cosine")
    rates = [trained.rl_step(groups(trained), stage, step)["learning_rate"] for step in (0, 5, 9)]
    assert rates == pytest.approx([1e-4, 0.5e-4, 0.0245e-4], rel=0.01)


def test_supervised_steps_lower_the_loss_on_trained_tokens_alone(model: Path) -> None:
    trained = trainer(model)
    stage = SftStage(kind="sft", steps=30, batch=4, learning_rate=1e-2, warmup_steps=2)
    batch = [([7, 20, 30, 40, 50], [0, 0, 1, 1, 1]), ([8, 21, 31], [0, 1, 1])]
    first = trained.sft_step(batch, stage, 0)
    assert first["tokens"] == 5
    for step in range(1, 30):
        last = trained.sft_step(batch, stage, step)
    assert last["loss"] < first["loss"] / 4


def test_a_checkpoint_is_a_hugging_face_model_and_continues_bit_for_bit(model: Path, tmp_path: Path) -> None:
    trained = trainer(model, updates_per_step=2)
    batch = groups(trained)
    stage = builders.rl_stage(learning_rate=1e-3)
    trained.rl_step(batch, stage, 0)
    trained.save(tmp_path / "checkpoint", Position(2, 1, 5))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint").chat_template
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    resumed = trainer(model, updates_per_step=2)
    assert resumed.restore(tmp_path / "checkpoint") == Position(2, 1, 5)
    assert read_position(tmp_path / "checkpoint") == Position(2, 1, 5)
    for learner in (trained, resumed):
        learner.rl_step(batch, stage, 1)
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor)


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    assert read_position(tmp_path) is None
    (tmp_path / "trainer.json").write_text('{"stage": 1')
    assert read_position(tmp_path) is None
    (tmp_path / "trainer.json").write_text(json.dumps({"stage": 1}))
    assert read_position(tmp_path) is None


def test_weight_files_hold_the_models_tensors_once(model: Path, tmp_path: Path) -> None:
    trained = trainer(model)
    trained.write_weights(tmp_path / "weights" / "w.safetensors")
    written = load_file(tmp_path / "weights" / "w.safetensors")
    assert "lm_head.weight" not in written  # tied to the embeddings
    assert torch.equal(written["model.embed_tokens.weight"], trained.model.state_dict()["model.embed_tokens.weight"])
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["w.safetensors"]
