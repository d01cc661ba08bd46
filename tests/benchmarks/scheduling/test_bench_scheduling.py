"""``agent-rl bench scheduling``: its traces, its table, its figures, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bench_scheduling import compared
from benchmarks.command import call
from benchmarks.scheduling.bound import lower_bound
from benchmarks.scheduling.decisions import SAMPLES, Fleet, Size, decisions_per_s, event_us
from benchmarks.scheduling.policies import POLICIES
from benchmarks.scheduling.rows import Row, job_of
from benchmarks.scheduling.settings import CHOSEN, chosen
from benchmarks.scheduling.traces import GENERATORS, JUDGING_SEEDS, TRAINING_SEEDS, generate
from benchmarks.twin.trace import Trace

SIZE = Size(engines=4, rollouts=256)


def row(trace: str, policy: str, makespan: float, tokens_per_s: float = 1.0) -> Row:
    job = job_of(trace, 1, 1.0, policy)
    return Row(job, makespan, 4.0, tokens_per_s, 0.0, 1.0, 1.0, 1.0, 0.0, 0, 0.5)


def test_gains_compare_with_the_best_of_the_others() -> None:
    rows = [row("paper", "static", 10.0), row("paper", "margin", 8.0), row("paper", "sticky", 6.0, 3.0)]
    rows += [row("mild", "static", 10.0), row("mild", "margin", 12.0), row("mild", "sticky", 11.0)]
    figures = compared(rows, ["paper", "mild"], ["static", "margin", "sticky"])
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


def test_figures_are_named_and_saved_rows_are_taken_unless_their_policy_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--traces", "mild", "--policies", "sticky", "worst_case", "--seeds", "1", "--processes", "1"]
    arguments += ["--decisions", "0", "--scale", "0.01", "--save", str(file)]

    def lines(*more: str) -> list[str]:
        assert call("scheduling", [*arguments, *more]) == 0
        return file.read_text().splitlines()

    first = lines()
    printed = capsys.readouterr().out
    assert "mild: 1 seeds, scale 0.01" in printed
    figures = json.loads(printed.splitlines()[-1])
    for policy in ("sticky", "worst_case"):
        assert figures[f"mild.{policy}.makespan_s"] >= figures["mild.bound.makespan_s"] > 0
        for name in ("tokens_per_s", "preempted_share", "hit_rate", "group_p99_s", "start_spread"):
            assert f"mild.{policy}.{name}" in figures
    assert figures.keys() >= {"worst_loss_to_best", "simulations_cpu_s"}
    assert len(first) == 2
    assert lines() == first, "a row that was there was simulated again"
    assert capsys.readouterr().out == printed
    assert len(lines("--again", "worst_case")) == 3
    file.write_text(first[0] + "\n{}\n")
    assert call("scheduling", arguments) == 2
    assert "rows.jsonl, line 2" in capsys.readouterr().err


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
    assert call("scheduling", arguments) == 2
    assert message in capsys.readouterr().err


def test_every_setting_that_is_chosen_makes_a_policy() -> None:
    for trace, policy in CHOSEN:
        assert trace in GENERATORS
        POLICIES[policy].make(**chosen(trace, policy))


def shape_figures(trace: Trace) -> tuple[float, float, float]:
    """Mean tokens written, mean calls, and the median of all tokens of a rollout."""
    shapes = [shape for group in trace.groups for shape in group]
    context = sorted(shape.context for shape in shapes)
    calls = sum(len(shape.tool_s) for shape in shapes) / len(shapes)
    return trace.written() / len(shapes), calls, context[len(context) // 2]


def test_no_seed_both_trains_and_judges() -> None:
    assert len(JUDGING_SEEDS) == 5
    assert not set(TRAINING_SEEDS) & set(JUDGING_SEEDS)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_trace_is_a_function_of_its_seed(name: str) -> None:
    trace = generate(name, 101, 0.01)
    assert trace == generate(name, 101, 0.01)
    assert trace.groups != generate(name, 102, 0.01).groups
    assert trace.source
    assert lower_bound(trace) > 0


def test_shapes_are_those_of_their_sources() -> None:
    written, calls, _ = shape_figures(generate("paper", 101, 0.04))
    assert 9300 < written < 10_950
    assert 2.6 < calls < 2.9
    _, calls, context = shape_figures(generate("agentic", 101, 0.25))
    assert 42 * 0.8 < calls < 42 * 1.3
    assert 130_000 < context < 170_000
    written, _, _ = shape_figures(generate("brutal", 101, 0.25))
    assert 1150 < written < 1400


def test_each_end_is_one_placement_and_engines_stay_full() -> None:
    fleet = Fleet(SIZE, "worst_case")
    full = fleet.in_flight
    assert full >= 0.9 * SIZE.rollouts
    placed = fleet.placed
    for _ in range(1000):
        fleet.end_one()
    assert fleet.placed - placed >= 1000 - SAMPLES
    assert fleet.in_flight >= 0.9 * full
    assert fleet.scheduler.figures.groups_opened > 2 * SIZE.groups


def test_decisions_and_events_are_timed() -> None:
    assert decisions_per_s(Size(engines=4, rollouts=64), "sticky", decisions=100) > 0
    assert event_us(SIZE, "sticky", 10) > 0
