"""What the benchmark of resampling reads, draws and says; and, small, itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from actors.cli.main import main
from benchmarks.bench_roc import curves, reached, smooth


def step(share: float, success: float, tokens: float = 30.0) -> dict[str, float]:
    return {"tool_error_share_correct": share, "success": success, "response_tokens": tokens}


def test_without_correct_rollouts_their_errors_are_unknown() -> None:
    found = curves([step(0.0, 0.0), step(0.25, 0.5)])
    assert math.isnan(found["error_share"][0])
    assert found["error_share"][1] == 0.25
    assert found["response_tokens"] == [30.0, 30.0]


def test_what_was_reached_is_the_mean_of_the_late_steps() -> None:
    assert reached([9.0] * 8 + [1.0, 3.0]) == 2.0
    assert reached([9.0] * 8 + [math.nan, 3.0]) == 3.0
    assert reached([5.0]) == 5.0
    assert math.isnan(reached([1.0, math.nan]))


def test_means_pass_over_what_is_unknown() -> None:
    assert smooth([1.0, math.nan, 3.0]) == [2.0, 2.0, 2.0]
    assert smooth([0.0] * 4 + [9.0] + [0.0] * 4)[4] == 1.0


@pytest.mark.slow
def test_a_small_sweep_goes_on_where_it_stopped_and_draws_one_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--sft-steps", "3", "--problems", "2", "--seeds", "1", "--out", str(tmp_path)]
    model = "model.initialise={hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32}"
    sizes = [
        part
        for each in ("algorithm.groups_per_step=2", "algorithm.samples=4", "algorithm.keep=2", model)
        for part in ("--set", each)
    ]
    arguments = ["bench", "roc", *small, *sizes, "--steps", "2", "--modes"]
    assert main([*arguments, "none"]) == 0
    assert (tmp_path / "seed-0" / "none" / "done.json").exists()
    before = (tmp_path / "seed-0" / "none" / "run" / "journal.sqlite").stat().st_mtime_ns
    assert main([*arguments, "none", "paper"]) == 0
    assert (tmp_path / "seed-0" / "none" / "run" / "journal.sqlite").stat().st_mtime_ns == before
    assert main(["bench", "roc", *small, *sizes, "--steps", "3", "--modes", "none"]) == 1
    assert "made with other settings" in capsys.readouterr().err
    assert main([*arguments, "none", "paper"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["seeds"] == 1.0
    assert {"roc.error_share", "no_roc.error_share", "roc.success", "no_roc.response_tokens"} <= figures.keys()
    assert figures["roc.response_tokens"] > 0
    assert "tool errors in correct rollouts" in (tmp_path / "roc.html").read_text()
