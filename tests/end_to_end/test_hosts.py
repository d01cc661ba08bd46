"""Runs over several hosts, each with a supervisor of its own, over loopback TCP with one key."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from tests.end_to_end.processes import check_finished, finish, port_blocks, processes_of, start, steps_trained, wait_for
from tests.end_to_end.topologies import write_three_hosts


def generated(directory: Path, generator: str) -> int:
    """Rollouts that ended at a generator, by the newest figures of its status."""
    rollouts = 0
    path = directory / "timeline.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        figures = json.loads(line)["actors"].get(generator, {}).get("figures", {})
        rollouts = max(rollouts, int(figures.get("rollouts", 0)))
    return rollouts


@contextlib.contextmanager
def hosts() -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of all hosts, which are killed and heard where the test fails."""
    processes: list[subprocess.Popen[str]] = []
    try:
        yield processes
    except BaseException:
        for process in processes:
            process.kill()
            sys.stdout.write("\n".join(process.communicate()))
        raise


def going_on(processes: list[subprocess.Popen[str]], condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, while no host has ended."""

    def holds() -> bool:
        assert all(process.poll() is None for process in processes)
        return condition()

    return holds


@pytest.mark.slow
def test_a_host_that_starts_late_takes_part_and_the_run_finishes(tmp_path: Path) -> None:
    path, directory = write_three_hosts(tmp_path, port_blocks(3), steps=30)
    with hosts() as processes:
        processes += [start(path, "--host", "a"), start(path, "--host", "b")]
        wait_for(going_on(processes, lambda: steps_trained(directory) >= 1), "a step with host b alone")
        processes.append(start(path, "--host", "c"))
        ended = [finish(process) for process in processes]
        for code, out, err in ended:
            assert code == 0, out + err
        check_finished(path, directory, ended[0][1], steps=30)


@pytest.mark.slow
def test_a_host_joins_generates_and_leaves(tmp_path: Path) -> None:
    *ports, fourth = port_blocks(4)
    path, directory = write_three_hosts(tmp_path, ports, steps=5000)
    place = ("--host", "d", "--address", "127.0.0.1", "--base-port", str(fourth))
    with hosts() as processes:
        processes += [start(path, "--host", name) for name in "abc"]
        wait_for(going_on(processes, lambda: steps_trained(directory) >= 1), "the first step")
        joined = start(path, *place, command="join")
        processes.append(joined)
        generates = going_on(processes, lambda: generated(directory, "rollout_generator.2") >= 8)
        wait_for(generates, "rollouts of the host that joined")
        os.kill(joined.pid, signal.SIGINT)
        code, out, err = finish(joined)
        assert code == 0, out + err
        assert "continue with: agent-rl join" in out + err
        done = steps_trained(directory)
        stays = going_on(processes[:3], lambda: steps_trained(directory) >= done + 2)
        wait_for(stays, "steps without the host that left")
        os.kill(processes[0].pid, signal.SIGINT)
        ended = [finish(process) for process in processes[:3]]
        for code, out, err in ended:
            assert code == 0, out + err
        said = ended[0][1] + ended[0][2]
        joins = "host d joins at 127.0.0.1: rollout_generator.2, tool_executor.2"
        for line in (joins, "host d has joined", "host d has left"):
            assert line in said
        assert audit(directory).balanced
        assert not (directory / "joined.json").exists()
        assert processes_of(path) == []
