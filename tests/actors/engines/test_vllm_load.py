"""The figures of a vLLM engine, from the statistics of its steps, and the policies of its tokens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.base import EngineError, PassTable
from actors.engines.vllm.engine import VllmEngine, _versions
from actors.engines.vllm.load import VllmLoad
from agent_rl.figures import Passes
from agent_rl.messages import PolicyVersion


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
