"""What vLLM is started with, told to load, and says: against stand-ins. That it does so is tested in tests/vllm."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.base import EngineError, PassTable
from actors.engines.vllm import weights as vllm_weights
from actors.engines.vllm.engine import VllmEngine, _versions
from actors.engines.vllm.load import VllmLoad
from actors.engines.vllm.start import SOCKETS, VllmStart
from actors.engines.vllm.weights import VllmWeights, WorkerError
from actors.engines.vllm.worker import PublishedWeightsLoader
from actors.weights.transfer import TransferError
from agent_rl.figures import Passes
from agent_rl.files.leftovers import sweep_one
from agent_rl.messages import PolicyVersion, TransferOffer

OFFER = TransferOffer("gloo", "127.0.0.1", 1, "key", 1, 1, 1, ("a",), ((2,),), ("float32",))
FILE = Path("/weights/policy.safetensors")
LOADED = ["pause", "agent_rl_load_file", "version 2", "resume"]


def start(**changes: Any) -> VllmStart:
    settings: dict[str, Any] = {
        "model_path": Path("model"),
        "max_rollouts": 8,
        "kv_tokens": None,
        "threads": 2,
        "device": "cuda",
        "dtype": "bfloat16",
        "block_size": 32,
        "engine_arguments": {},
    }
    return VllmStart(**{**settings, **changes})


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, by a name short enough for sockets."""
    monkeypatch.delenv(SOCKETS, raising=False)
    for name in start().environment() | start(device="cpu").environment():
        monkeypatch.setenv(name, "as it was")
    with tempfile.TemporaryDirectory(prefix="v-", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def bound(directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "01234567-0123-0123-0123-012345678901"))
    listener.listen()
    return listener


def test_sockets_that_vllm_leaves_are_swept(temporary: Path) -> None:
    with start().surroundings():
        directory = Path(os.environ[SOCKETS])
        assert directory.parent == temporary
        bound(directory).close()
        assert not sweep_one(directory)  # it is held
    assert SOCKETS not in os.environ
    assert list(temporary.iterdir()) == []


def test_a_socket_at_which_a_process_still_listens_is_left_for_the_next_sweep(temporary: Path) -> None:
    with start().surroundings():
        listener = bound(Path(os.environ[SOCKETS]))
    (directory,) = temporary.iterdir()
    listener.close()
    assert sweep_one(directory)


def test_a_directory_that_the_user_names_is_vllms(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKETS, "/tmp/mine")
    with start().surroundings():
        assert os.environ[SOCKETS] == "/tmp/mine"
    assert os.environ[SOCKETS] == "/tmp/mine"
    assert list(temporary.iterdir()) == []


def test_paths_too_long_for_sockets_are_not_made_longer(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = temporary / ("x" * 60)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    with start().surroundings():
        assert SOCKETS not in os.environ
    assert list(far.iterdir()) == []


def test_variables_that_are_set_already_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del temporary
    monkeypatch.delenv("OMP_NUM_THREADS")
    with start(device="cpu").surroundings():
        assert os.environ["OMP_NUM_THREADS"] == "2"
        assert os.environ["VLLM_LOGGING_LEVEL"] == "as it was"


def test_the_topologys_arguments_go_before_all_others() -> None:
    made = start(engine_arguments={"max_num_seqs": 4, "tensor_parallel_size": 2}).arguments()
    assert (made["max_num_seqs"], made["tensor_parallel_size"]) == (4, 2)
    assert made["model"] == "model"


def step(*, usage: float, running: int, waiting: int, hits: int) -> Any:
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=1,
        kv_cache_usage=usage,
        prefix_cache_stats=SimpleNamespace(hits=hits, queries=2 * hits),
    )


def iteration(*, generated: int, prompts: int, preempted: int, finished: int = 0) -> Any:
    return SimpleNamespace(
        num_generation_tokens=generated,
        prompt_token_stats=SimpleNamespace(computed=prompts),
        num_preempted_reqs=preempted,
        finished_requests=["one"] * finished,
    )


def test_use_counts_hits_and_preemptions_are_those_of_the_engine() -> None:
    load = VllmLoad(1000, 8)
    load.observe(step(usage=0.25, running=3, waiting=2, hits=48), iteration(generated=3, prompts=80, preempted=0))
    load.observe(
        step(usage=0.5, running=4, waiting=0, hits=16), iteration(generated=64, prompts=20, preempted=2, finished=1)
    )
    figures = load.with_unseen(5)
    assert (figures.kv_tokens_used, figures.running, figures.waiting) == (500, 4, 1)
    assert (figures.cached_tokens, figures.prefilled_tokens, figures.generated_tokens) == (64, 100, 67)
    assert (figures.preempted, figures.steps) == (2, 2)
    assert [(size, each.written, each.prefilled, each.context) for size, each in figures.passes.items()] == [
        ("8+", 5, 20, 500)
    ], "nobody knows when the first step began; tokens come in bundles"


def test_an_update_of_weights_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.5, 9.5, 9.75])
    monkeypatch.setattr("actors.engines.vllm.load.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    load, state = VllmLoad(1000, 8), step(usage=0.0, running=1, waiting=0, hits=0)
    processor = iter([10.0, 10.25, 14.0, 14.5])
    load.computes_in(lambda: next(processor))
    load.updated()
    load.observe(state, iteration(generated=1, prompts=0, preempted=0))
    load.observe(state, iteration(generated=1, prompts=0, preempted=0))
    load.updated()
    load.observe(state, iteration(generated=1, prompts=0, preempted=0))
    figures = load.with_unseen(0)
    assert (figures.busy_seconds, figures.passes["1"].count, figures.passes["1"].seconds) == (0.75, 2, 0.75)
    assert figures.passes["1"].cpu_seconds == 0.75


def test_passes_are_added_up_by_the_power_of_two_that_holds_what_they_wrote() -> None:
    table = PassTable()
    empty = table.table
    for written, prefilled in ((1, 0), (5, 0), (8, 0), (8, 30), (9, 0), (0, 512)):
        table.add(0.5, 0.25, written=written, prefilled=prefilled, context=100)
    assert dict(table.table) == {
        "1": Passes(1, 0.5, 0.25, 1, 0, 100),
        "8": Passes(2, 1.0, 0.5, 13, 0, 200),
        "8+": Passes(1, 0.5, 0.25, 8, 30, 100),
        "16": Passes(1, 0.5, 0.25, 9, 0, 100),
        "0+": Passes(1, 0.5, 0.25, 0, 512, 100),
    }
    assert not empty, "another thread may be reading it"


def test_tokens_whose_weights_vllm_does_not_name_are_refused() -> None:
    engine = VllmEngine(
        Path("model"),
        max_rollouts=1,
        kv_tokens=None,
        threads=1,
        device="cpu",
        dtype="float32",
        initial_policy=PolicyVersion(1, 2),
    )

    def result(*spans: tuple[int, int]) -> list[list[int]]:
        versions = [SimpleNamespace(version="1.2", start=start, end=end) for start, end in spans]
        logprobs = SimpleNamespace(logprobs=[-0.1] * 4, start_indices=range(4))
        completion = SimpleNamespace(
            token_ids=range(4), weight_versions=versions or None, logprobs=logprobs, finish_reason="stop"
        )
        output: Any = SimpleNamespace(outputs=[completion], finished=True)
        policies: list[list[int]] = engine._written(output, _versions(output))[2].tolist()
        return policies

    assert result((0, 3), (3, 4)) == [[1, 2]] * 4
    for spans, told in (
        (((0, 1), (2, 4)), "1 of the 4 tokens of a turn, the first at 1"),
        (((0, 3),), "1 of the 4 tokens of a turn, the first at 3"),
        ((), "4 of the 4 tokens of a turn, the first at 0"),
    ):
        with pytest.raises(EngineError, match=f"did not say which weights wrote {told}"):
            result(*spans)


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
