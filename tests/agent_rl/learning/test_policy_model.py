"""Options of the trained model: adapters, and compilation."""

from __future__ import annotations

import re
import shutil
import sys
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from actors.engines.base import ModelError
from actors.engines.torch.model import CausalModel
from actors.learner import Learner
from actors.weights.settings import LearnerSettings
from agent_rl.config.topology import InitialiseModel, Lora, SftStage
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.policy_model import ModelOptions, PolicyModel, _adapted_layers, _factors
from agent_rl.learning.tiny import initialise_model
from agent_rl.learning.trainer import write_weights
from agent_rl.records.checkpoint_files import CheckpointError, Position
from agent_rl_contract import builders
from tests.actors.topologies import micro
from tests.agent_rl.learning.rank_cases import groups
from tests.agent_rl.learning.trainers import plain_logprobs, small_trainer

STAGE = SftStage(kind="sft", steps=30, batch=4, learning_rate=1e-2, warmup_steps=0)
BATCH = [([7, 20, 30, 40, 50], [0, 0, 1, 1, 1]), ([8, 21, 31], [0, 1, 1])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_alone_are_trained_and_what_is_published_has_them_merged(model, tmp_path, dtype):
    pytest.importorskip("peft")
    trained = small_trainer(model, lora=Lora(rank=4, alpha=8.0), dtype=dtype)
    plain = load_file(model / "model.safetensors")
    before = trained.copy_weights(0)
    assert before.keys() == plain.keys()
    assert all(torch.equal(before[name], plain[name].to(before[name].dtype)) for name in plain)  # they begin as nothing
    names = set(trained.model.trained())
    assert names
    assert all(".lora_" in name for name in names)
    first = trained.sft_step(BATCH, STAGE, 0).loss
    for step in range(1, 20):
        last = trained.sft_step(BATCH, STAGE, step).loss
    assert last < first / 2
    write_weights(trained.copy_weights(1), tmp_path / "w.safetensors")
    written = load_file(tmp_path / "w.safetensors")
    changed = {name for name in plain if not torch.equal(written[name], before[name])}
    assert changed == {name for name in plain if "_proj.weight" in name}
    served = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="eager")
    served.load_state_dict(written, strict=False)
    tokens = torch.arange(10, 40)
    with torch.no_grad():
        expected = plain_logprobs(served, tokens)
        found, _ = trained.model.logprobs([tokens], [torch.arange(30) > 0], temperature=1.0)
    assert torch.allclose(found, expected, atol=1e-4 if dtype == "float32" else 0.15)


def test_engines_get_changes_by_adapters_that_are_smaller_than_steps_of_bfloat16(tmp_path):
    """Prints the figures (``pytest -s -k smaller_than_steps``)."""
    pytest.importorskip("peft")
    shape = InitialiseModel(hidden_size=256, layers=2, heads=4, kv_heads=2, head_dim=64, mlp_size=512)
    initialise_model(shape, tmp_path, 0)
    learner = small_trainer(tmp_path, lora=Lora(rank=8), dtype="bfloat16")
    stage = builders.rl_stage(learning_rate=1e-5, warmup_steps=0)
    base = {name: tensor.float() for name, tensor in learner.copy_weights(0).items()}
    for step in range(5):
        assert (learner.rl_step(groups(0), stage, step).lora_delta_kept is None) == (step == 0)
        published = learner.copy_weights(step + 1)
    layers = {name: _factors(layer) for name, layer in _adapted_layers(learner.model.module).items()}
    exact = base | {name: base[name] + up @ down * scale for name, (down, up, scale) in layers.items()}
    plain = PolicyModel(tmp_path, dtype="float32", device="cpu", options=ModelOptions())
    shares = {}
    for way, weights in (("nearest", {n: w.bfloat16() for n, w in exact.items()}), ("published", published)):
        moved, true = (torch.cat([(w[n].float() - base[n]).flatten() for n in layers]) for w in (weights, exact))
        logprobs = []
        for each in (base, exact, weights):
            with torch.no_grad(), plain.with_weights(each):
                logprobs += plain.logprobs([torch.arange(7, 90)], [torch.arange(83) > 0], temperature=1.0)[:1]
        wanted, served = logprobs[1] - logprobs[0], logprobs[2] - logprobs[0]
        shares[way] = float(moved @ true / true.square().sum()), float(served @ wanted / wanted.square().sum())
        gap = float((served - wanted).abs().mean() / wanted.abs().mean())
        print(way, "share of the change in weights and log-probabilities", shares[way], "off by", gap)  # noqa: T201
    assert max(shares["nearest"]) < 0.3
    assert shares["published"] == pytest.approx((1.0, 1.0), abs=0.2)
    assert learner.rl_step(groups(0), stage, 5).lora_delta_kept == pytest.approx(shares["published"][0], abs=1e-3)
    name, rows = "model.layers.0.mlp.up_proj.weight", (slice(100, 300), slice(None))  # as one of several ranks has it
    part = learner.model._merged(name, base[name][rows], rows, *layers[name], torch.bfloat16)
    assert torch.equal(part, published[name][rows])


def test_a_checkpoint_of_adapters_is_a_whole_model_and_continues_bit_for_bit(model, tmp_path):
    pytest.importorskip("peft")
    lora = Lora(rank=4, targets=("q_proj", "v_proj"))
    trained = small_trainer(model, lora=lora)
    for step in range(3):
        trained.sft_step(BATCH, STAGE, step)
    trained.save(tmp_path / "checkpoint", Position(0, 0, 1))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    published = trained.copy_weights(1)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in published.items())
    resumed = small_trainer(model, lora=lora)
    resumed.restore(tmp_path / "checkpoint")
    for learner in (trained, resumed):
        learner.sft_step(BATCH, STAGE, 3)
    mine, other = trained.model.trained(), resumed.model.trained()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    with pytest.raises(CheckpointError, match="holds another model than the topology names"):
        small_trainer(model, lora=Lora(rank=8, targets=("q_proj", "v_proj"))).restore(tmp_path / "checkpoint")


def test_without_peft_check_and_the_learner_name_the_remedy(model, tmp_path, monkeypatch):
    topology, said = micro(tmp_path), "model.lora needs peft: pip install 'agent-rl[lora]'"
    adapted = topology.model_copy(update={"model": topology.model.model_copy(update={"lora": Lora()})})
    monkeypatch.setattr("actors.weights.settings.find_spec", lambda name: None)
    assert Learner.check(topology, LearnerSettings()) == []
    assert Learner.check(adapted, LearnerSettings()) == [said]
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(TrainingStoppedError, match=re.escape(said)):
        small_trainer(model, lora=Lora())


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("target", "said"),
    [("nope", r"\['nope'\] fits no layer"), ("lm_head", "names lm_head"), ("embed_tokens", "embed_tokens")],
)
def test_adapters_that_no_layer_can_have_are_refused_with_those_that_can(model, target, said):
    """The output layer and the embeddings are read as they are: adapters of theirs would be trained by nobody, or
    served alone.
    """
    pytest.importorskip("peft")
    with pytest.raises(
        TrainingStoppedError, match=rf"model\.lora\.targets: .*{said}.*; choose among .*, q_proj, up_proj, v_proj$"
    ):
        small_trainer(model, lora=Lora(targets=(target, "q_proj") if target != "nope" else (target,)))


def test_a_device_that_is_not_here_and_a_model_that_is_cut_are_refused_by_name(model, tmp_path):
    with pytest.raises(TrainingStoppedError, match=r"torch has no 'tpu' here .*set the actor's device to \"cpu\""):
        PolicyModel(model, dtype="float32", device="tpu", options=ModelOptions())
    cut = tmp_path / "cut"
    shutil.copytree(model, cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(TrainingStoppedError, match=r"cut cannot be loaded for training: .*not fully covered"):
        PolicyModel(cut, dtype="float32", device="cpu", options=ModelOptions())
    save_file({"model.norm.weight": load_file(model / "model.safetensors")["model.norm.weight"]}, weights)
    lacking = r"its files hold no [a-z_.0]+ \(\d+ weights are missing\)"
    with pytest.raises(TrainingStoppedError, match=f"cut cannot be loaded for training: {lacking}"):
        PolicyModel(cut, dtype="float32", device="cpu", options=ModelOptions())
    with pytest.raises(ModelError, match=lacking):
        CausalModel(cut, dtype="float32", device=torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_model_computes_the_same(model):
    tokens = [torch.arange(10, 10 + length) for length in (30, 17)]
    wanted = [torch.arange(len(each)) > 0 for each in tokens]
    made: list[Any] = []
    for compiled in (False, True):
        policy = PolicyModel(model, dtype="float32", device="cpu", options=ModelOptions(compile=compiled))
        policy.module.train()
        logprobs, _ = policy.logprobs(tokens, wanted, temperature=1.0)
        logprobs.sum().backward()
        made.append([logprobs.detach(), *(p.grad for _, p in policy.named_parameters())])
        policy.logprobs(tokens[:1], wanted[:1], temperature=1.0)  # another length, another number of sequences
    for one, other in zip(*made, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
