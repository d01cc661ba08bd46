"""Packed rows: the sequences in one do not see each other, whichever model and kernel; what cannot be packed is
refused.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from agent_rl.learning import packing
from agent_rl.learning.packing import pack, packed_attention
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from tests.agent_rl.learning.trainers import plain_logprobs

SHAPE = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
}
LENGTHS = (5, 17, 1, 9)


def saved(config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def sequences() -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(2)
    return [torch.randint(0, 60, (length,), generator=drawn) for length in LENGTHS]


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True}, {"logits_mib": 0}], ids=str)
def test_packed_sequences_get_what_they_get_alone(name, block, options, tmp_path):
    """Also where the prompt that they share is computed once. Layers are computed again where that is asked for."""
    path = saved(CONFIGS[name], tmp_path)
    model = PolicyModel(path, dtype="float32", device="cpu", options=ModelOptions(**options))
    model.block = block
    plain = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    given = [torch.cat([torch.arange(20), each]) for each in sequences()]
    computed: list[int] = []
    model.module.model.layers[0].mlp.register_forward_pre_hook(lambda _, args: computed.append(args[0].shape[1]))
    logprobs, _ = model.logprobs(given, [torch.arange(len(each)) >= 10 for each in given], temperature=1.0)
    logprobs.square().sum().backward()
    tokens = (20 if block else 20 * len(LENGTHS)) + sum(LENGTHS)
    assert computed == [tokens] * (2 if "activation_checkpointing" in options else 1)
    expected = [plain_logprobs(plain, each)[9:] for each in given]
    torch.cat(expected).square().sum().backward()
    assert torch.allclose(logprobs, torch.cat(expected), atol=1e-5)
    gradients = dict(plain.named_parameters())
    for name_of, parameter in model.named_parameters():
        theirs = gradients[name_of].grad
        assert torch.allclose(parameter.grad, theirs, atol=1e-4 * float(theirs.abs().max())), name_of


DROPPING: dict[str, dict[str, Any]] = {
    "qwen2": {"attention_dropout": 0.2},
    "phi": {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attention_dropout": 0.2},
    "gpt2": {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2},
    "opt": {"dropout": 0.2, "attention_dropout": 0.2, "layerdrop": 0.2, "ffn_dim": 40, "word_embed_proj_dim": 32},
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", DROPPING)
def test_nothing_is_dropped_unless_asked(name, tmp_path, *, checkpointing):
    config = AutoConfig.for_model(name, **SHAPE, **DROPPING[name])
    options = ModelOptions(activation_checkpointing=checkpointing)
    model = PolicyModel(saved(config, tmp_path), dtype="float32", device="cpu", options=options)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    given = [torch.arange(10, 40), torch.arange(10, 41)]
    expected = torch.cat([plain_logprobs(plain, each) for each in given]).detach()

    def logprobs() -> torch.Tensor:
        return model.logprobs(given, [torch.arange(len(each)) > 0 for each in given], temperature=1.0)[0]

    assert torch.allclose(logprobs(), expected, atol=1e-5)
    model.dropout(on=True)
    torch.manual_seed(0)
    assert (logprobs() - logprobs()).abs().mean() > 1e-4
    logprobs().sum().backward()
    model.dropout(on=False)
    assert torch.allclose(logprobs(), expected, atol=1e-5)
    assert model.module.config.to_dict().items() >= DROPPING[name].items()  # as it is saved


def test_windows_that_sequences_fit_into_are_no_matter_and_others_are_refused():
    row = pack(sequences(), torch.device("cpu"))
    qkv = [torch.randn(1, 2, sum(LENGTHS), 8) for _ in range(3)]
    module = torch.nn.Identity()
    whole, _ = packed_attention(module, *qkv, None, packed=row)
    within, _ = packed_attention(module, *qkv, None, packed=row, sliding_window=17)
    assert torch.equal(whole, within)
    with pytest.raises(ValueError, match="attends within 16 tokens and a sequence has 17"):
        packed_attention(module, *qkv, None, packed=row, sliding_window=16)
    shared = pack([sequences()[1], sequences()[1]], torch.device("cpu"), block=1)
    with pytest.raises(ValueError, match="attends within 16 tokens and a sequence has 17"):
        packed_attention(module, *(each[:, :, :17] for each in qkv), None, packed=shared, sliding_window=16)
    for mask, other in ((None, {"softcap": 30.0}), (torch.ones(1), {}), (None, {"is_causal": False})):
        with pytest.raises(ValueError, match="without softcap and without a mask of its own"):
            packed_attention(module, *qkv, mask, packed=row, **other)


@pytest.mark.parametrize("library", ["flash_attn", "torch"])
def test_the_kernels_for_gpus_are_given_what_they_expect(library, monkeypatch):
    """A stand-in for each library's function, by its documentation, gives what one call a sequence gives."""
    import sys
    import types

    def attend(q: Any, k: Any, v: Any, bounds: Any, longest: int, scale: float) -> Any:
        assert max(bounds.diff().tolist()) == longest
        rows = []
        for start, end in pairwise(bounds.tolist()):
            parts = [x[start:end].transpose(0, 1) for x in (q, k, v)]
            rows.append(
                torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, scale=scale, enable_gqa=True)
            )
        return torch.cat([row.transpose(0, 1) for row in rows])

    def flash(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, most_q: int, most_k: int, **more: Any) -> Any:
        assert more.keys() == {"softmax_scale", "causal"}
        assert more["causal"]
        return attend(q, k, v, cu_q, most_q, more["softmax_scale"])

    def varlen(
        q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, most_q: int, most_k: int, *, scale: Any, window_size: Any
    ) -> Any:
        assert window_size == (-1, 0)
        assert q.shape == k.shape == v.shape
        return attend(q, k, v, cu_q, most_q, scale)

    if library == "flash_attn":
        module = types.ModuleType("flash_attn")
        module.flash_attn_varlen_func = flash
        monkeypatch.setitem(sys.modules, "flash_attn", module)
    else:
        monkeypatch.setitem(sys.modules, "flash_attn", None)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    packing.variable_length_kernel.cache_clear()
    kernel = packing.variable_length_kernel()
    packing.variable_length_kernel.cache_clear()
    assert kernel is not None
    row = pack(sequences(), torch.device("cpu"))
    query, key, value = (torch.randn(1, heads, sum(LENGTHS), 8) for heads in (4, 2, 2))
    made = kernel(*(x[0].transpose(0, 1) for x in (query, key, value)), row, 0.3)
    expected, _ = packed_attention(torch.nn.Identity(), query, key, value, None, packed=row, scaling=0.3)
    assert torch.allclose(made, expected[0], atol=1e-6)


def test_a_kernel_for_gpus_is_given_rows_in_half_precision_that_share_nothing(monkeypatch):
    class OnGpu(torch.Tensor):
        is_cuda = True

    def kernel(query: torch.Tensor, *_: Any) -> torch.Tensor:
        reached.append((len(query), query.dtype))
        return query

    monkeypatch.setattr(packing, "variable_length_kernel", lambda: kernel)
    reached: list[tuple[int, torch.dtype]] = []
    given = [torch.cat([sequences()[1], torch.tensor([end])]) for end in range(2)]
    for block, dtype in ((0, torch.float32), (0, torch.bfloat16), (0, torch.float16), (1, torch.bfloat16)):
        row = pack(given, torch.device("cpu"), block=block)
        qkv = [torch.randn(1, 2, sum(row.lengths), 8).to(dtype) for _ in range(3)]
        made, _ = packed_attention(torch.nn.Identity(), *(each.as_subclass(OnGpu) for each in qkv), None, packed=row)
    assert reached == [(36, torch.bfloat16), (36, torch.float16)]
    assert row.shared
    expected, _ = packed_attention(torch.nn.Identity(), *qkv, None, packed=row)
    assert torch.equal(made, expected)
