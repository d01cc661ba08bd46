"""``agent-rl bench scheduler``: its table, its figures, and what it refuses."""

from __future__ import annotations

import json

import pytest

from agent_rl.scheduling.policies.registry import POLICIES
from benchmarks.bench_scheduler import Row, compared, decisions_per_s
from benchmarks.command import call
from benchmarks.traces import GENERATORS
from benchmarks.tuning import CANDIDATES, CHOSEN, chosen


def row(trace: str, policy: str, makespan: float) -> Row:
    return Row(trace, policy, makespan, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0)


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
    assert figures.keys() >= {"worst_loss_to_best", "simulation_s"}
    assert "mild: 1 seeds, scale 0.01" in printed


def test_gains_compare_with_the_best_of_the_others() -> None:
    rows = [row("paper", "a", 10.0), row("paper", "b", 8.0), row("paper", "predictive", 6.0)]
    rows += [row("mild", "a", 10.0), row("mild", "b", 12.0), row("mild", "predictive", 11.0)]
    figures = compared(rows, ["paper", "mild"], ["a", "b", "predictive"])
    assert figures == pytest.approx({"paper.gain_over_best": 0.25, "worst_loss_to_best": 0.1})
    assert compared(rows, ["paper"], ["a", "b"]) == {}


def test_every_setting_that_is_chosen_or_tried_makes_a_policy() -> None:
    for trace, policy in CHOSEN:
        assert trace in GENERATORS
        POLICIES[policy].make(**chosen(trace, policy))
    for policy, candidates in CANDIDATES.items():
        for settings in candidates:
            POLICIES[policy].make(**settings)


def test_tuning_prints_the_best_setting(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--traces", "brutal", "--policies", "program_aware", "--seeds", "1", "--processes", "1"]
    assert call("scheduler", [*arguments, "--scale", "0.01", "--tune"]) == 0
    printed = capsys.readouterr().out
    assert "brutal" in printed
    assert "program_aware" in printed


def test_decisions_are_counted() -> None:
    assert decisions_per_s(4, 64, decisions=100) > 0


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
