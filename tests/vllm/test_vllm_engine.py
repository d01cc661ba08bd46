"""vLLM under the engine contract; in an environment that has it (`make test-vllm`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm builds an environment with it")

from actors.engines.testing import CHECKS, EngineOptions, Subject, save_tiny_model
from actors.engines.vllm import VllmEngine


def make(options: EngineOptions) -> VllmEngine:
    return VllmEngine(
        options.model_path,
        max_rollouts=options.max_rollouts,
        kv_tokens=options.kv_tokens or options.max_rollouts * 512,
        threads=1,
        device="cpu",
        dtype="float32",
        initial_policy=options.policy,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "qwen3", seed=0, head_dim=32)
    trio.run(check, Subject(tmp_path / "model", make, kv_on_update="recompute"))
