"""Evaluations within reinforcement learning, for real: told once each, while training goes on, also after an
interrupt.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.processes import (
    balanced,
    check_finished,
    finish,
    journal_of,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_micro

EVALUATE = "stages.2.evaluate={every=2, problems=3, samples=2}"


def interim_rows(directory: Path) -> list[dict]:
    found = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "evaluation"]
    return [row for row in found if "@" in row["stage"]]


@pytest.mark.slow
def test_interrupted_an_evaluation_goes_on_and_is_told_once(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=12)
    process = start(path, EVALUATE)
    wait_for(lambda: steps_trained(directory) >= 3, "three steps")
    os.kill(process.pid, signal.SIGINT)
    said = finish(process)
    said = finish(start(path, EVALUATE))
    check_finished(path, directory, said, steps=12, evaluations=7)
    found = interim_rows(directory)
    assert [row["stage"] for row in found] == [f"rl@{step}" for step in (2, 4, 6, 8, 10)]
    for row in found:
        stage = row["stage"]
        assert (row[f"version_oldest_{stage}"] >= row["version"], row[f"lost_{stage}_sampled"]) == (True, 0)
    assert "rl@4" in (directory / "report.html").read_text(encoding="utf-8")
    balanced(directory)
    with journal_of(directory) as journal:
        assert sorted(journal.interim_evaluations(2)) == [2, 4, 6, 8, 10]
