"""Scheduling policies on two real engines, a core each, beside the fast simulator: makespan, preemptions, hit rate.

    agent-rl bench policies --engine vllm
    agent-rl bench policies --engine torch --policies worst_case predictive --seeds 1
    agent-rl bench policies --engine torch --short

Two rollout generators with an engine each serve --groups groups of --samples rollouts, as the scheduler's policy places
them. All groups may be opened from the beginning on; the scheduler opens one whenever no rollout waits for its start.
So with `static`, whose rollouts wait for each other, about one group is opened in each of its turns. Seeds decide how
long the turns of each rollout are and how long its tools sleep, so that a seed is the same work for all policies. The
KV caches are too small for what the engines could run at once. A round is one policy with one seed; the order of the
policies changes from seed to seed. The engines live through all rounds. New weights at the beginning of a round, which
are the same weights, empty their KV caches.

Two rounds come before, with seeds of their own: one with few rollouts at once (`worst_case`) and one with many
(`least_requests`). The model of the engine is fitted to these two, and the fast simulator predicts all others with it.
Scheduler, links, generators and engines are the production code; learner, filter and executor are stand-ins that take
no time, but for the tools' sleep.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import structlog
import trio

from agent_rl.scheduling.policies.registry import POLICIES
from benchmarks.chaos.accounting import T_95
from benchmarks.command import WrongOptions
from benchmarks.policies.prediction import Simulated, TooFewRowsError, fitted, simulate, trace_of
from benchmarks.policies.service import ENGINES, GENERATOR, Measured, RoundFailed, Sizes, service
from benchmarks.policies.workload import LIMIT, PROMPTS, shapes
from benchmarks.reporting import print_figures, print_table

FITTED = {"worst_case": 1_001, "least_requests": 1_002}
"""The rounds that the engine's model is fitted to, with their seeds. Seeds of the table are 0, 1, ..."""
WARM = 1_000
"""The seed of a round before all others."""
PAGES = {"torch": 1, "vllm": 32}
"""Tokens of a page of the engine's KV cache."""
MEASURES = ("makespan_s", "preempted_share", "hit_rate")
DEFAULT = (
    "static",
    "round_robin",
    "least_requests",
    "worst_case",
    "sticky_least_loaded",
    "cache_aware",
    "predictive",
)


@dataclass(kw_only=True)
class Options:
    """The options."""

    engine: Literal["torch", "vllm"] = "torch"
    """What the generators run on; vLLM must be installed (`make test-vllm` builds .venv-vllm with it)."""
    policies: tuple[str, ...] = DEFAULT
    """The policies, with their default settings."""
    seeds: int = 3
    """Rounds of each policy."""
    groups: int = 12
    """Groups of a round."""
    samples: int = 16
    """Rollouts of a group."""
    kv_tokens: int = 6144
    """KV cache of an engine."""
    max_rollouts: int = 48
    """Rollouts that an engine runs at once at most."""
    short: bool = False
    """A few seconds a round: shows that the benchmark runs, and measures little."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by Student's t; not a number for less than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    t = T_95[min(len(values) - 1, len(T_95)) - 1]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def in_turn(policies: Sequence[str], seed: int) -> list[str]:
    """The order of the policies for a seed: each comes first for some seed."""
    first = seed % len(policies)
    return [*policies[first:], *policies[:first]]


async def measure(options: Options) -> tuple[list[Measured], list[Measured]]:
    """The rounds to fit to, and all others."""
    sizes = Sizes(options.engine, options.groups, options.samples, options.kv_tokens, options.max_rollouts)
    found = []
    async with service(sizes) as engines:
        await engines.run(next(iter(FITTED)), WARM)
        fit = [await engines.run(policy, seed) for policy, seed in FITTED.items()]
        for seed in range(options.seeds):
            for policy in in_turn(options.policies, seed):
                made = await engines.run(policy, seed)
                found.append(made)
                print(f"seed {seed}, {policy}: {made.makespan_s:.1f} s", flush=True)
    return fit, found


def predicted(options: Options, fit: Sequence[Measured], found: Sequence[Measured]) -> list[Simulated]:
    """What the simulator says of each round. Raises WrongOptions when the fitted rounds were too short."""
    records = [rows for made in fit for rows in made.records]
    try:
        model = fitted(records, max_rollouts=options.max_rollouts, page=PAGES[options.engine])
    except TooFewRowsError as error:
        raise WrongOptions(f"{error}; ask for more --groups") from error
    names = [f"{GENERATOR}.{number}" for number in range(ENGINES)]
    traces = {
        made.seed: trace_of(shapes(made.seed, options.groups, options.samples), names, model, made.seed)
        for made in found
    }
    seconds = model.model
    print(
        f"fitted to {' and '.join(FITTED)}: a step takes {1e3 * seconds.step_s:.3g} ms, "
        f"{1e3 * seconds.row_s:.3g} ms a rollout and {1e6 * seconds.context_s:.3g} us a token of context; prefill "
        f"{1e3 * seconds.prefill_s:.3g} ms a token; {1e3 * model.gap_s:.3g} ms between turns beside the tools"
    )
    return [simulate(made.policy, traces[made.seed]) for made in found]


def report(policies: Sequence[str], found: Sequence[Measured], said: Sequence[Simulated]) -> dict[str, float]:
    """Print the tables; the figures."""
    figures: dict[str, float] = {}
    rows: list[list[object]] = []
    beside: list[list[object]] = []
    ratios: list[float] = []
    for policy in policies:
        pairs = [pair for pair in zip(found, said, strict=True) if pair[0].policy == policy]
        row: list[object] = [policy]
        other: list[object] = [policy]
        for name in MEASURES:
            values = [getattr(made, name) for made, _ in pairs]
            low, high = interval(values)
            mean = statistics.fmean(values)
            figures |= {
                f"real.{policy}.{name}": mean,
                f"real.{policy}.{name}_low": low,
                f"real.{policy}.{name}_high": high,
            }
            row += [mean, f"[{low:.3g}, {high:.3g}]"]
            other += [mean, statistics.fmean(getattr(each, name) for _, each in pairs)]
        row += [statistics.fmean(made.idle_share for made, _ in pairs), sum(made.moved for made, _ in pairs)]
        of_seeds = [each.makespan_s / made.makespan_s for made, each in pairs]
        ratio = figures[f"real.{policy}.simulated_over_measured"] = statistics.fmean(of_seeds)
        ratios.append(ratio)
        rows.append(row)
        beside.append([*other, ratio, max(of_seeds, key=lambda each: abs(math.log(each)))])
    header = ["policy", "makespan s", "", "preempted", "", "hits", "", "idle", "moved"]
    print_table("measured: means over seeds, with 95 % intervals (Student's t)", header, rows)
    header = ["policy"] + [
        f"{name}{part}" for name in ("makespan s", "preempted", "hits") for part in ("", ", simulated")
    ]
    print_table("measured and simulated", [*header, "simulated / measured", "of the worst seed"], beside)
    return figures | {"real.simulated_over_measured": max(ratios, key=lambda each: abs(math.log(each)))}


def checked(options: Options) -> Options:
    """The options. Raises WrongOptions."""
    if options.short:
        options = replace(options, groups=5, samples=8, seeds=min(options.seeds, 1))
    if unknown := [policy for policy in options.policies if policy not in POLICIES]:
        raise WrongOptions(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    if min(options.seeds, options.groups, options.samples, options.max_rollouts) < 1 or not options.policies:
        raise WrongOptions("--seeds, --groups, --samples, --max-rollouts and --policies must be at least 1")
    least = 2 * (PROMPTS[1] + LIMIT)
    if options.kv_tokens < least:
        raise WrongOptions(f"--kv-tokens {options.kv_tokens} must hold two of the longest rollouts: at least {least}")
    if options.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise WrongOptions("vLLM is not installed: `make test-vllm` builds .venv-vllm with it")
    return options


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    options = checked(options)
    logging.getLogger("transport").setLevel(logging.CRITICAL)  # schedulers come and go
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    began = time.monotonic()
    try:
        fit, found = trio.run(measure, options)
    except BaseExceptionGroup as group:
        failed = group.split(RoundFailed)[0]
        if failed is None:
            raise
        raise failed.exceptions[0] from None
    figures = report(options.policies, found, predicted(options, fit, found))
    print_figures(figures | {"real.seconds": time.monotonic() - began})
    return 0
