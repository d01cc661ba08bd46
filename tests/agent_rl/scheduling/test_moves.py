"""Rollouts that go on elsewhere, or wait, because the policy says so: at the end of a turn, with all turns, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from agent_rl.messages import CompletedTurn, TurnsCompleted
from agent_rl.scheduling.instructions import Assign, Unwanted
from agent_rl.scheduling.kept_turns import KeptTurns
from agent_rl.scheduling.policies.base import Decision, Drop, EngineFacts, Hold, Placement, PlacementPolicy, WaitingTurn
from tests import builders
from tests.agent_rl.scheduling.test_kept_turns import history
from tests.agent_rl.scheduling.world import World, progress

A, B = "gen.0", "gen.1"
ROLLOUT = "s0-g000000/0/0"


class Told(PlacementPolicy):
    """Places first turns on A. What becomes of later turns, the test says."""

    def __init__(self) -> None:
        self.waiting: dict[str, WaitingTurn] = {}
        self.next: list[Decision] = []
        self.ended: list[str] = []
        self.dropped: list[str] = []
        self.gone: list[str] = []

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        pass

    def engine_gone(self, engine: str, now: float) -> None:
        self.gone.append(engine)

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        self.waiting[turn.rollout] = turn

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        self.ended.append(rollout)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        self.dropped.append(rollout)

    def decide(self, now: float) -> list[Decision]:
        first = [Placement(rollout, A) for rollout, turn in self.waiting.items() if not turn.kept_on and not turn.turn]
        decisions, self.next = [*first, *self.next], []
        for decision in decisions:
            self.waiting.pop(decision.rollout, None)
        return decisions


class Moving(World):
    """Two rollouts on A, and B, which is idle."""

    def __init__(self, policy: Told | None = None) -> None:
        self.policy = policy or Told()
        algorithm = {"groups_per_step": 1, "samples": 2, "max_staleness": 0}
        super().__init__(policy=self.policy, algorithm=algorithm, kept=KeptTurns(10**6))
        self.begin(A, B)

    def completes(self, count: int, *, left: bool = False, move: int = 0) -> None:
        """A completes the rollout's turn of this number."""
        turns = tuple(history(*range(1, count + 1))[count - 1 :]) if count else ()
        self.turns_completed(TurnsCompleted(ROLLOUT, A, turns, "left" if left else "writes", move))

    @property
    def unwanted(self) -> Unwanted:
        """What A was told last."""
        for_a = [each for each in self.told if each.generator in {None, A}]
        return replace(for_a[-1], generator=None) if for_a else Unwanted(())

    @property
    def last(self) -> Assign:
        return self.place(ROLLOUT)


def test_a_turn_that_is_placed_elsewhere_moves_its_rollout_with_all_turns() -> None:
    world = Moving()
    first = world.last
    world.policy.next = [Placement(ROLLOUT, B)]
    world.completes(1)
    assert world.unwanted.held == {ROLLOUT: 0}
    assert world.last is first, "it was placed before its generator had let go of it"
    world.completes(2, left=True)
    waiting = world.policy.waiting[ROLLOUT]
    assert (waiting.turn, waiting.kept_on, waiting.context) == (2, "", 16), "the policy is asked with what it is now"
    assert world.scheduler.figures.rollouts_pending == 1
    world.policy.next = [Placement(ROLLOUT, B)]
    world.engine_load(builders.engine_load(B, used=100))
    assert (world.last.generator, world.last.request.move) == (B, 1)
    assert [turn.number for turn in world.scheduler.with_turns(world.last.request).turns] == [1, 2]
    assert world.unwanted == Unwanted(())
    assert world.scheduler.acknowledged(first) == [], "the former generator's acknowledgement is no trajectory"
    assert world.scheduler.figures.rollouts_in_flight == 2
    world.acknowledged(world.last)
    assert world.policy.ended == [ROLLOUT]
    assert world.scheduler.figures.rollouts_in_flight == 1
    assert world.scheduler.figures.rollouts_moved == 1
    assert not world.faults


def test_only_its_generator_hears_of_a_rollout_that_it_shall_let_go_of() -> None:
    world = Moving()
    world.policy.next = [Placement(ROLLOUT, B)]
    world.completes(1)
    assert [(each.generator, each.held) for each in world.told] == [(A, {ROLLOUT: 0})]
    group, other = ROLLOUT.partition("/")[0], next(p.request for p in world.placed if p.request.rollout != ROLLOUT)
    dropped = progress(dropped_groups=(group,))
    world.progress(dropped)
    world.engine_heard(A)
    assert [(each.generator, each.groups) for each in world.told[1:]] == [(None, (group,)), (A, (group,))], (
        "what all are told ends what one was told, so that one is told again"
    )
    assert world.unwanted.held == {ROLLOUT: 0}
    for rollout in (ROLLOUT, other.rollout):
        world.rollout_done(rollout)
    assert [(each.generator, each.groups, each.held) for each in world.told[3:]] == [(A, (group,), {}), (None, (), {})]


def test_a_turn_that_stays_costs_no_message() -> None:
    world = Moving()
    before = len(world.told)
    world.policy.next = [Placement(ROLLOUT, A)]
    world.completes(1)
    assert len(world.told) == before
    assert world.scheduler.figures.rollouts_moved == 0


def test_a_turn_that_the_policy_lets_wait_is_let_go_of_and_resumed_later() -> None:
    world = Moving()
    world.completes(1)
    assert world.unwanted.held == {ROLLOUT: 0}
    waiting = world.policy.waiting[ROLLOUT]
    assert (waiting.turn, waiting.kept_on, waiting.context, waiting.kept) == (1, A, 13, 13)
    world.completes(2, left=True)
    assert world.scheduler.figures.rollouts_pending == 1
    world.policy.next = [Placement(ROLLOUT, A)]
    world.engine_load(builders.engine_load(A, used=100))
    assert (world.last.generator, world.last.request.move) == (A, 1)
    assert world.scheduler.figures.rollouts_pending == 0
    assert not world.faults


def test_a_hold_within_a_turn_is_carried_out_at_its_end_unless_the_turn_is_placed_again() -> None:
    world = Moving()
    for resumed in (True, False):
        world.policy.next = [Hold(ROLLOUT)]
        world.engine_load(builders.engine_load(A, used=100 + 100 * resumed))
        assert world.unwanted.held == {ROLLOUT: 0}
        if resumed:
            world.policy.next = [Placement(ROLLOUT, A)]
            world.engine_load(builders.engine_load(A, used=300))
            assert world.unwanted.held == {}
    world.completes(1, left=True)
    assert world.scheduler.figures.rollouts_pending == 1
    assert not world.faults


def test_a_rollout_that_ends_before_it_is_let_go_of_is_done() -> None:
    for destination, heard in ((B, "ended"), ("", "dropped")):
        world = Moving()
        world.policy.next = [Placement(ROLLOUT, destination)] if destination else []
        world.completes(1)
        world.acknowledged(world.last)
        assert getattr(world.policy, heard) == [ROLLOUT]
        assert world.unwanted == Unwanted(())
        assert world.scheduler.figures.rollouts_in_flight == 1
        assert not world.faults


def test_a_rollout_whose_destination_is_lost_waits_for_another() -> None:
    world = Moving()
    world.policy.next = [Placement(ROLLOUT, B)]
    world.completes(1)
    world.engine_gone(B)
    assert world.policy.waiting[ROLLOUT].kept_on == A
    world.completes(2, left=True)
    assert world.scheduler.figures.rollouts_pending == 1
    world.policy.next = [Placement(ROLLOUT, A)]
    world.engine_load(builders.engine_load(A, used=100))
    assert (world.last.generator, world.last.request.move) == (A, 1)
    assert not world.faults


def test_a_rollout_whose_generator_is_lost_while_it_is_held_moves_as_any_other() -> None:
    world = Moving()
    world.policy.next = [Placement(ROLLOUT, B)]
    world.turns_completed(says("writes", 80, *history(1)))
    world.engine_gone(A)
    assert world.withdrawn == [A]
    waiting = world.policy.waiting[ROLLOUT]
    assert (waiting.turn, waiting.context) == (1, 13), "what its engine had counts"
    world.policy.next = [Placement(ROLLOUT, B), Placement("s0-g000000/1/0", B)]
    world.engine_load(builders.engine_load(B, used=100))
    assert (world.last.generator, world.last.request.move) == (B, 1)
    assert world.unwanted.held == {}


def test_a_held_rollout_of_a_dropped_group_is_cancelled_and_does_not_go_on() -> None:
    world = Moving()
    world.completes(1)
    world.progress(progress(dropped_groups=("s0-g000000",)))
    world.completes(2, left=True)
    assert world.policy.dropped == [ROLLOUT]
    assert world.scheduler.figures.rollouts_pending == 0
    assert world.scheduler.figures.rollouts_in_flight == 1


def test_an_earlier_copy_that_is_let_go_of_changes_nothing() -> None:
    world = Moving()
    world.policy.next = []
    world.completes(1)
    world.completes(2, left=True)
    world.policy.next = [Placement(ROLLOUT, A)]
    world.engine_load(builders.engine_load(A, used=100))
    placed = world.last
    world.completes(2, left=True)
    assert world.last is placed
    assert world.scheduler.current(placed)


class Hears(Told):
    """Writes down what it is told, and ``drops`` the prefix of every rollout whose tools run."""

    def __init__(self, *, drops: bool = True) -> None:
        super().__init__()
        self.drops = drops
        self.heard: list[tuple[object, ...]] = []

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        self.heard.append(("tools", rollout, context))
        if self.drops:
            self.next.append(Drop(rollout))

    def turn_preempted(self, rollout: str, now: float) -> None:
        self.heard.append(("preempted", rollout))

    def weights_updated(self, engine: str, version: int, now: float, *, kept: bool) -> None:
        self.heard.append(("weights", engine, version, kept))

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        super().rollout_ended(rollout, context, now)
        self.heard.append(("ended", rollout, context))


def says(then: Literal["writes", "waits", "left", "ended"], tokens: int, *turns: CompletedTurn) -> TurnsCompleted:
    return TurnsCompleted(ROLLOUT, A, turns, then, tokens=tokens)


def test_the_policy_hears_of_tools_and_what_it_drops_is_freed_until_they_have_answered() -> None:
    world = Moving(policy := Hears())
    world.turns_completed(says("waits", 77))
    assert policy.heard == [("tools", ROLLOUT, 77)]
    assert world.unwanted.freed == {ROLLOUT: 77}
    world.turns_completed(says("writes", 80, *history(1)))
    assert world.unwanted.freed == {}
    waiting = policy.waiting[ROLLOUT]
    assert (waiting.context, waiting.kept, waiting.kept_on) == (80, 0, ""), "what was freed counts as cached"
    assert len(policy.heard) == 1, "the end of one turn was told twice"
    assert not world.faults


def test_the_policy_learns_the_tokens_that_a_rollout_has_at_its_end_and_nothing_of_one_without_result() -> None:
    for tokens, heard in ((123, [("ended", ROLLOUT, 123)]), (0, [])):
        world = Moving(policy := Hears())
        world.turns_completed(says("ended", tokens))
        world.acknowledged(world.last)
        assert policy.heard == heard
        assert policy.dropped == ([] if tokens else [ROLLOUT])


def test_the_policy_hears_which_turns_are_preempted() -> None:
    world = Moving(policy := Hears())
    load = builders.engine_load(A)
    for preempted, preemptions in ((1, {ROLLOUT: 1}), (2, {ROLLOUT: 1, "elsewhere": 1}), (3, {ROLLOUT: 2})):
        world.engine_load(replace(load, preempted=preempted, preemptions=preemptions))
    assert policy.heard == [("preempted", ROLLOUT)] * 2


@pytest.mark.parametrize("kept", [True, False])
def test_new_weights_leave_a_cached_prefix_valid_only_where_the_engine_says_so(kept: bool) -> None:
    world = Moving(policy := Hears(drops=False))
    world.turns_completed(says("waits", 77))
    world.policy_published(builders.published(1))
    world.engine_load(replace(builders.engine_load(A, version=1), kv_kept=kept))
    assert policy.heard[-1] == ("weights", A, 1, kept)
    world.turns_completed(says("writes", 80, *history(1)))
    assert policy.waiting[ROLLOUT].kept_on == (A if kept else "")
