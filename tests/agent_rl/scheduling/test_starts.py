"""Groups begin when all their samples are likely to start close together."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from agent_rl.scheduling.policies.base import EngineFacts, Placement, Setting, WaitingTurn
from agent_rl.scheduling.policies.predictive import Predictive
from agent_rl.scheduling.policies.starts import LATE, LEAST_S, Starts


def turn(group: int, sample: int) -> WaitingTurn:
    return WaitingTurn(f"g{group}/{sample}", f"g{group}", f"p{group}", sample, 0, 10, 10, 400)


def waiting(groups: int, samples: int, per_step: int = 2) -> Starts:
    starts = Starts()
    starts.begin(Setting(samples, per_step))
    for group in range(groups):
        for sample in range(samples):
            starts.add(turn(group, sample), 100.0, 0.0)
    return starts


def test_a_group_begins_when_there_are_places_for_all_its_samples() -> None:
    starts = waiting(1, 4)
    assert starts.first(10.0, 3.0) is None
    assert starts.first(10.0, 4.0) == (turn(0, 0), False)


def test_a_group_that_has_begun_goes_on_and_its_samples_become_late() -> None:
    starts = waiting(2, 4)
    starts.remove("g0/0", 100.0)
    assert starts.first(100.0, 0.0) == (turn(0, 1), False)
    assert starts.first(100.0 + LATE * 100.0, 0.0) == (turn(0, 1), True)
    for sample in range(1, 4):
        starts.remove(f"g0/{sample}", 100.0)
    assert starts.first(100.0, 0.0) is None
    assert len(starts) == 4


def test_rollouts_that_end_within_the_delay_of_a_group_make_places() -> None:
    starts = waiting(1, 4)
    for end in range(600):
        starts.ended(end / 10)  # ten a second
    assert starts.first(60.0, 0.0) is not None
    assert starts.first(60.0 + 3600.0, 0.0) is None, "what ended long ago says nothing"


@given(
    lengths=st.lists(st.floats(1.0, 1e5), min_size=1, max_size=12),
    dropped=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 2))),
    per_step=st.integers(1, 4),
)
def test_all_start_once_batch_by_batch_and_the_longest_of_a_batch_first(
    lengths: list[float], dropped: set[tuple[int, int]], per_step: int
) -> None:
    starts = Starts()
    starts.begin(Setting(3, per_step))
    for group, length in enumerate(lengths):
        for sample in range(3):
            starts.add(turn(group, sample), length, 0.0)
    for group, sample in dropped:
        starts.remove(f"g{group}/{sample}")
    order: list[str] = []
    while (found := starts.first(LEAST_S, math.inf)) is not None:
        order.append(found[0].rollout)
        starts.remove(found[0].rollout, LEAST_S)
    left = [group for group in range(len(lengths)) if any((group, sample) not in dropped for sample in range(3))]
    begun = sorted(left, key=lambda group: (group // per_step, -lengths[group], group))
    assert order == [f"g{group}/{sample}" for group in begun for sample in range(3) if (group, sample) not in dropped]
    assert len(starts) == 0


def test_predictive_starts_whole_groups_and_a_late_sample_where_it_fits_at_present() -> None:
    policy = Predictive()
    policy.begin(Setting(4, 8))
    policy.engine_reported(EngineFacts("a", 1020, 0, 0, 0, 64), 0.0)
    for group in range(8):
        for sample in range(4):
            policy.turn_waits(turn(group, sample), 0.0)
    started = [decision.rollout for decision in policy.decide(0.0) if isinstance(decision, Placement)]
    groups = {rollout.partition("/")[0] for rollout in started}
    assert len(groups) > 1
    assert len(started) < 32
    missing = 4 * len(groups) - len(started)
    assert 0 < missing < 4, "only the last group may lack samples"
    assert not policy.decide(LATE * LEAST_S - 1.0)
    later = [decision for decision in policy.decide(LATE * LEAST_S) if isinstance(decision, Placement)]
    assert len(later) == missing, "late samples fit at present, though not at their longest"
