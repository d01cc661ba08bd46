"""The page that a run offers ends with the run."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.actors.sandbox.running import commands
from tests.end_to_end.processes import CALLS_TOOLS, SECONDS, wait_for
from tests.end_to_end.topologies import write_half_right


@pytest.mark.slow
def test_the_page_that_a_run_offers_ends_with_it_even_when_the_run_is_killed(tmp_path: Path, temporary: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    command = [sys.executable, "-m", "actors.cli", "run", str(path), "--view"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = next(line for line in process.stdout if "look at it in a browser" in line).split()[-1]
        assert commands(b"--descriptor", bytes(directory)) == []
        with urllib.request.urlopen(address, timeout=SECONDS) as page:
            assert "connect-src 'self'" in page.read().decode()
        assert len(commands(b"--descriptor", bytes(directory))) == 1
        process.kill()
        process.communicate()
    wait_for(lambda: commands(b"--descriptor", bytes(directory)) == [], "the page to end")
