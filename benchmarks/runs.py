"""Real runs for benchmarks: start one, watch its timeline, end it as a user would, read what it recorded."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from agent_rl.records.timeline import read_timeline
from benchmarks.command import Failure

LOOK_SECONDS = 0.5
"""How often a run's timeline is looked at; its rows are a second long."""
ENDING_SECONDS = 180.0
RUN_SECONDS = 3600.0


class RunFailed(Failure):
    """A run that a benchmark needs ended badly; the text is its last output."""


@dataclass(frozen=True)
class Window:
    """Work of the actors between two rows of a timeline. Rates are per second, shares in [0, 1]."""

    seconds: float
    rollouts_per_s: float
    generated_tokens_per_s: float
    trained_tokens_per_s: float
    tool_calls_per_s: float
    steps_per_s: float
    busy: Mapping[str, float]
    """By actor: share of the time it did what its role is for."""
    cpu: Mapping[str, float]
    """By actor: processor seconds per second, with those of its children."""
    waits: Mapping[str, Mapping[str, float]]
    """By actor: share of the rows in which it waited, by what for (numbers left out)."""

    def idle(self, role: str) -> float:
        """Mean share of the time in which the role's replicas were not busy."""
        shares = [share for actor, share in self.busy.items() if actor.split(".")[0] == role]
        return 1.0 - sum(shares) / len(shares) if shares else 1.0


TOTALS = {
    "rollouts": "rollouts_per_s",
    "generated_tokens": "generated_tokens_per_s",
    "trained_tokens": "trained_tokens_per_s",
    "calls": "tool_calls_per_s",
    "step": "steps_per_s",
}
"""Figures that only grow, and the rate made of each, summed over actors. A restarted actor counts from nothing."""


def window(rows: Sequence[Mapping[str, Any]]) -> Window:
    """Rates and shares over rows of a timeline; the first row is where the totals start from.

    Raises ValueError when there are fewer than two rows.
    """
    if len(rows) < 2:
        raise ValueError("a window needs two rows of the timeline")
    seconds = rows[-1]["wall"] - rows[0]["wall"]
    growth = dict.fromkeys(TOTALS, 0.0)
    latest: dict[tuple[str, str], float] = {}
    busy: dict[str, float] = {}
    cpu: dict[str, float] = {}
    waits: dict[str, dict[str, float]] = {}
    for index, row in enumerate(rows):
        for actor, status in row["actors"].items():
            for total in TOTALS.keys() & status["figures"].keys():
                value = status["figures"][total]
                before = latest.get((actor, total), value if index == 0 else 0.0)
                growth[total] += value - before if value >= before else value
                latest[actor, total] = value
            if index:
                share = row["seconds"] / max(1e-9, seconds)
                busy[actor] = busy.get(actor, 0.0) + status["busy"] * share
                cpu[actor] = cpu.get(actor, 0.0) + status["cpu"] * share
                if status["waiting_for"]:
                    what = re.sub(r"\s*\d+", "", status["waiting_for"])
                    of = waits.setdefault(actor, {})
                    of[what] = of.get(what, 0.0) + status["waited"] * share
    rates = {rate: growth[total] / max(1e-9, seconds) for total, rate in TOTALS.items()}
    return Window(seconds=seconds, busy=busy, cpu=cpu, waits=waits, **rates)


def stage_rows(rows: Sequence[dict[str, Any]], stage: int, *, after_step: int = 0) -> list[dict[str, Any]]:
    """The rows in which the learner was in the stage, with at least so many of its steps done."""
    chosen = []
    for row in rows:
        for status in row["actors"].values():
            figures = status["figures"]
            if figures.get("stage") == stage and figures.get("step", 0.0) >= after_step and "stages" in figures:
                chosen.append(row)
                break
    return chosen


class Run:
    """A run under way."""

    def __init__(self, process: trio.Process, directory: Path, output: Path) -> None:
        self.process = process
        self.directory = directory
        self._output = output

    def rows(self) -> list[dict[str, Any]]:
        """The timeline so far."""
        return list(read_timeline(self.directory))

    async def until(self, enough: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the timeline is as it should be, or the run ends. Raises RunFailed after RUN_SECONDS."""
        deadline = trio.current_time() + RUN_SECONDS
        while self.process.returncode is None and not enough(self.rows()):
            if trio.current_time() >= deadline:
                raise RunFailed(f"the run did not get so far within {RUN_SECONDS:.0f} s")
            with trio.move_on_after(LOOK_SECONDS):
                await self.process.wait()

    async def stop(self) -> None:
        """Interrupt the run, as Ctrl-C does, and wait until it has ended by itself."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
        await self.wait(ENDING_SECONDS)

    async def wait(self, seconds: float = RUN_SECONDS) -> None:
        """Wait for the run's end. Raises RunFailed when it ends badly, or not within ``seconds``."""
        with trio.move_on_after(seconds):
            await self.process.wait()
        if self.process.returncode != 0:
            ended = "did not end" if self.process.returncode is None else f"ended with {self.process.returncode}"
            raise RunFailed(f"the run {ended}\n{self._output.read_text()[-3000:]}")

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind."""
        rows = [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if row["kind"] == kind]


def guarded(directory: Path) -> Counter[str]:
    """Updates of a run (``guard.updates``), and those after which the numerics guard found a fault."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "mismatch_tokens" in row]
    return Counter(
        {"guard.updates": len(steps), "guard.false_alarms": sum(bool(row.get("mismatch_cause")) for row in steps)}
    )


Watch = tuple[float, Callable[[Run], None]]
"""What is called with a run under way, and after how many seconds each time."""


@asynccontextmanager
async def running(
    file: Path, folder: Path, overrides: Sequence[str], *, up: Sequence[str] | None = None
) -> AsyncIterator[Run]:
    """``agent-rl run FILE`` in ``folder``; whatever happens, none of its processes outlives the block.

    With ``up``, all hosts of the file are started: by ``agent-rl up FILE`` and these words.
    """
    directory, output = folder / "run", folder / "output"
    settings = [part for setting in (f"run.directory={directory}", *overrides) for part in ("--set", setting)]
    words = ("run",) if up is None else ("up", *up)
    command = [sys.executable, "-P", "-m", "actors.cli", *words, str(file), *settings]
    with output.open("wb") as out:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Run(process, directory, output)
    finally:
        if process.returncode is None:  # its actors die with it
            os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()


def made(file: Path, folder: Path, overrides: Sequence[str], *watches: Watch) -> None:
    """Make a run and wait for its end, unless it is there already. A run that was cut goes on.

    Raises RunFailed, also for a run that was made with other settings.
    """
    done = folder / "done.json"
    if done.exists():
        if json.loads(done.read_text()) != list(overrides):
            raise RunFailed(f"{folder} holds a run that was made with other settings; choose another --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    trio.run(finished, file, folder, overrides, math.inf, *watches)
    done.write_text(json.dumps(list(overrides)))


async def finished(
    file: Path, folder: Path, overrides: Sequence[str], seconds: float = RUN_SECONDS, *watches: Watch
) -> Run:
    """A run of `running` that came to its end. Raises RunFailed, also after so many seconds."""
    async with running(file, folder, overrides) as run:
        async with trio.open_nursery() as nursery:
            for watch in watches:
                nursery.start_soon(_watch, run, *watch)
            with trio.move_on_after(seconds):
                await run.process.wait()
            nursery.cancel_scope.cancel()
        await run.wait(0.0)
        return run


async def _watch(run: Run, seconds: float, look: Callable[[Run], None]) -> None:
    while True:
        await trio.sleep(seconds)
        look(run)


def children(process: int) -> list[int]:
    """The processes that a process started, by their numbers. Raises OSError where it ends meanwhile."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return sorted(int(child) for thread in threads for child in thread.read_text().split())


def resident_gib(process: int) -> float:
    """The memory of a process and of all that it started, shared pages divided. Raises as `children` does."""
    rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    own = next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 2**20
    return own + sum(map(resident_gib, children(process)))
