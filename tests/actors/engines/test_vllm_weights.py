"""When vLLM is paused, told to load, given a version's name and resumed: against a stand-in for it, which keeps what
it is told.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.base import EngineError
from actors.engines.vllm import weights as vllm_weights
from actors.engines.vllm.weights import VllmWeights, WorkerError
from actors.engines.vllm.worker import PublishedWeightsLoader
from actors.weights.transfer import TransferError
from agent_rl.messages import TransferOffer

OFFER = TransferOffer("gloo", "127.0.0.1", 1, "key", 1, 1, 1, ("a",), ((2,),), ("float32",))
FILE = Path("/weights/policy.safetensors")
LOADED = ["pause", "agent_rl_load_file", "version 2", "resume"]


class Llm:
    """Fails in the calls it is told to, once each; ``hangs`` in that one for ever."""

    def __init__(self, *fails: str, hangs: str = "") -> None:
        self.did: list[str] = []
        self.fails = list(fails)
        self._hangs = hangs

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("keep", True)
        self.did.append("pause")

    async def resume_generation(self) -> None:
        self.did.append("resume")

    async def update_weight_version(self, version: str) -> None:
        self.did.append(f"version {version}")

    @property
    def engine_core(self) -> Any:
        return self

    async def call_utility_all_async(
        self, utility: str, method: str, timeout: None, args: tuple[Any, ...], named: None
    ) -> list[list[str]]:
        """The answers of the workers of two engines."""
        assert (utility, timeout, len(args), named) == ("collective_rpc", None, 1, None)
        self.did.append(method)
        if method == self._hangs:
            await asyncio.Event().wait()
        if method in self.fails:
            self.fails.remove(method)
            return [["", ""], ["", f"a worker failed in {method}"]]
        return [["", ""], ["", ""]]


def sent(llm: Any, weights: VllmWeights) -> None:
    asyncio.run(weights.load_sent(llm, OFFER, "1"))


def file(llm: Any, weights: VllmWeights) -> None:
    asyncio.run(weights.load_file(llm, FILE, "2"))


def test_all_workers_have_everything_before_one_of_them_loads() -> None:
    llm = Llm()
    sent(llm, VllmWeights())
    assert llm.did == ["pause", "agent_rl_receive", "agent_rl_load_received", "version 1", "resume"]


def test_after_a_transfer_that_failed_the_old_policy_is_served_under_its_own_name() -> None:
    llm, weights = Llm("agent_rl_receive"), VllmWeights()
    with pytest.raises(TransferError, match="a worker failed in agent_rl_receive"):
        sent(llm, weights)
    assert llm.did == ["pause", "agent_rl_receive", "resume"]


@pytest.mark.parametrize("way", [sent, file])
def test_what_may_be_half_of_two_policies_is_served_by_no_means(way: Any) -> None:
    method = "agent_rl_load_received" if way is sent else "agent_rl_load_file"
    llm, weights = Llm(method), VllmWeights()
    with pytest.raises(WorkerError, match=f"a worker failed in {method}"):
        way(llm, weights)
    llm.fails.append("agent_rl_receive")
    with pytest.raises(TransferError):
        sent(llm, weights)
    assert "resume" not in llm.did
    llm.did.clear()
    file(llm, weights)
    assert llm.did == LOADED


def test_workers_that_hang_in_a_transfer_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_weights, "TRANSFER_SECONDS", 0.01)
    llm = Llm(hangs="agent_rl_receive")
    with pytest.raises(EngineError, match="weights by gloo did not arrive within"):
        sent(llm, VllmWeights())
    assert "resume" not in llm.did


def test_a_worker_answers_with_its_fault_and_does_not_raise_it() -> None:
    worker = PublishedWeightsLoader()
    worker.agent_rl_received = "another", {}
    fault = worker.agent_rl_load_received("key")
    assert fault == "ValueError: the received weights are of transfer 'another', not of 'key'"
    worker.model_runner = SimpleNamespace(
        reload_weights=lambda **_: None, get_model=lambda: SimpleNamespace(modules=list)
    )
    worker.agent_rl_received = "key", {}
    assert worker.agent_rl_load_received("key") == ""
