"""Rollouts whose generator leaves go on elsewhere, with all turns, once; and what the policy hears of rollouts."""

from __future__ import annotations

from agent_rl.messages import CompletedTurn, TurnsCompleted
from agent_rl.scheduling.instructions import Unwanted
from agent_rl.scheduling.kept_turns import KeptTurns
from agent_rl.scheduling.policies.base import Placement, PlacementPolicy, WaitingTurn
from agent_rl_contract import builders
from tests.agent_rl.scheduling.test_kept_turns import history
from tests.agent_rl.scheduling.world import World, progress

A, B = "gen.0", "gen.1"
ROLLOUT, OTHER = "s0-g000000/0/0", "s0-g000000/1/0"


class Told(PlacementPolicy):
    """Places all that waits on the engine that the test names, and writes down what it is told."""

    def __init__(self) -> None:
        self.waiting: dict[str, WaitingTurn] = {}
        self.engine = A
        self.heard: list[tuple[object, ...]] = []

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        self.waiting[turn.rollout] = turn

    def turn_ended(self, rollout: str, context: int, now: float) -> None:
        self.heard.append(("turn", rollout, context))

    def rollout_ended(self, rollout: str, context: int, now: float) -> None:
        self.heard.append(("ended", rollout, context))

    def rollout_dropped(self, rollout: str, now: float) -> None:
        self.heard.append(("dropped", rollout))

    def decide(self, now: float) -> list[Placement]:
        if not self.engine:
            return []
        waiting, self.waiting = self.waiting, {}
        return [Placement(rollout, self.engine) for rollout in waiting]


class Leaving(World):
    """Two rollouts on A, and B, which is idle."""

    def __init__(self) -> None:
        self.policy = Told()
        algorithm = {"groups_per_step": 1, "samples": 2, "max_staleness": 0}
        super().__init__(policy=self.policy, algorithm=algorithm, kept=KeptTurns(10**6))
        self.begin(A, B)

    def leaves(self, count: int, placement_epoch: int = 0) -> None:
        """A lets go of the rollout after its turn of this number."""
        self.turns_completed(TurnsCompleted(ROLLOUT, A, history(*range(1, count + 1)), "left", placement_epoch))

    @property
    def counts(self) -> tuple[int, int, int]:
        figures = self.scheduler.figures
        return figures.rollouts_in_flight, figures.rollouts_pending, figures.rollouts_moved


def says(tokens: int, *turns: CompletedTurn, over: bool = False) -> TurnsCompleted:
    return TurnsCompleted(ROLLOUT, A, turns, "ended" if over else "goes_on", tokens=tokens)


def test_a_rollout_whose_generator_leaves_goes_on_elsewhere_with_all_turns():
    world = Leaving()
    first, world.policy.engine = world.place(ROLLOUT), ""
    world.engine_draining(A)
    world.turns_completed(says(80, *history(1)))
    assert world.counts == (2, 0, 0), "it goes on where it is until its generator lets go of it"
    world.leaves(2)
    waiting = world.policy.waiting[ROLLOUT]
    assert (waiting.turn, waiting.context, world.counts) == (2, 80, (1, 1, 1))
    assert world.scheduler.figures.kv_promised == 10 + 20, "its engine has room again"
    world.policy.engine = B
    world.engine_load(builders.engine_load(B, used=100))
    last = world.place(ROLLOUT)
    assert (last.generator, last.request.placement_epoch, world.counts) == (B, 1, (2, 0, 1))
    assert [turn.number for turn in world.scheduler.with_turns(last.request).turns] == [1, 2]
    assert world.scheduler.acknowledged(first) == [], "the former generator's acknowledgement is no trajectory"
    assert world.counts == (2, 0, 1)
    assert (world.told, world.faults) == ([], []), "nobody is told to abandon what was let go of"
    world.acknowledged(last)
    assert world.counts == (1, 0, 1)
    assert world.policy.heard[-1][0] == "ended"


def test_a_rollout_that_returns_from_its_lost_generator_and_is_let_go_of_is_abandoned_by_nobody_more():
    world = Leaving()
    world.policy.engine = B
    world.engine_gone(A)
    assert world.told == [Unwanted((), {ROLLOUT: 1, OTHER: 1})]
    world.turns_completed(TurnsCompleted(ROLLOUT, B, history(1), "left", 1))
    assert world.told[-1] == Unwanted((), {OTHER: 1})
    assert (world.place(ROLLOUT).generator, world.place(ROLLOUT).request.placement_epoch) == (B, 2)


def test_a_rollout_of_a_dropped_group_that_is_let_go_of_does_not_go_on():
    world = Leaving()
    world.progress(progress(dropped_groups=("s0-g000000",)))
    world.leaves(1)
    assert world.policy.heard == [("dropped", ROLLOUT)]
    assert world.counts == (1, 0, 0)
    world.rollout_done(OTHER)
    assert world.told == [Unwanted(("s0-g000000",)), Unwanted(())]


def test_an_earlier_copy_that_is_let_go_of_changes_nothing():
    world = Leaving()
    world.leaves(1)
    placed = world.place(ROLLOUT)
    assert placed.request.placement_epoch == 1
    world.leaves(1)
    assert world.place(ROLLOUT) is placed
    assert world.scheduler.current(placed)


def test_the_tokens_that_a_lost_engine_had_are_forgotten_and_those_of_kept_turns_count():
    world = Leaving()
    world.turns_completed(says(80, *history(1)))
    world.policy.engine = ""
    world.engine_gone(A)
    assert world.withdrawn == [A]
    assert (world.policy.waiting[ROLLOUT].turn, world.policy.waiting[ROLLOUT].context) == (1, 13)


def test_the_policy_learns_the_tokens_of_each_turn_and_at_the_end_and_nothing_of_one_without_result():
    for tokens, heard in ((123, ("ended", ROLLOUT, 123)), (0, ("dropped", ROLLOUT))):
        world = Leaving()
        world.turns_completed(says(80, *history(1)))
        world.turns_completed(says(tokens, over=True))
        world.acknowledged(world.place(ROLLOUT))
        assert world.policy.heard == [("turn", ROLLOUT, 80), heard]
