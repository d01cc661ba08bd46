"""Thousands of half-open connections to every port of a run that may have 1024 files open: it trains on, and ends
well.
"""

from __future__ import annotations

import contextlib
import resource
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.processes import check_finished, finish, kill, more_steps, port_blocks, steps_trained, wait_for
from tests.end_to_end.topologies import write_two_hosts

CONNECTIONS = 1200
"""To each port."""


def run_with_few_files(path: Path, host: str) -> subprocess.Popen[str]:
    command = shlex.join([sys.executable, "-m", "actors.cli", "run", str(path), "--host", host])
    return subprocess.Popen(
        ["bash", "-c", f"ulimit -n 1024 && exec {command}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def attack(ports: list[int], held: contextlib.ExitStack) -> None:
    for port in ports:
        for _ in range(CONNECTIONS):
            made = held.enter_context(socket.socket())
            made.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                made.connect(("127.0.0.1", port))


@pytest.mark.slow
def test_half_open_connections_to_every_port_stop_no_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first, second = port_blocks(2)
    path, directory = write_two_hosts(tmp_path, (first, second), steps=60)
    main, other = run_with_few_files(path, "a"), run_with_few_files(path, "b")
    try:
        wait_for(lambda: steps_trained(directory) >= 2, "two steps")
        for _ in range(2):
            with contextlib.ExitStack() as held:
                attack([*range(first, first + 4), *range(second, second + 3)], held)
                more_steps(directory, 2)
        said = finish(main)
        other_said = finish(other)
        check_finished(path, directory, said, steps=60)
        assert "starting it again" not in said.out + other_said.out
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        kill(main, other)
