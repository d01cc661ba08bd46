"""Processor seconds of other processes."""

from __future__ import annotations

import os
import subprocess
import sys

from actors.processor_time import seconds_of_children, seconds_with_children

BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"


def test_children_count_while_they_live() -> None:
    before = seconds_of_children(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        burnt = seconds_with_children(child.pid)
        assert burnt >= 0.19
        assert seconds_of_children(os.getpid()) - before >= burnt - 0.011
        child.communicate(b"\n")
    assert seconds_with_children(child.pid) == 0.0
