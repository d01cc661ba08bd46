"""What the benchmark of resampling reads, draws and says; and, small, itself."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from actors.cli.main import main
from benchmarks import plot_learning_curve
from benchmarks.bench_roc import curves, reached
from benchmarks.panels import Panel, draw, mean_over, smooth

SVG = "{http://www.w3.org/2000/svg}"


def curves_of(drawn: ET.Element) -> list[ET.Element]:
    return [path for path in drawn.iter(f"{SVG}path") if "curve" in (path.get("class") or "").split()]


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
    assert mean_over([[1.0, math.nan], [3.0, 5.0, 7.0]]) == [2.0, 5.0, 7.0]
    assert smooth([1.0, math.nan, 3.0]) == [2.0, 2.0, 2.0]
    assert smooth([0.0] * 4 + [9.0] + [0.0] * 4)[4] == 1.0


def test_each_run_and_each_mean_is_a_line_with_only_known_points() -> None:
    panels = [
        Panel("errors & more", {"on": [[0.1, math.nan, 0.3]], "off": [[0.2, 0.2], [0.4, 0.4, 0.4]]}, percent=True)
    ]
    drawn = ET.fromstring(draw(panels, "caption <1>"))
    lines = curves_of(drawn)
    assert len(lines) == 3 + 2
    assert sum("faint" in (line.get("class") or "") for line in lines) == 3
    assert all("nan" not in (line.get("d") or "") for line in lines)
    texts = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"errors & more", "on", "off", "caption <1>"} <= texts


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
    assert len(curves_of(ET.parse(tmp_path / "roc.svg").getroot())) == 3 * 2 * 2


def test_a_runs_learning_curve_is_drawn_with_what_was_held_out(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"kind": "step", "success": share} for share in (0.1, 0.2, 0.4)]
    rows += [
        {"kind": "evaluation", f"success_{name}_greedy": share} for name, share in (("before", 0.1), ("after", 0.5))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = ET.fromstring(plot_learning_curve.draw([tmp_path]))
    assert len(curves_of(drawn)) == 2
    assert [title.text for title in drawn.iter(f"{SVG}title")] == ["before, greedy: 10.0%", "after, greedy: 50.0%"]
    assert tmp_path.name in {text.text for text in drawn.iter(f"{SVG}text")}
