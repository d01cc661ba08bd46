"""Actors of a run under way are swapped: the run goes on, no group is lost or trained twice, success is as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.processes import (
    CALLS_TOOLS,
    ROOM,
    SECONDS,
    Traces,
    balanced,
    check_trained_once,
    finish,
    more_steps,
    process_of_actor,
    processes_of,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right

SEVERAL = [
    f"actors.{role}.{key}" for role in ("rollout_generator", "tool_executor") for key in ("replicas=3", "start=1")
]
SWAPS = {
    "kv_scheduler": "OtherScheduler",
    "roc_filter": "OtherFilter",
    "rollout_generator": "OtherGenerator",
    "tool_executor": "OtherExecutor",
    "learner": "OtherLearner",
}


def swap(directory: Path, temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return change("swap", directory, temporary, *arguments)


def change(what: str, directory: Path, temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actors.cli", what, str(directory), *arguments]
    environment = os.environ | {"TMPDIR": str(temporary)}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=4 * SECONDS, env=environment)


def started(directory: Path, role: str) -> list[str]:
    """The classes of the processes of a role that have started, in this order."""
    return [row["actor_class"] for row in rows(directory / "logs" / f"{role}.0.jsonl") if row["event"] == "started"]


@pytest.mark.slow
def test_every_actor_of_a_run_is_swapped_and_the_run_balances(tmp_path: Path, temporary: Path) -> None:
    """Every rollout calls the executor and every step trains, so that each process that leaves has work to lose."""
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    traces = Traces(path, temporary)
    process = start(path, *ROOM, TMPDIR=str(temporary))
    try:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        traces.look(process)
        before = sorted(processes_of(path))

        for arguments, reason in (
            (("roc_filter", "--class", "tests.end_to_end.swapped:Missing"), "has no class 'Missing'"),
            (("kv_scheduler", "--set", "request_window=1"), "request_window 1 is smaller than a group"),
            (("nobody", "--set", "threads=1"), "the run has no actor 'nobody'"),
        ):
            refused = swap(directory, temporary, *arguments)
            assert refused.returncode == 2, refused.stdout + refused.stderr
            assert reason in refused.stderr
        assert sorted(processes_of(path)) == before

        running = process_of_actor(path, "rollout_generator.0")
        broken = swap(directory, temporary, "rollout_generator", "--class", "tests.end_to_end.swapped:NeverReady")
        assert broken.returncode == 2
        assert "before it was ready: RuntimeError: this generator has a fault" in broken.stderr
        assert process_of_actor(path, "rollout_generator.0") == running

        broken = swap(directory, temporary, "roc_filter", "--class", "tests.end_to_end.swapped:Broken")
        assert broken.returncode == 2
        assert "this filter has a fault" in broken.stderr
        assert "the former class and settings hold again" in broken.stderr

        for role, name in SWAPS.items():
            more_steps(directory, 1)
            swapped = swap(directory, temporary, role, "--class", f"tests.end_to_end.swapped:{name}")
            assert swapped.returncode == 0, swapped.stdout + swapped.stderr
            assert f"{role}.0 is now tests.end_to_end.swapped:{name}; it was away for" in swapped.stdout
            assert "s (beside)\n" in swapped.stdout
            assert started(directory, role)[-1] == f"tests.end_to_end.swapped:{name}"
            traces.look(process)
        more_steps(directory, 2)
        process.send_signal(signal.SIGINT)
        said = finish(process)
    finally:
        process.kill()
    assert "starting it again" not in said.all  # nobody died
    traces.assert_none()

    done = steps_trained(directory)
    said = finish(start(path, *ROOM, f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    assert "kv_scheduler was swapped in the last start, and now is what the file says" in " ".join(said.all.split())
    balanced(directory, steps=done + 2)
    check_trained_once(directory)
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert all(row["success"] == 0.5 for row in steps if row["groups_trained"])


@pytest.mark.slow
def test_generators_and_executors_come_and_go_and_the_run_balances(tmp_path: Path, temporary: Path) -> None:
    """Every rollout calls the executor, and at most 8 run at one generator, so that each process has work."""
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    process = start(path, *ROOM, *SEVERAL, TMPDIR=str(temporary))
    try:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        for role, number, reason in (
            ("learner", "2", "exactly one learner, which"),
            ("tool_executor", "0", "at least one"),
        ):
            refused = change("scale", directory, temporary, role, number)
            assert refused.returncode == 2, refused.stdout + refused.stderr
            assert reason in refused.stderr
        for role, number in (
            ("rollout_generator", 2),
            ("tool_executor", 3),
            ("rollout_generator", 1),
            ("tool_executor", 2),
        ):
            more_steps(directory, 1)
            scaled = change("scale", directory, temporary, role, str(number))
            assert scaled.returncode == 0, scaled.stdout + scaled.stderr
            assert f"{role} has {number} process" in scaled.stdout
        more_steps(directory, 2)
        stopped = change("stop", directory, temporary)
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert "the run stops in order; continue with: agent-rl run " in stopped.stdout
        said = finish(process)
    finally:
        process.kill()
    assert "stopping, as a command asks; continue with: agent-rl run" in " ".join(said.all.split())
    assert "starting it again" not in said.all  # nobody died
    done = steps_trained(directory)
    said = finish(start(path, *ROOM, *SEVERAL, f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    assert "tool_executor was scaled in the last start" in " ".join(said.all.split())
    balanced(directory, steps=done + 2)
