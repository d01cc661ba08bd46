"""The page of a run under way: what serving it takes of a core, and how soon it is painted and filtered.

    agent-rl bench view
    agent-rl bench view --steps 100 --seconds 10
    agent-rl bench view --steps 3000 --tokens 12000         # trajectories of two gigabytes

A synthetic run of --steps steps of ten trajectories each is written by the writers of real runs. While it goes on, with
a row of the timeline every second and a step every --pace seconds, `agent-rl view` serves it to one viewer and to
eight: `view.core_share_1` and `view.core_share_8` are its processor time over --seconds. A headless Chromium then loads
the page: `view.first_paint_s` is from the navigation to the headline with its first curve, `view.filter_ms` the median
time from a key of the search to the list's new layout. Both are null where no Chromium is installed.
`view.memory_mb` is the most memory that `agent-rl view` took.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import trio

from actors.roc_filter.replay import encode_stored
from agent_rl.config.load import load_topology
from agent_rl.figures import (
    ActorFigures,
    GeneratorFigures,
    LearnerFigures,
    RolloutMeans,
    StageFigures,
    StepFigures,
    TrainingFigures,
)
from agent_rl.messages import (
    ActorStatus,
    GroupOpened,
    Judgement,
    PolicyVersion,
    Problem,
    Tokens,
    ToolCallRecord,
    Trajectory,
    Transcript,
)
from agent_rl.records.history import remember
from agent_rl.records.journal import Journal
from agent_rl.records.run_records import RunRecords
from agent_rl.records.timeline import TimelineFile
from benchmarks.browser import CHROMIUM, Browser
from benchmarks.command import Failure
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import print_figures, print_table

RL, GROUPS, SAMPLES = 2, 2, 5
SETTLING_SECONDS = 15.0
WORDS = ("", "p1", "", "37 apples", "", "p99", "apples 7", "")
FILTER = """
(() => {
  const input = document.querySelector(".explorer input[name=q]"), began = performance.now();
  input.value = WORDS;
  input.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  return performance.now() - began;
})()
"""


@dataclass
class Options:
    """What is measured."""

    steps: int = 1000
    seconds: float = 30.0
    tokens: int = 400
    """Tokens of a trajectory."""
    pace: float = 5.0
    """Seconds from step to step while it is measured."""


class Run:
    """A run that goes on."""

    def __init__(self, directory: Path, tokens: int) -> None:
        directory.mkdir()
        self._tokens = tokens
        topology = load_topology(EXAMPLE)
        remember(topology, directory)
        self.directory, self.version = directory, 0
        self.began = time.time()
        self._journal = Journal(directory / "journal.sqlite")
        self._records = RunRecords(directory, self._journal, topology, self.began, self.began)
        self._timeline = TimelineFile(directory, 0.0, lambda: self.began + self._at)
        self._at = 0.0
        self._random = np.random.default_rng(0)
        self._journal.set_fact("stage", str(RL))
        self._records.stage_left(StageFigures(stage=RL - 1, stage_seconds=1.0), self.began)

    def second(self) -> None:
        """A row of the timeline."""
        self._at += 1.0
        learner = LearnerFigures(stages=4, stage=RL, step=self.version, steps=2000, seconds_per_step=5.0)
        names = [field for field in GeneratorFigures.__dataclass_fields__ if field not in {"passes", "compute_bits"}]
        counts: dict[str, Any] = dict.fromkeys(names, int(self._at))
        generator = GeneratorFigures(**counts | {"kv_used": int(self._at) % 4096, "kv_total": 4096})
        for name, busy, waits, figures in (
            ("learner.0", 0.5, "roc_filter: step", ActorFigures(learner=learner)),
            *((f"rollout_generator.{i}", 0.9, "", ActorFigures(generator=generator)) for i in range(4)),
            ("roc_filter.0", 0.1, "rollout_generator: trajectories", ActorFigures()),
        ):
            total = busy * self._at
            status = ActorStatus(name, name.rpartition(".")[0], "running", "", figures, waits, total, total)
            self._timeline.observe(status, self._at)

    def step(self) -> None:
        """A trained step."""
        groups = [self._group(number) for number in range(GROUPS)]
        means = RolloutMeans(rollouts=GROUPS * SAMPLES, success=self.version / 2000, reward=0.5, tool_calls=1.0)
        figures = StepFigures(sampled=means, groups_decided=GROUPS, groups_trained=GROUPS)
        self._journal.close_step(self.version, RL, groups, groups, figures)
        trained = TrainingFigures(entropy=0.5, policy_gap=0.001, gradient_norm=1.0, learning_rate=1e-4, loss=0.1)
        self._journal.step_trained(self.version, trained)
        self.version += 1
        self._records.step(self.version - 1, self.began + 5.0 * self.version)

    def commit(self) -> None:
        """Make it readable."""
        self._records.commit()

    def _group(self, number: int) -> str:
        index = GROUPS * self.version + number
        name, policy = f"s{RL}-g{index:06d}", PolicyVersion(1, self.version)
        problem = Problem(f"p{index}", f"Ann has {index} apples. How many are left?", str(index), "sums")
        opened = GroupOpened(name, RL, index, "train", problem, SAMPLES, policy)
        self._journal.open_group(name, RL, index, "train", encode_stored(opened))
        for sample in range(SAMPLES):
            right = bool(sample % 2)
            made = encode_stored(self._trajectory(name, sample))
            verdict = Judgement(float(right), right, answer=str(index))
            self._journal.add_trajectory(name, sample, 0, "finished", made, verdict)
        kept = [(sample, 0) for sample in range(SAMPLES)]
        self._journal.ready(name, kept, [float(sample % 2) for sample in range(SAMPLES)], self.version, index)
        return name

    def _trajectory(self, group: str, sample: int) -> Trajectory:
        tokens = self._random.integers(0, 200, self._tokens, dtype=np.int32)
        policies = np.tile(np.array([[1, self.version]], dtype=np.int32), (self._tokens, 1))
        logprobs = -self._random.random(self._tokens, dtype=np.float32)
        body = Tokens(tokens[:50], tokens, np.ones(self._tokens, dtype=np.uint8), logprobs, policies).pack()
        call = ToolCallRecord(1, "python", "error" if sample == 0 else "success", 0.1, 0.2, response="4")
        return Trajectory(
            f"{group}-{sample}", group, RL, sample, 0, "train", Transcript(("word " * 200, "done"), (call,)),
            "", "rollout_generator.0", 3.0, 50, self._tokens, self.version, self.version, body,
        )  # fmt: skip


def main(options: Options) -> int:
    """Measure, and print the table and the figures."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run", options.tokens)
        for _ in range(options.steps):
            run.step()
            run.second()
        run.commit()
        figures = trio.run(_measure, run, options, Path(folder) / "profile")
        figures["view.directory_gb"] = sum(each.stat().st_size for each in run.directory.rglob("*")) / 1e9
    rows = [[name, math.nan if value is None else value] for name, value in figures.items()]
    print_table(f"the page of {options.steps:,} steps, {10 * options.steps:,} trajectories", ["figure", "value"], rows)
    print_figures(figures)
    return 0


async def _measure(run: Run, options: Options, profile: Path) -> dict[str, float | str | None]:
    figures: dict[str, float | str | None] = {}
    command = [sys.executable, "-m", "actors.cli", "view", str(run.directory), "--port", "0"]
    async with trio.open_nursery() as nursery:
        serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it starts at once
        try:
            assert serving.stdout is not None
            place = (await trio.to_thread.run_sync(serving.stdout.readline)).strip()
            if not place:
                raise Failure("agent-rl view did not start")
            port = int(place.rstrip("/").rpartition(":")[2])
            nursery.start_soon(_go_on, run, options.pace)
            for viewers in (1, 8):
                figures[f"view.core_share_{viewers}"] = await _core_share(serving.pid, port, viewers, options.seconds)
            figures |= {"view.first_paint_s": None, "view.filter_ms": None}
            if CHROMIUM is not None:
                figures |= await trio.to_thread.run_sync(_look, place, profile, 10 * options.steps)
            figures["view.memory_mb"] = _memory(serving.pid)
            nursery.cancel_scope.cancel()
        finally:
            serving.terminate()
            serving.wait()
    return figures


async def _go_on(run: Run, pace: float) -> None:
    began = trio.current_time()
    steps = 0
    while True:
        await trio.sleep(1.0)
        run.second()
        if trio.current_time() - began >= pace * (steps + 1):
            steps += 1
            run.step()
            run.commit()


async def _core_share(process: int, port: int, viewers: int, seconds: float) -> float:
    """Processor time of a process over wall time, with so many viewers who have the page."""
    async with trio.open_nursery() as nursery:
        for _ in range(viewers):
            nursery.start_soon(_view, port)
        await trio.sleep(SETTLING_SECONDS)
        began, spent = trio.current_time(), _spent(process)
        await trio.sleep(seconds)
        share = (_spent(process) - spent) / (trio.current_time() - began)
        nursery.cancel_scope.cancel()
    return share


async def _view(port: int) -> None:
    with suppress(OSError):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async for _ in stream:
                pass


def _spent(process: int) -> float:
    """Processor time of a process in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: int) -> float:
    """The most memory that a process has had, in megabytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def _look(place: str, profile: Path, listed: int) -> dict[str, float | str | None]:
    """Seconds to the first paint, and milliseconds of a filter."""
    browser = Browser(profile)
    try:
        painted = []
        for _ in range(3):
            began = time.monotonic()
            browser.show(place, 1280)
            browser.until("document.querySelector('.headline') && document.querySelector('#learning canvas')")
            painted.append(time.monotonic() - began)
        status = "document.querySelector('.explorer [role=status]').textContent"
        browser.until(f"Number(({status}.match(/of ([0-9,]+)/) ?? ['', '0'])[1].replaceAll(',', '')) >= {listed}")
        filtered = [float(browser.evaluate(FILTER.replace("WORDS", repr(words)))) for words in WORDS]
    finally:
        browser.close()
    return {"view.first_paint_s": median(painted), "view.filter_ms": median(filtered)}
