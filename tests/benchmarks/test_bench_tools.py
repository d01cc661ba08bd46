from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from benchmarks import tool_load
from benchmarks.command import call
from benchmarks.tool_linked import Step, report_steps
from benchmarks.tool_processes import Floor, children_of, tree_seconds
from benchmarks.tool_service import Call
from benchmarks.tool_snippets import FAILING, NUMPY, PLAIN, SNIPPETS, SYMPY

POSITIVE = {
    "speedup_over_fresh",
    "share_of_floor",
    "speedup_over_fresh_cpu",
    "share_of_floor_cpu",
    "calls_per_s",
    "fresh_calls_per_s",
    "floor_calls_per_s",
    "median_overhead_ms",
    "p99_half_load_overhead_ms",
    "median_full_load_ms",
    "p99_full_load_ms",
    "trivial_calls_per_s",
    "outstanding_time_ratio",
    "outstanding_rss_mib",
    "endurance_calls_per_s",
    "linked_speedup_over_fresh",
    "linked_share_of_floor",
    "linked_over_bare_cpu",
    "linked_calls_per_s",
    "linked_client_ms",
    "linked_executor_ms",
    "linked_rate_per_core_at_50",
    "linked_p99_ms_at_50",
    "linked_outstanding_calls_per_s",
    "linked_outstanding_executor_s",
    "linked_outstanding_child_s",
}
TINY = [
    "--rounds",
    "1",
    "--passes",
    "1",
    "--interpreters",
    "1",
    "--outstanding",
    "60",
    "--alive",
    "12",
    "--endurance",
    "80",
    "--clients",
    "2",
    "--load",
    "0.5",
    "--load-seconds",
    "1",
]


def test_the_mix_has_its_shares():
    assert len(set(SNIPPETS)) >= 40
    assert [len(kind) / len(SNIPPETS) for kind in (PLAIN, SYMPY, NUMPY, FAILING)] == [0.45, 0.30, 0.10, 0.15]


@pytest.mark.slow
def test_a_tiny_measurement_loses_no_call_and_ends_with_its_figures(capfd, monkeypatch):
    monkeypatch.setattr(tool_load, "SAMPLE", 20)
    assert call("tools", TINY) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert all(figures[name] > 0 for name in POSITIVE), figures
    lost = ("outstanding_lost", "outstanding_duplicated", "endurance_lost", "endurance_zombies", "endurance_files")
    assert [figures[name] for name in lost] == [0] * len(lost)
    assert figures["alive_answered"] == figures["alive_at_once"] == 12
    assert figures["speedup_over_fresh"] > 1


def test_the_floor_runs_what_it_is_given_and_tells_what_failed():
    calls = [(code, ()) for code in ("print(1)", "1 / 0", "x = [0] * 10**6")]
    with Floor([()], at_once=2) as floor:
        seconds, failed = floor.run(calls)
        own = floor.own_seconds(calls)
    assert (failed, seconds > 0) == (1, True)
    assert own["x = [0] * 10**6"] > own["print(1)"] > 0


def test_snippets_are_listed(capsys):
    assert call("tools", ["--list"]) == 0
    assert all(code in capsys.readouterr().out for code in SNIPPETS[:1])


BURN = """
import subprocess, sys, time
def burn(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds: pass
burn(float(sys.argv[1]))
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[3], sys.argv[2]])
    print("burned", flush=True)
sys.stdin.read()
"""


def test_processor_time_is_that_of_a_process_and_all_below_it_but_for_one() -> None:
    """A child burns 0.3 s and starts one that burns 0.2 s; both live."""
    command = [sys.executable, "-c", BURN, "0.3", "0.2", BURN]
    before = tree_seconds(os.getpid())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burned\n"
        deadline = time.monotonic() + 30
        while (spent := tree_seconds(child.pid)) < 0.5 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert 0.5 <= spent < 1.5
        (grandchild,) = children_of(child.pid)
        assert spent - 0.7 < tree_seconds(child.pid, without=grandchild) <= spent - 0.15
        assert tree_seconds(os.getpid()) - before >= 0.45
        assert tree_seconds(os.getpid(), without=child.pid) - before < 0.4
        child.kill()
    assert tree_seconds(child.pid) == 0.0


def test_what_45000_concurrent_calls_need_follows_from_the_highest_rate_below_a_second(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    rows = {50: [0.1] * 98 + [0.8] * 2, 80: [0.2] * 98 + [0.9] * 2, 90: [0.3] * 98 + [1.5] * 2}
    steps = [
        Step(percent, 2.0 * percent, [Call((0.0, 0.0, seconds, 0.0), "success", "") for seconds in each])
        for percent, each in rows.items()
    ]
    figures = report_steps(steps, executor_ms=0.5)
    assert [figures[f"linked_p{share}_ms_at_80"] for share in (50, 95, 99)] == [200.0, 200.0, 900.0]
    assert figures["linked_rate_per_core_p99_below_1s"] == 80.0
    assert figures["linked_cores_for_45000"] == 563
    assert figures["linked_executors_for_45000"] == 282
    assert figures["linked_executor_processes_at_least"] == 23


def test_where_no_rate_stays_below_a_second_no_number_of_executors_is_claimed():
    figures = report_steps([Step(90, 100.0, [Call((2.0, 0.0, 0.0, 0.0), "success", "")])], executor_ms=0.5)
    assert figures["linked_executors_for_45000"] is figures["linked_cores_for_45000"] is None
