"""Each opponent does what its docstring says."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rl.scheduling.policies.base import Decision, EngineFacts, Placement, PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.check import check_policy
from benchmarks.scheduling.policies import POLICIES, spec_of


def turn(rollout: str, **changes: Any) -> WaitingTurn:
    return WaitingTurn(rollout, rollout.partition("/")[0], rollout.partition("/")[0], 0, 0, 10, 10, 400)._replace(
        **changes
    )


def with_engines(name: str, *engines: str, kv: int = 1000, **settings: Any) -> PlacementPolicy:
    policy = POLICIES[name].make(**settings)
    policy.begin(Setting(4, 2))
    for engine in engines:
        policy.engine_reported(EngineFacts(engine, kv, 0, 0, 0, 8), 0.0)
    return policy


def engines_of(decisions: Any) -> list[str]:
    return [decision.engine for decision in decisions if isinstance(decision, Placement)]


def start(policy: PlacementPolicy, *rollouts: str, now: float = 0.0, **changes: Any) -> list[str]:
    for rollout in rollouts:
        policy.turn_waits(turn(rollout, **changes), now)
    return engines_of(policy.decide(now))


def again(policy: PlacementPolicy, rollout: str, now: float, **changes: Any) -> list[Decision]:
    """The rollout's turn ends, its tools run, and its next turn waits."""
    policy.turn_ended(rollout, changes.get("context", 50), now)
    policy.turn_waits(turn(rollout, **{"turn": 1, "context": 50, **changes}), now)
    return list(policy.decide(now))


@pytest.mark.parametrize("name", POLICIES)
def test_a_topology_may_name_each_opponent_and_none_decides_what_is_unsafe(name: str) -> None:
    policy = POLICIES[name].policy
    assert spec_of(f"{policy.__module__}:{policy.__name__}").policy is policy
    check_policy(POLICIES[name].make())


def test_static_waits_for_all_before_the_next_turn() -> None:
    policy = with_engines("static", "a", "b")
    assert start(policy, "g/0", "g/1", "g/2") == ["a", "b", "a"]
    assert again(policy, "g/0", 1.0) == []
    assert again(policy, "g/1", 2.0) == []
    policy.rollout_ended("g/2", 60, 3.0)
    assert engines_of(policy.decide(3.0)) == ["a", "b"]


def test_round_robin_and_least_requests_ignore_where_a_rollout_was() -> None:
    assert start(with_engines("round_robin", "a", "b"), "g/0", "g/1", "g/2") == ["a", "b", "a"]
    policy = with_engines("least_requests", "a", "b", concurrency=None)
    assert start(policy, "g/0", "g/1", "g/2") == ["a", "b", "a"]
    assert engines_of(again(policy, "g/0", 1.0)) == ["a"]
    assert start(policy, "g/3") == ["b"]


def test_routers_keep_rollouts_back_beyond_their_concurrency() -> None:
    policy = with_engines("least_requests", "a", "b", concurrency=1)
    assert start(policy, "g/0", "g/1", "g/2") == ["a", "b"]
    assert engines_of(again(policy, "g/0", 1.0)) == ["a"]
    policy.rollout_ended("g/1", 60, 2.0)
    assert engines_of(policy.decide(2.0)) == ["b"]


def test_sticky_least_loaded_stays_and_counts_rollouts_whose_tools_run() -> None:
    policy = with_engines("sticky_least_loaded", "a", "b", concurrency=None)
    assert start(policy, "g/0", "g/1") == ["a", "b"]
    policy.turn_ended("g/0", 50, 1.0)
    assert start(policy, "g/2", "g/3") == ["a", "b"]
    policy.turn_waits(turn("g/0", turn=1, context=50), 2.0)
    assert engines_of(policy.decide(2.0)) == ["a"]


def test_margin_breaks_the_affinity_beyond_the_margin() -> None:
    policy = with_engines("margin", "a", "b", margin=1, concurrency=None)
    assert start(policy, "g/0", "g/1") == ["a", "b"]
    policy.turn_ended("g/1", 50, 1.0)
    policy.turn_ended("g/0", 50, 1.0)
    assert start(policy, "g/2", "g/3", now=1.0) == ["a", "b"]
    policy.rollout_ended("g/3", 50, 1.0)
    policy.turn_waits(turn("g/0", turn=1, context=50), 2.0)
    assert engines_of(policy.decide(2.0)) == ["a"]  # one more than b is within the margin
    policy.turn_waits(turn("g/4"), 2.0)
    policy.turn_waits(turn("g/5"), 2.0)
    assert engines_of(policy.decide(2.0)) == ["b", "b"]


def test_cache_aware_follows_the_prompt_of_a_group_until_the_load_is_out_of_balance() -> None:
    policy = with_engines("cache_aware", "a", "b", absolute=2, relative=1.5, threshold=0.3, concurrency=None)
    assert start(policy, *(f"g/{n}" for n in range(3))) == ["a", "a", "a"]
    assert start(policy, "g/3") == ["b"]
    assert start(policy, "h/0") == ["b"]  # the smallest tree


def test_cost_aware_weighs_the_prefix_against_the_load() -> None:
    policy = with_engines("cost_aware", "a", "b", overlap_weight=1.0, concurrency=None)
    assert start(policy, "g/0", context=160) == ["a"]
    assert start(policy, "h/0", context=320) == ["b"]
    policy.turn_ended("h/0", 480, 1.0)
    assert start(policy, "i/0", context=160) == ["b"]
    kept = turn("h/0", turn=1, context=480, kept_on="b", kept=480)
    policy.turn_waits(kept, 2.0)
    assert engines_of(policy.decide(2.0)) == ["b"]
    policy.turn_ended("h/0", 480, 3.0)
    start(policy, "j/0", context=4800)  # on a
    start(policy, "k/0", context=9600)  # on b, which is dearer than a prefill now
    policy.turn_waits(kept, 4.0)
    assert engines_of(policy.decide(4.0)) == ["a"]


def test_program_aware_pauses_the_smallest_and_resumes_the_largest_first() -> None:
    policy = with_engines("program_aware", "a", interval_s=5.0, acting_weight=1.0)
    assert start(policy, "g/0", "g/1", "g/2", context=200) == ["a", "a", "a"]
    for number, context in enumerate((300, 400, 450)):
        policy.turn_ended(f"g/{number}", context, 1.0)
    assert list(policy.decide(6.0)) == []  # over capacity: g/0 and g/1 are paused
    for number, context in enumerate((300, 400, 450)):
        policy.turn_waits(turn(f"g/{number}", turn=1, context=context), 7.0)
    assert [d.rollout for d in policy.decide(7.0)] == ["g/2"]
    policy.rollout_ended("g/2", 500, 8.0)
    assert [d.rollout for d in policy.decide(20.0)] == ["g/1", "g/0"]
