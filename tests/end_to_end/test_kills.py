"""An actor, or the supervisor, is killed in the middle of a run: it goes on, no group is lost or trained twice,
nothing is left.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.config.addresses import run_digest
from agent_rl.config.load import load_topology
from tests.end_to_end.processes import (
    CALLS_TOOLS,
    ROOM,
    Traces,
    balanced,
    check_finished,
    check_trained_once,
    children_named,
    finish,
    journal_of,
    kill,
    more_steps,
    process_of_actor,
    rows,
    runs_again,
    signal_actor,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right, write_micro


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "weights_in"),
    [
        ("learner", "gloo"),
        ("learner", "shared_memory"),
        ("rollout_generator", "run_directory"),
        ("rollout_generator", "gloo"),
    ],
)
def test_killed_with_a_sandbox_an_actor_is_started_again_the_run_balances_and_nothing_is_left(
    tmp_path: Path, temporary: Path, role: str, weights_in: str
) -> None:
    """The executor and its interpreters are killed with the actor, at once: none of them can remove its directory."""
    path, directory = write_micro(tmp_path, steps=12)
    traces = Traces(path, temporary)
    ways = [f"actors.learner.settings.weights_in={weights_in}"]
    # Without namespaces calls have directories on disk; with them there is nothing to leave.
    ways += ["actors.tool_executor.settings.isolation=limits"]
    if weights_in == "gloo":
        ways += ["actors.rollout_generator.links.transfer=learner"]
    process = start(path, *ways, TMPDIR=str(temporary))
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    traces.look(process)
    published = Path("/dev/shm") / f"agent-rl.published-{os.getuid()}-{run_digest(load_topology(path))}"
    assert published.is_dir() == (weights_in == "shared_memory")
    assert (directory / "weights").is_dir() == (weights_in == "run_directory")
    assert [folder for folder in temporary.iterdir() if "sandbox" in folder.name]
    signal_actor(path, f"{role}.0")
    executor = process_of_actor(path, "tool_executor.0")
    for pid in (executor, *children_named(executor, "actors.sandbox")):
        with suppress(ProcessLookupError):  # the interpreters are to end with the executor: one may have been quick
            os.kill(pid, signal.SIGKILL)
    said = finish(process)
    for killed in (role, "tool_executor"):
        assert f"{killed}.0 was killed by SIGKILL; starting it again" in said.all
        assert re.search(rf"{killed}\.0 runs again, \d+\.\d s after it ended", said.out)
    check_finished(path, directory, said, steps=12)
    check_trained_once(directory)
    assert not published.exists()
    traces.assert_none()


@pytest.mark.slow
def test_of_two_executors_one_is_killed_and_no_call_is_lost(tmp_path: Path, temporary: Path) -> None:
    """Every rollout has a call under way most of its time, so that some are under way at the one that is killed."""
    path, directory = write_half_right(tmp_path, steps=8, generator=CALLS_TOOLS)
    traces = Traces(path, temporary)
    process = start(path, "actors.tool_executor.replicas=2", *ROOM, TMPDIR=str(temporary))
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    traces.look(process)
    signal_actor(path, "tool_executor.1")
    said = finish(process)
    assert "tool_executor.1 was killed by SIGKILL; starting it again" in said.all
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert len(steps) == 8
    assert all(row["rollouts_failed"] == row["tool_error_share"] == 0 for row in steps)
    with journal_of(directory) as journal:
        calls = [
            [call.outcome for call in decode_stored(each.payload).transcript.calls]
            for step in journal.steps()
            for group in step.groups
            for each in journal.trajectories(group)
        ]
    assert calls
    assert all(outcomes == ["success"] for outcomes in calls)
    check_trained_once(directory)
    traces.assert_none()


@pytest.mark.slow
def test_every_process_of_a_run_is_killed_once_and_the_run_balances(tmp_path: Path, temporary: Path) -> None:
    """Every rollout calls the executor and every step trains, so that each process that is killed has work to lose."""
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    traces = Traces(path, temporary)
    process = start(path, *ROOM, TMPDIR=str(temporary))
    for role in ("tool_executor", "kv_scheduler", "learner", "rollout_generator", "roc_filter"):
        more_steps(directory, 2)
        traces.look(process)
        signal_actor(path, f"{role}.0")
        wait_for(lambda role=role: runs_again(directory, role), f"{role} to run again")
    more_steps(directory, 2)
    traces.look(process)
    kill(process)
    traces.assert_none()
    done = steps_trained(directory)
    said = finish(start(path, *ROOM, f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    balanced(directory, steps=done + 2)
    assert said.summary["steps_updated"] == done + 2
    check_trained_once(directory)
    traces.assert_none()
