"""The run in one file is short enough to be read, learns, and trains on what is at most as stale as it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from examples import one_file

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"(?m)^step (\d+): reward \d\.\d\d, \d+ trained, (\d+) behind, ")
SUCCESS = re.compile(r"(?m)^success on held-out problems (?:before|after): ([\d.]+)%")


def test_the_file_is_read_in_ten_minutes():
    assert len(Path(one_file.__file__).read_text().splitlines()) <= 250


def test_the_learner_trains_on_a_batch_while_the_next_one_is_written(tmp_path, monkeypatch, capsys):
    for name, value in {"FORMAT_STEPS": 1, "STEPS": 4, "GROUPS": 1, "SAMPLES": 2, "HELD_OUT": 1}.items():
        monkeypatch.setattr(one_file, name, value)
    monkeypatch.setattr(one_file, "selected", lambda group, rng: list(zip(group, (1.0, -1.0), strict=True)))
    trio.run(one_file.main, tmp_path)
    assert STEP.findall(capsys.readouterr().out) == [("1", "0"), ("2", "1"), ("3", "1"), ("4", "1")]


@pytest.mark.slow
def test_success_on_held_out_problems_rises(record_property):
    command = [sys.executable, "-m", "examples.one_file"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = map(float, SUCCESS.findall(done.stdout))
    record_property("success", (before, after))
    assert before < 30
    assert after > before + 35
    behind = [int(steps) for _, steps in STEP.findall(done.stdout)]
    assert len(behind) == one_file.STEPS
    assert max(behind) == one_file.MAX_STALENESS
