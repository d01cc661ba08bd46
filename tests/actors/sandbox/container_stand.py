"""A fixture that puts `container_cli.py` in the place of docker."""

import os
import sys
from pathlib import Path

import pytest

CLI = Path(__file__).with_name("container_cli.py")


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The folder of its state."""
    if os.geteuid() != 0:
        pytest.skip("the stand-in for docker needs root")
    (tmp_path / "bin").mkdir()
    (tmp_path / "state").mkdir()
    file = tmp_path / "bin" / "docker"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {CLI} {tmp_path / "state"} "$@"\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "state"
