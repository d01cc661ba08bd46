"""The worst-case policy chooses as its rule says, whatever comes, and the guard lets its engines close and open."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.scheduling.policies.base import EngineFacts, Placement, WaitingTurn
from agent_rl.scheduling.policies.guard import Guarded
from agent_rl.scheduling.policies.worst_case import WorstCase

SIZES = (120, 150, 180)
ROWS = 4


def facts(number: int, used: int = 0) -> EngineFacts:
    return EngineFacts(f"e{number}", SIZES[number], used, 0, 0, ROWS)


def turn(rollout: str, limit: int, number: int = 0) -> WaitingTurn:
    return WaitingTurn(rollout, rollout[:1], "p", 0, number, 5, 5, limit)


@dataclass
class Plain:
    """The rule, written down without a thought for its cost."""

    used: dict[str, int] = field(default_factory=dict)
    """What each engine that takes turns uses beyond reservations."""
    sizes: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, dict[str, int]] = field(default_factory=dict)
    first: list[WaitingTurn] = field(default_factory=list)
    others: list[WaitingTurn] = field(default_factory=list)

    def room(self, name: str) -> int:
        held = self.reserved[name]
        return self.sizes[name] - sum(held.values()) - self.used[name] if len(held) < ROWS else 0

    def decide(self) -> list[tuple[str, str]]:
        placed: list[tuple[str, str]] = []
        for order in (self.first, self.others):
            while order:
                limit = order[0].limit
                fitting = [name for name in self.used if 0 < min(limit, self.sizes[name]) <= self.room(name)]
                if not fitting:
                    return placed
                best = min(fitting, key=lambda name: (-self.room(name), len(self.reserved[name]), name))
                self.reserved[best][order[0].rollout] = min(limit, self.sizes[best])
                placed.append((order.pop(0).rollout, best))
        return placed


EVENTS = st.tuples(
    st.sampled_from(["wait"] * 4 + ["end", "end", "placed", "report", "drain", "gone", "drop"]),
    st.integers(0, 2),
    st.sampled_from([10, 30, 30, 60, 90, 120, 200]),
)


@settings(max_examples=100)
@given(st.lists(EVENTS, min_size=20, max_size=80))
def test_it_chooses_as_the_rule_says(events):
    policy, plain = WorstCase(), Plain()
    turns: dict[str, WaitingTurn] = {}
    for index, (event, number, amount) in enumerate(events):
        name = f"e{number}"
        running = [rollout for held in plain.reserved.values() for rollout in held]
        waiting = plain.first + plain.others
        match event:
            case "wait":
                turns[f"r{index}"] = turn(f"r{index}", amount)
                policy.turn_waits(turns[f"r{index}"], 0.0)
                plain.others.append(turns[f"r{index}"])
            case "end" if running:
                rollout = running[amount % len(running)]
                policy.rollout_ended(rollout, 5, 0.0)
                for held in plain.reserved.values():
                    held.pop(rollout, None)
            case "drop" | "placed" if waiting and (event == "drop" or name in plain.reserved):
                rollout = waiting[amount % len(waiting)].rollout
                for order in (plain.first, plain.others):
                    order[:] = [each for each in order if each.rollout != rollout]
                if event == "drop":
                    policy.rollout_dropped(rollout, 0.0)
                else:
                    policy.turn_placed(rollout, name, 0.0)
                    plain.reserved[name][rollout] = min(turns[rollout].limit, SIZES[number])
            case "report":
                used = min(amount, SIZES[number])
                policy.engine_reported(facts(number, used), 0.0)
                plain.sizes[name] = SIZES[number]
                plain.used[name] = max(0, used - sum(plain.reserved.setdefault(name, {}).values()))
            case "drain":
                policy.engine_draining(name, 0.0)
                plain.used.pop(name, None)
            case "gone":
                policy.engine_gone(name, 0.0)
                plain.used.pop(name, None)
                for rollout in plain.reserved.pop(name, {}):
                    policy.turn_waits(turns[rollout], 0.0)
                    plain.first.append(turns[rollout])
        assert [(place.rollout, place.engine) for place in policy.decide(0.0)] == plain.decide()


def test_an_engine_full_of_what_others_placed_is_left_alone():
    policy = Guarded(WorstCase())
    policy.engine_reported(facts(0, used=80), 0.0)
    policy.turn_waits(turn("r", 50), 0.0)
    assert policy.decide(0.0) == []
    policy.engine_reported(facts(0, used=10), 1.0)
    assert policy.decide(1.0) == [Placement("r", "e0", 50.0)]
