"""Snippets of tool benchmarks (`tool_snippets.toml`), what they are measured against, and what processes have used.

The floor is the least that a fork server can be: the same warm interpreters (one bare, one for each set of modules),
each of which forks a child for a call that does nothing but ``exec()`` and end. No isolation, no limits, no results,
nobody who asks. Its program is ``tool_floor.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from actors.sandbox.owner.interpreter import BOOT, ENVIRONMENT, ROOT

_KINDS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("tool_snippets.toml").read_text())
PLAIN, SYMPY, NUMPY, FAILING = (tuple(_KINDS[kind]) for kind in ("plain", "sympy", "numpy", "failing"))
SNIPPETS = PLAIN + SYMPY + NUMPY + FAILING


def run_fresh(codes: Sequence[str], at_once: int) -> float:
    """Seconds that a ``python3 -c`` for each takes, ``at_once`` at a time."""

    def run(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], capture_output=True, stdin=subprocess.DEVNULL, check=False)

    started = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(run, codes):
            pass
    return time.perf_counter() - started


class Floor:
    """The floor's warm interpreters. ``run`` and ``own_seconds`` take snippets with the modules each needs loaded."""

    def __init__(self, sets: Iterable[tuple[str, ...]], at_once: int) -> None:
        boot = BOOT.replace("actors.sandbox.inside.program", "benchmarks.tool_floor").format(root=ROOT)
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", boot]
        self._at_once = at_once
        self._processes = {
            modules: subprocess.Popen(
                [*command, json.dumps({"modules": modules, "paths": sys.path})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=ENVIRONMENT,
            )
            for modules in sets
        }

    def __enter__(self) -> Self:
        """Wait until all are warm."""
        for modules in self._processes:
            self._hear(modules)
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        for process in self._processes.values():
            process.communicate()

    @property
    def pids(self) -> list[int]:
        """Process ids of the interpreters."""
        return [process.pid for process in self._processes.values()]

    def run(self, calls: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[float, int]:
        """Run all: seconds, and how many of them raised."""
        shares = self._shares(calls)
        started = time.perf_counter()
        for modules, codes in shares.items():
            self._say(modules, {"codes": codes, "at_once": self._at_once})
        failed = sum(self._hear(modules) for modules in shares)
        return time.perf_counter() - started, failed

    def own_seconds(self, calls: Sequence[tuple[str, tuple[str, ...]]]) -> dict[str, float]:
        """By snippet: the median of its time in one process that has run it before, one after the other."""
        seconds: dict[str, float] = {}
        for modules, codes in self._shares(calls).items():
            self._say(modules, {"codes": codes})
            seconds |= zip(codes, self._hear(modules), strict=True)
        return seconds

    @staticmethod
    def _shares(calls: Sequence[tuple[str, tuple[str, ...]]]) -> dict[tuple[str, ...], list[str]]:
        shares: dict[tuple[str, ...], list[str]] = {}
        for code, modules in calls:
            shares.setdefault(modules, []).append(code)
        return shares

    def _say(self, modules: tuple[str, ...], order: dict[str, Any]) -> None:
        stdin = self._processes[modules].stdin
        assert stdin is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()

    def _hear(self, modules: tuple[str, ...]) -> Any:
        stdout = self._processes[modules].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the floor's interpreter with {modules} has died")
        return json.loads(line)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and not reaped."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for text in texts for child in text.split()]


def processes_of(pid: int) -> list[int]:
    """A warm interpreter's own: the server, and below it the maker of slots, if it has one, and the forker."""
    return [pid, *children_of(pid)]


def used_by(pid: int) -> tuple[float, float]:
    """Processor seconds of an interpreter's processes and of the children they reaped."""
    own = reaped = 0
    for one in processes_of(pid):
        fields = [int(field) for field in Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1:]]
        own, reaped = own + fields[10] + fields[11], reaped + fields[12] + fields[13]
    ticks = os.sysconf("SC_CLK_TCK")
    return own / ticks, reaped / ticks


def resident_mib(pid: int) -> float:
    """Memory of a process that is resident, shared pages included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def zombies_below(pid: int) -> int:
    """How many processes below one have ended and were not reaped."""
    count = 0
    for child in children_of(pid):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        count += (state == "Z") + zombies_below(child)
    return count
