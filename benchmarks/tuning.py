"""Settings of the opponents of `predictive`, for each trace: what is tried, and what was chosen on the training seeds.

`predictive` has one setting for all traces. Its opponents have one for each trace, since their bound on the rollouts of
an engine fits one length of rollouts only. What is not in `CHOSEN` runs with the defaults of its class.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent_rl.scheduling.policies.registry import POLICIES
from agent_rl.simulation.simulator import Simulator
from agent_rl.simulation.trace import Trace
from benchmarks.traces import generate

Settings: TypeAlias = tuple[tuple[str, Any], ...]

CONCURRENCY: Mapping[str, Sequence[int | None]] = {
    "paper": (100, 120, 140, 160, 180, 200, 240, None),
    "paper_tp4": (460, 560, 640, 740, 840, 960, 1200, None),
    "mild": (96, 128, 160, 192, 224, None),
    "brutal": (64, 80, 96, 112, 128, 160, None),
    "agentic": (16, 18, 20, 22, 24, 28, 32, None),
    "mixed_engines": (48, 64, 96, 128, 160, 200, 256, 320, None),
    "engine_lost": (100, 120, 140, 160, 180, 200, None),
    "drain": (100, 120, 140, 160, 180, 200, None),
    "recorded": (64, 96, 128, 160, 192, 256, None),
}
"""Bounds on the rollouts of an engine, around what its KV cache holds on the trace. None: all open rollouts."""

BOUNDED = ("round_robin", "least_requests", "sticky_least_loaded", "cache_aware", "cost_aware", "margin")
"""The policies that take such a bound."""

OTHERS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "cache_aware": (
        {"absolute": 16},
        {"absolute": 16, "relative": 1.1},
        {"absolute": 4, "relative": 1.1},
    ),
    "cost_aware": ({"overlap_weight": 0.25}, {"overlap_weight": 0.5}, {"overlap_weight": 2.0}),
    "margin": ({"margin": 4}, {"margin": 8}, {"margin": 16}, {"margin": 64}),
    "program_aware": (
        {"acting_weight": 0.5},
        {"interval_s": 1.0},
        {"interval_s": 20.0},
        {"interval_s": 60.0},
        {"acting_weight": 0.5, "interval_s": 1.0},
    ),
}
"""Further settings that are tried, at the best bound."""
FINALISTS = 3
"""So many of the settings that are best on the first seed run on the other seeds."""

CHOSEN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("paper", "round_robin"): {"concurrency": 160},
    ("paper", "least_requests"): {"concurrency": 100},
    ("paper", "sticky_least_loaded"): {"concurrency": 100},
    ("paper", "cache_aware"): {"absolute": 16, "concurrency": 100},
    ("paper", "cost_aware"): {"concurrency": 100, "overlap_weight": 2.0},
    ("paper", "margin"): {"concurrency": 100, "margin": 4},
    ("paper_tp4", "round_robin"): {"concurrency": 345},
    ("paper_tp4", "least_requests"): {"concurrency": 460},
    ("paper_tp4", "sticky_least_loaded"): {"concurrency": 460},
    ("paper_tp4", "cache_aware"): {"absolute": 16, "concurrency": 460},
    ("paper_tp4", "cost_aware"): {"concurrency": 460, "overlap_weight": 2.0},
    ("paper_tp4", "margin"): {"concurrency": 460, "margin": 8},
    ("mild", "round_robin"): {"concurrency": 128},
    ("mild", "least_requests"): {"concurrency": 160},
    ("mild", "sticky_least_loaded"): {"concurrency": 160},
    ("mild", "cache_aware"): {"absolute": 4, "concurrency": 160, "relative": 1.1},
    ("mild", "cost_aware"): {"concurrency": 144, "overlap_weight": 2.0},
    ("mild", "margin"): {"concurrency": 160, "margin": 64},
    ("mild", "program_aware"): {"interval_s": 60.0},
    ("brutal", "round_robin"): {"concurrency": 96},
    ("brutal", "least_requests"): {"concurrency": 80},
    ("brutal", "sticky_least_loaded"): {"concurrency": 64},
    ("brutal", "cache_aware"): {"concurrency": 96},
    ("brutal", "cost_aware"): {"concurrency": 80},
    ("brutal", "margin"): {"concurrency": 96},
    ("brutal", "program_aware"): {"acting_weight": 0.5, "interval_s": 1.0},
    ("agentic", "round_robin"): {"concurrency": 16},
    ("agentic", "least_requests"): {"concurrency": 18},
    ("agentic", "sticky_least_loaded"): {"concurrency": 19},
    ("agentic", "cache_aware"): {"absolute": 4, "concurrency": 17, "relative": 1.1},
    ("agentic", "cost_aware"): {"concurrency": 17, "overlap_weight": 2.0},
    ("agentic", "margin"): {"concurrency": 20, "margin": 16},
    ("agentic", "program_aware"): {"interval_s": 20.0},
    ("mixed_engines", "round_robin"): {"concurrency": 36},
    ("mixed_engines", "least_requests"): {"concurrency": 320},
    ("mixed_engines", "sticky_least_loaded"): {"concurrency": 56},
    ("mixed_engines", "cache_aware"): {"absolute": 4, "concurrency": 56, "relative": 1.1},
    ("mixed_engines", "cost_aware"): {"concurrency": 112, "overlap_weight": 0.5},
    ("mixed_engines", "margin"): {"concurrency": None, "margin": 4},
    ("mixed_engines", "program_aware"): {"acting_weight": 0.5, "interval_s": 1.0},
    ("engine_lost", "round_robin"): {"concurrency": 120},
    ("engine_lost", "least_requests"): {"concurrency": 110},
    ("engine_lost", "sticky_least_loaded"): {"concurrency": 100},
    ("engine_lost", "cache_aware"): {"concurrency": 100},
    ("engine_lost", "cost_aware"): {"concurrency": 100, "overlap_weight": 2.0},
    ("engine_lost", "margin"): {"concurrency": 100, "margin": 8},
    ("engine_lost", "program_aware"): {"interval_s": 60.0},
    ("drain", "round_robin"): {"concurrency": None},
    ("drain", "least_requests"): {"concurrency": None},
    ("drain", "sticky_least_loaded"): {"concurrency": 120},
    ("drain", "cache_aware"): {"concurrency": None},
    ("drain", "cost_aware"): {"concurrency": None},
    ("drain", "margin"): {"concurrency": None, "margin": 8},
    ("drain", "program_aware"): {"interval_s": 20.0},
    ("recorded", "round_robin"): {"concurrency": 96},
    ("recorded", "least_requests"): {"concurrency": 96},
    ("recorded", "sticky_least_loaded"): {"concurrency": 96},
    ("recorded", "cache_aware"): {"concurrency": 128},
    ("recorded", "cost_aware"): {"concurrency": 96, "overlap_weight": 2.0},
    ("recorded", "margin"): {"concurrency": 96, "margin": 16},
    ("recorded", "program_aware"): {"acting_weight": 0.5, "interval_s": 1.0},
}
"""By trace and policy: the fastest of what ``agent-rl bench scheduler --tune`` tries, on three seeds at an eighth of
the scale. A policy that is missing has its defaults, since they were the fastest or it has no settings."""


def chosen(trace: str, policy: str) -> dict[str, Any]:
    """The changes to the policy's defaults on this trace."""
    return dict(CHOSEN.get((trace, policy), {}))


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, and its makespans in seconds on the seeds that it ran on."""

    settings: Settings
    makespans: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the makespans, in seconds."""
        return statistics.fmean(self.makespans)

    @property
    def text(self) -> str:
        """The settings in words."""
        return ", ".join(f"{name}={value}" for name, value in self.settings) or "the defaults"


def search(trace_name: str, policy: str, seeds: Sequence[int], scale: float) -> list[Tried]:
    """The settings that ran on all seeds, the fastest first; the others behind them.

    On the first seed: all bounds; the other settings with the best bound; the two bounds half-way to its neighbours.
    The best of these run on the other seeds.
    """
    traces = [generate(trace_name, seed, scale) for seed in seeds]
    tried: dict[Settings, Tried] = {}

    def best_of(candidates: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        for settings in candidates:
            key = tuple(sorted(settings.items()))
            if key not in tried:
                tried[key] = Tried(key, (makespan(traces[0], policy, settings),))
        return dict(min(tried.values(), key=lambda each: each.makespans[0]).settings)

    bounds = CONCURRENCY[trace_name]
    best = best_of([{"concurrency": bound} for bound in bounds] if policy in BOUNDED else [{}])
    best = best_of({**best, **other} for other in OTHERS.get(policy, ()))
    if policy in BOUNDED:
        best_of({**best, "concurrency": bound} for bound in between(bounds, best["concurrency"]))
    ranked = sorted(tried.values(), key=lambda each: each.makespans[0])
    finals = [
        Tried(
            each.settings, each.makespans + tuple(makespan(trace, policy, dict(each.settings)) for trace in traces[1:])
        )
        for each in ranked[:FINALISTS]
    ]
    return sorted(finals, key=lambda each: each.mean) + ranked[FINALISTS:]


def makespan(trace: Trace, policy: str, settings: Mapping[str, Any]) -> float:
    """Of the policy on the trace, in seconds."""
    spec = POLICIES[policy]
    return Simulator(trace, spec.make(**settings), evicts_half=spec.evicts_half).run().makespan_s


def between(bounds: Sequence[int | None], best: int | None) -> list[int]:
    """The bounds half-way from the best to its neighbours; the neighbour of no bound is the largest one."""
    known = sorted(bound for bound in bounds if bound is not None)
    if best is None:
        return [2 * known[-1]]
    at = known.index(best) if best in known else 0
    low = [(known[at - 1] + best) // 2] if at else [best * 3 // 4]
    return [*low, (best + known[at + 1]) // 2 if at + 1 < len(known) else best * 5 // 4]
