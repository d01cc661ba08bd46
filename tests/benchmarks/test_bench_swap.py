"""The plan of swaps, how pauses are read, and a few real changes."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from benchmarks.bench_swap import CLASSES, WITHOUT_MODEL, Ended, Made, figures_of
from benchmarks.chaos.accounting import SHARES, Accounts
from benchmarks.swapping.classes import written
from benchmarks.swapping.plan import MOST_REPLICAS, SCALED, Change, longest_gap, make_plan


def test_a_plan_is_a_function_of_its_seed_and_every_change_comes_before_any_comes_again() -> None:
    plan = make_plan(3, 20, CLASSES)
    assert plan == make_plan(3, 20, CLASSES)
    assert plan != make_plan(4, 20, CLASSES)
    assert len(plan) == 20
    for begin in (0, 7):
        kinds = [(change.role, bool(change.number)) for change in plan[begin : begin + 7]]
        assert len(set(kinds)) == 7
    replicas = dict.fromkeys(SCALED, 1)
    classes = {role: names[0] for role, names in CLASSES.items()}
    for change in plan:
        if change.number:
            assert change.number != replicas[change.role]
            assert 1 <= change.number <= MOST_REPLICAS
            replicas[change.role] = change.number
        else:
            assert change.class_path != classes[change.role]
            classes[change.role] = change.class_path
    assert WITHOUT_MODEL.keys() == CLASSES.keys()


def test_a_change_is_a_command() -> None:
    assert Change("tool_executor", number=2).words("run") == ["scale", "run", "tool_executor", "2"]
    assert Change("learner", "x:Y").words("run") == ["swap", "run", "learner", "--class", "x:Y"]


def test_a_pause_is_the_longest_time_without_a_turn_that_meets_the_change() -> None:
    times = written(["written g.0 3.000 5", "begun g.0#1 a 3", "written g.1 1.000 5", "written g.0 10.000 2"])
    assert times == [1.0, 3.0, 10.0]
    assert longest_gap(times, 0.0, 2.0) == 2.0
    assert longest_gap(times, 2.0, 4.0) == 7.0
    assert longest_gap(times, 3.0, 3.5) == 7.0
    assert math.isnan(longest_gap(times, 11.0, 12.0))


def test_figures_tell_pauses_by_way() -> None:
    made = [
        Made(Change("learner", "x:Y"), 1.0, 2.0, "beside", (0.5,)),
        Made(Change("tool_executor", number=2), 11.0, 12.0, "scale", ()),
    ]
    summary = {f"{share}{end}": 0.5 for share in SHARES for end in ("", "_low", "_high")}
    run = Ended(
        made, [0.5, 1.5, 4.0, 9.0, 13.0, 13.5], 4, Accounts((), ("twice",), balanced=True), (), summary, 9.0, summary
    )
    figures = figures_of([run])
    assert figures["swap.pause_p95_s_beside"] == 2.5
    assert figures["swap.pause_p95_s_scale"] == figures["swap.pause_p95_s"] == 4.0
    assert figures["swap.pause_p95_s_between"] == 5.0
    assert (figures["swap.lost"], figures["swap.repeated"], figures["swap.success_within_noise"]) == (0, 1, 1)


@pytest.mark.slow
def test_three_changes_of_a_run_cost_nothing() -> None:
    command = [sys.executable, "-m", "actors.cli", "bench", "swap", "--scripted", "--swaps", "3", "--seeds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["swap.changes"] == 3
    for share in SHARES:
        assert figures[f"swap.{share}"] == figures[f"swap.{share}_twin"]
