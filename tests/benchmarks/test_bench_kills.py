"""When a killed role's work goes on, read from a timeline; and, slowly, the benchmark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

from benchmarks.bench_kills import SUPERVISOR, Kill, flows_again, intervals_meet


def timeline(actor, *told):
    """Rows at (wall, figure) where the figure is None while the actor is not heard."""
    figure = {"learner.0": "step", "tool_executor.0": "calls", "kv_scheduler.0": "groups_opened"}[actor]
    return [
        {"wall": float(wall), "actors": {} if count is None else {actor: {"figures": {figure: float(count)}}}}
        for wall, count in told
    ]


def test_a_role_that_counts_from_nothing_flows_once_its_new_process_counts() -> None:
    rows = timeline("tool_executor.0", (98, 480), (99, 490), (100, 500), (101, 505), (102, None), (105, 0), (106, 3))
    assert flows_again(rows, Kill("tool_executor", 99.8, 5)) == 106.0
    assert flows_again(rows[:-1], Kill("tool_executor", 99.8, 5)) is None


def test_a_role_that_is_restored_flows_once_it_is_past_where_it_was() -> None:  # an earlier stage had more steps
    rows = timeline("learner.0", (20, 600), (99, 12), (100, 12), (104, 10), (105, 11), (106, 12), (107, 13))
    assert flows_again(rows, Kill("learner", 99.5, 12)) == 107.0
    assert flows_again(rows, Kill(SUPERVISOR, 99.5, 12)) == 107.0


def test_what_the_killed_process_said_last_is_not_its_successors() -> None:
    rows = timeline("kv_scheduler.0", (100, 40), (101, 42), (103, 42), (104, 43))
    assert flows_again(rows, Kill("kv_scheduler", 100.1, 5)) == 104.0


def test_intervals_meet_or_not() -> None:
    one = {"s_low": 0.4, "s_high": 0.5}
    assert intervals_meet(one, {"s_low": 0.5, "s_high": 0.6}, "s")
    assert not intervals_meet(one, {"s_low": 0.51, "s_high": 0.6}, "s")


@pytest.mark.slow
def test_the_quickstart_survives_the_kill_of_each_of_its_processes() -> None:
    command = [sys.executable, "-m", "actors.cli", "bench", "kills"]
    with tempfile.TemporaryDirectory(prefix="kills-") as own:  # others on this host leave what they leave
        environment = os.environ | {"TMPDIR": own}
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert figures["recovered"] == 6
    assert figures["balanced"] == 1
    assert figures["trained_twice"] == 0
    assert figures["left_behind"] == 0
    assert figures["success_within_intervals"] == 1
