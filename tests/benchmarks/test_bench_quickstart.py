"""The quickstart's benchmark: its figures from given runs, the operands it looks for, and, slowly, a small run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.roc_filter.stored import encode_stored
from agent_rl.records.journal import Journal
from benchmarks import bench_quickstart
from benchmarks.bench_quickstart import FIGURES, held_out_overlap
from benchmarks.command import Failure, call
from tests.builders import opened


def summary(before: float, after: float, **changes: Any) -> dict[str, Any]:
    """A run whose sampled and greedy success are equal; its intervals reach a tenth to either side."""
    shares = dict(zip(FIGURES, (before, before, after, after), strict=True))
    intervals = {
        f"{name}{end}": share + d for name, share in shares.items() for end, d in (("_low", -0.1), ("_high", 0.1))
    }
    rest = {"minutes": 5.0, "rl_minutes": 4.0, "mean_staleness": 0.5, "max_staleness": 1.0, "overlap": 0}
    return {**shares, **intervals, **rest, **changes}


def test_figures_are_of_all_seeds_and_the_goals_are_the_quickstarts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {
        4: summary(0.2, 0.95),
        5: summary(0.31, 0.85, success_after_greedy=0.9, minutes=7.0),  # knows too much before
        6: summary(0.1, 0.79, success_after_greedy=0.99, overlap=2, mean_staleness=0.25),  # does not reach the goal
    }
    asked: list[tuple[int, str, Sequence[str]]] = []

    def run(seed: int, mode: str, _directory: Path, overrides: Sequence[str]) -> dict[str, Any]:
        asked.append((seed, mode, overrides))
        return runs[seed]

    monkeypatch.setattr(bench_quickstart, "run", run)
    arguments = ["--seeds", "3", "--first-seed", "4", "--mode", "synchronous", "--set", "a=1", "--set", "b=2"]
    assert call("quickstart", arguments) == 0
    assert asked == [(seed, "synchronous", ("a=1", "b=2")) for seed in (4, 5, 6)]
    *table, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["seed", "4", "5", "6"]
    assert "79.0 [69.0, 89.0] /  99.0 [69.0, 89.0]" in table[3]
    assert json.loads(last) == {
        "seeds": 3,
        "seeds_at_goal": 2,
        "seeds_honest": 2,
        "overlap": 2,
        "success_before_sampled_median": 0.2,
        "success_before_greedy_median": 0.2,
        "success_after_sampled_median": 0.85,
        "success_after_greedy_median": 0.95,
        "minutes_median": 5.0,
        "rl_minutes_median": 4.0,
        "mean_staleness_median": 0.5,
    }


def test_a_run_that_fails_ends_the_benchmark_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("quickstart", ["--seeds", "1", "--set", "stages.0.steps=many"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("agent-rl bench quickstart: the run ended with 2\n")
    assert "stages.0.steps" in error


def write_journal(folder: Path, groups: Sequence[tuple[str, str]]) -> Path:
    """A journal with a group of each (purpose, problem id)."""
    journal = Journal(folder / "journal.sqlite")
    for number, (purpose, name) in enumerate(groups):
        group = opened(number, purpose=purpose)
        group = replace(group, problem=replace(group.problem, id=name))
        journal.open_group(group.group, 0, number, group.purpose, encode_stored(group))
    journal.commit()
    journal.close()
    return folder


def test_operands_of_training_and_evaluation_are_read_from_the_journal(tmp_path: Path) -> None:
    trained = [("train", "sum:12+345"), ("train", "difference:7+8")]
    (tmp_path / "apart").mkdir()
    apart = write_journal(tmp_path / "apart", [*trained, ("evaluate_sampled", "sum:12+346")])
    assert held_out_overlap(apart) == set()
    (tmp_path / "shared").mkdir()
    shared = write_journal(tmp_path / "shared", [*trained, ("evaluate_greedy", "product:345+12")])
    assert held_out_overlap(shared) == {(12, 345)}
    (tmp_path / "half").mkdir()
    with pytest.raises(Failure, match="nothing was trained or nothing evaluated"):
        held_out_overlap(write_journal(tmp_path / "half", trained))


@pytest.mark.slow
def test_a_small_run_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    settings = (
        "model.initialise={hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32}",
        "stages.0.steps=20",
        "stages.1.problems=4",
        "stages.2.steps=2",
        "stages.3.problems=4",
        "algorithm.groups_per_step=2",
        "algorithm.samples=4",
        "algorithm.keep=2",
    )
    assert call("quickstart", ["--seeds", "1", *(part for each in settings for part in ("--set", each))]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["seeds"], figures["seeds_at_goal"], figures["overlap"]) == (1, 0, 0)
    assert figures["minutes_median"] > figures["rl_minutes_median"] >= 0
