"""Scheduling policies on traces, in the fast simulator: makespan, throughput, preemption, hits, and decisions a second.

    agent-rl bench scheduler
    agent-rl bench scheduler --short
    agent-rl bench scheduler --traces agentic --policies predictive worst_case --training
    agent-rl bench scheduler --tune --short --traces agentic --policies margin

The makespan is that of the 10 asynchronous steps of a trace at staleness 1, with a modelled learner. All figures are
means over the seeds; the bound is a clairvoyant lower bound (agent_rl/simulation/bound.py). The traces stand in
benchmarks/traces/, policies in agent_rl/scheduling/policies/, and the settings of the opponents on each trace in
benchmarks/tuning.py; ``--tune`` tries those there on the training seeds. Without --training, the
seeds are those that no tuning used. Seconds of engines and learner are models of devices, not measurements.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from agent_rl.scheduling.policies.base import EngineFacts, Place, Setting, WaitingTurn
from agent_rl.scheduling.policies.guard import Guarded
from agent_rl.scheduling.policies.registry import POLICIES
from agent_rl.simulation.bound import lower_bound
from agent_rl.simulation.simulator import Simulator
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.traces import GENERATORS, JUDGING_SEEDS, TRAINING_SEEDS, generate
from benchmarks.tuning import CANDIDATES, chosen

OURS = "predictive"
TURN_S = 32.0
"""Seconds after which a rollout ends its next turn while decisions are timed: 512 turns a second of 16,384 rollouts."""
SIZES = {"decisions_per_s": (64, 16_384), "decisions_per_s_512": (512, 131_072)}
"""Engines and open rollouts."""
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
    short: bool = False
    """An eighth of the scale and two seeds: a few minutes."""


class Row(NamedTuple):
    """The figures of a policy on a trace and seed."""

    trace: str
    policy: str
    makespan_s: float
    bound_s: float
    tokens_per_s: float
    preempted_share: float
    hit_rate: float
    group_p99_s: float
    start_spread: float
    idle_share: float
    faults: int


MEASURES = ("makespan_s", "tokens_per_s", "preempted_share", "hit_rate", "group_p99_s", "start_spread")


def simulate(trace_name: str, seed: int, scale: float, policies: Sequence[str]) -> list[Row]:
    """All policies on one trace."""
    trace = generate(trace_name, seed, scale)
    bound, rows = lower_bound(trace), []
    for name in policies:
        spec = POLICIES[name]
        outcome = Simulator(trace, spec.make(**chosen(trace_name, name)), evicts_half=spec.evicts_half).run()
        measures = {measure: getattr(outcome, measure) for measure in MEASURES}
        faults = sum(outcome.faults.values())
        rows.append(Row(trace_name, name, bound_s=bound, idle_share=outcome.idle_share, faults=faults, **measures))
    return rows


def tried(trace_name: str, policy: str, seeds: Sequence[int], scale: float) -> list[tuple[float, str]]:
    """The mean makespan in seconds of each setting that is tried, the best first."""
    traces = [generate(trace_name, seed, scale) for seed in seeds]
    found = []
    for settings in CANDIDATES.get(policy, [{}]):
        makespans = [Simulator(trace, POLICIES[policy].make(**settings)).run().makespan_s for trace in traces]
        found.append((statistics.fmean(makespans), ", ".join(f"{name}={value}" for name, value in settings.items())))
    return sorted(found)


def _tune(traces: Sequence[str], policies: Sequence[str], seeds: Sequence[int], scale: float, processes: int) -> int:
    asked = [(trace, policy) for trace in traces for policy in policies if policy in CANDIDATES]
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(tried, trace, policy, seeds, scale) for trace, policy in asked]
        rows: list[list[object]] = [
            [*pair, *job.result()[0], len(CANDIDATES[pair[1]])] for pair, job in zip(asked, jobs, strict=True)
        ]
    print_table("the best settings on the training seeds", ["trace", "policy", "makespan s", "settings", "tried"], rows)
    return 0


def decisions_per_s(engines: int, rollouts: int, decisions: int) -> float:
    """Turns that `predictive` places a second of processor time, with the end of the turn before and a load update.

    Virtual time passes as if each rollout ended a turn every ``TURN_S`` seconds, so forecasts age as in a run.
    """
    guard = Guarded(POLICIES[OURS].make())
    guard.begin(Setting(32, 512))
    room = 4 * 40_000 * (rollouts // engines + 1)
    facts = [EngineFacts(f"engine.{number}", room, 0, 0, 0, 4 * rollouts) for number in range(engines)]
    for fact in facts:
        guard.engine_reported(fact, 0.0)
    turns = [
        WaitingTurn(
            f"g{number // 32}/{number % 32}", f"g{number // 32}", f"p{number // 32}", number % 32, 0, 300, 300, 30_600
        )
        for number in range(rollouts)
    ]
    for turn in turns:
        guard.turn_waits(turn, 0.0)
    where = {decision.rollout: decision.engine for decision in guard.decide(0.0) if isinstance(decision, Place)}
    assert len(where) == rollouts, f"{len(where)} of {rollouts} rollouts were placed"
    began = time.process_time()
    for step in range(decisions):
        number, now = step * 7919 % rollouts, step * TURN_S / rollouts
        before = turns[number]
        context, engine = before.context + 200, where[before.rollout]
        guard.turn_ended(before.rollout, context, now)
        fact = facts[step % engines]
        guard.engine_reported(fact._replace(kv_used=min(room, step)), now)
        turn = turns[number] = before._replace(turn=before.turn + 1, context=context, kept_on=engine, kept=context)
        guard.turn_waits(turn, now)
        (decision,) = guard.decide(now)
        assert isinstance(decision, Place)
        where[turn.rollout] = decision.engine
    return decisions / (time.process_time() - began)


def _names(asked: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    for name in asked:
        if name not in known:
            raise WrongOptions(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return list(asked or known)


def _mean(rows: Sequence[Row], trace: str, policy: str, measure: str) -> float:
    return statistics.fmean(getattr(row, measure) for row in rows if (row.trace, row.policy) == (trace, policy))


def compared(rows: Sequence[Row], traces: Sequence[str], policies: Sequence[str]) -> dict[str, float]:
    """The gains of `predictive` over the best of the others, where all ran."""
    figures: dict[str, float] = {}
    others = [policy for policy in policies if policy != OURS]
    if OURS not in policies or not others:
        return figures
    ratios = {}
    for trace in traces:
        best = min(_mean(rows, trace, policy, "makespan_s") for policy in others)
        ratios[trace] = _mean(rows, trace, OURS, "makespan_s") / best
    for trace in ("paper", "agentic"):
        if trace in ratios:
            figures[f"{trace}.gain_over_best"] = 1 - ratios[trace]
    return figures | {"worst_loss_to_best": max(ratios.values()) - 1}


def main(options: Options) -> int:
    """Simulate, and print the figures."""
    traces = _names(options.traces, list(GENERATORS), "trace")
    policies = _names(options.policies, list(POLICIES), "policy")
    if not 0 < options.scale <= 1 or options.seeds < 1 or options.processes < 1:
        raise WrongOptions("--scale must be above 0 and at most 1, --seeds and --processes at least 1")
    training = options.training or options.tune
    seeds = (TRAINING_SEEDS if training else JUDGING_SEEDS)[: 2 if options.short else options.seeds]
    scale = options.scale * (SHORT_SCALE if options.short else 1.0)
    if options.tune:
        return _tune(traces, policies, seeds, scale, options.processes)
    began = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [pool.submit(simulate, trace, seed, scale, policies) for trace in traces for seed in seeds]
        rows = [row for job in jobs for row in job.result()]
    figures: dict[str, float] = {}
    for trace in traces:
        bound = figures[f"{trace}.bound.makespan_s"] = _mean(rows, trace, policies[0], "bound_s")
        table: list[list[object]] = []
        for policy in policies:
            means = {measure: _mean(rows, trace, policy, measure) for measure in MEASURES}
            figures |= {f"{trace}.{policy}.{measure}": value for measure, value in means.items()}
            used = POLICIES[policy].settings | chosen(trace, policy)
            settings = ", ".join(f"{name}={value}" for name, value in used.items())
            spread = means["makespan_s"] / bound
            faults = sum(row.faults for row in rows if (row.trace, row.policy) == (trace, policy))
            table.append([policy, *means.values(), spread, _mean(rows, trace, policy, "idle_share"), faults, settings])
        header = ["policy", "makespan s", "tokens/s", "preempted", "hits", "group p99 s", "spread", "x bound", "idle"]
        print_table(f"{trace}: {len(seeds)} seeds, scale {scale:g}", [*header, "faults", "settings"], table)
    figures |= compared(rows, traces, policies) | {"simulation_s": time.monotonic() - began}
    if OURS in policies and options.decisions > 0:
        for name, (engines, rollouts) in SIZES.items():
            figures[name] = decisions_per_s(engines, rollouts, round(options.decisions * rollouts))
    print_figures(figures)
    return 0
