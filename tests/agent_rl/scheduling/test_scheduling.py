"""Stories of the scheduler: opening within the budget, placing in the KV cache, restarts, retries, stages."""

from dataclasses import replace

import pytest

from agent_rl.messages import EngineLoad, GroupOpened, GroupsUnfinished, PolicyPublished, Retry, UnfinishedGroup
from agent_rl.scheduling.kept_turns import KeptTurns
from agent_rl_contract import builders
from tests.agent_rl.scheduling.test_kept_turns import ROLLOUT, history, of
from tests.agent_rl.scheduling.world import World, progress, scheduler
from tests.builders import evaluate_stage

ENGINE = "rollout_generator.0"


def test_groups_that_no_step_counts_leave_room_from_the_first_answer_on():
    """Progress that came before the answer is dropped, and nothing may come after it."""
    world = World(algorithm={"groups_per_step": 2, "max_staleness": 0})
    world.policy_published(builders.published())
    world.engine_load(builders.engine_load())
    world.progress(progress(uncounted=2))
    assert (world.asked, world.opened) == ([0], [])
    world.unfinished(GroupsUnfinished(0, 2, (), uncounted=2))
    assert len(world.opened) == 2
    world.unfinished(GroupsUnfinished(0, 0, (), uncounted=2))
    world.progress(progress(uncounted=3))
    assert len(world.opened) == 3


@pytest.mark.parametrize(
    ("load", "prompt", "placed", "opened"),
    [
        ({"total": 100}, 10, 3, 1),  # a rollout needs 10 + 20
        ({"total": 89}, 10, 2, 1),
        ({"total": 100, "used": 40}, 10, 2, 1),
        ({"total": 100, "used": 75}, 10, 0, 1),
        ({"total": 10_000, "max_rollouts": 3}, 10, 3, 1),
        ({"total": 100}, 500, 1, 1),  # what may need more than the cache gets an empty engine to itself
        ({"total": 10_000, "epoch": 0}, 10, 0, 0),
    ],
)
def test_an_engine_gets_no_more_than_it_has_room_for(load, prompt, placed, opened):
    world = World(prompt_tokens=lambda problem: prompt).begin(**load)
    assert (len(world.placed), len(world.opened)) == (placed, opened)
    for place in world.placed[:1]:
        world.finish(place)
        assert len(world.placed) == placed


def test_a_restarted_scheduler_issues_what_is_missing_and_does_so_once():
    group = builders.opened(1)
    missing = (Retry(group.group, 2, 0, group.number), Retry(group.group, 3, 1, group.number))
    world = World()
    world.policy_published(builders.published())
    world.engine_load(builders.engine_load(total=10_000))
    world.unfinished(GroupsUnfinished(0, 2, (UnfinishedGroup(group, missing),)))
    assert [place.request.rollout for place in world.placed[:2]] == ["s0-g000001/2/0", "s0-g000001/3/1"]
    world.finish(world.placed[1])
    world.progress(progress(retries=missing))
    assert len(world.placed) == 1 + 2 * 4


def test_a_failed_rollout_is_sampled_again_once_per_attempt_unless_its_group_is_dropped():
    world = World().begin(total=10_000)
    retries = Retry("s0-g000001", 2, 1, 1), Retry("s0-g000002", 0, 1, 2)
    for _ in range(3):  # announcements repeat
        world.progress(progress(retries=retries, dropped_groups=("s0-g000002",)))
    (again,) = [place.request for place in world.placed if place.request.attempt == 1]
    assert (again.group, again.sample, again.problem) == ("s0-g000001", 2, builders.problem(1))
    world.policy_published(builders.published(epoch=2))
    world.engine_load(builders.engine_load(total=10_000, epoch=2))
    world.unfinished(GroupsUnfinished(0, 4, ()))
    world.finish(world.place(again.rollout))
    world.progress(progress(retries=retries))
    assert again.rollout in world.at(ENGINE), "what is to be sampled again is known by epoch"


def test_rollouts_of_a_group_that_is_not_dropped_after_all_are_wanted_again():
    world = World().begin()
    for dropped in (("s0-g000000", "s0-g000002"), ("s0-g000002",), (), ("s7-g000000",)):
        world.progress(progress(dropped_groups=dropped))
    assert [told.groups for told in world.told] == [("s0-g000000", "s0-g000002"), ("s0-g000002",), ()]


def test_a_new_stage_cancels_what_the_old_one_left_and_hears_nothing_of_it():
    kept = KeptTurns(10**6)
    world = World(kept=kept, algorithm={"max_staleness": 0, "groups_per_step": 3}).begin(max_rollouts=10)
    old = list(world.placed)
    world.turns_completed(of(*history(1)))
    world.progress(progress(dropped_groups=("s0-g000001",)))
    assert world.scheduler.figures.rollouts_pending == 2
    world.policy_published(builders.published(stage=1))
    assert (world.asked, world.scheduler.figures.rollouts_pending) == ([0, 1], 0)
    world.unfinished(GroupsUnfinished(0, 0, ()))
    world.progress(progress(retries=(Retry("s0-g000001", 0, 1, 1),)))
    assert (world.placed, len(world.opened)) == (old, 3)
    world.unfinished(GroupsUnfinished(1, 0, ()))
    world.progress(progress(retries=(Retry("s0-g000001", 0, 1, 1),)))
    world.progress(progress(stage=1))
    groups = tuple(f"s0-g{n:06d}" for n in range(3))
    assert world.told[-1].groups == groups, "no group of another stage is wanted again"
    world.engine_load(builders.engine_load(max_rollouts=100))
    evaluated = [place.request for place in world.placed if place not in old]
    assert [request.purpose for request in evaluated] == ["evaluate_sampled"] * 3 + ["evaluate_greedy"] * 3
    assert len(kept.of(ROLLOUT)) == 1
    world.engine_gone(ENGINE)
    assert world.withdrawn == [ENGINE]
    assert world.scheduler.figures.rollouts_pending == 6, "what another stage left does not move"
    assert kept.bytes == 0


def test_what_is_waited_for_is_said():
    def waits_for(world: World) -> str:
        said = world.scheduler.waiting_for
        return said[1] if said else ""

    world = World(records=False, awaited=("b", "a"), stages=[builders.rl_stage(steps=1), evaluate_stage()])
    assert waits_for(world) == "a policy"
    world.policy_published(builders.published(3))
    assert waits_for(world) == "the rollouts that a, b may run"
    world.engine_gone("a")
    assert (waits_for(world), world.asked) == ("the rollouts that b may run", [])
    world.awaits_no_longer()
    assert (waits_for(world), world.asked) == ("the unfinished groups", [0])
    world.unfinished(GroupsUnfinished(0, 0, ()))
    assert waits_for(world) == "an engine (none has reported yet)"
    world.engine_load(builders.engine_load("a", epoch=0))
    assert waits_for(world) == "policy 3"
    world.engine_draining("a")
    world.engine_load(builders.engine_load("c"))
    world.engine_gone("c")
    assert waits_for(world) == "an engine (c is gone, a is about to leave)"
    world.engine_gone("a")
    world.engine_load(builders.engine_load("c", max_rollouts=5))
    assert world.scheduler.waiting_for == (GroupOpened, "2 groups to be recorded")
    for group in world.opened:
        world.group_recorded(group)
    assert world.scheduler.waiting_for == (EngineLoad, "room for 3 rollouts")
    world.engine_load(builders.engine_load("c"))
    assert world.scheduler.waiting_for == (PolicyPublished, "a newer policy (the staleness budget is spent)")
    world.policy_published(builders.published(3, stage=1))
    world.engine_gone("c")
    world.records = True
    world.unfinished(GroupsUnfinished(1, 5, ()))
    world.engine_load(builders.engine_load("c", version=3))
    assert waits_for(world) == "1 rollouts"
    world.finish(world.placed[-1])
    assert waits_for(world) == ""
    world.policy_published(builders.published(3, stage=2))
    assert waits_for(world) == "the next stage"


@pytest.mark.parametrize("leaves", ["engine_silent", "engine_draining", "engine_gone"])
def test_who_takes_no_rollouts_keeps_what_it_has_and_who_is_lost_gives_it_to_others_in_order(leaves):
    world = World().begin("a", "b", max_rollouts=5)
    before = [world.place(rollout).request for rollout in world.at("a")]
    getattr(world, leaves)("a")
    assert len(world.at("a")) == (0 if leaves == "engine_gone" else 5)
    for _ in range(5):
        world.finish(world.place(world.at("b")[0]))
    after = [world.place(rollout).request for rollout in world.at("b")]
    if leaves == "engine_gone":
        assert after == [replace(request, placement_epoch=1) for request in before]
    assert world.scheduler.figures.rollouts_moved == 5 * (leaves == "engine_gone")
    world.engine_heard("a")
    world.engine_load(builders.engine_load("a", max_rollouts=6))
    assert len(world.at("a")) == {"engine_silent": 6, "engine_draining": 5, "engine_gone": 6}[leaves]


def test_turns_of_a_policy_that_the_run_has_not_had_are_forgotten():
    kept = KeptTurns(1 << 20)
    kept.add(of(*history(1, 2)))
    scheduler(kept=kept).policy_published(builders.published(0, epoch=0))
    assert (kept.of(ROLLOUT), kept.bytes) == ((), 0)
