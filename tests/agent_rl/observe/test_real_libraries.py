"""Trackers and tables with the real MLflow, trackio, pandas and polars, in the environment that the Makefile makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-trackers" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-trackers: make .venv-trackers/installed")
def test_the_real_libraries_keep_what_they_are_given() -> None:
    options = ("-q", "-W", "ignore", "-p", "no:cacheprovider")
    command = [PYTHON, "-m", "pytest", *options, "tests/agent_rl/observe/real_libraries.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-4000:]
