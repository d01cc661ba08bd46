"""Samples of the scheduler's traces in both levels of the twin: whether the full one ranks policies in the same way.

The full twin is far slower than the fast simulator, so that a sample is the first steps of a trace at a small scale.
In both levels a group is opened when there is room for it, and none is dropped. The full level has links, messages that
cost time, load reports, and a scheduler that knows a prompt by its characters, and decides about a turn while it runs.
The fast level has none of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from actors.twin.run import run_twin
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.scheduling.policies.registry import POLICIES
from agent_rl.simulation.outcome import Outcome
from agent_rl.simulation.plan import GENERATOR, Choice, Plan
from agent_rl.simulation.prediction import predict
from agent_rl.simulation.profile import read_profile
from agent_rl.simulation.trace import Trace, check
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_table
from benchmarks.traces import generate
from benchmarks.tuning import chosen

FILE = "examples/paper_size.toml"
PROFILE = "mi300x"
"""For the cost of messages; engines, learner and lengths are the trace's."""
TRACES = ("paper", "agentic", "mild")
LEAVING = ("engine_lost", "drain")
SAMPLED = ("predictive", "margin", "worst_case")
"""Ours, the best of its opponents on most traces, and the one that reserves the longest response."""
STEPS = 3
LEVELS = ("fast", "full")


class Sample(NamedTuple):
    """A policy on the first steps of a trace. Seconds are modelled ones."""

    trace: str
    policy: str
    rollouts: int
    fast_s: float
    full_s: float
    fast_hits: float
    full_hits: float
    faults: int


def sample(name: str, policy: str, seed: int, scale: float, steps: int = STEPS) -> Sample:
    """Run the policy on the sample in both levels."""
    trace = first_steps(generate(name, seed, scale), steps)
    plan = Plan(
        trace, policy, POLICIES[policy], dict(chosen(name, policy)), "rl", Choice(len(trace.engines), 1), width=1
    )
    fast, full = predict(plan).outcome, _full(plan, seed)
    faults = sum(fast.faults.values()) + sum(full.faults.values())
    rollouts = sum(map(len, trace.groups))
    return Sample(name, policy, rollouts, fast.makespan_s, full.makespan_s, fast.hit_rate, full.hit_rate, faults)


def first_steps(trace: Trace, steps: int) -> Trace:
    """The first steps of the trace, with the names that generators of a topology have."""
    lives = tuple(replace(life, name=f"{GENERATOR}.{number}") for number, life in enumerate(trace.engines))
    groups = trace.groups[: steps * trace.groups_per_step]
    steps = len(groups) // trace.groups_per_step
    return check(replace(trace, engines=lives, groups=groups, steps=steps, opens_late=True))


def _full(plan: Plan, seed: int) -> Outcome:
    profile = read_profile(PROFILE)
    rollouts = profile.rollouts.model_copy(update={"signal": 1.0})
    profile = profile.model_copy(update={"rollouts": rollouts})
    return run_twin(_topology(plan.trace), plan, profile, seed=seed).prediction.outcome


def _topology(trace: Trace) -> Topology:
    overrides = (
        f"algorithm.groups_per_step={trace.groups_per_step}",
        f"algorithm.samples={trace.samples}",
        f"algorithm.keep={max(1, round(trace.samples * trace.learner.kept))}",
        f"algorithm.max_staleness={trace.max_staleness}",
        f"actors.{GENERATOR}.replicas={len(trace.engines)}",
    )
    return load_topology((topology_file(FILE),), overrides)


def measured(
    traces: Sequence[str], policies: Sequence[str], seed: int, scale: float, processes: int
) -> dict[str, float]:
    """Run all samples, print them, and return the figures."""
    if leaving := [name for name in traces if name in LEAVING]:
        raise WrongOptions(f"--full: engines come and go on the trace {leaving[0]!r}, but not in the full twin")
    asked = [(name, policy) for name in traces for policy in policies]
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(sample, *pair, seed, scale) for pair in asked]
        return reported([job.result() for job in jobs])


def reported(samples: Sequence[Sample]) -> dict[str, float]:
    """Print the samples, and return the figures: of each, and what the first policy gains over the others' best."""
    figures: dict[str, float] = {}
    for each in samples:
        start = f"{each.trace}.{each.policy}"
        figures |= {f"{start}.fast.makespan_s": each.fast_s, f"{start}.full.makespan_s": each.full_s}
        figures[f"{start}.full_over_fast"] = each.full_s / each.fast_s
    for name in dict.fromkeys(each.trace for each in samples):
        ours, *others = (each for each in samples if each.trace == name)
        for level in LEVELS if others else ():
            best = min(getattr(each, f"{level}_s") for each in others)
            figures[f"{name}.{level}.gain_over_best"] = 1 - getattr(ours, f"{level}_s") / best
    header = ["trace", "policy", "rollouts", "fast s", "full s", "full / fast", "fast hits", "full hits", "faults"]
    rows = [[*each[:5], each.full_s / each.fast_s, *each[5:]] for each in samples]
    print_table("the first steps of traces, in both levels of the twin", header, rows)
    return figures
