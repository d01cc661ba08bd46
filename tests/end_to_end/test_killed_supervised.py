"""A supervised stage whose learner is killed again and again ends with the bits of one that never was."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.end_to_end.processes import finish, rows, signal_actor, start, wait_for
from tests.end_to_end.topologies import write_micro

STEPS, KILLS = 1500, 4
LAST = "version-000001-stage-01"
LONGEST = 2.5
"""Seconds of training before the next kill, at most."""


def supervised_alone(folder: Path, *, steps: int) -> tuple[Path, Path]:
    """A topology whose only stage is a supervised one; its file and its run directory."""
    folder.mkdir(exist_ok=True)
    path, directory = write_micro(folder)
    before, stages = path.read_text().split("[[stages]]", 1)
    stage = f'[[stages]]\nkind = "sft"\nsteps = {steps}\nbatch = 8\n\n'
    path.write_text(before + stage + stages[stages.index("[actors.") :])
    return path, directory


def times_entered(directory: Path) -> int:
    """How often a learner has begun, or gone on with, the stage."""
    return sum(row["event"] == "stage" for log in logs(directory) for row in rows(log))


def logs(directory: Path) -> list[Path]:
    """The learner's logs, in order."""
    return sorted((directory / "logs").glob("learner.0*.jsonl"))


@pytest.mark.slow
def test_a_supervised_stage_goes_on_whenever_its_learner_is_killed(tmp_path: Path) -> None:
    draw = random.Random(0)
    path, directory = supervised_alone(tmp_path / "killed", steps=STEPS)
    process = start(path, "actors.learner.restarts=99", "run.checkpoint_seconds=0.5")
    for kill in range(KILLS):
        wait_for(lambda seen=kill: times_entered(directory) > seen or process.poll() is not None, "the stage")
        time.sleep(draw.uniform(0.7, LONGEST))
        assert process.poll() is None, "the stage is too short for this test"
        signal_actor(path, "learner.0")
    said = finish(process)
    went_on = [row["step"] for log in logs(directory) for row in rows(log) if row["event"] == "stage"]
    assert len(went_on) == KILLS + 1
    assert went_on == sorted(went_on)
    assert went_on[-1] > 0
    path, untouched = supervised_alone(tmp_path / "whole", steps=STEPS)
    said = finish(start(path))
    summary = said.summary
    assert (summary["sft_steps"], summary["checkpoint"]) == (STEPS, str(untouched / "checkpoints" / LAST))
    report = (untouched / "report.html").read_text(encoding="utf-8")
    assert "Supervised training in" in report
    assert "Supervised loss, stage sft" in report
    for name in ("model.safetensors", "training/rank-0/rng.safetensors"):
        found, expected = (run / "checkpoints" / LAST / name for run in (directory, untouched))
        assert found.read_bytes() == expected.read_bytes(), name
    assert [path.name for path in (directory / "checkpoints").iterdir()] == [LAST]
