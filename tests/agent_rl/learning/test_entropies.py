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


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropies_are_those_of_a_plain_model_in_float64(model: Path, temperature: float) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    found = passed(model, ROLLOUTS, temperature=temperature)
    for rollout, each in zip(ROLLOUTS, found, strict=True):
        row = torch.from_numpy(
            np.concatenate([rollout.unpack().prompt_tokens, rollout.unpack().tokens]).astype(np.int64)
        )
        with torch.no_grad():
            log_p = torch.log_softmax(plain(row.unsqueeze(0)).logits[0] / temperature, -1)
        first = rollout.prompt_length
        for index, (token, written) in enumerate(zip(rollout.unpack().tokens, rollout.unpack().loss_mask, strict=True)):
            if not written:
                assert np.isnan(each.entropy[index])
                assert np.isnan(each.logprob[index])
                continue
            at = log_p[first + index - 1]
            assert each.entropy[index] == pytest.approx(float(-(at.exp() * at).sum()), abs=1e-5)
            assert each.logprob[index] == pytest.approx(float(at[token]), abs=1e-5)


def test_they_do_not_depend_on_how_rows_are_packed(model: Path) -> None:
    for alone, together in zip(passed(model, ROLLOUTS, 1), passed(model, ROLLOUTS, 10**6), strict=True):
        np.testing.assert_allclose(alone.entropy, together.entropy, atol=1e-5)


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
