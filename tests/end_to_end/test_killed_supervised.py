"""A supervised stage whose learner is killed again and again still ends, with the bits of one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.processes import finish, process_of_actor, rows, start, wait_for
from tests.end_to_end.topologies import write_micro

STEPS = 1200
LAST = "version-000001-stage-01"
LONGEST = 4.0
"""Seconds of training before the next kill: a tenth of the stage."""


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
    logs = (directory / "logs").glob("learner.0*.jsonl")
    return sum(row["event"] == "stage" for log in logs for row in rows(log))


@pytest.mark.slow
def test_a_supervised_stage_ends_however_often_its_learner_is_killed(tmp_path: Path) -> None:
    draw = random.Random(0)
    path, directory = supervised_alone(tmp_path / "killed", steps=STEPS)
    process = start(path, "--set", "actors.learner.restarts=99", "--set", "run.checkpoint_seconds=0.5")
    kills = 0
    while process.poll() is None:
        wait_for(lambda seen=kills: times_entered(directory) > seen or process.poll() is not None, "the stage")
        time.sleep(draw.uniform(0.7, LONGEST))
        if process.poll() is None and not (directory / "checkpoints" / LAST).exists():
            os.kill(process_of_actor(path, "learner.0"), signal.SIGKILL)
            kills += 1
        elif process.poll() is None:
            break
    code, out, err = finish(process)
    assert code == 0, out + err
    assert kills >= 3, f"{kills} kills: the stage is too short for this test"
    path, untouched = supervised_alone(tmp_path / "whole", steps=STEPS)
    code, out, err = finish(start(path))
    assert code == 0, out + err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["sft_steps"], summary["checkpoint"]) == (STEPS, str(untouched / "checkpoints" / LAST))
    report = (untouched / "report.html").read_text(encoding="utf-8")
    assert "Supervised training in" in report
    assert "Supervised loss, stage sft" in report
    for name in ("model.safetensors", "training/rank-0/rng.safetensors"):
        found, expected = (run / "checkpoints" / LAST / name for run in (directory, untouched))
        assert found.read_bytes() == expected.read_bytes(), name
    assert [path.name for path in (directory / "checkpoints").iterdir()] == [LAST]
