"""vLLM under the engine contract; in an environment that has it (`make test-vllm`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm builds an environment with it")

from actors.engines.reference import save_tiny_model
from actors.engines.vllm.engine import VllmEngine
from agent_rl.messages import PolicyVersion
from agent_rl_contract.engine import (
    CHECKS,
    FIRST_POLICY,
    SLEEP_CHECKS,
    EngineOptions,
    Subject,
    check_a_rollout_goes_on_at_another_engine,
    check_greedy_is_the_models_own,
    check_weights_change_under_way,
    save_other_weights,
    update_under_way,
)
from tests.sending import check_sent_weights, check_weights_of_several_ranks, sending

SAMPLED = (check_greedy_is_the_models_own, check_a_rollout_goes_on_at_another_engine, check_weights_change_under_way)


def make(
    options: EngineOptions, kv_on_update: Literal["keep", "recompute"] = "recompute", **engine_settings: Any
) -> VllmEngine:
    return VllmEngine(
        options.model_path,
        max_rollouts=options.max_rollouts,
        kv_tokens=options.kv_tokens or options.max_rollouts * 512,
        threads=1,
        device="cpu",
        dtype="float32",
        initial_policy=options.policy,
        kv_on_update=kv_on_update,
        **engine_settings,
    )


def new_subject(folder: Path) -> Subject:
    save_tiny_model(folder / "model", "qwen3", seed=0, head_dim=32)
    return Subject(folder / "model", make, kv_on_update="recompute")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=pytest.mark.sample if check in SAMPLED else (), id=check.__name__)
        for check in (*CHECKS, *SLEEP_CHECKS)
    ],
)
def test_contract(check, tmp_path: Path) -> None:
    trio.run(check, new_subject(tmp_path))


def test_keys_and_values_that_are_kept_are_those_of_requests_in_flight_alone(tmp_path: Path) -> None:
    new_subject(tmp_path)
    subject = Subject(tmp_path / "model", partial(make, kv_on_update="keep"), kv_on_update="keep")
    trio.run(check_weights_change_under_way, subject)


def test_weights_that_are_sent(tmp_path: Path) -> None:
    trio.run(check_sent_weights, new_subject(tmp_path))


def test_weights_that_several_ranks_send(tmp_path: Path) -> None:
    trio.run(check_weights_of_several_ranks, new_subject(tmp_path))


def test_weights_that_several_ranks_send_to_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker holds a part of each layer, and vLLM's loader takes it from the whole tensor."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # else vLLM wants a NUMA node for each worker
    make_two = partial(make, tensor_parallel_size=2, distributed_executor_backend="mp")
    new_subject(tmp_path)
    subject = Subject(tmp_path / "model", make_two, kv_on_update="recompute")
    trio.run(partial(check_weights_of_several_ranks, workers=2), subject)


def test_rollouts_in_flight_go_on_over_weights_that_are_sent(tmp_path: Path) -> None:
    subject, sent = new_subject(tmp_path), PolicyVersion(FIRST_POLICY.epoch, FIRST_POLICY.version + 1)
    reference = save_other_weights(subject, tmp_path / "sent", seed=31)

    async def main() -> None:
        with sending(tmp_path / "sent", sent) as offer:
            async with subject.running() as engine:
                await update_under_way(subject, engine, offer, (FIRST_POLICY, subject.reference), (sent, reference))

    trio.run(main)
