"""Each policy does what its design note says."""

import math
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.plugins import PluginError, resolve
from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.check import check_policy
from agent_rl.scheduling.policies.starts import LATE, LEAST_S, Starts
from agent_rl.scheduling.policies.sticky import FADES_AFTER, Loads, Sticky
from agent_rl.scheduling.policies.worst_case import WorstCase

POLICIES = {"sticky": Sticky, "worst_case": WorstCase}


def turn(rollout: str, **changes: Any) -> WaitingTurn:
    return WaitingTurn(rollout, rollout.partition("/")[0], rollout.partition("/")[0], 0, 0, 10, 10, 400)._replace(
        **changes
    )


def with_engines(name: str, *engines: str, kv: int = 1000, rows: int = 8, **settings: Any) -> PlacementPolicy:
    policy = POLICIES[name](**settings)
    policy.begin(Setting(4, 2))
    for engine in engines:
        policy.engine_reported(EngineFacts(engine, kv, 0, 0, 0, rows), 0.0)
    return policy


def engines_of(placements: Iterable[Placement]) -> list[str]:
    return [placement.engine for placement in placements]


def start(policy: PlacementPolicy, *rollouts: str, now: float = 0.0, **changes: Any) -> list[str]:
    for rollout in rollouts:
        policy.turn_waits(turn(rollout, **changes), now)
    return engines_of(policy.decide(now))


@pytest.mark.parametrize("name", POLICIES)
def test_a_topology_may_name_each_policy_and_none_decides_what_is_unsafe(name):
    assert resolve("scheduling_policy", name) is POLICIES[name]
    check_policy(POLICIES[name]())


def test_the_error_about_a_policy_that_has_left_names_those_there_are():
    with pytest.raises(PluginError, match=r"'predictive' is no scheduling policy; .*there is sticky, worst_case"):
        resolve("scheduling_policy", "predictive")


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_placed_without_an_engine_and_everything_with_one(name):
    policy = with_engines(name)
    assert start(policy, "g/0") == []
    policy.engine_reported(EngineFacts("a", 1000, 0, 0, 0, 8), 10.0)
    assert engines_of(policy.decide(10.0)) == ["a"]
    assert list(policy.decide(20.0)) == []


@pytest.mark.parametrize("name", POLICIES)
def test_a_rollout_that_lost_its_engine_goes_on_elsewhere_before_new_ones(name):
    policy = with_engines(name, "a", "b")
    (engine,) = start(policy, "g/0")
    policy.turn_ended("g/0", 50, 1.0)
    policy.engine_gone(engine, 1.0)
    policy.turn_waits(turn("h/0"), 1.0)
    policy.turn_waits(turn("g/0", turn=1, context=50), 1.0)
    placed = list(policy.decide(10.0))
    assert [placement.rollout for placement in placed] == ["g/0", "h/0"]
    assert set(engines_of(placed)) == {"b" if engine == "a" else "a"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_draining_engine_that_reports_again_takes_rollouts_again(name):
    policy = with_engines(name, "a")
    start(policy, "g/0")
    policy.engine_draining("a", 2.0)
    assert start(policy, "g/1", now=10.0) == []
    policy.engine_reported(EngineFacts("a", 1000, 0, 0, 0, 8), 30.0)
    assert engines_of(policy.decide(30.0)) == ["a"]


def test_sticky_starts_more_than_worst_case_once_it_knows_the_lengths():
    policy = with_engines("sticky", "a", kv=4000, rows=1000)
    policy.begin(Setting(samples=100, groups_per_step=1))
    for number in range(200):
        start(policy, f"g{number}/0")
        policy.rollout_ended(f"g{number}/0", 80 + number % 40, 0.0)
    assert len(start(policy, *(f"h{n}/0" for n in range(100)))) > 30  # worst case: ten of 400


def test_sticky_starts_little_of_the_youngest_batch_beside_the_oldest_one_and_all_that_is_evaluated():
    """Engines have room for all. A step of 20 rollouts, one step ahead: 22 train at once; late samples are no more."""
    policy = with_engines("sticky", "a", kv=1_000_000, rows=1000)
    policy.begin(Setting(samples=2, groups_per_step=10, max_staleness=1))
    waiting = [f"{group}/{sample}" for group in range(20) for sample in range(2)]
    assert len(start(policy, *waiting)) == 22
    for number in range(50):
        policy.turn_waits(turn(f"e{number}/0", trains=False), 1.0)
    assert len(list(policy.decide(1.0))) == 0  # groups start in their order
    for rollout in waiting[:22]:
        policy.rollout_ended(rollout, 100, 2.0)
    assert len(list(policy.decide(2.0))) == 18 + 50


def test_sticky_starts_all_where_a_step_waits_for_its_own_batch_alone():
    policy = with_engines("sticky", "a", kv=1_000_000, rows=1000)
    policy.begin(Setting(samples=2, groups_per_step=10, max_staleness=0))
    assert len(start(policy, *(f"{group}/{sample}" for group in range(20) for sample in range(2)))) == 40


def test_sticky_starts_a_group_on_idle_engines_though_not_all_its_samples_fit():
    policy = with_engines("sticky", "a", rows=3)
    assert start(policy, *(f"g/{n}" for n in range(4))) == ["a"] * 3
    policy.rollout_ended("g/0", 20, 1.0)
    assert engines_of(policy.decide(1.0)) == ["a"]


def test_sticky_fills_equal_engines_equally_and_counts_what_rollouts_have_become():
    policy = with_engines("sticky", "a", "b", kv=10_000, rows=1000)
    assert start(policy, *(f"{n}/0" for n in range(4))) == ["a", "b", "a", "b"]
    policy.turn_ended("0/0", 200, 1.0)
    assert start(policy, "4/0", "5/0", "6/0", now=2.0) == ["b", "b", "a"]
    policy.turn_ended("1/0", 9000, 3.0)
    assert start(policy, "7/0", now=3.0) == ["a"], "b is full"


def test_sticky_starts_on_the_fastest_engine_and_nothing_on_one_that_is_too_slow():
    """a has rows for 20 rollouts. Full, it needs five times the seconds a token of an empty engine."""
    for slower, on_a, on_b in ((2, 7, 43), (10, 20, 0)):
        policy = with_engines("sticky", "a", "b", kv=1_000_000)
        for now, generated in ((0.0, 0), (10.0, 1000), (20.0, 2000)):
            for engine, tokens in (("a", generated), ("b", generated // slower)):
                policy.engine_reported(EngineFacts(engine, 1_000_000, 0, 1, 0, 20, generated=tokens), now)
        policy.engine_reported(EngineFacts("b", 1_000_000, 0, 1, 0, 1000, generated=2000 // slower), 20.0)
        placed = start(policy, *(f"{n}/0" for n in range(50)), now=20.0, trains=False)
        assert (placed.count("a"), placed.count("b")) == (on_a, on_b)
    policy.engine_gone("a", 21.0)
    for n in range(20):
        policy.turn_waits(turn(f"{n}/0", trains=False), 21.0)
    assert engines_of(policy.decide(21.0))[:20] == ["b"] * 20, "what lost its engine goes on wherever there is room"


def test_the_mean_of_sticky_counts_rollouts_under_way_and_follows_a_policy_that_changes():
    policy = Sticky()
    policy.engine_reported(EngineFacts("a", 10**9, 0, 0, 0, 10**6), 0.0)

    def sample(count: int, tokens: int) -> None:
        for number in range(count):
            start(policy, f"{number}/0")
            policy.rollout_ended(f"{number}/0", 10 + tokens, 0.0)

    start(policy, "long/0", limit=1000)
    assert policy.mean == 300, "before anything has ended, a share of the limit"
    policy.turn_ended("long/0", 1610, 0.0)
    assert policy.mean == 400, "1,600 tokens for 16 rollouts that count as ended"
    sample(int(FADES_AFTER), 100)
    assert policy.mean == pytest.approx(100, rel=0.02)
    sample(4 * int(FADES_AFTER), 200)
    assert policy.mean == pytest.approx(200, rel=0.1)


def test_the_least_load_is_found_after_any_changes():
    source = random.Random(2)
    loads, truth = Loads(), dict[str, float]()
    for step in range(3000):
        name = f"{source.randrange(8)}"
        if source.random() < 0.05 and len(truth) > 1:
            loads.remove(name)
            truth.pop(name, None)
        else:
            truth[name] = source.randrange(50)
            loads.set(name, truth[name])
        assert truth[loads.least()] == min(truth.values()), step


# Groups begin when all their samples are likely to start close together -----------------------------------------------


def sample_of(group: int, sample: int) -> WaitingTurn:
    return turn(f"g{group}/{sample}", sample=sample)


def waiting(groups: int, samples: int) -> Starts:
    starts = Starts()
    for group in range(groups):
        for sample in range(samples):
            starts.add(sample_of(group, sample), 0.0)
    return starts


def test_a_group_begins_when_there_are_places_for_all_its_samples():
    starts = waiting(1, 4)
    assert starts.first(10.0, 3.0) is None
    assert starts.first(10.0, 4.0, 3.0) is None, "no more may train"
    assert starts.first(10.0, 4.0) == (sample_of(0, 0), False)


def test_a_group_that_has_begun_goes_on_and_its_samples_become_late():
    starts = waiting(2, 4)
    starts.started("g0/0", 100.0)
    assert starts.first(100.0, 0.0) == (sample_of(0, 1), False)
    assert starts.first(100.0 + LATE * 100.0, 0.0) == (sample_of(0, 1), True)
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
            policy.turn_waits(sample_of(group, sample), 0.0)
    started = [placement.rollout for placement in policy.decide(0.0)]
    groups = {rollout.partition("/")[0] for rollout in started}
    missing = 4 * len(groups) - len(started)
    assert 0 < missing < 4, "only the last group may lack samples"
    assert not policy.decide(LATE * LEAST_S - 1.0)
    policy.engine_reported(EngineFacts("a", 1020, 0, 0, 0, 64), LATE * LEAST_S)
    assert len(policy.decide(LATE * LEAST_S)) == missing, "late samples fit at present, though not at their longest"
