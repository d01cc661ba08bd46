"""Real runs for tests: start one, wait for it, look at what it started."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_rl.config.addresses import run_digest
from agent_rl.config.load import load_topology
from agent_rl.records.audit import Audit, audit
from agent_rl.records.journal import Journal
from benchmarks.chaos import host

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


CALLS_TOOLS = "tests.end_to_end.faulty:CallsTools"
ROOM = ("stages.0.max_response_tokens=400", "model.initialise.max_length=600")
"""For a turn that calls a tool, and its response."""


class Said(NamedTuple):
    """What a run that has ended said."""

    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.out.strip().splitlines()[-1])


def overrides(*settings: object) -> list[str]:
    return [word for setting in settings for word in ("--set", str(setting))]


def start(path: Path, *settings: str, host: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start ``agent-rl run``, or one host of it, with these settings over the topology's."""
    words = [sys.executable, "-m", "actors.cli", "run", str(path), *overrides(*settings)]
    words += ["--host", host] if host else []
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | environment,
    )


PIDS = re.compile(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])")
"""Numbers of processes in names of shared memory; those of other runs hold such digits by chance."""


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
        digest = run_digest(load_topology(self._path))
        theirs = [name for name in new if digest in name or self._everyone & {int(n) for n in PIDS.findall(name)}]
        assert theirs == [], theirs

    @staticmethod
    def _shared_memory() -> set[str]:
        folder = Path("/dev/shm")
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def finish(process: subprocess.Popen[str], code: int = 0, seconds: float | None = None) -> Said:
    """Wait for the end of a run, which must have this exit code, for ``SECONDS`` by default."""
    seconds = SECONDS if seconds is None else seconds
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the run did not end in {seconds:g} s\n{out[-3000:]}\n{err[-3000:]}")
    assert process.returncode == code, out + err
    return Said(out, err)


def kill(*processes: subprocess.Popen[str]) -> None:
    """End processes that run still, and hear them to their end."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def signal_actor(path: Path, actor: str, number: int = signal.SIGKILL) -> None:
    os.kill(process_of_actor(path, actor), number)


@contextlib.contextmanager
def journal_of(directory: Path) -> Iterator[Journal]:
    journal = Journal(directory / "journal.sqlite", read_only=True)
    try:
        yield journal
    finally:
        journal.close()


def check_trained_once(directory: Path) -> list[str]:
    """No group is in two steps; the groups of all steps."""
    with journal_of(directory) as journal:
        trained = [group for step in journal.steps() for group in step.groups]
    assert len(trained) == len(set(trained))
    return trained


def balanced(directory: Path, *, steps: int | None = None) -> Audit:
    """What is counted in a journal that balances; where ``steps`` is given, it holds so many and no open group."""
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    if steps is not None:
        assert (balance.steps, balance.open) == (steps, 0)
    return balance


def runs_again(directory: Path, role: str) -> bool:
    """Whether the supervisor has heard of work from the next process of a killed actor."""
    events = rows(directory / "logs" / "supervisor.local.jsonl")
    return any(f"{role}.0 runs again, " in str(row.get("text")) for row in events)


def commands() -> dict[int, list[str]]:
    """The command line of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return found


def processes_of(path: Path) -> list[str]:
    """Command lines of living processes that name the topology, or anything else in its folder: actors read a resolved
    one.
    """
    return [line for line in map(" ".join, commands().values()) if str(path.parent) in line]


def process_of_actor(path: Path, actor: str) -> int:
    """The process of one actor of the run."""
    for pid, command in commands().items():
        if actor in command and any(argument.startswith(str(path.parent)) for argument in command):
            return pid
    pytest.fail(f"{actor} of {path} does not run")


def family(pid: int) -> set[int]:
    """The process and everything it has started, however far down."""
    return set(host.family(pid))


def children_named(pid: int, name: str) -> list[int]:
    """Direct and further children whose command line holds the name."""
    known = commands()
    return [child for child in family(pid) - {pid} if name in " ".join(known.get(child, []))]


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


def more_steps(directory: Path, count: int, *processes: subprocess.Popen[str]) -> None:
    """Wait for so many steps more, while these processes run."""
    done = steps_trained(directory)

    def trained() -> bool:
        assert all(process.poll() is None for process in processes), "a process ended before these steps"
        return steps_trained(directory) >= done + count

    wait_for(trained, f"{count} steps more")


def check_finished(path: Path, directory: Path, said: Said, *, steps: int, evaluations: int = 2) -> dict[str, Any]:
    summary = said.summary
    assert summary.keys() >= SUMMARY_KEYS
    balanced(directory, steps=steps)
    assert summary["groups_opened"] == summary["groups_trained"] + summary["groups_dropped"]
    assert summary["groups_opened"] >= 2 * steps
    assert (summary["max_staleness"] or 0) <= 1  # None when nothing was trained
    assert summary["steps"] == summary["steps_updated"] + summary["steps_empty"] + summary["steps_skipped"]
    assert ("nothing was learnt" in "".join(summary["remarks"])) == (not summary["steps_updated"])
    kinds = [row["kind"] for row in rows(directory / "metrics.jsonl")]
    assert kinds.count("step") == steps
    assert kinds.count("evaluation") == evaluations
    assert processes_of(path) == []
    assert f"report: {directory / 'report.html'}" in said.out.splitlines()
    assert f"Finished: all {kinds.count('stage')} stages." in (directory / "report.html").read_text(encoding="utf-8")
    return summary
