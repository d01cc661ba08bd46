"""Tensors whose content waits in host memory. Here device and host are the same; the moves are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.engines.base import EngineError
from actors.engines.reference import save_tiny_model
from actors.engines.torch.model import CausalModel, HostMemory
from agent_rl_contract.engine import sleeping
from tests.actors.engines.test_torch import new_subject


def test_content_leaves_and_comes_back_with_all_views() -> None:
    whole = torch.randn(6, 4)
    parts, other = whole.split([2, 4]), torch.arange(5)
    before = [tensor.clone() for tensor in (whole, *parts, other)]
    away = HostMemory([whole, *parts, other])
    assert away.size == 6 * 4 * 4 + 5 * 8
    for _ in range(2):
        away.take()
        away.take()
        assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
        away.put_back()
        away.put_back()
        for tensor, expected in zip((whole, *parts, other), before, strict=True):
            assert torch.equal(tensor, expected)
        assert parts[1].data_ptr() == whole[2:].data_ptr()


def test_a_fused_model_computes_the_same_after_its_weights_were_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: without oneDNN, parameters are parts of one tensor."""
    monkeypatch.setattr("actors.engines.torch.model._has_one_dnn", lambda dtype: False)
    save_tiny_model(tmp_path / "model", "qwen3", seed=0)
    with torch.inference_mode():
        model = CausalModel(tmp_path / "model", dtype="bfloat16", device=torch.device("cpu"))
        assert model._fused is not None
        qkv = model._fused._layers[0].qkv
        inputs = torch.randn(3, qkv._weight.shape[1]).bfloat16()
        expected = qkv(inputs)
        away = HostMemory(parameter for layer in qkv._layers for parameter in layer.parameters())
        away.take()
        assert qkv._weight.untyped_storage().nbytes() == 0
        away.put_back()
        assert torch.equal(qkv(inputs), expected)


@pytest.mark.real_time
async def test_an_engine_that_finds_no_memory_to_wake_dies_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: HostMemory) -> None:
        raise torch.OutOfMemoryError("12 GiB wanted, 3 GiB free")

    with pytest.RaisesGroup(EngineError, EngineError, flatten_subgroups=True) as caught:
        async with sleeping(new_subject(tmp_path)) as engine:
            await engine.sleep()
            monkeypatch.setattr(HostMemory, "put_back", full)
            await engine.wake()
    assert "no memory on cpu to wake: 12 GiB wanted" in str(caught.value.exceptions[0])
