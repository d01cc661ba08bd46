"""What a twin shows of its run: one row of a table, and what it warns of."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.twin.run import TwinRun

FULL = 0.05
"""An executor whose places are all taken for a larger share of the makespan lets calls wait."""


def figures_of(made: TwinRun) -> dict[str, float]:
    """The figures of a run, by the heading of their column. Shares are of the makespan."""
    outcome, plan = made.outcome, made.plan
    return {
        "engines": len(made.engines),
        "devices": plan.devices,
        "step s": outcome.makespan_s / outcome.steps,
        "tokens/s": outcome.tokens_per_s,
        "engines idle": outcome.idle_share,
        "learner idle": outcome.learner_idle_share,
        "executor full": max((each.full_s for each in made.world.places.values()), default=0.0) / outcome.makespan_s,
        "preempted": outcome.preempted_share,
        "hits": outcome.hit_rate,
        "staleness": statistics.fmean(outcome.staleness or (0,)),
    }


def warnings_of(made: TwinRun) -> Iterator[str]:
    """Executors that let calls wait, unsafe decisions of the policy, and the warnings that actors logged."""
    for executor, places in sorted(made.world.places.items()):
        if (full := places.full_s / made.outcome.makespan_s) > FULL:
            yield f"{executor}: its {places.count} places are all taken for {full:.1%} of the makespan; more are due"
    for what, count in sorted((made.outcome.faults + made.warnings).items()):
        yield f"{what}: {count:,} times"
