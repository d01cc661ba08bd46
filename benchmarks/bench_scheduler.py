"""Scheduling policies on traces, in the fast simulator: makespan, throughput, preemption, hits, and decisions a second.

    agent-rl bench scheduler
    agent-rl bench scheduler --short
    agent-rl bench scheduler --traces agentic --policies predictive worst_case --training
    agent-rl bench scheduler --save rows.jsonl --again predictive
    agent-rl bench scheduler --tune --scale 0.125 --traces agentic --policies margin
    agent-rl bench scheduler --overlap --scale 0.125 --seeds 2
    agent-rl bench scheduler --full --scale 0.25

The makespan is that of the 10 asynchronous steps of a trace at staleness 1, with a modelled learner. All figures are
means over the seeds; the bound is a clairvoyant lower bound (agent_rl/simulation/bound.py). The traces stand in
benchmarks/traces/, policies in agent_rl/scheduling/policies/, and the settings of the opponents on each trace in
benchmarks/tuning.py; ``--tune`` tries those there on the training seeds. Without --training, the seeds are those that
no tuning used. ``--overlap`` compares asynchronous with synchronous runs instead, with the 64 devices of the trace
`paper` shared between engines and learner (benchmarks/scheduler_overlap.py). ``--full`` runs samples of the traces in
both levels of the twin, on the first seed (benchmarks/scheduler_full.py). Seconds of engines and learner are models of
devices, not measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent_rl.scheduling.policies.registry import POLICIES
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.scheduler_decisions import SIZES, decisions_per_s
from benchmarks.scheduler_full import SAMPLED, TRACES
from benchmarks.scheduler_full import measured as in_both_levels
from benchmarks.scheduler_overlap import measured
from benchmarks.scheduler_rows import MEASURES, Row, job_of, rows_of
from benchmarks.traces import GENERATORS, JUDGING_SEEDS, TRAINING_SEEDS
from benchmarks.tuning import BOUNDED, OTHERS, search

OURS = "predictive"
BASELINE = "static"
SHORT_SCALE = 0.125


@dataclass(kw_only=True)
class Options:
    """The options."""

    traces: tuple[str, ...] = ()
    """The traces; none named: all."""
    policies: tuple[str, ...] = ()
    """The policies; none named: all."""
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
    tune: bool = False
    """Try the settings of benchmarks/tuning.py on the training seeds instead, and print the best."""
    overlap: bool = False
    """Compare asynchronous with synchronous runs on 64 devices instead."""
    full: bool = False
    """Compare the full twin with the fast simulator on samples instead; nothing named: three traces, three policies."""
    short: bool = False
    """An eighth of the scale and two seeds: a few minutes."""
    save: Path | None = None
    """A file that gets each row at once, and from which rows that it has are taken."""
    again: tuple[str, ...] = ()
    """Policies whose rows are not taken from that file, since they have changed."""


def _tune(traces: Sequence[str], policies: Sequence[str], seeds: Sequence[int], scale: float, processes: int) -> int:
    asked = [(trace, name) for trace in traces for name in policies if name in BOUNDED or name in OTHERS]
    rows: list[list[object]] = []
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(search, *pair, seeds, scale) for pair in asked]
        for (trace, policy), job in zip(asked, jobs, strict=True):
            found = job.result()
            rows.append([trace, policy, found[0].mean, found[0].text, len(found)])
    print_table("the best settings on the training seeds", ["trace", "policy", "makespan s", "settings", "tried"], rows)
    return 0


def _names(asked: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    for name in asked:
        if name not in known:
            raise WrongOptions(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return list(asked or known)


def _mean(rows: Sequence[Row], trace: str, policy: str, measure: str) -> float:
    return statistics.fmean(getattr(row, measure) for row in rows if (row.trace, row.policy) == (trace, policy))


def compared(rows: Sequence[Row], traces: Sequence[str], policies: Sequence[str]) -> dict[str, float]:
    """`predictive` beside the best of the others and the bound, where all ran. Gains are of the means over seeds."""
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
    """Of each seed: the bound, `predictive`, and the policy that was the best of the others in the mean."""
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
    traces = _names(options.traces, list(GENERATORS), "trace")
    policies = _names(options.policies, list(POLICIES), "policy")
    _names(options.again, list(POLICIES), "policy")
    if not 0 < options.scale <= 1 or options.seeds < 1 or options.processes < 1:
        raise WrongOptions("--scale must be above 0 and at most 1, --seeds and --processes at least 1")
    training = options.training or options.tune
    seeds = (TRAINING_SEEDS if training else JUDGING_SEEDS)[: 2 if options.short else options.seeds]
    scale = options.scale * (SHORT_SCALE if options.short else 1.0)
    if options.tune:
        return _tune(traces, policies, seeds, scale, options.processes)
    if options.overlap:
        with ProcessPoolExecutor(options.processes) as pool:
            print_figures(measured(pool, seeds, scale))
        return 0
    if options.full:
        sampled = options.traces or TRACES, options.policies or SAMPLED
        print_figures(in_both_levels(*sampled, seeds[0], scale, options.processes))
        return 0
    jobs = [job_of(trace, seed, scale, policy) for trace in traces for seed in seeds for policy in policies]
    rows = rows_of(jobs, options.processes, options.save, options.again)
    figures: dict[str, float] = {}
    for trace in traces:
        bound = figures[f"{trace}.bound.makespan_s"] = _mean(rows, trace, policies[0], "bound_s")
        table: list[list[object]] = []
        for policy in policies:
            means = {measure: _mean(rows, trace, policy, measure) for measure in MEASURES}
            figures |= {f"{trace}.{policy}.{measure}": value for measure, value in means.items()}
            spread = means["makespan_s"] / bound
            faults = sum(row.faults for row in rows if (row.trace, row.policy) == (trace, policy))
            settings = job_of(trace, 0, scale, policy).settings
            table.append([policy, *means.values(), spread, _mean(rows, trace, policy, "idle_share"), faults, settings])
        header = ["policy", "makespan s", "tokens/s", "preempted", "hits", "group p99 s", "spread", "x bound", "idle"]
        print_table(f"{trace}: {len(seeds)} seeds, scale {scale:g}", [*header, "faults", "settings"], table)
        if OURS in policies and len(policies) > 1:
            header = ["seed", "bound s", f"{OURS} s", "x bound", "best of the others", "s", "gain"]
            print_table(f"{trace}: seed by seed", header, _beside_the_best(rows, trace, policies))
    figures |= compared(rows, traces, policies) | {"simulations_cpu_s": sum(row.spent_s for row in rows)}
    if OURS in policies and options.decisions > 0:
        for suffix, size in SIZES.items():
            decisions = round(options.decisions * size.rollouts)
            figures[f"decisions_per_s{suffix}"] = decisions_per_s(size, OURS, decisions)
    print_figures(figures)
    return 0
