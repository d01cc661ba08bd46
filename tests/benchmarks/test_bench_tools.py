from __future__ import annotations

import json

import pytest

from benchmarks import tool_load
from benchmarks.command import call
from benchmarks.tool_processes import Floor
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
