"""The terminal of a run is closed, as when an ssh session ends: the run is saved in order."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
from pathlib import Path

import pytest

from tests.end_to_end.processes import SECONDS, balanced, processes_of, steps_trained, wait_for
from tests.end_to_end.topologies import write_micro


@pytest.mark.slow
def test_a_closed_terminal_loses_nothing(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=40)
    process, terminal = pty.fork()
    if process == 0:  # it leads the session of this terminal, and gets SIGHUP when the other end closes
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which ignores it
        os.execv(sys.executable, [sys.executable, "-m", "actors.cli", "run", str(path)])
    os.set_blocking(terminal, False)

    def trained() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 1 << 16)  # a terminal that nobody reads fills up
        return steps_trained(directory) >= 2

    wait_for(trained, "two steps")
    os.close(terminal)
    ended = os.pidfd_open(process)
    wait_for(lambda: bool(select.select([ended], [], [], 0)[0]), f"the run to end within {SECONDS} s")
    os.close(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert processes_of(path) == []
    balanced(directory)
    assert (directory / "report.html").exists()
    assert 2 <= steps_trained(directory) < 40
