"""Each opponent does what its docstring says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agent_rl.scheduling.policies.base import EngineFacts, Setting, WaitingTurn
from agent_rl.scheduling.policies.check import check_policy
from benchmarks.scheduling.policies import POLICIES, spec_of

NO_LIMIT = {"concurrency": None}
CACHE = {"absolute": 2, "relative": 1.5, "threshold": 0.3} | NO_LIMIT
PROGRAM = {"interval_s": 3.0, "acting_weight": 1.0}


@pytest.mark.parametrize("name", POLICIES)
def test_a_topology_may_name_each_opponent_and_none_decides_what_is_unsafe(name: str) -> None:
    policy = POLICIES[name].policy
    assert spec_of(f"{policy.__module__}:{policy.__name__}").policy is policy
    check_policy(POLICIES[name].make())


@pytest.mark.parametrize(
    ("name", "settings", "story"),
    [
        ("static", {}, "g0 g1 g2 = g0a g1b g2a, g0. g0+ =, g1. g1+ =, g2! = g0a g1b"),  # all, and then the next turn
        ("round_robin", {}, "g0 g1 g2 = g0a g1b g2a"),
        ("least_requests", NO_LIMIT, "g0 g1 g2 = g0a g1b g2a, g0. g0+ = g0a, g3 = g3b"),
        ("least_requests", {"concurrency": 1}, "g0 g1 g2 = g0a g1b, g0. g0+ = g0a, g1! = g2b"),
        ("sticky_least_loaded", NO_LIMIT, "g0 g1 = g0a g1b, g0. g2 g3 = g2a g3b, g0+ = g0a"),
        # One more than b is within the margin.
        (
            "margin",
            {"margin": 1} | NO_LIMIT,
            "g0 g1 = g0a g1b, g1. g0. g2 g3 = g2a g3b, g3! g0+ = g0a, g4 g5 = g4b g5b",
        ),
        # The prompt of a group, until the load is out of balance; then the smallest tree.
        ("cache_aware", CACHE, "g0 g1 g2 = g0a g1a g2a, g3 = g3b, h0 = h0b"),
        # The prefix is dearer than a prefill once k has come to its engine.
        (
            "cost_aware",
            {"overlap_weight": 1.0} | NO_LIMIT,
            "g0:160 = g0a, h0:320 = h0b, h0.320 i0:160 = i0b, h0+480 = h0b, h0.480 j0:4800 = j0a, k0:9600 = k0b, h0+480 = h0a",
        ),
        # Over capacity the smallest are paused, and the largest goes on first.
        (
            "program_aware",
            PROGRAM,
            "g0:200 g1:200 g2:200 = g0a g1a g2a, g0.300 g1.400 g2.450 =, =, g0+300 g1+400 g2+450 = g2a, g2!500 = g1a g0a",
        ),
    ],
)
def test_an_opponent_places_turns_by_its_rule(name: str, settings: dict[str, Any], story: str) -> None:
    """A rollout waits, ends its turn (.), waits again (+) or ends (!), with tokens."""
    policy = POLICIES[name].make(**settings)
    policy.begin(Setting(4, 2))
    for engine in "a" if name == "program_aware" else "ab":
        policy.engine_reported(EngineFacts(engine, 1000, 0, 0, 0, 8), 0.0)
    for number, (events, placed) in enumerate(step.split("=") for step in story.split(",")):
        now = 2.0 * number
        for rollout, group, event, context in re.findall(r"((\w)\d)([:.+!]?)(\d*)", events):
            waits = WaitingTurn(rollout, group, group, 0, 0, 10, 10, 400)
            if event == ".":
                policy.turn_ended(rollout, int(context or 50), now)
            elif event == "!":
                policy.rollout_ended(rollout, int(context or 60), now)
            elif event == "+":
                policy.turn_waits(waits._replace(turn=1, context=int(context or 50)), now)
            else:
                policy.turn_waits(waits._replace(context=int(context or 10)), now)
        decided = [each.rollout + each.engine for each in policy.decide(now)]
        assert decided == placed.split(), story.split(",")[number]
