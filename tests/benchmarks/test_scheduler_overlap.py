"""Asynchronous beside synchronous runs: how 64 devices are shared, and what no asynchronous run undercuts."""

from __future__ import annotations

import pytest

from benchmarks.scheduler_overlap import (
    APART,
    ASYNCHRONOUS,
    ENGINES,
    TOGETHER,
    Way,
    least,
    rollout_alone,
    run,
    trace_of,
    ways,
)
from benchmarks.traces.devices import learner

MARGIN = ("margin", (("concurrency", 100),))


def test_engines_and_learner_share_the_devices() -> None:
    made = trace_of(Way(ASYNCHRONOUS, 48, 1, *MARGIN), 101, 0.0625)
    assert (len(made.engines), made.groups_per_step, made.max_staleness) == (3, 32, 1)
    assert made.learner == learner(1)


def test_together_all_devices_generate_and_then_train() -> None:
    (way,) = [way for way in ways(TOGETHER) if way.policy == "predictive"]
    made = trace_of(way, 101, 1 / 32)
    assert (len(made.engines), made.max_staleness) == (2, 0)
    assert made.learner.tokens_per_s == learner(2).tokens_per_s
    assert made.learner.publish_s == made.learner.pause_s == 0


def test_a_longer_run_repeats_the_groups() -> None:
    way = Way(ASYNCHRONOUS, 64, 1, *MARGIN)
    short, long = trace_of(way._replace(engines=32), 101, 0.04), trace_of(way._replace(engines=32), 101, 0.04, 25)
    assert len(long.groups) == 25 * long.groups_per_step
    assert long.groups[: len(short.groups)] == short.groups == long.groups[len(short.groups) : 2 * len(short.groups)]


@pytest.mark.parametrize("form", [ASYNCHRONOUS, APART, TOGETHER])
def test_each_form_trains_all_steps(form: str) -> None:
    staleness = 1 if form == ASYNCHRONOUS else 0
    way = Way(form, ENGINES[form][0], staleness, *MARGIN)
    made, alone = run(way, 101, 0.015, 2), rollout_alone(way, 101, 0.015, 2)
    assert 0 < made.training_s < made.makespan_s
    assert 0 < alone < made.makespan_s
    if form == ASYNCHRONOUS:
        assert least(101, 0.015, 2) < made.makespan_s
    else:  # nothing overlaps
        assert made.makespan_s > alone + made.training_s
