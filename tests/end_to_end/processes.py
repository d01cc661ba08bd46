"""Real runs for tests: start one, wait for it, look at what it started."""

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
from typing import Any, NamedTuple, Self

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
    return in_background(words, env=os.environ | environment)


STARTED: list[subprocess.Popen[str]] = []
"""What a test has started: it is ended with the test."""


def in_background(words: list[str], **more: Any) -> subprocess.Popen[str]:
    """Start a command in a session of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    STARTED.append(subprocess.Popen(words, **pipes, start_new_session=True, **more))
    return STARTED[-1]


PIDS = re.compile(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])")
"""Numbers of processes in names of shared memory; those of other runs hold such digits by chance."""


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


def balanced(directory: Path, *, steps: int | None = None) -> Audit:
    """What is counted in a journal that balances; where ``steps`` is given, it holds so many and no open group."""
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    if steps is not None:
        assert (balance.steps, balance.open) == (steps, 0)
    return balance


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


class Run:
    """A real run of a topology. ``process`` is that of its main host, which is started first."""

    def __init__(self, path: Path, directory: Path, **environment: str) -> None:
        self.path, self.directory, self._environment = path, directory, environment
        self.hosts: dict[str, subprocess.Popen[str]] = {}

    @property
    def process(self) -> subprocess.Popen[str]:
        return next(iter(self.hosts.values()))

    def start(self, *settings: str, host: str = "", **environment: str) -> Self:
        self.hosts[host] = start(self.path, *settings, host=host, **self._environment, **environment)
        return self

    def until(self, steps: int) -> Self:
        """Wait until so many steps are trained."""
        self.wait(lambda: steps_trained(self.directory) >= steps, f"{steps} steps")
        return self

    def more(self, steps: int) -> Self:
        """Wait until so many steps more are trained."""
        return self.until(self.trained + steps)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that happens while the main host runs."""

        def held() -> bool:
            if condition():
                return True
            assert self.process.poll() is None or condition(), f"the run ended before {what}"
            return False

        wait_for(held, what)

    def signal(self, actor: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(actor), number)

    def killed(self, *roles: str) -> None:
        """Kill an actor of each role; wait until the supervisor has heard of work from its next process."""
        for role in roles:
            self.signal(f"{role}.0")
            self.wait(
                lambda role=role: f"{role}.0 runs again, " in self.log("supervisor.local"), f"{role} to run again"
            )

    def finish(self, code: int = 0, host: str = "") -> Said:
        return finish(self.hosts[host], code)

    def interrupt(self, host: str = "") -> Said:
        self.hosts[host].send_signal(signal.SIGINT)
        return self.finish(host=host)

    def to_end(self, *settings: str, code: int = 0, **environment: str) -> Said:
        """Start it, and wait for its end."""
        return self.start(*settings, **environment).finish(code)

    def pid(self, actor: str) -> int:
        return process_of_actor(self.path, actor)

    @property
    def processes(self) -> list[str]:
        return processes_of(self.path)

    @property
    def trained(self) -> int:
        return steps_trained(self.directory)

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Rows of a kind in its metrics."""
        return [row for row in rows(self.directory / "metrics.jsonl") if row["kind"] == kind]

    def log(self, name: str = "*") -> str:
        """The log of an actor, or all logs."""
        return "".join(path.read_text() for path in (self.directory / "logs").glob(f"{name}.jsonl"))

    def logged(self, name: str, event: str) -> list[dict[str, Any]]:
        """Rows of all processes of an actor about an event."""
        files = sorted((self.directory / "logs").glob(f"{name}*.jsonl"))
        return [row for path in files for row in rows(path) if row["event"] == event]

    def text(self, name: str) -> str:
        return (self.directory / name).read_text(encoding="utf-8")

    def summary(self) -> dict[str, Any]:
        return json.loads(self.text("summary.json"))

    def exported(self, *options: str) -> list[dict[str, Any]]:
        """The trajectories that ``agent-rl export`` writes."""
        from actors.cli.main import main

        assert main(["export", str(self.directory), *options]) == 0
        return rows(self.directory / "trajectories.jsonl")

    def balanced(self, *, steps: int | None = None) -> Audit:
        return balanced(self.directory, steps=steps)

    def finished(self, said: Said, *, steps: int, evaluations: int = 2) -> dict[str, Any]:
        return check_finished(self.path, self.directory, said, steps=steps, evaluations=evaluations)

    @contextlib.contextmanager
    def journal(self) -> Iterator[Journal]:
        journal = Journal(self.directory / "journal.sqlite", read_only=True)
        try:
            yield journal
        finally:
            journal.close()

    def trained_once(self) -> list[str]:
        """No group is in two steps; the groups of all steps."""
        with self.journal() as journal:
            trained = [group for step in journal.steps() for group in step.groups]
        assert len(trained) == len(set(trained))
        return trained


class Traces:
    """What a run may leave behind: processes, files in ``temporary``, shared memory. ``look`` at it while it runs."""

    def __init__(self, run: Run, temporary: Path) -> None:
        self._run, self._temporary = run, temporary
        self._shared = self._shared_memory()
        self._everyone: set[int] = set()
        self.sockets: set[str] = set()

    def look(self) -> None:
        self._everyone |= family(self._run.process.pid)
        self.sockets |= {path.name for path in self._temporary.rglob("*") if path.is_socket()}

    def assert_none(self) -> None:
        assert len(self._everyone) >= 9  # the supervisor, its janitor, five actors, the executor's interpreters
        assert len(self.sockets) >= 6
        wait_for(lambda: not alive(self._everyone), "every process to end")
        assert self._run.processes == []
        left = [str(path) for path in self._temporary.rglob("*")]
        assert left == [], left
        new = self._shared_memory() - self._shared
        digest = run_digest(load_topology(self._run.path))
        theirs = [name for name in new if digest in name or self._everyone & {int(n) for n in PIDS.findall(name)}]
        assert theirs == [], theirs

    @staticmethod
    def _shared_memory() -> set[str]:
        folder = Path("/dev/shm")
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
