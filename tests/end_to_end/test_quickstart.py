"""The quickstart to its end: it learns what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_the_quickstart_learns_to_use_its_tool(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "actors.cli",
        "run",
        "examples/quickstart/quickstart.toml",
        "--set",
        f"run.directory={tmp_path}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=True)
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["success_before_sampled"] <= 0.3
    assert summary["success_before_greedy"] <= 0.3
    assert summary["success_after_sampled"] >= 0.8
    assert summary["success_after_greedy"] >= 0.9
    assert summary["groups_opened"] == summary["groups_trained"] + summary["groups_dropped"]
    assert summary["max_staleness"] <= 1
