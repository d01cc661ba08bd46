"""The rollout benchmark: its figures, its workloads, and the model that writes tool calls by construction."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from agent_rl.rollout.parsing import ParsedCall, parse_calls
from agent_rl.testing import opened, trajectory
from benchmarks import bench_rollout
from benchmarks.command import call
from benchmarks.rollout_loop import turns
from benchmarks.rollout_models import RESPONSE_LIMIT, RESPONSE_MEDIAN, quickstart_model, save_writer, workload

FIGURES = {
    "engine_ratio_to_generate",
    "engine_tokens_per_s",
    "generate_tokens_per_s",
    "generator_share_of_engine",
    "agent_loop_share_of_engine",
}


@pytest.mark.slow
def test_a_quick_measurement_ends_with_its_figures(capfd):
    assert call("rollout", ["--quick"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures.keys() >= FIGURES
    assert all(value > 0 for value in figures.values())


BURN = """
import sys, time
for line in sys.stdin:
    began = time.process_time()
    while time.process_time() - began < 0.5: pass
    print(flush=True)
"""


@pytest.mark.slow
def test_vllm_is_compared_by_the_clock_and_by_processor_time(monkeypatch, tmp_path):
    """Without vLLM: the embedded engine is behind the generator, and bare vLLM a process that takes 0.5 s a batch."""
    command = [sys.executable, "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        class Bare:
            pid = process.pid

            async def seconds(self, _prompts, _lengths, _seed):
                process.stdin.write(b"\n")
                process.stdin.flush()
                await trio.to_thread.run_sync(process.stdout.readline)
                return 2.0

        @asynccontextmanager
        async def bare_vllm(_model):
            yield Bare()

        embedded = bench_rollout.generator
        monkeypatch.setattr("benchmarks.rollout_vllm.bare_vllm", bare_vllm)
        monkeypatch.setattr(
            bench_rollout, "generator", lambda model, folder, threads, _engine: embedded(model, folder, threads)
        )
        figures = bench_rollout.Figures()
        options = bench_rollout.Options(rounds=1, rollouts=16)
        trio.run(bench_rollout.compare_vllm, quickstart_model(), tmp_path, options, figures)
        process.stdin.close()
    tokens = 2.0 * figures.median("bare_vllm_tokens_per_s")
    assert 0.45e6 < tokens * figures.median("bare_vllm_cpu_us_per_token") < 0.8e6
    ratio = figures.median("bare_vllm_cpu_us_per_token") / figures.median("generator_cpu_us_per_token_vllm")
    assert figures.median("generator_over_bare_vllm_cpu") == pytest.approx(ratio)
    assert figures.median("generator_over_bare_vllm") > 0


def test_workloads_are_functions_of_their_seed_and_as_long_as_they_say():
    assert workload(64, "log-normal", 3).prompts == workload(64, "log-normal", 3).prompts
    assert workload(64, "log-normal", 3).prompts != workload(64, "log-normal", 4).prompts
    lengths = workload(4000, "log-normal", 0).lengths
    assert np.median(lengths) == pytest.approx(RESPONSE_MEDIAN, rel=0.05)
    assert 0.02 < np.mean(lengths == RESPONSE_LIMIT) < 0.06
    assert set(workload(8, "equal", 0).lengths) == {round(RESPONSE_MEDIAN * np.exp(0.32))}


def test_turns_of_a_trajectory_are_what_the_model_wrote_and_all_before_it():
    made = trajectory(opened(), tokens=7)  # the fourth token is a tool's
    assert turns(made) == [([0, 1, 2], 3), ([0, 1, 2, 5, 6, 7, 8], 3)]


def test_the_writer_writes_calls_and_answers(tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save_writer(tmp_path / "model", quickstart_model(), thinking=5.0, calling=0.5)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    start = torch.tensor([[tokenizer.convert_tokens_to_ids("<|assistant|>")]] * 40)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=80, top_k=0)
    texts = [tokenizer.decode(row[1:]).split("<|end|>")[0] for row in written]
    calls = [parse_calls(text) for text in texts]
    parsed = [call for found in calls for call in found if isinstance(call, ParsedCall)]
    assert {call.arguments["code"] for call in parsed} == {"print(1+2)"}
    assert 10 <= sum(len(found) == 1 for found in calls) <= 30
    assert all(found or text.endswith("<answer>\\boxed{3}</answer>") for found, text in zip(calls, texts, strict=True))
