"""Actors of a run under way are swapped: the run goes on, no group is lost or trained twice, success is as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from tests.end_to_end.processes import (
    SECONDS,
    Traces,
    finish,
    process_of_actor,
    processes_of,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right

SWAPS = {
    "kv_scheduler": "OtherScheduler",
    "roc_filter": "OtherFilter",
    "rollout_generator": "OtherGenerator",
    "tool_executor": "OtherExecutor",
    "learner": "OtherLearner",
}
ROOM = ("--set", "stages.0.max_response_tokens=400", "--set", "model.initialise.max_length=600")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as name:
        yield Path(name)


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
    path, directory = write_half_right(tmp_path, steps=500)
    path.write_text(
        path.read_text().replace("actors.rollout_generator:RolloutGenerator", "tests.end_to_end.faulty:CallsTools")
    )
    traces = Traces(path, temporary)
    process = start(path, *ROOM, TMPDIR=str(temporary))
    try:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        traces.look(process)
        before = sorted(processes_of(path))

        refused = swap(directory, temporary, "roc_filter", "--class", "tests.end_to_end.swapped:Missing")
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert "tests.end_to_end.swapped has no class 'Missing'" in refused.stderr
        refused = swap(directory, temporary, "kv_scheduler", "--set", "request_window=1")
        assert refused.returncode == 2
        assert "request_window 1 is smaller than a group" in refused.stderr
        refused = swap(directory, temporary, "nobody", "--set", "threads=1")
        assert refused.returncode == 2
        assert "the run has no actor 'nobody'" in refused.stderr
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
            done = steps_trained(directory)
            wait_for(lambda done=done: steps_trained(directory) >= done + 1, f"a step before {role} is swapped")
            swapped = swap(directory, temporary, role, "--class", f"tests.end_to_end.swapped:{name}")
            assert swapped.returncode == 0, swapped.stdout + swapped.stderr
            assert f"{role}.0 is now tests.end_to_end.swapped:{name}; it was away for" in swapped.stdout
            assert swapped.stdout.strip().endswith("s (beside)")
            assert started(directory, role)[-1] == f"tests.end_to_end.swapped:{name}"
            traces.look(process)
        done = steps_trained(directory)
        wait_for(lambda: steps_trained(directory) >= done + 2, "two steps after the swaps")
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    finally:
        process.kill()
    assert code == 0, out + err
    assert "starting it again" not in out + err  # nobody died
    traces.assert_none()

    done = steps_trained(directory)
    code, out, err = finish(start(path, *ROOM, "--set", f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    assert code == 0, out + err
    said = " ".join((out + err).split())
    assert "kv_scheduler was swapped in the last start, and now is what the file says" in said
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert (balance.steps, balance.open) == (done + 2, 0)
    journal = Journal(directory / "journal.sqlite", read_only=True)
    trained = [group for step in journal.steps() for group in step.groups]
    journal.close()
    assert len(trained) == len(set(trained))
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert all(row["success"] == 0.5 for row in steps if row["groups_trained"])


@pytest.mark.slow
def test_generators_and_executors_come_and_go_and_the_run_balances(tmp_path: Path, temporary: Path) -> None:
    """Every rollout calls the executor, and at most 8 run at one generator, so that each process has work."""
    path, directory = write_half_right(tmp_path, steps=500)
    path.write_text(
        path.read_text().replace("actors.rollout_generator:RolloutGenerator", "tests.end_to_end.faulty:CallsTools")
    )
    process = start(path, *ROOM, TMPDIR=str(temporary))
    try:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        for role, number, reason in (("learner", "2", "exactly one learner"), ("tool_executor", "0", "at least one")):
            refused = change("scale", directory, temporary, role, number)
            assert refused.returncode == 2, refused.stdout + refused.stderr
            assert reason in refused.stderr
        for role, number in (
            ("rollout_generator", 2),
            ("tool_executor", 3),
            ("rollout_generator", 1),
            ("tool_executor", 2),
        ):
            done = steps_trained(directory)
            wait_for(lambda done=done: steps_trained(directory) >= done + 1, f"a step before {role} is scaled")
            scaled = change("scale", directory, temporary, role, str(number))
            assert scaled.returncode == 0, scaled.stdout + scaled.stderr
            assert f"{role} has {number} process" in scaled.stdout
        done = steps_trained(directory)
        wait_for(lambda: steps_trained(directory) >= done + 2, "two steps after the scaling")
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    finally:
        process.kill()
    assert code == 0, out + err
    assert "starting it again" not in out + err  # nobody died
    done = steps_trained(directory)
    code, out, err = finish(start(path, *ROOM, "--set", f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    assert code == 0, out + err
    assert "tool_executor was scaled in the last start" in " ".join((out + err).split())
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert (balance.steps, balance.open) == (done + 2, 0)
