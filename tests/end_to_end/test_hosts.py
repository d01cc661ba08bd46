"""Runs over several hosts, each with a supervisor of its own, over loopback TCP with one key."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.end_to_end.processes import (
    balanced,
    check_finished,
    finish,
    kill,
    more_steps,
    port_blocks,
    processes_of,
    start,
    wait_for,
)
from tests.end_to_end.topologies import write_three_hosts


def generated(directory: Path, generator: str) -> int:
    """Rollouts that ended at a generator, by the newest figures of its status."""
    rollouts = 0
    path = directory / "timeline.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        figures = json.loads(line)["actors"].get(generator, {}).get("figures", {})
        rollouts = max(rollouts, int(figures.get("rollouts", 0)))
    return rollouts


@pytest.mark.slow
def test_a_host_that_starts_late_takes_part_and_the_run_finishes(tmp_path: Path) -> None:
    path, directory = write_three_hosts(tmp_path, port_blocks(3), steps=30)
    processes = [start(path, host=name) for name in "ab"]
    try:
        more_steps(directory, 1, *processes)  # with host b alone
        processes.append(start(path, host="c"))
        said, *_ = [finish(process) for process in processes]
        check_finished(path, directory, said, steps=30)
    finally:
        kill(*processes)


@pytest.mark.slow
def test_an_optional_host_comes_generates_and_leaves(tmp_path: Path) -> None:
    path, directory = write_three_hosts(tmp_path, port_blocks(3), steps=50_000)
    path.write_text(path.read_text().replace("[hosts.c]", "[hosts.c]\noptional = true"))
    others = [start(path, host=name) for name in "ab"]
    processes = [*others]
    try:
        more_steps(directory, 1, *others)
        came = start(path, host="c")
        processes.append(came)
        wait_for(lambda: generated(directory, "rollout_generator.1") >= 8, "rollouts of the optional host")
        came.send_signal(signal.SIGINT)
        assert "continue with: agent-rl run" in finish(came).all
        more_steps(directory, 2, *others)  # without the host that left
        others[0].send_signal(signal.SIGINT)
        said, _ = [finish(process) for process in others]
        assert "supervisor.c has stopped in order" in said.all
        balanced(directory)
        assert processes_of(path) == []
    finally:
        kill(*processes)
