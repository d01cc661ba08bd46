"""Shares of time from the totals that actors report; and what a run has written is read back, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from agent_rl.figures import (
    ActorFigures,
    AnswerFigures,
    EvaluationFigures,
    GeneratorFigures,
    MismatchFigures,
    Passes,
    RolloutMeans,
    StepFigures,
    row,
)
from agent_rl.figures import TrainingFigures as Training
from agent_rl.messages import ActorStatus
from agent_rl.records.reading import Evaluated, Lines, Step, read_record
from agent_rl.records.timeline import (
    ACTORS_PER_SECOND,
    FILE,
    ROWS_PER_DOUBLING,
    Timeline,
    TimelineFile,
    read_timeline,
)
from tests import builders
from tests.full_disk import no_file_longer_than

NUMBERS = [
    each.name for each in fields(GeneratorFigures) if each.default is MISSING and each.default_factory is MISSING
]


def status(busy: float, cpu: float, waiting_for: str = "", actor: str = "learner.0") -> ActorStatus:
    return builders.status(actor, busy=busy, cpu=cpu, waiting_for=waiting_for, stages=2, step=3, success=math.nan)


def test_shares_are_of_the_time_between_the_statuses_heard() -> None:
    timeline = Timeline(now=100.0)
    timeline.observe(status(5.0, 3.0), 100.0)
    timeline.observe(status(5.25, 3.5, "roc_filter: step 1"), 100.5)
    timeline.observe(status(5.5, 4.0), 101.0)
    found = timeline.row(101.2, wall=7.0)
    assert found["actors"]["learner.0"] == {
        "state": "running", "busy": 0.5, "cpu": 1.0, "waiting_for": "", "waited": 0.5, "figures": {"stages": 2.0, "step": 3.0, "trained_tokens": 0.0},
    }  # fmt: skip
    assert (found["wall"], found["seconds"]) == (7.0, 1.2)
    timeline.observe(status(6.5, 4.0), 102.0)
    assert timeline.row(102.0, wall=8.0)["actors"]["learner.0"]["busy"] == 1.0


def test_the_passes_of_an_engine_are_lists_by_size() -> None:
    timeline = Timeline(now=0.0)
    before = builders.status("rollout_generator.0")
    generator = GeneratorFigures(**dict.fromkeys(NUMBERS, 0), passes={"8+": Passes(2, 0.5, 0.25, 13, 40, 900)})
    for second in range(2):
        timeline.observe(replace(before, figures=ActorFigures(generator=generator)), float(second))
    figures = timeline.row(1.0, wall=0.0)["actors"]["rollout_generator.0"]["figures"]
    assert figures["passes"] == {"8+": [2, 0.5, 0.25, 13, 40, 900]}
    assert {type(value) for name, value in figures.items() if name != "passes"} == {float}


@pytest.mark.parametrize("before", [(50.0, 50.0), (0.25, 50.0), (50.0, 0.125)])
def test_a_restarted_actor_counts_from_nothing(before: tuple[float, float]) -> None:
    timeline = Timeline(now=0.0)
    timeline.observe(status(*before), 0.0)
    timeline.observe(status(0.5, 0.25), 1.0)
    assert timeline.row(1.0, wall=0.0)["actors"]["learner.0"]["busy"] == 0.5


def test_an_actor_not_heard_of_in_a_row_is_not_in_it() -> None:
    timeline = Timeline(now=0.0)
    timeline.observe(status(0.0, 0.0), 0.0)
    timeline.observe(status(1.0, 0.0), 1.0)
    assert timeline.row(1.0, wall=0.0)["actors"]
    assert timeline.row(2.0, wall=0.0)["actors"] == {}


@pytest.mark.parametrize(
    ("shortest", "last", "actors", "before", "due"),
    [
        (1.0, 0.0, 1, 0.9, 1.0),
        (0.4, 0.0, 1, 0.3, 0.4),  # where reports come more often
        (1.0, 20.0 * ROWS_PER_DOUBLING, 0, 19.0, 21.0),
        (1.0, 0.0, 6 * ACTORS_PER_SECOND, 5.9, 6.0),  # the file grows no faster
    ],
)
def test_rows_grow_longer_with_the_run_and_its_actors(
    shortest: float, last: float, actors: int, before: float, due: float
) -> None:
    timeline = Timeline(now=0.0, shortest=shortest)
    for number in range(actors):
        timeline.observe(status(0.0, 0.0, actor=f"tool_executor.{number}"), 0.0)
    if last:
        timeline.row(last, wall=0.0)
    assert not timeline.due(last + before)
    assert timeline.due(last + due)


def test_a_long_timeline_is_read_with_the_file_before_it(tmp_path: Path) -> None:
    file = TimelineFile(tmp_path, 0.0, lambda: 1000.0, limit=1000)
    for second in range(12):
        file.observe(status(float(second), 0.0), float(second))
    file.close()
    assert (tmp_path / f"{FILE}.1").stat().st_size < 2000
    rows = list(read_timeline(tmp_path))
    both = [len((tmp_path / name).read_text().splitlines()) for name in (f"{FILE}.1", FILE)]
    assert all(both)
    assert len(rows) == sum(both)


def test_rows_are_appended_and_read_back_without_those_that_the_disk_refused_or_a_half_written_one(
    tmp_path: Path,
) -> None:
    for start in (0.0, 10.0):  # the second start of a run goes on with the file
        file = TimelineFile(tmp_path, start, wall=lambda: 1000.0)
        for second in range(4):
            file.observe(status(second * 0.5, 0.0), start + second)
        with no_file_longer_than(10):
            for second in (4, 5):
                file.observe(status(second * 0.5, 0.0), start + second)
        file.observe(status(3.0, 0.0), start + 6)
        assert file.lost == 2
    with (tmp_path / FILE).open("a") as half:
        half.write(json.dumps({"wall": 1.0})[:-3])
    actors = [found["actors"] for found in read_timeline(tmp_path)]
    shares = [each["learner.0"]["busy"] for each in actors if each]
    assert shares == [pytest.approx(0.5)] * 8
    assert list(read_timeline(tmp_path / "nowhere")) == []


# Rows that are read back ---------------------------------------------------------------------------------------------

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
    "wrong",
    [
        {"kind": "step"}, {"kind": "evaluation"}, {"kind": "stage"}, STEP | {"version": "x"}, STEP | {"success": "much"},
        EVALUATION | {"success_a_b_sampled_low": None}, EVALUATION | {"stage": "other"},
    ],
)  # fmt: skip
def test_a_row_that_no_run_writes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"validation error|no sampled answers"):
        read_record(wrong)


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
