"""The benchmark of decisions measures what it says: engines stay full, groups end, steps are trained, groups drop."""

from __future__ import annotations

import pytest

from benchmarks.scheduler_decisions import SAMPLES, Fleet, Size, dropping, event_us, quiet_load_us

SIZE = Size(engines=4, rollouts=256)


def test_each_end_is_one_placement_and_engines_stay_full() -> None:
    fleet = Fleet(SIZE, "worst_case")
    full = fleet.in_flight
    assert full >= 0.9 * SIZE.rollouts
    placed = fleet.placed
    for _ in range(1000):
        fleet.end_one()
    assert fleet.placed - placed >= 1000 - SAMPLES
    assert fleet.in_flight >= 0.9 * full
    assert fleet.scheduler.figures.groups_opened > 2 * SIZE.groups


def test_a_dropped_group_leaves_what_waits() -> None:
    fleet = Fleet(SIZE, "worst_case", waiting=2 * SIZE.groups)
    waiting = fleet.scheduler.figures.rollouts_pending
    fleet.progress("s0-g000015")
    assert fleet.scheduler.figures.rollouts_pending == waiting - SAMPLES
    fleet.progress("s0-g000015", "s0-g000014")
    assert fleet.scheduler.figures.rollouts_pending == waiting - 2 * SAMPLES


@pytest.mark.parametrize("policy", ["worst_case", "predictive"])
def test_all_figures_are_measured(policy: str) -> None:
    assert event_us(SIZE, policy, 10) > 0
    assert quiet_load_us(SIZE, policy, 10) > 0
    assert dropping(SIZE, policy, 10).event_us > 0
