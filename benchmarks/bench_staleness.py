"""What each staleness rule trains on, in a simulation: how long trained and dropped groups last.

    agent-rl bench staleness
    agent-rl bench staleness --max-staleness 3 --steps 20000

The run's own `StepAssembler` closes the steps, and groups are opened by the scheduler's bound, in simulated time. How
long a group lasts is drawn from a log-normal distribution whose mean is 1; a training step takes ``--step-seconds``.
A rule that is fair trains groups that last 1 on average.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from agent_rl.scheduling.staleness import StepAssembler
from benchmarks.reporting import print_figures, print_table

RULES: tuple[Literal["wait", "drop", "train_corrected"], ...] = ("wait", "drop", "train_corrected")


@dataclass(kw_only=True)
class Options:
    """The options."""

    steps: int = 5000
    """How many steps each rule makes."""
    groups_per_step: int = 8
    """Groups that a step takes."""
    max_staleness: int = 1
    """The staleness budget."""
    max_corrected_staleness: int = 4
    """The cap of train_corrected."""
    step_seconds: float = 0.3
    """Of training a step, where a group lasts 1 second on average."""
    spread: float = 1.0
    """The standard deviation of the logarithm of a group's seconds."""
    seed: int = 0
    """Of the simulation."""


@dataclass
class Outcome:
    """How long the groups of a rule lasted, in simulated seconds, by what became of them; and the time of all steps."""

    opened: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    dropped: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    seconds: float = 0.0


def simulate(rule: Literal["wait", "drop", "train_corrected"], options: Options) -> Outcome:
    """Run ``options.steps`` steps under one rule."""
    rng, outcome = random.Random(options.seed), Outcome()
    budget, count = options.max_staleness, options.groups_per_step
    steps = StepAssembler(
        version=0,
        groups_per_step=count,
        max_staleness=budget,
        on_stale=rule,
        max_corrected_staleness=options.max_corrected_staleness,
    )
    lasts: dict[str, float] = {}
    opened_at: dict[str, int] = {}
    events: list[tuple[float, str]] = []
    learner: deque[int] = deque()
    served, now = 0, 0.0
    while served < options.steps:
        while len(lasts) - steps.uncounted < (budget + served + 1) * count:
            name = f"g{len(lasts)}"
            lasts[name] = rng.lognormvariate(-(options.spread**2) / 2, options.spread)
            opened_at[name] = served
            outcome.opened.append(lasts[name])
            steps.opened(name, served)
            heapq.heappush(events, (now + lasts[name], name))
        now, name = heapq.heappop(events)
        if not name:  # the learner has trained a step, and its policy is served
            served += 1
            learner.popleft()
            if learner:
                heapq.heappush(events, (now + options.step_seconds, ""))
        elif name in opened_at:
            steps.decided(name, opened_at.pop(name), signal=True)
        while (step := steps.close()) is not None:
            outcome.trained += [lasts[group] for group in step.trained]
            outcome.dropped += [lasts[group] for group in step.dropped_open]
            outcome.staleness += step.staleness
            for group in step.dropped_open:
                del opened_at[group]
            learner.append(step.version)
            if len(learner) == 1:
                heapq.heappush(events, (now + options.step_seconds, ""))
    outcome.seconds = now
    return outcome


def main(options: Options) -> int:
    """Simulate each rule, and print the figures."""
    rows: list[list[object]] = []
    figures: dict[str, float] = {}
    for rule in RULES:
        outcome = simulate(rule, options)
        means = {
            name: statistics.fmean(values) if values else math.nan
            for name, values in (("all", outcome.opened), ("trained", outcome.trained), ("dropped", outcome.dropped))
        }
        share = len(outcome.dropped) / len(outcome.opened)
        speed = options.steps / outcome.seconds
        rows.append([rule, *means.values(), 100 * share, max(outcome.staleness), speed])
        figures |= {f"{rule}.{name}_seconds": value for name, value in means.items()}
        figures |= {f"{rule}.dropped_share": share, f"{rule}.steps_per_s": speed}
    header = ["rule", "all groups last", "trained", "dropped", "dropped %", "oldest trained", "steps/s"]
    print_table("Simulated seconds by staleness rule", header, rows)
    print_figures(figures)
    return 0
