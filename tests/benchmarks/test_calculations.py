"""What the benchmarks compute from what they have measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.filter.stored import encode_stored
from agent_rl.records.sqlite import SqliteJournal
from benchmarks import bench_learning
from benchmarks.bench_hostile import Heard
from benchmarks.bench_learning import overlap_of
from benchmarks.bench_roc import curves, make, reached
from benchmarks.command import Failure, call
from benchmarks.hostile import REACH, SHARES
from benchmarks.runs import RunFailed
from tests.builders import opened

# learning -------------------------------------------------------------------------------------------------------------


def test_learning_tells_medians_over_the_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, Sequence[str]]] = []

    def run(file: Path, _directory: Path, overrides: Sequence[str]) -> dict[str, Any]:
        asked.append((file.name, overrides))
        success = {"success_x_greedy": len(asked) / 10, "success_x_greedy_low": 0.0, "success_x_greedy_high": 1.0}
        return {**success, "minutes": 3.0, "minutes_rl": 2.0, "mean_staleness": None, "overlap": 1}

    monkeypatch.setattr(bench_learning, "run", run)
    assert (
        call("learning", ["doors", "--seeds", "3", "--first-seed", "4", "--mode", "synchronous", "--set", "a=1"]) == 0
    )
    assert asked == [("doors.toml", [f"run.seed={seed}", "run.mode=synchronous", "a=1"]) for seed in (4, 5, 6)]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "seeds": 3,
        "overlap": 3,
        "success_x_greedy_median": 0.2,
        "minutes_median": 3.0,
        "minutes_rl_median": 2.0,
        "mean_staleness_median": None,
    }


def write_journal(folder: Path, groups: Sequence[tuple[str, str]]) -> Path:
    """A journal with a group of each (purpose, problem id)."""
    folder.mkdir()
    journal = SqliteJournal(folder / "journal.sqlite")
    for number, (purpose, name) in enumerate(groups):
        group = opened(number, purpose=purpose)
        group = replace(group, problem=replace(group.problem, id=name))
        journal.open_group(group.group, 0, number, group.purpose, encode_stored(group))
    journal.commit()
    journal.close()
    return folder


def test_operands_of_training_and_evaluation_are_read_from_the_journal(tmp_path: Path) -> None:
    trained = [("train", "sum:12+345"), ("train", "difference:7+8")]
    assert overlap_of(write_journal(tmp_path / "apart", [*trained, ("evaluate_sampled", "sum:12+346")])) == 0
    assert overlap_of(write_journal(tmp_path / "shared", [*trained, ("evaluate_greedy", "product:345+12")])) == 1
    other = [("train", "doors:a"), ("evaluate_greedy", "doors:a"), ("evaluate_greedy", "doors:b")]
    assert overlap_of(write_journal(tmp_path / "other", other)) == 1
    with pytest.raises(Failure, match="nothing was trained or nothing evaluated"):
        overlap_of(write_journal(tmp_path / "half", trained))


# roc ------------------------------------------------------------------------------------------------------------------


def test_without_correct_rollouts_their_errors_are_unknown() -> None:
    steps = [{"tool_error_share_correct": s, "success": 2 * s, "response_tokens": 30.0} for s in (0.0, 0.25)]
    found = curves(steps)
    assert math.isnan(found["error_share"][0])
    assert found["error_share"][1] == 0.25
    assert found["response_tokens"] == [30.0, 30.0]


def test_the_reached_value_is_the_mean_of_the_late_steps() -> None:
    assert reached([9.0] * 8 + [1.0, 3.0]) == 2.0
    assert reached([9.0] * 8 + [math.nan, 3.0]) == 3.0
    assert math.isnan(reached([1.0, math.nan]))


def test_a_sweep_goes_on_where_it_stopped_and_refuses_other_settings(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text('["a=1"]')
    make(tmp_path, ["a=1"])
    with pytest.raises(RunFailed, match="made with other settings"):
        make(tmp_path, ["a=2"])


# hostile --------------------------------------------------------------------------------------------------------------


def test_the_attacks_are_many_and_no_two_are_the_same() -> None:
    attacks = [*REACH, *SHARES]
    assert len(SHARES) >= 40
    assert len(REACH) >= 80
    assert len({attack.name for attack in attacks}) == len({attack.code for attack in SHARES}) + len(REACH)
    for attack in attacks:
        for side in (attack.code, attack.accomplice, attack.victim):
            assert "{{" not in side
            compile(side, attack.name, "exec")


def test_the_p95_of_few_calls() -> None:
    assert Heard([0.1] * 96 + [2.0] * 4).p95 == pytest.approx(0.1)
    assert Heard([3.0]).p95 == 3.0
    assert Heard().p95 == 0.0
