"""A tiny random model of each architecture: engine, learner and transformers agree, and a checkpoint is the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from actors.engines.torch.engine import TorchEngine
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.messages import PolicyVersion
from agent_rl.models.architectures import EXACT, OTHERS, fault, window
from agent_rl_contract.engine import turn

pytestmark = pytest.mark.real_time
VOCABULARY, KNOWN = 67, 61
SIZES = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_attention_heads", "n_head"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": 96,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 96),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "n_group"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), None),
    "logit_scale": 0.5,
    "logits_scaling": 2.0,
}
"""A size has a name of its own in each family."""
QUICK = {"cohere", "gpt2", "qwen3_moe"}
"""Beside those that other tests have; the others are slow tests."""


def save(kind: str, path: Path, **more: Any) -> Any:
    """A random model, whose vocabulary is padded; returns it."""
    config_class = CONFIG_MAPPING[kind]
    keys = {*config_class().to_dict(), *config_class.attribute_map}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = config_class(**{key: value for key, value in SIZES.items() if key in keys}, **more)
        model = AutoModelForCausalLM.from_config(config).eval()
        for name, weights in model.named_parameters():
            if weights.ndim > 1 or "bias" in name:
                weights.data.normal_(std=0.15)
    model.save_pretrained(path)
    known = WordLevel({str(number): number for number in range(KNOWN)}, unk_token="0")
    Tokenizer(known).save(str(path / "tokenizer.json"))
    return model


def test_the_documents_list_the_architectures():
    page = (Path(__file__).parents[3] / "docs/families.md").read_text("utf-8")
    assert f"| exact | {', '.join(sorted(EXACT))} |" in page
    assert all(f"| refused: {why} |" in page for why in OTHERS.values())


def learner_of(path: Path) -> PolicyModel:
    return PolicyModel(path, dtype="float32", device="cpu", options=ModelOptions())


async def sampled(path: Path, learner: PolicyModel, tokens: list[int]) -> float:
    """The largest difference of log-probabilities in three turns."""
    engine = TorchEngine(
        path, max_rollouts=4, kv_tokens=None, device="cpu", dtype="float32", initial_policy=PolicyVersion(0, 0)
    )
    differences = []
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for seed in range(3):
            written = await engine.generate(turn("r", tokens, 8, temperature=1.3, seed=seed))
            assert written.tokens.max() < KNOWN
            longer = torch.tensor([*tokens, *written.tokens.tolist()])
            ours, _ = learner.logprobs([longer], [torch.arange(len(longer)) >= len(tokens)], temperature=1.3)
            differences.append(float((ours - torch.from_numpy(written.logprobs)).abs().max()))
            tokens = [*longer.tolist(), 5, 6]
        nursery.cancel_scope.cancel()
    return max(differences)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in sorted(EXACT)]
)
@torch.no_grad()
def test_engine_learner_and_transformers_agree(kind, tmp_path):
    model = save(kind, tmp_path / "model")
    learner = learner_of(tmp_path / "model")
    assert learner.max_length == min(256, window(model.config.to_dict()) or 256)
    drawn = torch.Generator().manual_seed(1)
    shared, *others = (torch.randint(0, KNOWN, (length,), generator=drawn) for length in (20, 13, 21, 30))
    sequences = [*(torch.cat([shared, other]) for other in others), others[0]]
    wanted = [torch.arange(len(sequence)) >= 3 for sequence in sequences]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32, attn_implementation="eager")
    expected = []
    for sequence, places in zip(sequences, wanted, strict=True):
        logits = plain.eval()(input_ids=sequence[None], use_cache=False).logits[0, :-1, :KNOWN] / 1.3
        expected.append(logits.log_softmax(-1).gather(-1, sequence[1:, None])[:, 0][places[1:]])
    packed, _ = learner.logprobs(sequences, wanted, temperature=1.3)
    alone = [
        learner.logprobs([sequence], [places], temperature=1.3)[0]
        for sequence, places in zip(sequences, wanted, strict=True)
    ]
    for ours in (packed, torch.cat(alone)):
        assert torch.allclose(ours, torch.cat(expected), atol=2e-5)
    assert trio.run(sampled, tmp_path / "model", learner, sequences[0].tolist()) < 2e-5
    learner.save(tmp_path / "saved", dict(learner.served()))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("gemma2", {}, "caps its logits"),
        ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}, "layers of the kinds conv"),
        ("gpt_oss", {}, "attention sinks"),
        ("stablelm", {}, "attention of its own kind"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_its_configuration(kind, more, said, tmp_path):
    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers does not have it")
    config = save(kind, tmp_path, **more).config.to_dict()
    assert said in fault(config)
    with pytest.raises(TrainingStoppedError, match=said):
        learner_of(tmp_path)


@pytest.mark.parametrize("kind", ["gpt_oss", "stablelm"])
def test_a_type_that_nobody_compared_is_compared_at_the_start(kind, tmp_path, monkeypatch):
    monkeypatch.delitem(OTHERS, kind)
    save(kind, tmp_path)
    with pytest.raises(TrainingStoppedError, match=r"not computed as transformers|cannot be computed in packed rows"):
        learner_of(tmp_path)
