"""What a lost generator costs: throughput with one of two generators dead over that with one from the start.

    agent-rl bench members
    agent-rl bench members --steps 60

Real scheduler, filter and generators run in virtual time (benchmarks/simulated_run.py), so the figures are the same on
each machine. Engines hold 8 rollouts and their rollouts last 0.5 to 1.5 seconds; training takes little. In one run the
first of two generators is killed, and its supervisor tells the others. In another it is heard no more, and in another
its supervisor is neither, as when the host lost its power or its network. Steps are counted once it is lost. One run
has one generator from the start. ``lost_seconds`` is how long the run took longer for the kill: the steps from the kill
to twenty later, less their time at the rate of one generator; ``lost_seconds_silent`` and ``lost_seconds_host`` are the
same for the generator that fell silent, and for the host.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import structlog.testing
import trio

from benchmarks.reporting import print_figures, print_table
from benchmarks.simulated_run import SimulatedRun, in_virtual_time, simulated

Fault = Literal["", "killed", "silent", "host"]
WARM_UP = 6
"""Steps before anything is measured or killed."""
AFTER = 20
"""Steps after the kill in which the run has recovered."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    steps: int = 60
    """Steps that are measured in each run."""
    turns: int = 1
    """Turns of a rollout; all but the last call a tool."""


@dataclass(frozen=True)
class Measured:
    """One run, in virtual seconds."""

    steps_per_s: float
    recovered_s: float
    moved: int


async def rate(run: SimulatedRun, steps: int) -> float:
    """Steps a second over the next steps."""
    begin, began = run.learner.version, trio.current_time()
    await run.steps(begin + steps)
    return (run.learner.version - begin) / (trio.current_time() - began)


async def measure(options: Options, generators: int, fault: Fault) -> Measured:
    """One run, and what happens to its first generator."""
    total = WARM_UP + AFTER + options.steps + 10
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder:
        async with simulated(Path(folder), generators=generators, turns=options.turns, steps=total) as run:
            await run.steps(WARM_UP)
            began = trio.current_time()
            if fault == "killed":
                await run.kill("rollout_generator.0")
            elif fault == "silent":
                run.vanish("rollout_generator.0")
            elif fault == "host":
                run.host_vanishes()
            await run.steps(WARM_UP + AFTER)
            recovered = trio.current_time() - began
            steps_per_s = await rate(run, options.steps)
            return Measured(steps_per_s, recovered, run["kv_scheduler.0"].status()[1].scheduler.rollouts_moved)


@contextmanager
def quietly() -> Iterator[None]:
    """Without the actors' logs."""
    links = logging.getLogger("transport")
    level = links.level
    links.setLevel(logging.CRITICAL)
    try:
        with structlog.testing.capture_logs():
            yield
    finally:
        links.setLevel(level)


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    runs: dict[str, tuple[int, Fault]] = {
        "two generators": (2, ""),
        "one from the start": (1, ""),
        "one of two dead": (2, "killed"),
        "one of two silent": (2, "silent"),
        "one of two hosts silent": (2, "host"),
    }
    with quietly():
        found = {
            name: in_virtual_time(partial(measure, options, count, fault)) for name, (count, fault) in runs.items()
        }
    rows = [(name, each.steps_per_s, each.recovered_s, each.moved) for name, each in found.items()]
    print_table("Steps in virtual time", ("run", "steps/s", f"{AFTER} steps took s", "rollouts moved"), rows)
    one, dead = found["one from the start"], found["one of two dead"]
    print_figures(
        {
            "dead_generator_throughput_share": dead.steps_per_s / one.steps_per_s,
            "two_over_one": found["two generators"].steps_per_s / one.steps_per_s,
            "lost_seconds": dead.recovered_s - AFTER / one.steps_per_s,
            "lost_seconds_silent": found["one of two silent"].recovered_s - AFTER / one.steps_per_s,
            "lost_seconds_host": found["one of two hosts silent"].recovered_s - AFTER / one.steps_per_s,
            "rollouts_moved": dead.moved,
        }
    )
    return 0
