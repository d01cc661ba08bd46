"""Scheduling policies on traces, in a fast simulator: makespan, throughput, preemption, hits, and decisions a second.

    agent-rl bench scheduling
    agent-rl bench scheduling --short
    agent-rl bench scheduling --traces agentic --policies sticky my_package.mine:Mine --training
    agent-rl bench scheduling --save rows.jsonl --again sticky

The makespan is that of the 10 asynchronous steps of a trace at staleness 1, with a modelled learner. All figures are
means over the seeds; the bound is a clairvoyant lower bound (benchmarks/scheduling/bound.py). Traces, opponents and
their settings on each trace stand in benchmarks/scheduling/. Without --training, the seeds are those that no tuning
used. Seconds of engines and learner are models of devices, not measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_rl.config.plugins import PluginError
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.scheduling.decisions import SIZES, decisions_per_s, event_us
from benchmarks.scheduling.policies import POLICIES, spec_of
from benchmarks.scheduling.rows import MEASURES, Row, job_of, rows_of
from benchmarks.scheduling.traces import GENERATORS, JUDGING_SEEDS, TRAINING_SEEDS

EVENTS = 2000
"""Ends of rollouts that are timed in a whole scheduler."""
OURS = "sticky"
BASELINE = "static"
SHORT_SCALE = 0.125


@dataclass(kw_only=True)
class Options:
    """The options."""

    traces: tuple[str, ...] = ()
    """The traces; none named: all."""
    policies: tuple[str, ...] = ()
    """The policies, by name or as ``module:Class``; none named: all."""
    training: bool = False
    """The seeds for tuning, in place of those for tables."""
    seeds: int = 5
    """How many of the seeds; there are 5 for tables and 3 for tuning."""
    scale: float = 1.0
    """Engines and groups of the traces, times this."""
    processes: int = 2
    """Simulations at once."""
    decisions: float = 1.5
    """How many decisions to time for each open rollout; 0: none."""
    short: bool = False
    """An eighth of the scale and two seeds: a few minutes."""
    save: Path | None = None
    """A file that gets each row at once, and from which rows that it has are taken."""
    again: tuple[str, ...] = ()
    """Policies whose rows are not taken from that file, since they have changed."""


def _known(options: Options) -> tuple[list[str], list[str]]:
    """The traces and the policies that are asked for."""
    for name in options.traces:
        if name not in GENERATORS:
            raise WrongOptions(f"there is no trace {name!r}; there are {', '.join(GENERATORS)}")
    for name in (*options.policies, *options.again):
        try:
            spec_of(name)
        except PluginError as error:
            raise WrongOptions(f"there is no policy {name!r}; there are {', '.join(POLICIES)} ({error})") from error
    return list(options.traces or GENERATORS), list(options.policies or POLICIES)


def _mean(rows: Sequence[Row], trace: str, policy: str, measure: str) -> float:
    return statistics.fmean(getattr(row, measure) for row in rows if (row.trace, row.policy) == (trace, policy))


def compared(rows: Sequence[Row], traces: Sequence[str], policies: Sequence[str]) -> dict[str, float]:
    """`sticky` beside the best of the others and the bound, where all ran. Gains are of the means over seeds."""
    figures: dict[str, float] = {}
    others = [policy for policy in policies if policy != OURS]
    if OURS not in policies or not others:
        return figures
    losses = {}
    for trace in traces:
        best = min(others, key=lambda policy: _mean(rows, trace, policy, "makespan_s"))
        ours, theirs = (_mean(rows, trace, policy, "makespan_s") for policy in (OURS, best))
        losses[trace] = ours / theirs - 1
        figures[f"{trace}.gain_over_best"] = 1 - ours / theirs
        figures[f"{trace}.possible_gain"] = 1 - _mean(rows, trace, OURS, "bound_s") / theirs
        if BASELINE in others:
            measures = (_mean(rows, trace, policy, "tokens_per_s") for policy in (OURS, BASELINE))
            figures[f"{trace}.throughput_over_static"] = next(measures) / next(measures)
    return figures | {"worst_loss_to_best": max(losses.values())}


def _beside_the_best(rows: Sequence[Row], trace: str, policies: Sequence[str]) -> list[list[object]]:
    """Of each seed: the bound, `sticky`, and the policy that was the best of the others in the mean."""
    others = [policy for policy in policies if policy != OURS]
    best = min(others, key=lambda policy: _mean(rows, trace, policy, "makespan_s"))
    by_seed: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row.trace == trace:
            by_seed.setdefault(row.job.seed, {})[row.policy] = row
    table: list[list[object]] = []
    for seed, of in sorted(by_seed.items()):
        ours, theirs = of[OURS], of[best].makespan_s
        gain = f"{1 - ours.makespan_s / theirs:+.1%}"
        table.append([seed, ours.bound_s, ours.makespan_s, ours.makespan_s / ours.bound_s, best, theirs, gain])
    return table


def main(options: Options) -> int:
    """Simulate, and print the figures."""
    traces, policies = _known(options)
    if not 0 < options.scale <= 1 or options.seeds < 1 or options.processes < 1:
        raise WrongOptions("--scale must be above 0 and at most 1, --seeds and --processes at least 1")
    seeds = (TRAINING_SEEDS if options.training else JUDGING_SEEDS)[: 2 if options.short else options.seeds]
    scale = options.scale * (SHORT_SCALE if options.short else 1.0)
    jobs = [job_of(trace, seed, scale, policy) for trace in traces for seed in seeds for policy in policies]
    rows = rows_of(jobs, options.processes, options.save, options.again)
    figures: dict[str, float] = {}
    for trace in traces:
        bound = figures[f"{trace}.bound.makespan_s"] = _mean(rows, trace, policies[0], "bound_s")
        rows_shown: list[list[object]] = []
        for policy in policies:
            means = {measure: _mean(rows, trace, policy, measure) for measure in MEASURES}
            figures |= {f"{trace}.{policy}.{measure}": value for measure, value in means.items()}
            spread = means["makespan_s"] / bound
            faults = sum(row.faults for row in rows if (row.trace, row.policy) == (trace, policy))
            settings = job_of(trace, 0, scale, policy).settings
            rows_shown.append(
                [policy, *means.values(), spread, _mean(rows, trace, policy, "idle_share"), faults, settings]
            )
        header = ["policy", "makespan s", "tokens/s", "preempted", "hits", "group p99 s", "spread", "x bound", "idle"]
        print_table(f"{trace}: {len(seeds)} seeds, scale {scale:g}", [*header, "faults", "settings"], rows_shown)
        if OURS in policies and len(policies) > 1:
            header = ["seed", "bound s", f"{OURS} s", "x bound", "best of the others", "s", "gain"]
            print_table(f"{trace}: seed by seed", header, _beside_the_best(rows, trace, policies))
    figures |= compared(rows, traces, policies) | {"simulations_cpu_s": sum(row.spent_s for row in rows)}
    if OURS in policies and options.decisions > 0:
        for suffix, size in SIZES.items():
            decisions = round(options.decisions * size.rollouts)
            figures[f"decisions_per_s{suffix}"] = decisions_per_s(size, OURS, decisions)
            figures[f"event_us{suffix}"] = event_us(size, OURS, EVENTS)
    print_figures(figures)
    return 0
