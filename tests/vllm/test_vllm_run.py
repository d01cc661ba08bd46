"""Whole runs on vLLM: calls of tools, updates in flight, and what may go wrong; in an environment that has it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm builds an environment with it")

from tests.actors.test_trained_tokens import check_all_that_was_sampled_is_trained
from tests.end_to_end.processes import (
    check_finished,
    children_named,
    finish,
    process_of_actor,
    processes_of,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_micro

ENGINE = (
    "actors.rollout_generator.settings.engine=actors.engines.vllm:VllmEngine",
    "model.initialise.head_dim=32",  # the least that vLLM's attention takes
)
TALKS = ("stages.0.steps=250", "stages.0.batch=16", "stages.0.learning_rate=3e-3")
"""Taught long enough to call the tool now and then."""
SENT = ("actors.learner.settings.weights_in=gloo", "actors.rollout_generator.links.transfer=learner")
LENGTHS = tuple(
    part for stage in (1, 2, 3) for part in (f"stages.{stage}.max_response_tokens=120", f"stages.{stage}.max_turns=3")
)


def engine_process(path: Path) -> int:
    """vLLM's own process of the run's generator."""
    (pid,) = children_named(process_of_actor(path, "rollout_generator.0"), "EngineCore")
    return pid


@pytest.mark.sample
@pytest.mark.real_time
async def test_all_that_was_sampled_is_trained(tmp_path: Path) -> None:
    await check_all_that_was_sampled_is_trained(tmp_path, "vllm")


@pytest.mark.sample
def test_a_run_calls_tools_and_learns_from_rollouts_that_went_on_over_updates(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=6)
    said = finish(start(path, *ENGINE, *TALKS, *LENGTHS))
    summary = check_finished(path, directory, said, steps=6)
    assert summary["tokens_sampled"] > 0
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert sum(row["tool_calls"] for row in steps) > 0
    (log,) = (directory / "logs").glob("rollout_generator.0*.jsonl")
    taken_up = [row["version"] for row in rows(log) if row["event"] == "policy taken up"]
    assert taken_up[-1] == 1 + 6  # the stage of supervised learning is a version too


def test_a_killed_engine_process_is_replaced_and_its_rollouts_are_written_again(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=6)
    process = start(path, *ENGINE, *LENGTHS, *SENT)
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    os.kill(engine_process(path), signal.SIGKILL)
    said = finish(process)
    check_finished(path, directory, said, steps=6)
    assert re.search(r"rollout_generator.0 exited with status 1; starting it again \(EngineError: .*has died", said.out)
    assert processes_of(path) == []


def test_memory_that_there_is_not_is_said_at_start(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path)
    setting = "actors.rollout_generator.settings.kv_tokens=100000000000"
    said = finish(start(path, *ENGINE, setting), 2)
    assert "rollout_generator.0: the engine cannot be started: vLLM: " in said.all
    assert "Traceback" not in said.all
    assert steps_trained(directory) == 0
    assert processes_of(path) == []
