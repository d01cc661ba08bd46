"""Numbers that no record holds are chosen so that the simulated run is like the run.

::

    where cores are shared:
    engine steps of the run --> Cores.tools: how many cores tool calls ask for, since they are several processes
    makespan of the run     --> Cores.cores: how many cores engines, learner and tools really had together
    else:
    makespan of the run     --> Learner.gather_s: judging, messages and the disk, between the end of a step's last
                                rollout and its training

The more cores tools ask for, the more of them answer at once, and the fewer and larger are the engine's steps. What the
run had less of than the host's cores went to other actors, to other programs, or was idle while messages travelled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from agent_rl.config.topology import Topology
from agent_rl.simulation.outcome import Outcome
from agent_rl.simulation.plan import Plan, plan_of
from agent_rl.simulation.prediction import predict
from agent_rl.simulation.profile import Learner, Profile
from agent_rl.simulation.trace import Shape

TOOLS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""What is tried for `Cores.tools`."""
HALVINGS = 10
"""How often the interval of `Cores.cores`, or of `Learner.gather_s`, is halved."""
LEAST_CORES = 0.1
MOST_STEPS = 30
"""So many steps of the run are simulated."""


class Pace(NamedTuple):
    """From the end of the first step to that of the last: seconds, and decode steps of all engines."""

    seconds: float
    engine_steps: float


def pace_of(outcome: Outcome) -> Pace:
    """The pace of a simulated run."""
    first, last = outcome.trained[0], outcome.trained[-1]
    return Pace(last.at - first.at, last.engine_steps - first.engine_steps)


def pace_seen(steps: Sequence[Mapping[str, Any]], totals: Sequence[tuple[float, float]]) -> Pace | None:
    """The pace of a run, by its rows of steps, and by times and engine steps of its timeline; None when unknown."""
    walls = [row["wall"] for row in steps if "wall" in row]
    if len(walls) < 2 or not totals:
        return None
    began, ended = walls[0], walls[-1]
    return Pace(ended - began, _at(ended, totals) - _at(began, totals))


def _at(wall: float, totals: Sequence[tuple[float, float]]) -> float:
    """The total at this time, between those of the rows around it."""
    before = totals[0]
    for row in totals:
        if row[0] >= wall:
            share = (wall - before[0]) / (row[0] - before[0]) if row[0] > before[0] else 1.0
            return before[1] + max(0.0, share) * (row[1] - before[1])
        before = row
    return before[1]


def settled(
    profile: Profile, topology: Topology, groups: Sequence[tuple[Shape, ...]], seen: Pace, where: str
) -> Profile:
    """The profile with these numbers. ``groups`` are those of the run's steps, in their order."""
    steps = len(groups) // topology.algorithm.groups_per_step
    plan = plan_of(topology, profile, where=where, steps=steps, seed=0)
    taken = tuple(groups[: steps * topology.algorithm.groups_per_step])
    plan = _with(plan, groups=taken, limit=max(plan.trace.limit, *(s.context for group in taken for s in group)))
    if profile.cores is None:
        return profile.model_copy(update={"learner": _gathering(plan, profile.learner, seen, steps)})
    cores, most = profile.cores, profile.cores.cores

    def pace(count: float, tools: float) -> Pace:
        assert plan.trace.shared is not None
        shared = replace(plan.trace.shared, cores=count, tools=tools)
        return pace_of(predict(_with(plan, shared=shared)).outcome)

    tools = min(TOOLS, key=lambda each: abs(math.log(max(1.0, pace(most, each).engine_steps) / seen.engine_steps)))
    low, high = LEAST_CORES, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if pace(middle, tools).seconds > seen.seconds else (low, middle)
    return profile.model_copy(update={"cores": cores.model_copy(update={"cores": round(high, 4), "tools": tools})})


def _gathering(plan: Plan, learner: Learner, seen: Pace, steps: int) -> Learner:
    """The learner with the seconds from the end of a step's last rollout to its training."""

    def seconds(gather_s: float) -> float:
        return pace_of(predict(_with(plan, learner=replace(plan.trace.learner, gather_s=gather_s))).outcome).seconds

    low, high = 0.0, seen.seconds / max(1, steps - 1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) < seen.seconds else (low, middle)
    return learner.model_copy(update={"gather_s": round(low, 4)})


def _with(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, trace=replace(plan.trace, **changes))
