"""The scheduler's decisions: opening within the budget, placing in the KV cache, restarts, retries, cancellation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.messages import GroupsProgress, GroupsUnfinished, Retry, UnfinishedGroup
from agent_rl.scheduling.ids import rollout_seed
from agent_rl.scheduling.instructions import AskUnfinished, Assign, Instruction, OpenGroup, Unwanted
from agent_rl.scheduling.scheduler import GroupScheduler
from tests import builders


def scheduler(**changes: Any) -> GroupScheduler:
    defaults: dict[str, Any] = {
        "seed": 0,
        "stages": [builders.rl_stage(), builders.evaluate_stage()],
        "algorithm_of": lambda _: builders.algorithm(),
        "problems": lambda stage, number, purpose: builders.problem(number),
        "prompt_tokens": lambda problem: 10,
    }
    return GroupScheduler(**{**defaults, **changes})


class World:
    """Carries out instructions at once: groups are recorded, rollouts stay in flight until a test ends them."""

    def __init__(self, made: GroupScheduler, *, opened: int = 0, auto_record: bool = True) -> None:
        self.scheduler = made
        self.opened: list[str] = []
        self.placed: list[Assign] = []
        self.unwanted: list[tuple[str, ...]] = []
        self.asked: list[int] = []
        self.auto_record = auto_record
        self.already_opened = opened

    def do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case OpenGroup(opened):
                    self.opened.append(opened.group)
                    if self.auto_record:
                        self.do(self.scheduler.group_recorded(opened.group))
                case Assign():
                    self.placed.append(instruction)
                case Unwanted(groups, _):
                    self.unwanted.append(groups)
                case AskUnfinished(stage):
                    self.asked.append(stage)

    def begin(self, *, loads: int = 1, stage: int = 0, **load: Any) -> None:
        self.do(self.scheduler.policy_published(builders.published(stage=stage)))
        for index in range(loads):
            self.do(self.scheduler.engine_load(builders.engine_load(f"rollout_generator.{index}", **load)))
        self.do(self.scheduler.unfinished(GroupsUnfinished(stage, self.already_opened, ())))

    def finish(self, place: Assign) -> None:
        self.placed.remove(place)
        self.do(self.scheduler.rollout_done(place.request.rollout))


def progress(**changes: Any) -> GroupsProgress:
    defaults = {"stage": 0, "decided": 0, "uncounted": 0, "retries": (), "dropped_groups": ()}
    return GroupsProgress(**{**defaults, **changes})


def test_groups_that_no_step_counts_leave_room_from_the_first_answer_on() -> None:
    """Progress that came before the answer is dropped, and nothing may come after it."""
    made = builders.algorithm(groups_per_step=2, max_staleness=0)
    world = World(scheduler(algorithm_of=lambda _: made))
    world.do(world.scheduler.policy_published(builders.published()))
    world.do(world.scheduler.engine_load(builders.engine_load()))
    world.do(world.scheduler.progress(progress(uncounted=2)))
    assert not world.opened
    world.do(world.scheduler.unfinished(GroupsUnfinished(0, 2, (), uncounted=2)))
    assert len(world.opened) == 2


def test_nothing_is_opened_before_the_filter_has_said_what_is_open() -> None:
    world = World(scheduler())
    world.do(world.scheduler.engine_load(builders.engine_load()))
    world.do(world.scheduler.policy_published(builders.published()))
    assert world.asked == [0]
    assert world.opened == []


def test_opening_stops_at_the_staleness_budget_and_goes_on_with_the_served_version() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    assert world.opened == [f"s0-g{n:06d}" for n in range(4)]  # (1 + 0 + 1) * 2
    for place in list(world.placed):
        world.finish(place)
    assert len(world.opened) == 4  # finished rollouts alone open nothing
    world.do(world.scheduler.policy_published(builders.published(1)))
    assert len(world.opened) == 4  # the learner's version does not count before an engine serves it
    world.do(world.scheduler.engine_load(builders.engine_load(version=1, total=10_000)))
    assert len(world.opened) == 6


def test_synchronous_mode_opens_one_step_at_a_time() -> None:
    world = World(scheduler(algorithm_of=lambda _: builders.algorithm(max_staleness=0)))
    world.begin(total=10_000)
    assert len(world.opened) == 2


def test_no_more_is_opened_than_the_stage_can_train() -> None:
    world = World(scheduler(stages=[builders.rl_stage(steps=1)]))
    world.begin(total=10_000)
    assert len(world.opened) == 2


def test_replaced_groups_may_be_opened_again() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    world.do(world.scheduler.progress(progress(uncounted=3)))
    assert len(world.opened) == 7


def test_an_engine_gets_no_more_than_its_kv_cache_holds() -> None:
    world = World(scheduler())
    world.begin(total=100)  # a rollout needs 10 + 20
    assert len(world.placed) == 3
    assert world.opened == ["s0-g000000"]  # no second group before all rollouts of the first are placed
    world.finish(world.placed[0])
    assert len(world.placed) == 3


def test_used_kv_counts_when_it_exceeds_what_was_promised() -> None:
    world = World(scheduler())
    world.begin(total=100, used=75)
    assert world.placed == []
    world.do(world.scheduler.engine_load(builders.engine_load(total=100, used=40)))
    assert len(world.placed) == 2


def test_rollouts_go_to_the_engine_with_the_most_room() -> None:
    world = World(scheduler())
    world.do(world.scheduler.policy_published(builders.published()))
    world.do(world.scheduler.engine_load(builders.engine_load("rollout_generator.0", total=1000)))
    world.do(world.scheduler.engine_load(builders.engine_load("rollout_generator.1", total=1060)))
    world.do(world.scheduler.unfinished(GroupsUnfinished(0, 0, ())))
    assert [place.generator[-1] for place in world.placed[:6]] == ["1", "1", "0", "1", "0", "1"]


def test_a_rollout_that_may_need_more_than_any_cache_gets_an_empty_engine_to_itself() -> None:
    world = World(scheduler(prompt_tokens=lambda problem: 500))
    world.begin(total=100)
    assert len(world.placed) == 1
    world.finish(world.placed[0])
    assert len(world.placed) == 1


def test_rows_bound_an_engine_too() -> None:
    world = World(scheduler())
    world.begin(total=10_000, max_rollouts=3)
    assert len(world.placed) == 3


def test_an_engine_of_another_epoch_gets_nothing() -> None:
    world = World(scheduler())
    world.begin(total=10_000, epoch=0)
    assert world.opened == []


def test_group_ids_tasks_and_seeds_are_functions_of_seed_and_counter() -> None:
    worlds = [World(scheduler()), World(scheduler(), opened=2)]
    for world in worlds:
        world.begin(total=10_000)
    first = {place.request.rollout: place.request for place in worlds[0].placed}
    for place in worlds[1].placed:
        assert first[place.request.rollout] == place.request
    assert rollout_seed(0, "s0-g000000", 0, 0) != rollout_seed(1, "s0-g000000", 0, 0)


def test_a_restarted_scheduler_asks_and_issues_what_is_missing() -> None:
    group = builders.opened(1)
    missing = (Retry(group.group, 2, 0, group.number), Retry(group.group, 3, 1, group.number))
    world = World(scheduler())
    world.do(world.scheduler.policy_published(builders.published()))
    world.do(world.scheduler.engine_load(builders.engine_load(total=10_000)))
    world.do(world.scheduler.unfinished(GroupsUnfinished(0, 2, (UnfinishedGroup(group, missing),))))
    assert [place.request.rollout for place in world.placed[:2]] == ["s0-g000001/2/0", "s0-g000001/3/1"]
    assert world.opened == ["s0-g000002", "s0-g000003"]


def test_a_failed_rollout_is_sampled_again_once_per_attempt() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    retry = Retry("s0-g000001", 2, 1, 1)
    for _ in range(3):  # announcements repeat
        world.do(world.scheduler.progress(progress(retries=(retry,))))
    again = [place.request for place in world.placed if place.request.attempt == 1]
    assert len(again) == 1
    assert (again[0].group, again[0].sample) == ("s0-g000001", 2)
    assert again[0].problem == builders.problem(1)


def test_rollouts_of_dropped_groups_are_cancelled_until_none_is_in_flight() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    world.do(world.scheduler.progress(progress(dropped_groups=("s0-g000000",))))
    assert world.unwanted == [("s0-g000000",)]
    for place in list(world.placed):
        if place.request.group == "s0-g000000":
            world.finish(place)
    assert world.unwanted[-1] == ()


def test_a_new_stage_cancels_what_the_old_one_left_and_samples_held_out_problems_both_ways() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    old = len(world.placed)
    world.do(world.scheduler.policy_published(builders.published(5, stage=1, stage_version=5)))
    assert world.unwanted[-1] == tuple(f"s0-g{n:06d}" for n in range(4))
    world.do(world.scheduler.engine_load(builders.engine_load(version=5, total=10_000)))
    world.do(world.scheduler.unfinished(GroupsUnfinished(1, 0, ())))
    requests = [place.request for place in world.placed[old:]]
    assert [r.purpose for r in requests] == ["evaluate_sampled"] * 3 + ["evaluate_greedy"] * 3
    assert [r.sampling.temperature for r in requests] == [1.0] * 3 + [0.0] * 3


def test_filters_of_training_are_the_algorithms_and_those_of_an_evaluation_its_own() -> None:
    interim = {"every": 1, "problems": 1, "top_k": 5}
    made = scheduler(algorithm_of=lambda _: builders.algorithm(top_p=0.9), stages=[builders.rl_stage(evaluate=interim)])
    world = World(made)
    world.begin(total=10_000)
    trained = [place.request.sampling for place in world.placed]
    assert {(sampling.top_p, sampling.top_k) for sampling in trained} == {(0.9, 0)}
    evaluation = builders.rl_stage(evaluate=interim).interim(1)
    assert (evaluation.top_p, evaluation.top_k) == (1.0, 5)


def test_an_older_announcement_changes_nothing() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    world.do(world.scheduler.policy_published(builders.published(epoch=0)))
    assert world.asked == [0]


def test_a_restored_learner_makes_the_scheduler_ask_again() -> None:
    world = World(scheduler())
    world.begin(total=10_000)
    world.do(world.scheduler.policy_published(builders.published(epoch=2)))
    assert world.asked == [0, 0]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(30, 400), st.integers(1, 12)), min_size=1, max_size=4),
    st.lists(st.integers(0, 10**6), max_size=80),
)
def test_promises_never_exceed_any_cache(engines: list[tuple[int, int]], endings: list[int]) -> None:
    world = World(scheduler())
    world.do(world.scheduler.policy_published(builders.published()))
    for index, (total, rows) in enumerate(engines):
        load = builders.engine_load(f"rollout_generator.{index}", total=total, max_rollouts=rows)
        world.do(world.scheduler.engine_load(load))
    world.do(world.scheduler.unfinished(GroupsUnfinished(0, 0, ())))
    for pick in [*endings, None]:
        for index, (total, rows) in enumerate(engines):
            mine = [p for p in world.placed if p.generator == f"rollout_generator.{index}"]
            assert len(mine) * 30 <= total
            assert len(mine) <= rows
        if pick is not None and world.placed:
            world.finish(world.placed[pick % len(world.placed)])


@pytest.mark.parametrize("samples", [1, 4])
def test_requests_wait_for_the_journal(samples: int) -> None:
    world = World(scheduler(algorithm_of=lambda _: builders.algorithm(samples=samples)), auto_record=False)
    world.begin(total=10_000)
    assert len(world.opened) == 4
    assert world.placed == []
    world.do(world.scheduler.group_recorded("s0-g000000"))
    assert len(world.placed) == samples


def test_no_more_groups_are_recorded_ahead_than_there_is_room_for() -> None:
    world = World(scheduler(), auto_record=False)
    world.begin(total=10_000, max_rollouts=6)
    assert len(world.opened) == 2  # one to fill four places, one that begins to fill the other two
