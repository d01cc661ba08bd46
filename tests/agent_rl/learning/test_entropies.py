"""Entropies of a forward pass are those of a plain model in float64; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.entropies import Passed, entropies
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.tiny import initialise_model
from agent_rl.messages import GroupOpened, PolicyVersion, Problem, Trajectory
from agent_rl.testing import repacked
from tests.agent_rl.learning import reference_loss
from tests.agent_rl.learning.test_reference_loss import sampled
from tests.agent_rl.records.report_runs import trajectory

GROUP = GroupOpened("g", 0, 0, "train", Problem("p", "What is 1?", "1"), 2, PolicyVersion(1, 1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    spec = InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48, byte_fallback=True)
    initialise_model(spec, directory, 0)
    return directory


def passed(model: Path, trajectories: list[Trajectory], tokens: int = 64, temperature: float = 1.0) -> list[Passed]:
    return entropies(
        model, trajectories, temperature=temperature, dtype="float32", device="cpu", microbatch_tokens=tokens
    )


ROLLOUTS = [
    trajectory(GROUP, 0, ["First I think.", "result", "But wait, so"]),
    trajectory(GROUP, 1, ["yes"]),
    trajectory(GROUP, 2, ["a longer answer of the model"]),
]


@pytest.mark.parametrize(("temperature", "tokens"), [(1.0, 1), (0.7, 40), (0.7, 10**6)])
def test_entropies_are_those_of_a_plain_model_in_float64(model: Path, temperature: float, tokens: int) -> None:
    """However rows are packed, and of rollouts with branches too."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    rollouts = [*ROLLOUTS, *(each for group in sampled(1) for each in group.trajectories)]
    for rollout, found in zip(rollouts, passed(model, rollouts, tokens, temperature), strict=True):
        with torch.no_grad():
            said = reference_loss.distributions(plain, rollout, temperature)
        expected = np.full((2, len(said)), np.nan)
        for place, token, _ in reference_loss.written(rollout):
            expected[:, place] = -(said[place].exp() * said[place]).sum(), said[place][token]
        np.testing.assert_allclose([found.entropy, found.logprob], expected, rtol=1e-4, atol=1e-4)


def test_a_first_token_without_a_prompt_has_no_entropy(model: Path) -> None:
    bare = repacked(ROLLOUTS[1], prompt_tokens=np.zeros(0, dtype=np.int32))
    (found,) = passed(model, [bare])
    assert np.isnan(found.entropy).tolist() == [True, False, False]


def test_what_does_not_fit_the_model_is_refused(model: Path, tmp_path: Path) -> None:
    tokens = AutoModelForCausalLM.from_pretrained(model).config.vocab_size
    for last, length in ((tokens - 1, 253), (tokens, 3), (5, 254)):  # after a prompt of 3 tokens
        made = repacked(trajectory(GROUP, 0, ["x" * length]), tokens=np.array([5] * (length - 1) + [last], np.int32))
        if last == tokens - 1:
            assert np.isfinite(passed(model, [made])[0].entropy).all()
            continue
        fault = f"hold the token {tokens}, .* 0 to {tokens - 1}" if last == tokens else "has 257 tokens, .* at most 256"
        with pytest.raises(TrainingStoppedError, match=fault):
            passed(model, [ROLLOUTS[0], made])
    with pytest.raises(TrainingStoppedError, match="cannot be loaded"):
        passed(tmp_path, ROLLOUTS)


def test_damaged_weights_are_named(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingStoppedError, match="not finite"):
        passed(tmp_path, ROLLOUTS)
