"""An actor, or the supervisor, is killed in the middle of a run: it goes on, no group is lost or trained twice,
nothing is left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.config.addresses import run_digest
from agent_rl.config.load import load_topology
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from tests.end_to_end.processes import (
    Traces,
    check_finished,
    children_named,
    finish,
    process_of_actor,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right, write_micro


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        yield Path(name)


def check_trained_once(directory: Path) -> None:
    journal = Journal(directory / "journal.sqlite", read_only=True)
    trained = [group for step in journal.steps() for group in step.groups]
    journal.close()
    assert len(trained) == len(set(trained))


@pytest.mark.parametrize(
    ("role", "weights_in"),
    [
        ("learner", "gloo"),
        pytest.param("learner", "shared_memory", marks=pytest.mark.slow),
        *(pytest.param("rollout_generator", way, marks=pytest.mark.slow) for way in ("run_directory", "gloo")),
    ],
)
def test_killed_with_a_sandbox_an_actor_is_started_again_the_run_balances_and_nothing_is_left(
    tmp_path: Path, temporary: Path, role: str, weights_in: str
) -> None:
    """The executor and its interpreters are killed with the actor, at once: none of them can remove its directory."""
    path, directory = write_micro(tmp_path, steps=12)
    traces = Traces(path, temporary)
    ways = ["--set", f"actors.learner.settings.weights_in={weights_in}"]
    # Without namespaces calls have directories on disk; with them there is nothing to leave.
    ways += ["--set", "actors.tool_executor.settings.isolation=limits"]
    if weights_in == "gloo":
        ways += ["--set", "actors.rollout_generator.links.transfer=learner"]
    process = start(path, *ways, TMPDIR=str(temporary))
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    traces.look(process)
    published = Path("/dev/shm") / f"agent-rl.published-{os.getuid()}-{run_digest(load_topology(path))}"
    assert published.is_dir() == (weights_in == "shared_memory")
    assert (directory / "weights").is_dir() == (weights_in == "run_directory")
    assert [folder for folder in temporary.iterdir() if "sandbox" in folder.name]
    os.kill(process_of_actor(path, f"{role}.0"), signal.SIGKILL)
    executor = process_of_actor(path, "tool_executor.0")
    for pid in (executor, *children_named(executor, "actors.sandbox")):
        with suppress(ProcessLookupError):  # the interpreters are to end with the executor: one may have been quick
            os.kill(pid, signal.SIGKILL)
    code, out, err = finish(process)
    assert code == 0, out + err
    for killed in (role, "tool_executor"):
        assert f"{killed}.0 was killed by SIGKILL; starting it again" in out + err
        assert re.search(rf"{killed}\.0 runs again, \d+\.\d s after it ended", out)
    check_finished(path, directory, out, steps=12)
    check_trained_once(directory)
    assert not published.exists()
    traces.assert_none()


@pytest.mark.slow
def test_of_two_executors_one_is_killed_and_no_call_is_lost(tmp_path: Path, temporary: Path) -> None:
    """Every rollout has a call under way most of its time, so that some are under way at the one that is killed."""
    path, directory = write_half_right(tmp_path, steps=8)
    path.write_text(
        path.read_text().replace("actors.rollout_generator:RolloutGenerator", "tests.end_to_end.faulty:CallsTools")
    )
    changes = ["actors.tool_executor.replicas=2", "stages.0.max_response_tokens=400", "model.initialise.max_length=600"]
    traces = Traces(path, temporary)
    process = start(path, *(part for change in changes for part in ("--set", change)), TMPDIR=str(temporary))
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    traces.look(process)
    os.kill(process_of_actor(path, "tool_executor.1"), signal.SIGKILL)
    code, out, err = finish(process)
    assert code == 0, out + err
    assert "tool_executor.1 was killed by SIGKILL; starting it again" in out + err
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert len(steps) == 8
    assert all(row["rollouts_failed"] == row["tool_error_share"] == 0 for row in steps)
    journal = Journal(directory / "journal.sqlite", read_only=True)
    calls = [
        [call.outcome for call in decode_stored(each.payload).transcript.calls]
        for step in journal.steps()
        for group in step.groups
        for each in journal.trajectories(group)
    ]
    journal.close()
    assert calls
    assert all(outcomes == ["success"] for outcomes in calls)
    check_trained_once(directory)
    traces.assert_none()


def runs_again(directory: Path, role: str) -> bool:
    """Whether the supervisor has heard of work from the next process of a killed actor."""
    events = rows(directory / "logs" / "supervisor.local.jsonl")
    return any(f"{role}.0 runs again, " in str(row.get("text")) for row in events)


@pytest.mark.slow
def test_every_process_of_a_run_is_killed_once_and_the_run_balances(tmp_path: Path, temporary: Path) -> None:
    """Every rollout calls the executor and every step trains, so that each process that is killed has work to lose."""
    path, directory = write_half_right(tmp_path, steps=500)
    path.write_text(
        path.read_text().replace("actors.rollout_generator:RolloutGenerator", "tests.end_to_end.faulty:CallsTools")
    )
    room = ("--set", "stages.0.max_response_tokens=400", "--set", "model.initialise.max_length=600")
    traces = Traces(path, temporary)
    process = start(path, *room, TMPDIR=str(temporary))
    for role in ("tool_executor", "kv_scheduler", "learner", "rollout_generator", "roc_filter"):
        done = steps_trained(directory)
        wait_for(lambda done=done: steps_trained(directory) >= done + 2, f"two steps before {role} is killed")
        traces.look(process)
        os.kill(process_of_actor(path, f"{role}.0"), signal.SIGKILL)
        wait_for(lambda role=role: runs_again(directory, role), f"{role} to run again")
    done = steps_trained(directory)
    wait_for(lambda: steps_trained(directory) >= done + 2, "two steps before the supervisor is killed")
    traces.look(process)
    process.kill()
    process.communicate()
    traces.assert_none()
    done = steps_trained(directory)
    code, out, err = finish(start(path, *room, "--set", f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    assert code == 0, out + err
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert (balance.steps, balance.open) == (done + 2, 0)
    assert json.loads(out.splitlines()[-1])["steps_updated"] == done + 2
    check_trained_once(directory)
    traces.assert_none()


@pytest.mark.slow
def test_a_killed_supervisor_leaves_nothing_and_the_next_run_continues(tmp_path: Path, temporary: Path) -> None:
    path, directory = write_micro(tmp_path, steps=200)
    traces = Traces(path, temporary)
    process = start(path, TMPDIR=str(temporary))
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    traces.look(process)
    process.kill()
    process.communicate()
    traces.assert_none()  # though no other run has cleaned up
    done = steps_trained(directory)
    code, out, err = finish(start(path, "--set", f"stages.2.steps={done + 2}", TMPDIR=str(temporary)))
    assert code == 0, out + err
    check_finished(path, directory, out, steps=done + 2)
    check_trained_once(directory)
    traces.assert_none()
