"""``agent-rl bench scheduler``: its table, its figures, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.scheduling.policies.registry import POLICIES
from benchmarks.bench_scheduler import compared
from benchmarks.command import call
from benchmarks.scheduler_decisions import Size, decisions_per_s
from benchmarks.scheduler_full import sample
from benchmarks.scheduler_rows import Row, job_of
from benchmarks.traces import GENERATORS
from benchmarks.tuning import BOUNDED, CHOSEN, CONCURRENCY, OTHERS, between, chosen


def row(trace: str, policy: str, makespan: float, tokens_per_s: float = 1.0) -> Row:
    job = job_of(trace, 1, 1.0, policy)
    return Row(job, makespan, 4.0, tokens_per_s, 0.0, 1.0, 1.0, 1.0, 0.0, 0, 0.5)


def test_figures_have_the_names_of_policies_and_traces(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--traces",
        "mild",
        "--policies",
        "predictive",
        "worst_case",
        "--seeds",
        "1",
        "--processes",
        "1",
        "--decisions",
        "0",
    ]
    assert call("scheduler", [*arguments, "--scale", "0.01"]) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    for policy in ("predictive", "worst_case"):
        assert figures[f"mild.{policy}.makespan_s"] >= figures["mild.bound.makespan_s"] > 0
        for name in ("tokens_per_s", "preempted_share", "hit_rate", "group_p99_s", "start_spread"):
            assert f"mild.{policy}.{name}" in figures
    assert figures.keys() >= {"worst_loss_to_best", "simulations_cpu_s"}
    assert "mild: 1 seeds, scale 0.01" in printed


def test_gains_compare_with_the_best_of_the_others() -> None:
    rows = [row("paper", "static", 10.0), row("paper", "margin", 8.0), row("paper", "predictive", 6.0, 3.0)]
    rows += [row("mild", "static", 10.0), row("mild", "margin", 12.0), row("mild", "predictive", 11.0)]
    figures = compared(rows, ["paper", "mild"], ["static", "margin", "predictive"])
    assert figures == pytest.approx(
        {
            "paper.gain_over_best": 0.25,
            "paper.possible_gain": 0.5,
            "paper.throughput_over_static": 3.0,
            "mild.gain_over_best": -0.1,
            "mild.possible_gain": 0.6,
            "mild.throughput_over_static": 1.0,
            "worst_loss_to_best": 0.1,
        }
    )
    assert compared(rows, ["paper"], ["static", "margin"]) == {}


def test_saved_rows_are_taken_unless_their_policy_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--traces", "brutal", "--policies", "round_robin", "least_requests", "--seeds", "1"]
    arguments += ["--processes", "1", "--scale", "0.01", "--save", str(file)]

    def lines(*more: str) -> list[str]:
        assert call("scheduler", [*arguments, *more]) == 0
        return file.read_text().splitlines()

    first = lines()
    printed = capsys.readouterr().out
    assert len(first) == 2
    assert lines() == first, "a row that was there was simulated again"
    assert capsys.readouterr().out == printed
    assert len(lines("--again", "round_robin")) == 3
    file.write_text(first[0] + "\n{}\n")
    assert call("scheduler", arguments) == 2
    assert "rows.jsonl, line 2" in capsys.readouterr().err


def test_every_setting_that_is_chosen_or_tried_makes_a_policy() -> None:
    assert CONCURRENCY.keys() == GENERATORS.keys()
    for trace, policy in CHOSEN:
        assert trace in GENERATORS
        POLICIES[policy].make(**chosen(trace, policy))
    for policy in BOUNDED:
        POLICIES[policy].make(concurrency=7)
    for policy, others in OTHERS.items():
        for settings in others:
            POLICIES[policy].make(**settings)


def test_bounds_are_tried_on_both_sides_of_the_best() -> None:
    assert between((100, 120, 200, None), 120) == [110, 160]
    assert between((100, 120, 200, None), 100) == [75, 110]
    assert between((100, 120, 200, None), 200) == [160, 250]
    assert between((100, 120, 200, None), None) == [400]


def test_tuning_prints_the_best_setting(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--traces", "brutal", "--policies", "program_aware", "--seeds", "1", "--processes", "1"]
    assert call("scheduler", [*arguments, "--scale", "0.01", "--tune"]) == 0
    printed = capsys.readouterr().out
    assert "brutal" in printed
    assert "program_aware" in printed


def test_samples_of_traces_run_in_both_levels_of_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--full", "--scale", "0.02", "--processes", "1", "--traces"]
    assert call("scheduler", [*arguments, "mild", "--policies", "predictive", "margin"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    for policy in ("predictive", "margin"):
        fast, full = (figures[f"mild.{policy}.{level}.makespan_s"] for level in ("fast", "full"))
        assert figures[f"mild.{policy}.full_over_fast"] == pytest.approx(full / fast)
        assert 0.95 < full / fast < 1.1
    for level in ("fast", "full"):
        ours, others = (figures[f"mild.{policy}.{level}.makespan_s"] for policy in ("predictive", "margin"))
        assert figures[f"mild.{level}.gain_over_best"] == pytest.approx(1 - ours / others)
    assert call("scheduler", [*arguments, "drain"]) == 2
    assert "'drain'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("trace", "scale"), [("agentic", 0.1), ("mixed_engines", 0.25)])
def test_moves_in_a_run_are_as_good_as_those_of_the_fast_simulator(trace: str, scale: float) -> None:
    """They were 12 and 10 % slower when a decision was a turn old by the time that it was carried out."""
    made = sample(trace, "predictive", 1, scale, steps=2)
    assert 0.9 < made.full_s / made.fast_s < 1.05
    assert not made.faults


def test_decisions_are_counted() -> None:
    assert decisions_per_s(Size(engines=4, rollouts=64), "predictive", decisions=100) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--traces", "papers"], "there is no trace 'papers'; there are paper, "),
        (["--policies", "best"], "there is no policy 'best'; there are static, "),
        (["--scale", "0"], "--scale must be above 0"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("scheduler", arguments) == 2
    assert message in capsys.readouterr().err
