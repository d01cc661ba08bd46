"""Each actor is stopped (SIGSTOP) during a run: it is named within 10 s, with who waits for it, and later as back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.processes import (
    SECONDS,
    alive,
    balanced,
    family,
    processes_of,
    rows,
    signal_actor,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_micro

ENGINE = '''
"""An engine without a model whose every rollout calls a tool, so that somebody always needs the tool executor."""
from pathlib import Path
from urllib.parse import quote
from agent_rl_contract.scripted import ScriptedEngine

CALL = '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(4)", "input": ""}}</tool_call>'


def script(turn, request):
    return CALL if turn == 1 else "<answer>\\\\boxed{4}</answer>"


class Engine(ScriptedEngine):
    def __init__(self, path, **settings):
        super().__init__(path, script=script, **settings)

    async def load_weights(self, path, policy):
        await super().load_weights(Path("/weights") / path.name, policy)
'''
NAMED_WITHIN = 10.0
"""Seconds from the signal to the row in the log."""


def silences(directory: Path) -> list[dict[str, Any]]:
    path = directory / "logs" / "supervisor.local.jsonl"
    return [row for row in rows(path) if row["event"] == "silence"] if path.exists() else []


def seconds_since_epoch(row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["timestamp"]).timestamp()


@contextmanager
def run_in_background(path: Path, out: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "actors.cli", "run", str(path), *arguments]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stop_and_see_it_named(path: Path, directory: Path, actor: str) -> str:
    """Stop the actor's process; what the log says of it, once it has said it."""
    before = len(silences(directory))
    stopped_at = time.time()
    signal_actor(path, actor, signal.SIGSTOP)
    wait_for(lambda: any(row["actor"] == actor for row in silences(directory)[before:]), f"{actor} to be named")
    row = next(row for row in silences(directory)[before:] if row["actor"] == actor)
    assert seconds_since_epoch(row) - stopped_at < NAMED_WITHIN
    assert f"{actor} has been silent for " in row["text"]
    assert "its process is stopped (state T)" in row["text"]
    return str(row["text"])


@pytest.mark.slow
def test_each_stopped_actor_is_named_and_nothing_is_lost_when_it_goes_on(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=100_000)
    (tmp_path / "talkative.py").write_text(ENGINE)
    out = tmp_path / "out"
    overrides = [
        "actors.rollout_generator.settings.engine=talkative:Engine",
        "stages.2.max_response_tokens=120",
        "actors.tool_executor.silent_seconds=10",
    ]
    with run_in_background(path, out, *[part for each in overrides for part in ("--set", each)]) as process:
        wait_for(lambda: steps_trained(directory) >= 2, "two steps")
        everyone = family(process.pid)

        waits = {
            "roc_filter.0": "learner.0 waits for it: ",
            "kv_scheduler.0": "rollout_generator.0 waits for it: rollout requests",
            "rollout_generator.0": " waits for it: ",  # the filter for trajectories, or the scheduler for room
            "learner.0": "kv_scheduler.0 waits for it: a newer policy",
        }
        for actor, waiting in waits.items():
            assert waiting in stop_and_see_it_named(path, directory, actor)
            done = steps_trained(directory)
            signal_actor(path, actor, signal.SIGCONT)
            wait_for(
                lambda: any(
                    row["text"].startswith(f"{actor} is heard again, after ")  # noqa: B023 - called in this turn
                    for row in silences(directory)
                ),
                f"{actor} to be named as back",
            )
            wait_for(lambda: steps_trained(directory) >= done + 2, "steps to go on")  # noqa: B023 - the same

        # One that stays silent is replaced.
        text = stop_and_see_it_named(path, directory, "tool_executor.0")
        assert "rollout_generator.0 waits for it: " in text
        assert "learner.0 waits for roc_filter: step " in text
        done = steps_trained(directory)
        wait_for(lambda: "it was killed, since it may be silent for 10 s; starting it again" in out.read_text(), "that")
        wait_for(lambda: steps_trained(directory) >= done + 2, "steps to go on")

        # What is silent when the run is ended is part of the exit message.
        stop_and_see_it_named(path, directory, "roc_filter.0")
        wait_for(lambda: "(roc_filter.0 silent for " in out.read_text(), "the state in a line of the table")
        everyone |= family(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    said = out.read_text()
    assert "at the end: roc_filter.0 has been silent for " in said
    assert "it was killed, so that others can hand over to a new one; starting it again" in said
    assert "did not stop in time" not in said
    assert "continue with: agent-rl run" in said
    assert "Traceback" not in said
    for row in silences(directory):
        assert row["text"] in said
    wait_for(lambda: not alive(everyone), "every process to end")
    assert processes_of(path) == []
    balanced(directory)
    failed = [
        json.dumps(row) for row in rows(directory / "metrics.jsonl") if row.get("groups_dropped_too_few_rollouts")
    ]
    assert failed == []
