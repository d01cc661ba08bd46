"""What a run has written is read back as the figures that were measured, and what no run writes is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rl.figures import (
    AnswerFigures,
    EvaluationFigures,
    MismatchFigures,
    PublishFigures,
    RolloutMeans,
    StageFigures,
    StepFigures,
    SupervisedFigures,
    TrainingFigures,
    row,
)
from agent_rl.records.reading import Evaluated, Left, Lines, Step, read_record

TIME = {"seconds": 2.5, "wall": 7.0}
MEANS = RolloutMeans(rollouts=3, success=0.5, reward=0.25, parts={"form": 0.5})
STEP = Step(
    stage="rl",
    step=1,
    version=4,
    figures=StepFigures(sampled=MEANS, environments={"maths": MEANS}, staleness_max=2, delivered={"sampled": 9}),
    training=TrainingFigures(
        loss=0.5,
        mismatch=MismatchFigures(
            mismatch_gap=0.1, mismatch_max=1.0, mismatch_ratio=1.0, staleness_gap=0.0, staleness_ratio=1.0,
            mismatch_tokens=5,
        ),
        published=PublishFigures(update_version=3, update_seconds=0.5),
    ),
    **TIME,
)  # fmt: skip
ANSWERS = AnswerFigures(
    problems=8, success=0.25, low=0.1, high=0.5, lost=1, answered=RolloutMeans(response_tokens=90.0, tool_calls=1.5)
)
RESULT = EvaluationFigures(name="a_b", sampled=ANSWERS, environments={"maths": ANSWERS}, version_oldest=2)
LEFT = StageFigures(stage=1, stage_seconds=3.0, supervised=SupervisedFigures(steps=5, loss=0.75))
ROWS: list[dict[str, Any]] = [
    {"kind": "step", "stage": "rl", "step": 1, "version": 4, **row(STEP.figures), **row(STEP.training)},
    {"kind": "evaluation", "stage": "a_b", "version": 4, **RESULT.row()},
    {"kind": "stage", **row(LEFT)},
]


def test_rows_are_read_as_the_figures_that_were_written() -> None:
    read = [read_record(json.loads(json.dumps({**each, **TIME}))) for each in ROWS]
    assert read == [STEP, Evaluated(figures=RESULT, version=4, **TIME), Left(figures=LEFT, **TIME)]
    assert read_record({"kind": "selection"}) is None


@pytest.mark.parametrize(
    "broken",
    [{}, {"version": "x"}, {"success": "much"}, {"success_a_b_sampled_low": None}, {"stage_seconds": None}],
)
def test_a_row_that_no_run_writes_is_refused_whole(broken: dict[str, Any]) -> None:
    about = {} if not broken else TIME
    for each in (each for each in ROWS if not broken or broken.keys() & each.keys()):
        with pytest.raises(ValueError, match=r"valid|sampled"):
            read_record({**each, **about, **broken})


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
