"""Runs over several hosts, each with a supervisor of its own, over loopback TCP with one key."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from tests.end_to_end.processes import check_finished, family, port_blocks, processes_of, start, steps_trained
from tests.end_to_end.topologies import write_three_hosts

PROCESSOR_SECONDS = 240.0
"""Of one host, for what it does in a few seconds of processor time when it has a machine of its own."""


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


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """Processor time that a host has used: of its living processes, and of those that they have waited for."""
    ticks = 0
    for pid in family(process.pid):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, stat[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_while_they_work(
    hosts: Sequence[subprocess.Popen[str]],
    condition: Callable[[], bool],
    what: str,
    others: Sequence[subprocess.Popen[str]] = (),
) -> None:
    """Wait while ``hosts``, which must not end, use less processor time than the condition needs by far.

    A busy machine gives hosts less of its time, and they then need longer. ``others`` must not end either.
    """
    limits = {host: processor_seconds(host) + PROCESSOR_SECONDS for host in hosts}
    while not condition():
        assert all(host.poll() is None for host in [*hosts, *others]), f"a host ended; waited for {what}"
        for host, limit in limits.items():
            assert processor_seconds(host) < limit, f"a host worked for {PROCESSOR_SECONDS:.0f} s; waited for {what}"
        time.sleep(0.2)


def ended(hosts: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """The exit codes of hosts that are to end, and what they said on stdout and stderr; within the same limit."""
    limits = {host: processor_seconds(host) + PROCESSOR_SECONDS for host in hosts}
    for host, limit in limits.items():
        while host.poll() is None:
            assert processor_seconds(host) < limit, f"a host worked for {PROCESSOR_SECONDS:.0f} s and did not end"
            time.sleep(0.2)
    return [(host.returncode, *host.communicate()) for host in hosts]


@pytest.mark.slow
def test_a_host_that_starts_late_takes_part_and_the_run_finishes(tmp_path: Path) -> None:
    path, directory = write_three_hosts(tmp_path, port_blocks(3), steps=30)
    with hosts() as processes:
        processes += [start(path, "--host", "a"), start(path, "--host", "b")]
        wait_while_they_work(processes, lambda: steps_trained(directory) >= 1, "a step with host b alone")
        processes.append(start(path, "--host", "c"))
        codes = ended(processes)
        for code, out, err in codes:
            assert code == 0, out + err
        check_finished(path, directory, codes[0][1], steps=30)


@pytest.mark.slow
def test_an_optional_host_comes_generates_and_leaves(tmp_path: Path) -> None:
    path, directory = write_three_hosts(tmp_path, port_blocks(3), steps=50_000)
    path.write_text(path.read_text().replace("[hosts.c]", "[hosts.c]\noptional = true"))
    with hosts() as processes:
        processes += [start(path, "--host", name) for name in "ab"]
        wait_while_they_work(processes, lambda: steps_trained(directory) >= 1, "the first step")
        came = start(path, "--host", "c")
        others, processes[2:] = processes[:2], [came]
        generates = lambda: generated(directory, "rollout_generator.1") >= 8  # noqa: E731
        wait_while_they_work([came], generates, "rollouts of the optional host", others)
        os.kill(came.pid, signal.SIGINT)
        ((code, out, err),) = ended([came])
        assert code == 0, out + err
        assert "continue with: agent-rl run" in out + err
        done = steps_trained(directory)
        wait_while_they_work(others, lambda: steps_trained(directory) >= done + 2, "steps without the host that left")
        os.kill(others[0].pid, signal.SIGINT)
        codes = ended(others)
        for code, out, err in codes:
            assert code == 0, out + err
        assert "supervisor.c has stopped in order" in codes[0][1] + codes[0][2]
        assert audit(directory).balanced
        assert processes_of(path) == []
