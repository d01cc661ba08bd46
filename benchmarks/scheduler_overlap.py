"""What overlapping rollout and training gains on the trace `paper`, when 64 devices do both; the simulator's models.

Three ways to use the devices are searched, each over the policies in ``POLICIES``:

- Asynchronous: some devices are engines, the others the learner; staleness 1 or 2.
- Synchronous, apart: the same with staleness 0, so that one side always waits.
- Synchronous, together: all devices generate, then all train. This is how verl places both on the same devices. It
  costs nothing here to change sides: the KV cache is as large as that of engines alone, and weights are not sent.

The best of each in the search, on a training seed at an eighth of the scale, runs on the seeds that are asked for.
Engines are of one device each. A fraction of the scale has that fraction of the groups, engines and learner devices of
each split, rounded to whole engines. Runs of more than the trace's 10 steps repeat its groups: the first step of an
asynchronous run has nothing to train, and its last step no rollouts, which weighs less in a longer run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple

from agent_rl.scheduling.policies.registry import POLICIES as ALL
from agent_rl.simulation.bound import lower_bound
from agent_rl.simulation.simulator import Simulator
from agent_rl.simulation.trace import Trace
from benchmarks.reporting import print_table
from benchmarks.traces import TRAINING_SEEDS
from benchmarks.traces.devices import learner, mi300x
from benchmarks.traces.maths import STEPS, fleet, trace

DEVICES, GROUPS, SAMPLES = 64, 512, 32
SEARCH_SCALE = 0.125
LONG = 30
"""Steps of the longer run, at the scale of the search."""
ASYNCHRONOUS, APART, TOGETHER = "asynchronous", "synchronous, apart", "synchronous, together"
ENGINES: Mapping[str, Sequence[int]] = {
    ASYNCHRONOUS: (44, 48, 52, 56),
    APART: (36, 44),
    TOGETHER: (DEVICES,),
}
"""The splits that are searched first, then those with two engines less and more than the best."""
SPLITS = range(40, 61, 2)
"""Engines of the asynchronous runs for which the bound is computed: all that the search may come to."""
STALENESS: Mapping[str, Sequence[int]] = {ASYNCHRONOUS: (1, 2), APART: (0,), TOGETHER: (0,)}
POLICIES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("predictive", {}),
    ("margin", {"margin": 4, "concurrency": 100}),
    ("margin", {"margin": 4, "concurrency": 160}),
    ("margin", {"margin": 8, "concurrency": None}),
)


class Way(NamedTuple):
    """A way to use the devices. ``settings`` are those of the policy, as pairs."""

    form: str
    engines: int
    staleness: int
    policy: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def text(self) -> str:
        """The policy with its settings."""
        return " ".join([self.policy, *(f"{name}={value}" for name, value in self.settings)])


class Made(NamedTuple):
    """Seconds of a run, of its training alone, and shares of the makespan in which engines and learner do nothing."""

    makespan_s: float
    training_s: float
    engines_idle: float
    learner_idle: float


def ways(form: str) -> list[Way]:
    """All ways of this form that are searched first."""
    return [
        Way(form, count, staleness, policy, tuple(settings.items()))
        for count in ENGINES[form]
        for staleness in STALENESS[form]
        for policy, settings in POLICIES
    ]


def trace_of(way: Way, seed: int, scale: float, steps: int = STEPS) -> Trace:
    """The trace `paper` on the devices of this way."""
    count = max(1, round(way.engines * scale))
    groups = max(1, round(GROUPS * count / way.engines))
    made = trace("paper", seed, fleet(count, mi300x()), groups, SAMPLES)
    training = DEVICES if way.form == TOGETHER else DEVICES - way.engines
    model = learner(training * count / way.engines)
    if way.form == TOGETHER:
        model = replace(model, publish_s=0.0, pause_s=0.0)
    repeated = (made.groups * -(-steps // STEPS))[: steps * groups]
    return replace(made, max_staleness=way.staleness, learner=model, steps=steps, groups=repeated)


def run(way: Way, seed: int, scale: float, steps: int = STEPS) -> Made:
    """Simulate the way."""
    return _run(trace_of(way, seed, scale, steps), way)


def rollout_alone(way: Way, seed: int, scale: float, steps: int = STEPS) -> float:
    """Seconds that the engines take for all rollouts when all are open from the start, and training takes no time."""
    made = trace_of(way, seed, scale, steps)
    instant = replace(made.learner, tokens_per_s=1e18, publish_s=0.0, pause_s=0.0)
    return _run(replace(made, max_staleness=steps, learner=instant), way).makespan_s


def _run(made: Trace, way: Way) -> Made:
    spec = ALL[way.policy]
    outcome = Simulator(made, spec.make(**dict(way.settings)), evicts_half=spec.evicts_half).run()
    return Made(outcome.makespan_s, outcome.learner_busy, outcome.idle_share, outcome.learner_idle_share)


def least(seed: int, scale: float, steps: int = STEPS) -> float:
    """Seconds that no asynchronous run undercuts, with any of ``SPLITS`` and of the staleness budgets."""
    return min(
        lower_bound(trace_of(Way(ASYNCHRONOUS, engines, max(STALENESS[ASYNCHRONOUS]), "", ()), seed, scale, steps))
        for engines in SPLITS
    )


def measured(pool: Executor, seeds: Sequence[int], scale: float) -> dict[str, float]:
    """Search the ways, print them, and give the figures."""
    seed, small = TRAINING_SEEDS[0], min(scale, SEARCH_SCALE)
    best: dict[str, Way] = {}
    table: list[list[object]] = []
    for form in ENGINES:
        found = _searched(pool, ways(form), seed, small, STEPS)
        if form != TOGETHER:
            found = sorted(found + _searched(pool, _beside(found[0][0]), seed, small, STEPS), key=_makespan)
        best[form] = found[0][0]
        table += [
            [form, way.engines, way.staleness, way.text, made.makespan_s, made.engines_idle, made.learner_idle]
            for way, made in found[:5]
        ]
    header = ["", "engines", "staleness", "policy", "makespan s", "engines idle", "learner idle"]
    print_table(f"the best five of each form: {STEPS} steps, seed {seed}, scale {small:g}", header, table)
    splits = [best[ASYNCHRONOUS], *_beside(best[ASYNCHRONOUS])]
    longer = {ASYNCHRONOUS: _searched(pool, splits, seed, small, LONG)[0][0], TOGETHER: best[TOGETHER]}
    figures = _judged(pool, best, seeds, scale, STEPS)
    long = _judged(pool, longer, seeds[:1], small, LONG)
    return figures | {f"{name}_{LONG}": value for name, value in long.items()}


def _beside(way: Way) -> list[Way]:
    """The same with two engines less, and with two more."""
    return [way._replace(engines=way.engines + by) for by in (-2, 2)]


def _makespan(each: tuple[Way, Made]) -> float:
    return each[1].makespan_s


def _searched(pool: Executor, tried: Sequence[Way], seed: int, scale: float, steps: int) -> list[tuple[Way, Made]]:
    jobs = [pool.submit(run, way, seed, scale, steps) for way in tried]
    found = [(way, job.result()) for way, job in zip(tried, jobs, strict=True)]
    return sorted(found, key=_makespan)


def _judged(
    pool: Executor, best: Mapping[str, Way], seeds: Sequence[int], scale: float, steps: int
) -> dict[str, float]:
    """The best ways on these seeds: a table, and the figures, which are of means."""

    def mean(function: Callable[..., Any], *arguments: object) -> tuple[float, ...]:
        made = [job.result() for job in [pool.submit(function, *arguments, seed, scale, steps) for seed in seeds]]
        rows = [each if isinstance(each, tuple) else (each,) for each in made]
        return tuple(statistics.fmean(column) for column in zip(*rows, strict=True))

    runs = {form: Made(*mean(run, way)) for form, way in best.items()}
    synchronous = min(made.makespan_s for form, made in runs.items() if form != ASYNCHRONOUS)
    (alone,), (bound,) = mean(rollout_alone, best[ASYNCHRONOUS]), mean(least)
    asynchronous = runs[ASYNCHRONOUS]
    header = ["", "engines", "staleness", "policy", "makespan s", "training alone s", "engines idle", "learner idle"]
    rows: list[list[object]] = [
        [form, best[form].engines, best[form].staleness, best[form].text, *made] for form, made in runs.items()
    ]
    print_table(f"64 devices: {steps} steps, {len(seeds)} seeds, scale {scale:g}", header, rows)
    return {
        "overlap.async_over_sync": synchronous / asynchronous.makespan_s,
        "overlap.most_over_sync": synchronous / bound,
        "overlap.share_of_bound": max(alone, asynchronous.training_s) / asynchronous.makespan_s,
        "overlap.asynchronous_s": asynchronous.makespan_s,
        "overlap.synchronous_s": synchronous,
        "overlap.rollout_alone_s": alone,
        "overlap.training_alone_s": asynchronous.training_s,
        "overlap.least_s": bound,
    }
