"""Processor time of the filter for one trajectory of 10,000 tokens, until its group is sent to the learner.

    agent-rl bench filter

The real filter among stand-ins on the in-memory network: groups of 16 rollouts with 40 kB of text each, 8 of them kept.
"""

from __future__ import annotations

import tempfile
import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import trio

from actors.roc_filter import RoCFilter
from agent_rl.messages import Judgement, StepReady
from agent_rl_contract.builders import opened, repacked, trajectory
from agent_rl_contract.filter import FilterContract
from benchmarks.reporting import print_figures

TOKENS, GROUPS, SAMPLES = 10_000, 16, 16
OF_FILTER = ContextVar("OF_FILTER", default=False)


@dataclass(kw_only=True)
class Options:
    """There are none."""


class FilterTime(trio.abc.Instrument):
    """Processor seconds of the filter's tasks."""

    seconds = began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - the interface
        """A task goes on."""
        self.began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task waits."""
        self.seconds += (time.thread_time() - self.began) * task.context.get(OF_FILTER, False)


async def measure(folder: Path, spent: FilterTime) -> float:
    """Milliseconds for a trajectory."""
    bench = type("Bench", (FilterContract,), {"actor": RoCFilter})()
    draw = np.random.default_rng(0)
    long = trajectory(opened(), answer="".join(map(chr, draw.integers(97, 122, 4 * TOKENS))), tokens=TOKENS)
    made = repacked(long, tokens=(draw.zipf(1.2, TOKENS) % 151_936).astype(np.int32))
    sizes = {"samples": SAMPLES, "keep": SAMPLES // 2, "groups_per_step": GROUPS}
    async with bench.among_stand_ins(folder, algorithm=sizes) as (topology, stage):
        OF_FILTER.set(True)
        async with bench.running(topology, stage):
            OF_FILTER.set(False)
            await bench.enter(stage)
            spent.seconds = 0.0
            for group in (opened(number, samples=SAMPLES) for number in range(GROUPS)):
                await bench.open(stage, group)
                for sample in range(SAMPLES):
                    given = Judgement(float(sample % 2), success=bool(sample % 2))
                    await bench.give(stage, replace(made, group=group.group, sample=sample, judgement=given))
            await stage["learner"].receive(StepReady)
            return 1e3 * spent.seconds / (GROUPS * SAMPLES)


def main(options: Options) -> int:  # noqa: ARG001 - there are none
    """Measure, and print the figure."""
    spent = FilterTime()
    with tempfile.TemporaryDirectory() as folder:
        print_figures({"filter_ms_per_trajectory": trio.run(measure, Path(folder), spent, instruments=[spent])})
    return 0
