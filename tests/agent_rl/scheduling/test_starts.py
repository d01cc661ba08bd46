"""Groups begin when all their samples are likely to start close together."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from agent_rl.scheduling.policies.base import EngineFacts, Setting, WaitingTurn
from agent_rl.scheduling.policies.starts import LATE, LEAST_S, Starts
from agent_rl.scheduling.policies.sticky import Sticky


def turn(group: int, sample: int) -> WaitingTurn:
    return WaitingTurn(f"g{group}/{sample}", f"g{group}", f"p{group}", sample, 0, 10, 10, 400)


def waiting(groups: int, samples: int) -> Starts:
    starts = Starts()
    for group in range(groups):
        for sample in range(samples):
            starts.add(turn(group, sample), 0.0)
    return starts


def test_a_group_begins_when_there_are_places_for_all_its_samples():
    starts = waiting(1, 4)
    assert starts.first(10.0, 3.0) is None
    assert starts.first(10.0, 4.0, 3.0) is None, "no more may train"
    assert starts.first(10.0, 4.0) == (turn(0, 0), False)


def test_a_group_that_has_begun_goes_on_and_its_samples_become_late():
    starts = waiting(2, 4)
    starts.started("g0/0", 100.0)
    assert starts.first(100.0, 0.0) == (turn(0, 1), False)
    assert starts.first(100.0 + LATE * 100.0, 0.0) == (turn(0, 1), True)
    for sample in range(1, 4):
        starts.started(f"g0/{sample}", 100.0)
    assert starts.first(100.0, 0.0) is None
    assert len(starts) == 4


def test_rollouts_that_end_within_the_delay_of_a_group_make_places():
    starts = waiting(1, 4)
    for end in range(600):
        starts.ended(end / 10)  # ten a second
    assert starts.first(60.0, 0.0) is not None
    assert starts.first(60.0 + 3600.0, 0.0) is None, "what ended long ago says nothing"


@given(groups=st.integers(1, 12), dropped=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 2))))
def test_all_start_in_the_order_of_opening(groups, dropped):
    starts = waiting(groups, 3)
    for group, sample in dropped:
        starts.remove(f"g{group}/{sample}")
    order: list[str] = []
    while (found := starts.first(LEAST_S, math.inf)) is not None:
        order.append(found[0].rollout)
        starts.started(found[0].rollout, LEAST_S)
    left = [(group, sample) for group in range(groups) for sample in range(3) if (group, sample) not in dropped]
    assert order == [f"g{group}/{sample}" for group, sample in left]
    assert len(starts) == 0


def test_sticky_starts_whole_groups_and_a_late_sample_where_it_fits_at_present():
    policy = Sticky()
    policy.begin(Setting(4, 8))
    policy.engine_reported(EngineFacts("a", 1020, 0, 0, 0, 64), 0.0)
    for group in range(8):
        for sample in range(4):
            policy.turn_waits(turn(group, sample), 0.0)
    started = [placement.rollout for placement in policy.decide(0.0)]
    groups = {rollout.partition("/")[0] for rollout in started}
    missing = 4 * len(groups) - len(started)
    assert 0 < missing < 4, "only the last group may lack samples"
    assert not policy.decide(LATE * LEAST_S - 1.0)
    policy.engine_reported(EngineFacts("a", 1020, 0, 0, 0, 64), LATE * LEAST_S)
    assert len(policy.decide(LATE * LEAST_S)) == missing, "late samples fit at present, though not at their longest"
