"""What a run has written is read back as the figures that were measured, and what no run writes is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_rl.figures import AnswerFigures, EvaluationFigures, MismatchFigures, RolloutMeans, StepFigures, row
from agent_rl.figures import TrainingFigures as Training
from agent_rl.records.reading import Evaluated, Lines, Step, read_record

MISMATCH = dict.fromkeys(("mismatch_gap", "mismatch_max", "mismatch_ratio", "staleness_gap", "staleness_ratio"), 0.5)
MEANS = RolloutMeans(rollouts=3, success=0.5, parts={"form": 0.5}, response_tokens=9.0)
ANSWERS = AnswerFigures(problems=8, success=0.25, low=0.1, high=0.5, lost=1, answered=RolloutMeans(tool_calls=1.5))
FIGURES = StepFigures(sampled=MEANS, environments={"maths": MEANS}, staleness_max=2, delivered={"sampled": 9})
TRAINED = Training(loss=0.5, mismatch=MismatchFigures(**MISMATCH, mismatch_tokens=5))
RESULT = EvaluationFigures(name="a_b", sampled=ANSWERS, environments={"maths": ANSWERS}, version_oldest=2)
TIME = {"version": 4, "seconds": 2.5, "wall": 7.0}
STEP = {"kind": "step", "stage": "rl", "step": 1, **TIME, **row(FIGURES), **row(TRAINED)}
EVALUATION = {"kind": "evaluation", "stage": "a_b", **TIME, **RESULT.row()}


def test_rows_are_read_as_the_figures_that_were_written() -> None:
    assert read_record(STEP) == Step(stage="rl", step=1, figures=FIGURES, training=TRAINED, **TIME)
    assert read_record(EVALUATION) == Evaluated(figures=RESULT, **TIME)
    assert read_record({"kind": "selection"}) is None


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "step"}, {"kind": "evaluation"}, {"kind": "stage"}, STEP | {"version": "x"}, STEP | {"success": "much"},
        EVALUATION | {"success_a_b_sampled_low": None}, EVALUATION | {"stage": "other"},
    ],
)  # fmt: skip
def test_a_row_that_no_run_writes_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"validation error|no sampled answers"):
        read_record(row)


def test_lines_are_taken_once_they_end_and_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = Lines(path, lambda row: row)
    lines.look()
    assert lines.notes() == ["There is no rows.jsonl."]
    path.write_text('{"a": 1}\n{"b"')
    lines.look()
    assert (lines.rows, lines.notes()) == (
        [{"a": 1}],
        ["1 of 2 lines of rows.jsonl cannot be read (the last one, half-written); they are left out."],
    )
    with path.open("a") as file:
        file.write(": 2}\nodd\n\n[1]\n")
    lines.look()
    assert lines.rows == [{"a": 1}, {"b": 2}]
    assert lines.notes() == ["2 of 5 lines of rows.jsonl cannot be read; they are left out."]
    path.unlink()
    path.write_text('{"c": 3}\n')
    lines.look()
    assert (lines.rows, lines.notes()) == ([{"c": 3}], [])
    path.rename(tmp_path / "rows.jsonl.1")
    path.write_text('{"d": 4}\n')
    lines.look()
    assert lines.rows == [{"c": 3}, {"d": 4}]
