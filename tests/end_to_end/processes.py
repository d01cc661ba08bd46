"""Real runs for tests: start one, wait for it, look at what it started."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_rl.records.audit import audit

SECONDS = 150
"""A whole run takes about 15 s on two free cores, most of it importing torch; the machine may be busy."""

SUMMARY_KEYS = {
    "success_before_sampled",
    "success_before_greedy",
    "success_after_sampled",
    "success_after_greedy",
    "minutes",
    "groups_opened",
    "groups_trained",
    "groups_dropped",
    "groups_open",
    "mean_staleness",
    "max_staleness",
}


def start(path: Path, *arguments: str, command: str = "run", **environment: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "actors.cli", command, str(path), *arguments]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | environment,
    )


class Traces:
    """What a run may leave behind: processes, files in ``temporary``, shared memory. ``look`` at it while it runs."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self.temporary = temporary
        self._path = path
        self._shared = self._shared_memory()
        self._everyone: set[int] = set()
        self.sockets: set[str] = set()

    def look(self, process: subprocess.Popen[str]) -> None:
        self._everyone |= family(process.pid)
        self.sockets |= {path.name for path in self.temporary.rglob("*") if path.is_socket()}

    def assert_none(self) -> None:
        assert len(self._everyone) >= 9  # the supervisor, its janitor, five actors, the executor's interpreters
        assert len(self.sockets) >= 6
        wait_for(lambda: not alive(self._everyone), "every process to end")
        assert processes_of(self._path) == []
        left = [str(path) for path in self.temporary.rglob("*")]
        assert left == [], left
        new = self._shared_memory() - self._shared
        assert [name for name in new if any(str(pid) in name for pid in self._everyone)] == []

    @staticmethod
    def _shared_memory() -> set[str]:
        folder = Path("/dev/shm")
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the run did not end in {SECONDS} s\n{out[-3000:]}\n{err[-3000:]}")
    return process.returncode, out, err


def processes_of(path: Path) -> list[str]:
    """Command lines of living processes that name the topology, or anything else in its folder: actors read a resolved
    one.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(path.parent) in command:
                found.append(command)
    return found


def process_of_actor(path: Path, actor: str) -> int:
    """The process of one actor of the run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if actor in command and any(argument.startswith(str(path.parent)) for argument in command):
                return int(entry.name)
    pytest.fail(f"{actor} of {path} does not run")


def family(pid: int) -> set[int]:
    """The process and everything it has started, however far down."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def children_named(pid: int, name: str) -> list[int]:
    """Direct and further children whose command line holds the name."""
    found = []
    for child in family(pid) - {pid}:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if name in command:
            found.append(child)
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that run still; zombies have ended."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {SECONDS} s for {what}"
        time.sleep(0.1)


def port_blocks(count: int, size: int = 16) -> list[int]:
    """First ports of ``count`` runs of free ports, below those that the kernel gives to whoever connects somewhere."""
    found: list[int] = []
    for base in random.SystemRandom().sample(range(10_000, 32_000, size), k=200):
        with contextlib.ExitStack() as held:
            try:
                for port in range(base, base + size):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        found.append(base)
        if len(found) == count:
            return found
    pytest.fail("no ports are free")


def steps_trained(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return sum(row["kind"] == "step" for row in rows(path)) if path.exists() else 0


def check_finished(path: Path, directory: Path, out: str, *, steps: int, evaluations: int = 2) -> dict[str, Any]:
    summary = json.loads(out.strip().splitlines()[-1])
    assert summary.keys() >= SUMMARY_KEYS
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert balance.steps == steps
    assert balance.open == 0
    assert summary["groups_opened"] == summary["groups_trained"] + summary["groups_dropped"]
    assert summary["groups_opened"] >= 2 * steps
    assert (summary["max_staleness"] or 0) <= 1  # None when nothing was trained
    assert summary["steps"] == summary["steps_updated"] + summary["steps_empty"] + summary["steps_skipped"]
    assert ("nothing was learnt" in "".join(summary["remarks"])) == (not summary["steps_updated"])
    kinds = [row["kind"] for row in rows(directory / "metrics.jsonl")]
    assert kinds.count("step") == steps
    assert kinds.count("evaluation") == evaluations
    assert processes_of(path) == []
    assert f"report: {directory / 'report.html'}" in out.splitlines()
    assert f"Finished: all {kinds.count('stage')} stages." in (directory / "report.html").read_text(encoding="utf-8")
    return summary
