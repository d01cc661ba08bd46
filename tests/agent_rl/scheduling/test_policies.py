"""Each policy does what its design note says."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from agent_rl.config.plugins import resolve
from agent_rl.scheduling.policies.base import (
    Decision,
    Drop,
    EngineFacts,
    Placement,
    PlacementPolicy,
    Setting,
    WaitingTurn,
)
from agent_rl.scheduling.policies.check import check_policy
from agent_rl.scheduling.policies.lengths import Lengths
from agent_rl.scheduling.policies.loads import Loads
from agent_rl.scheduling.policies.predictive import Predictive
from agent_rl.scheduling.policies.worst_case import WorstCase

POLICIES = {"predictive": Predictive, "worst_case": WorstCase}


def turn(rollout: str, **changes: Any) -> WaitingTurn:
    return WaitingTurn(rollout, rollout.partition("/")[0], rollout.partition("/")[0], 0, 0, 10, 10, 400)._replace(
        **changes
    )


def with_engines(name: str, *engines: str, kv: int = 1000, **settings: Any) -> PlacementPolicy:
    policy = POLICIES[name](**settings)
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
def test_a_topology_may_name_each_policy_and_none_decides_what_is_unsafe(name: str) -> None:
    assert resolve("scheduling_policy", name) is POLICIES[name]
    check_policy(POLICIES[name]())


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_placed_without_an_engine_and_everything_with_one(name: str) -> None:
    policy = with_engines(name)
    assert start(policy, "g/0") == []
    policy.engine_reported(EngineFacts("a", 1000, 0, 0, 0, 8), 10.0)
    assert engines_of(policy.decide(10.0)) == ["a"]
    assert list(policy.decide(20.0)) == []


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("leaves", ["draining", "gone"])
def test_a_next_turn_leaves_an_engine_that_is_not_here(name: str, leaves: str) -> None:
    policy = with_engines(name, "a", "b")
    (engine,) = start(policy, "g/0")
    (policy.engine_draining if leaves == "draining" else policy.engine_gone)(engine, 1.0)
    assert engines_of(again(policy, "g/0", 10.0)) == ["b" if engine == "a" else "a"]


@pytest.mark.parametrize("name", POLICIES)
def test_a_draining_engine_that_reports_again_takes_turns_again(name: str) -> None:
    policy = with_engines(name, "a")
    start(policy, "g/0")
    policy.turn_ended("g/0", 50, 1.0)
    policy.engine_draining("a", 2.0)
    assert start(policy, "g/1", now=10.0) == []
    policy.turn_waits(turn("g/0", turn=1, context=50), 11.0)
    assert engines_of(policy.decide(20.0)) == []
    policy.engine_reported(EngineFacts("a", 1000, 0, 0, 0, 8), 30.0)
    assert engines_of(policy.decide(30.0)) == ["a", "a"]


def test_worst_case_promises_the_longest_response() -> None:
    policy = with_engines("worst_case", "a", "b")
    assert start(policy, *(f"g/{n}" for n in range(6))) == ["a", "b", "a", "b"]  # two of 400 fit into 1000
    policy.rollout_ended("g/0", 20, 1.0)
    assert engines_of(policy.decide(1.0)) == ["a"]


def test_predictive_starts_more_than_worst_case_once_it_knows_the_lengths() -> None:
    policy = with_engines("predictive", "a", kv=4000)
    policy.begin(Setting(samples=100, groups_per_step=1))
    policy.engine_reported(EngineFacts("a", 4000, 0, 0, 0, 1000), 0.0)
    for number in range(200):
        start(policy, f"g{number}/0")
        policy.rollout_ended(f"g{number}/0", 80 + number % 40, 0.0)
    assert len(start(policy, *(f"h/{n}" for n in range(100)))) > 30  # worst case: ten of 400


def test_predictive_starts_little_of_the_youngest_batch_beside_the_oldest_one_and_all_that_is_evaluated() -> None:
    """Engines have room for all. A step of 20 rollouts, one step ahead: 22 train at once; late samples are no more."""
    policy = with_engines("predictive", "a", kv=1_000_000)
    policy.engine_reported(EngineFacts("a", 1_000_000, 0, 0, 0, 1000), 0.0)
    policy.begin(Setting(samples=2, groups_per_step=10, max_staleness=1))
    waiting = [f"{group}/{sample}" for group in range(20) for sample in range(2)]
    assert len(start(policy, *waiting)) == 22
    for number in range(50):
        policy.turn_waits(turn(f"e{number}/0")._replace(trains=False), 1.0)
    assert len(policy.decide(1.0)) == 0  # groups start in their order
    for rollout in waiting[:22]:
        policy.rollout_ended(rollout, 100, 2.0)
    assert len(policy.decide(2.0)) == 18 + 50


def test_predictive_starts_all_where_a_step_waits_for_its_own_batch_alone() -> None:
    policy = with_engines("predictive", "a", kv=1_000_000)
    policy.engine_reported(EngineFacts("a", 1_000_000, 0, 0, 0, 1000), 0.0)
    policy.begin(Setting(samples=2, groups_per_step=10, max_staleness=0))
    assert len(start(policy, *(f"{group}/{sample}" for group in range(20) for sample in range(2)))) == 40


def test_predictive_moves_a_rollout_to_a_faster_engine_when_that_pays() -> None:
    """b writes ten times as fast as a. A long prefix with little left to write stays: b would have to prefill it."""
    for context, where in ((50, "b"), (199_970, "a")):
        policy = with_engines("predictive", "a", "b", kv=1_000_000)
        for number in range(40):
            at = 1000.0 * number
            for engine, seconds in (("a", 500.0), ("b", 50.0)):
                policy.turn_waits(turn(f"{engine}/{number}", limit=200_000), at)
                policy.turn_placed(f"{engine}/{number}", engine, at)
                policy.rollout_ended(f"{engine}/{number}", 5000, at + seconds)
        policy.turn_waits(turn("h/0", context=context, limit=200_000), 40_000.0)
        policy.turn_placed("h/0", "a", 40_000.0)
        policy.turn_ended("h/0", context + 10, 40_010.0)
        waiting = turn("h/0", turn=1, context=context + 10, limit=200_000, kept_on="a", kept=context + 10)
        policy.turn_waits(waiting, 40_011.0)
        assert engines_of(policy.decide(40_011.0)) == [where]


def test_predictive_counts_the_rollout_itself_where_it_would_move() -> None:
    """a holds 150,000 and 60,000 tokens, b 80,000. With the large rollout b would be as slow as a is, so it stays."""
    for moving, context, where in (("g/0", 150_000, "a"), ("g/1", 60_000, "b")):
        policy = with_engines("predictive", "a", "b", kv=1_000_000)
        for rollout, engine, tokens in (("g/0", "a", 150_000), ("g/1", "a", 60_000), ("g/2", "b", 80_000)):
            policy.turn_waits(turn(rollout, context=tokens, limit=200_000), 0.0)
            policy.turn_placed(rollout, engine, 0.0)
        policy.turn_ended(moving, context, 1.0)
        waiting = turn(moving, turn=1, context=context, limit=200_000, kept_on="a", kept=context)
        policy.turn_waits(waiting, 2.0)
        assert engines_of(policy.decide(2.0)) == [where]


def test_predictive_lets_an_evicted_rollout_wait_while_the_engine_is_overfull() -> None:
    policy = with_engines("predictive", "a")
    for name, context in (("g/0", 600), ("g/1", 600)):
        policy.turn_waits(turn(name, context=context, limit=1000), 0.0)
        policy.turn_placed(name, "a", 0.0)
    policy.turn_ended("g/0", 650, 1.0)
    policy.turn_waits(turn("g/0", turn=1, context=650, limit=1000), 2.0)
    assert engines_of(policy.decide(2.0)) == []
    policy.rollout_ended("g/1", 700, 3.0)
    assert engines_of(policy.decide(3.0)) == ["a"]


def test_predictive_drops_a_prefix_whose_tools_run_too_long() -> None:
    policy = with_engines("predictive", "a", hold_s=60.0)
    start(policy, "g/0")
    policy.turn_ended("g/0", 50, 1.0)
    assert list(policy.decide(60.9)) == []
    assert list(policy.decide(61.0)) == [Drop("g/0")]
    policy.turn_waits(turn("g/0", turn=1, context=50), 70.0)
    assert engines_of(policy.decide(70.0)) == ["a"]


def test_quantiles_hold_on_lengths_of_any_shape() -> None:
    source = random.Random(1)
    for draw in (
        lambda: source.lognormvariate(6, 0.8),
        lambda: 50_000 if source.random() < 0.05 else source.uniform(9000, 11_000),
    ):
        for quantile in (0.5, 0.9):
            lengths = Lengths(quantile)
            assert math.isnan(lengths.coverage)
            for number in range(4000):
                lengths.started(f"{number}", f"{number}", 10, 100_000)
                lengths.ended(f"{number}", 10 + int(draw()))
            assert lengths.coverage == pytest.approx(quantile, abs=0.04)


def test_samples_of_a_problem_and_the_length_so_far_are_evidence() -> None:
    source = random.Random(1)
    lengths = Lengths(0.5, ahead=(0.0, 100.0, 1000.0, 10_000.0))
    for problem in range(300):
        center = source.lognormvariate(7, 0.6)
        for sample in range(8):
            lengths.started(f"{problem}/{sample}", f"{problem}", 10, 100_000)
            lengths.ended(f"{problem}/{sample}", int(center * source.lognormvariate(0, 0.2)))
    lengths.started("new/0", "new", 10, 100_000)
    lengths.started("other/0", "other", 10, 9500)
    unknown = lengths.final("new/0", 10, 100_000)
    for sample in range(1, 5):
        lengths.started(f"new/{sample}", "new", 10, 100_000)
        lengths.ended(f"new/{sample}", 4000)
    assert lengths.final("new/0", 10, 100_000) > 1.3 * unknown
    assert lengths.final("other/0", 9000, 100_000) > 9000
    assert lengths.final("other/0", 9000, 9500) <= 9500
    alive = lengths.survivals("other/0", 500)
    assert alive == sorted(alive, reverse=True)
    assert alive[0] == 1.0


def test_rollouts_that_end_first_do_not_make_the_others_look_short() -> None:
    """100 rollouts run at the same pace and become 1 to 100 thousand tokens long; a tenth of them has ended."""
    lengths = Lengths(0.5)
    for number in range(100):
        lengths.started(f"{number}", f"{number}", 0, 100_000)
    for now in range(1, 11):
        for number in range(now, 100):
            lengths.grew(f"{number}", 1000 * now)
        lengths.ended(f"{now - 1}", 1000 * now)
    lengths.started("new", "new", 0, 100_000)
    assert lengths.final("new", 0, 100_000) > 20_000


def test_the_least_load_is_found_after_any_changes() -> None:
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
