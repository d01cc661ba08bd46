"""Evaluations within reinforcement learning, for real: told once each, while training goes on, also after an
interrupt.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from tests.end_to_end.processes import check_finished, finish, rows, start, steps_trained, wait_for
from tests.end_to_end.topologies import write_micro

EVALUATE = "stages.2.evaluate={every=2, problems=3, samples=2}"


def interim_rows(directory: Path) -> list[dict]:
    found = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "evaluation"]
    return [row for row in found if "@" in row["stage"]]


@pytest.mark.slow
def test_each_is_told_once_and_the_run_is_what_it_was_without(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=6)
    code, out, err = finish(start(path, "--set", EVALUATE))
    assert code == 0, out + err
    check_finished(path, directory, out, steps=6, evaluations=4)
    found = interim_rows(directory)
    assert [row["stage"] for row in found] == ["rl@2", "rl@4"]
    for row in found:
        assert row[f"version_oldest_{row['stage']}"] >= row["version"]
        assert row[f"lost_{row['stage']}_sampled"] == 0
    assert "rl@4" in (directory / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_interrupted_an_evaluation_goes_on_and_is_told_once(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=12)
    process = start(path, "--set", EVALUATE)
    wait_for(lambda: steps_trained(directory) >= 3, "three steps")
    os.kill(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 0, out + err
    code, out, err = finish(start(path, "--set", EVALUATE))
    assert code == 0, out + err
    check_finished(path, directory, out, steps=12, evaluations=7)
    assert [row["stage"] for row in interim_rows(directory)] == [f"rl@{step}" for step in (2, 4, 6, 8, 10)]
    assert audit(directory).balanced
    journal = Journal(directory / "journal.sqlite", read_only=True)
    try:
        assert sorted(journal.interim_evaluations(2)) == [2, 4, 6, 8, 10]
    finally:
        journal.close()
