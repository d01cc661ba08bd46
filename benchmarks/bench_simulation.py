"""What the full twin of a large run takes, and how far the two levels of `agent-rl simulate` are apart.

    agent-rl bench simulation
    agent-rl bench simulation --engines 8

Both levels simulate one step of `examples/paper_size.toml` with eight groups of 32 rollouts for each engine: 16,384
rollouts on 64 engines. Seconds are processor time of this process, so that other work on the machine counts less.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from actors.twin.run import run_twin
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.simulation.plan import plan_of
from agent_rl.simulation.prediction import predict
from agent_rl.simulation.profile import read_profile
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table

FILE = "examples/paper_size.toml"
UNIT = 1 << 10 if sys.platform == "linux" else 1 << 20
"""Units of `ru_maxrss` in a MiB."""
MEASURES = ("makespan_s", "group_run_p50_s", "group_run_p99_s", "group_p50_s", "hit_rate", "idle_share", "moves")
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What to simulate."""

    engines: int = 64
    groups: int = 8
    """Of each engine."""
    steps: int = 1
    seed: int = 0


def main(options: Options) -> int:
    """Simulate, and print what it took and said."""
    if min(options.engines, options.groups, options.steps) < 1:
        raise WrongOptions("--engines, --groups and --steps must be at least 1")
    overrides = (
        f"algorithm.groups_per_step={options.groups * options.engines}",
        f"actors.rollout_generator.replicas={options.engines}",
    )
    topology = load_topology((topology_file(FILE),), overrides)
    profile = read_profile("mi300x")
    plan = plan_of(topology, profile, where=FILE, steps=options.steps, seed=options.seed)
    fast, fast_s = _timed(lambda: predict(plan).outcome)
    twin, twin_s = _timed(lambda: run_twin(topology, plan, profile, seed=options.seed).prediction.outcome)
    rows = [[name, float(getattr(fast, name)), float(getattr(twin, name))] for name in MEASURES]
    rows.append(["processor seconds", fast_s, twin_s])
    rollouts = sum(len(group) for group in plan.trace.groups)
    print_table(f"{rollouts:,} rollouts on {options.engines} engines", ["", "fast level", "full twin"], rows)
    figures: dict[str, float | str | None] = {
        "simulation_s": twin_s,
        "simulation_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / UNIT,
        "simulation_fast_s": fast_s,
    }
    for name in MEASURES:
        figures |= {f"fast.{name}": float(getattr(fast, name)), f"twin.{name}": float(getattr(twin, name))}
    for name in ("makespan_s", "group_run_p50_s"):
        figures[f"twin_over_fast.{name}"] = getattr(twin, name) / getattr(fast, name)
    print_figures(figures)
    return 0


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    made = work()
    return made, time.process_time() - began
