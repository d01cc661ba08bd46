"""A policy can be unwise, never unsafe: what the guard contains, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from agent_rl.config.plugins import ContractError
from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, WaitingTurn
from agent_rl.scheduling.policies.guard import AT_LEAST, PATIENCE, Guarded


class Scripted(PlacementPolicy):
    """Returns what a test puts into ``next``, and remembers what it is told."""

    def __init__(self) -> None:
        self.next: list[Placement] = []
        self.placed: list[tuple[str, str]] = []
        self.facts: list[EngineFacts] = []

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        self.facts.append(facts)

    def turn_placed(self, rollout: str, engine: str, now: float) -> None:
        self.placed.append((rollout, engine))

    def decide(self, now: float) -> Iterable[Placement]:
        given, self.next = self.next, []
        return given


def turn(rollout: str = "r", **changes: Any) -> WaitingTurn:
    return WaitingTurn(rollout, "g", "p", 0, 0, 10, 10, 100)._replace(**changes)


def guarded(*engines: str) -> tuple[Guarded, Scripted]:
    policy = Scripted()
    guard = Guarded(policy)
    for engine in engines:
        guard.engine_reported(EngineFacts(engine, 1000, 0, 0, 0, 8), 0.0)
    return guard, policy


def test_a_policy_that_never_stops_deciding_is_cut_off():
    class Endless(PlacementPolicy):
        def decide(self, now: float) -> Iterable[Placement]:
            while True:
                yield Placement("s", "a")

    guard = Guarded(Endless())
    guard.turn_waits(turn(), 0.0)
    assert guard.decide(0.0) == []
    assert guard.faults == {"decisions_endless": 1, "rollout_unknown": 2 + AT_LEAST}


@pytest.mark.parametrize(
    ("given", "safe", "faults"),
    [
        ([("r", "b", 50.0)], [("r", "b", 50.0)], {}),
        *(
            ([("s", "a", 0.0), ("r", engine, 0.0)], [("s", "a", 0.0), ("r", "b", 0.0)], {"engine_unknown": 1})
            for engine in ("nowhere", "draining", "gone")  # the least loaded takes it
        ),
        *(([("r", "a", need)], [("r", "a", 100.0)], {"need_not_finite": 1}) for need in (math.nan, math.inf, -1.0)),
        ([("other", "a", 0.0), ("r", "a", 0.0), ("r", "a", 0.0)], [("r", "a", 0.0)], {"rollout_unknown": 2}),
        ([], [("r", "a", 100.0)], {"rollout_starved": 1}),  # nothing runs: the first that waits is placed
    ],
)
def test_a_decision_is_made_safe_and_what_was_unsafe_is_counted(given, safe, faults):
    guard, policy = guarded("a", "b", "draining", "gone")
    guard.engine_draining("draining", 0.0)
    guard.engine_gone("gone", 0.0)
    guard.turn_waits(turn("r"), 0.0)
    guard.turn_waits(turn("s"), 0.0)
    policy.next = [Placement(*each) for each in given]
    assert guard.decide(0.0) == [Placement(*each) for each in safe]
    assert guard.faults == faults
    assert policy.placed == [place[:2] for place in safe if faults.keys() & {"engine_unknown", "rollout_starved"}][-1:]


def test_a_turn_that_is_overtaken_again_and_again_is_placed():
    guard, policy = guarded("a", "b")
    guard.turn_waits(turn("old"), 0.0)
    overtaken = 0
    while True:
        guard.turn_waits(turn(f"new {overtaken}"), 0.0)
        policy.next = [Placement(f"new {overtaken}", "a")]
        decisions = guard.decide(0.0)
        if len(decisions) > 1:
            break
        overtaken += 1
        guard.rollout_ended(f"new {overtaken - 1}", 20, 0.0)
    assert decisions[1] == Placement("old", "b", 100.0)
    assert overtaken == AT_LEAST + 2 * PATIENCE == 64 + 2 * 3
    assert guard.faults == {"rollout_starved": 1}


def test_rollouts_that_lost_their_engine_overtake_nobody():
    guard, policy = guarded("a")
    guard.turn_waits(turn("old"), 0.0)
    for number in range(200):
        guard.turn_waits(turn("new", turn=number), 0.0)
        policy.next = [Placement("new", "a")]
        assert len(guard.decide(0.0)) == 1


@pytest.mark.parametrize("leaves", ["rollout_ended", "rollout_dropped", "turn_waits"])
def test_a_rollout_that_has_left_its_engine_loads_it_no_more(leaves):
    guard, policy = guarded("a", "b")
    for name, engine in (("r", "a"), ("s", "a"), ("t", "b")):
        guard.turn_waits(turn(name), 0.0)
        guard.turn_placed(name, engine, 0.0)
    for name in "rs":
        guard.turn_ended(name, 20, 0.0)
        given = {"turn_waits": (turn(name),), "rollout_dropped": (name,)}.get(leaves, (name, 20))
        getattr(guard, leaves)(*given, 0.0)
    guard.turn_waits(turn("new"), 0.0)
    policy.next = [Placement("new", "nowhere")]
    assert guard.decide(0.0) == [Placement("new", "a")]


def test_rollouts_whose_tools_run_are_no_idleness():
    guard, _ = guarded("a")
    guard.turn_waits(turn("r"), 0.0)
    guard.turn_placed("r", "a", 0.0)
    guard.turn_ended("r", 20, 0.0)
    guard.turn_waits(turn("new"), 0.0)
    assert guard.decide(0.0) == []
    guard.rollout_ended("r", 20, 0.0)
    assert guard.decide(0.0) == [Placement("new", "a", 100.0)]


def test_first_come_first_served_starves_nobody():
    guard, policy = guarded("a")
    for number in range(1000):
        guard.turn_waits(turn(f"{number}"), 0.0)
    for number in range(1000):
        policy.next = [Placement(f"{number}", "a")]
        assert len(guard.decide(0.0)) == 1
    assert not guard.faults


def test_an_engine_that_reports_more_kv_than_it_has_is_cut_to_what_is_possible():
    guard, policy = guarded("a")
    guard.engine_reported(EngineFacts("a", 1000, 1500, -1, 0, 8), 1.0)
    assert policy.facts[-1] == EngineFacts("a", 1000, 1000, 0, 0, 8)
    assert guard.faults == {"engine_overfull": 1}


def test_with_no_engine_a_turn_waits_until_one_joins():
    guard, policy = guarded()
    guard.turn_waits(turn(), 0.0)
    policy.next = [Placement("r", "a")]
    assert guard.decide(0.0) == []
    guard.engine_reported(EngineFacts("a", 1000, 0, 0, 0, 8), 1.0)
    assert guard.decide(1.0) == [Placement("r", "a", 100.0)]


def test_an_exception_of_a_policy_names_it_and_the_place():
    class Broken(PlacementPolicy):
        def decide(self, now: float) -> Iterable[Placement]:
            raise KeyError("lost")

    guard = Guarded(Broken())
    with pytest.raises(
        ContractError, match=r"Broken\.decide fails with KeyError: 'lost' \(test_policy_guard\.py, line"
    ):
        guard.decide(0.0)
