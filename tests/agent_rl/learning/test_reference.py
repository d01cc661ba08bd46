"""The reference policy of the KL penalty: which models can be one, and what is said of those that cannot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.reference import OtherModel, StageStart
from agent_rl.learning.tiny import initialise_model
from agent_rl.topology_checks.topology import check_topology
from tests.agent_rl.config.test_standard import FIRST
from tests.agent_rl.learning.trainers import small_trainer

KL = "algorithm.kl.coefficient=0.1"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three of them: ``a``, ``b`` of other sizes, ``bytes`` with more tokens."""
    folder = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "mlp_size": 16, "max_length": 4096}
    initialise_model(InitialiseModel(hidden_size=16, **sizes), folder / "a", 0)
    initialise_model(InitialiseModel(hidden_size=24, **sizes), folder / "b", 1)
    initialise_model(InitialiseModel(hidden_size=16, byte_fallback=True, **sizes), folder / "bytes", 2)
    return folder


def checked(tmp_path: Path, model: Path, *overrides: str) -> list[str]:
    path = tmp_path / "first.toml"
    text = FIRST.format(directory=tmp_path / "run")
    start = text.index("[model")
    end = text.index("\n[", start + 1)
    path.write_text(f'{text[:start]}[model]\npath = "{model}"\n{text[end:]}')
    return [fault.render("first.toml") for fault in check_topology(load_topology(path, overrides), path, overrides)]


def test_a_model_of_other_sizes_and_the_same_tokens_may_be_the_reference(tmp_path, models):
    assert checked(tmp_path, models / "a", KL, f"algorithm.kl.reference={models / 'b'}") == []
    trained = small_trainer(models / "a", kl={"coefficient": 0.1}, reference=models / "b")
    assert isinstance(trained.reference, OtherModel)


@pytest.mark.parametrize(
    ("model", "overrides", "said"),
    [
        (
            "bytes",
            [KL, "algorithm.kl.reference={models}/a"],
            "algorithm.kl.reference: {models}/a has another vocabulary than the model: .* has the model's tokenizer",
        ),
        (
            "a",
            [KL, "algorithm.kl.reference=./nowhere"],
            "algorithm.kl.reference: there is no nowhere/config.json.*or 'stage_start'",
        ),
        ("a", ["algorithm.overlong=penalty", "algorithm.overlong_cache=100000"], "overlong_cache: is more than the"),
    ],
)
def test_a_reference_or_a_penalty_that_cannot_be_is_refused_by_check(tmp_path, models, model, overrides, said):
    (fault,) = checked(tmp_path, models / model, *(each.format(models=models) for each in overrides))
    assert re.search(said.format(models=models), fault, re.DOTALL), fault


def test_a_reference_of_another_vocabulary_is_refused_by_the_learner_too(models):
    tokenizer = small_trainer(models / "bytes").tokenizer
    with pytest.raises(TrainingStoppedError, match=f"kl.reference: {models / 'a'} has another vocabulary"):
        OtherModel(models / "a", dtype="float32", device="cpu", options=ModelOptions(), tokenizer=tokenizer)


def test_the_start_of_a_stage_comes_back_from_its_file_and_another_models_does_not(tmp_path, models):
    made = {
        name: PolicyModel(models / name, dtype="float32", device="cpu", options=ModelOptions()) for name in ("a", "b")
    }
    StageStart(made["a"]).keep(tmp_path / "start.safetensors")
    before = {name: each.clone() for name, each in made["a"].trained().items()}
    for each in made["a"].trained().values():
        each.add_(1.0)
    start = StageStart(made["a"])
    start.load(tmp_path / "start.safetensors")
    with start.model() as model:
        assert all(bool((each == before[name]).all()) for name, each in model.trained().items())
    assert all(bool((each == before[name] + 1.0).all()) for name, each in made["a"].trained().items())
    with pytest.raises(TrainingStoppedError, match=r"algorithm.kl.reference: .*start.safetensors holds the weights of"):
        StageStart(made["b"]).load(tmp_path / "start.safetensors")
    with pytest.raises(
        TrainingStoppedError, match=r"other.safetensors, the policy at the start of the stage, is missi"
    ):
        StageStart(made["b"]).load(tmp_path / "other.safetensors")
