"""Engines that are lost, leave, restart and return: their rollouts move, and none is lost, trained twice or stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Closed, Ready
from agent_rl.groups.resampling import named_selection
from agent_rl.messages import GroupsProgress, GroupsUnfinished, PolicyPublished, RolloutRequest, StageEntered
from agent_rl.scheduling.instructions import AskUnfinished, Assign, Instruction, OpenGroup, Unwanted, Withdraw
from agent_rl.scheduling.scheduler import GroupScheduler
from tests import builders

ENGINES = ("gen.0", "gen.1", "gen.2")
ROWS = 5
STEPS = 4


@dataclass
class Generator:
    """A generator as the scheduler cannot see it: it may go on though nobody hears it."""

    version: int = 0
    incarnation: int = 1
    connected: bool = True
    copies: dict[str, RolloutRequest] = field(default_factory=dict)


class World:
    """Scheduler, filter and learner over generators that come and go. Instructions are carried out at once."""

    def __init__(self, awaited: Collection[str] = (), **algorithm: Any) -> None:
        made = builders.algorithm(**algorithm)
        stages = [builders.rl_stage(steps=STEPS)]
        self.scheduler = GroupScheduler(
            seed=0,
            stages=stages,
            algorithm_of=lambda _: made,
            problems=lambda stage, number, purpose: builders.problem(number),
            prompt_tokens=lambda problem: 10,
            awaited=awaited,
        )
        self.book = GroupBook(
            algorithm_of=lambda _: made, stages=stages, seed=0, select=named_selection("paper", made.keep)
        )
        self.generators = {name: Generator() for name in ENGINES}
        self.published = 0
        self.groups: dict[str, Any] = {}
        self.counted: Counter[str] = Counter()
        self.trained: Counter[str] = Counter()
        self.staleness: list[int] = []
        self.placed: dict[str, Assign] = {}
        self.unwanted = Unwanted(())
        self.book.enter(StageEntered(0, 0, 0, restored=False), next_version=0)
        self.do(self.scheduler.policy_published(builders.published()))

    def do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case AskUnfinished():
                    self.do(self.scheduler.unfinished(GroupsUnfinished(0, 0, ())))
                case OpenGroup(opened):
                    self.groups[opened.group] = opened
                    self.book.group_opened(opened)
                    self.do(self.scheduler.group_recorded(opened.group))
                case Assign(request, name) if self.scheduler.current(instruction):
                    generator = self.generators[name]
                    assert generator.connected, "placed on an engine that is gone"
                    assert generator.version >= self.groups[request.group].policy.version
                    self.placed[request.rollout] = instruction
                    generator.copies[request.rollout] = request
                    assert len([p for p in self.placed.values() if p.generator == name]) <= ROWS
                case Withdraw(name):
                    self.placed = {rollout: place for rollout, place in self.placed.items() if place.generator != name}
                case Unwanted():
                    self.unwanted = instruction
                    for generator in self.generators.values():
                        if generator.connected:
                            self.tell(generator)

    def tell(self, generator: Generator) -> None:
        """The generator hears what nobody wants of it."""
        generator.copies = {
            rollout: request
            for rollout, request in generator.copies.items()
            if request.group not in self.unwanted.groups and self.unwanted.moved.get(rollout, 0) <= request.move
        }

    def load(self, name: str) -> None:
        """The generator reports its load, if anybody can hear it."""
        generator = self.generators[name]
        if generator.connected:
            load = builders.engine_load(name, version=generator.version, total=10_000, max_rollouts=ROWS)
            self.do(self.scheduler.engine_load(replace(load, incarnation=generator.incarnation)))

    def finish(self, name: str, position: int) -> None:
        """A copy ends: its trajectory reaches the filter, sooner or later. Its acknowledgement may find nobody."""
        generator = self.generators[name]
        if not generator.copies:
            return
        rollout = list(generator.copies)[position % len(generator.copies)]
        request = generator.copies.pop(rollout)
        group = self.groups[request.group]
        answer = "4" if request.sample % 2 else "5"
        trajectory = builders.trajectory(
            group, request.sample, attempt=request.attempt, answer=answer, version=generator.version
        )
        if self.book.wants(trajectory):
            self.counted[rollout] += 1
            for instruction in self.book.trajectory(trajectory):
                match instruction:
                    case Ready(group_name):
                        self.trained[group_name] += 1
                    case Closed(_, step, _):
                        self.published = step.version + 1
                        self.staleness += step.staleness
        else:
            self.book.unwanted(trajectory)
        place = self.placed.get(rollout)
        if place is not None and place.generator == name and place.request == request:
            del self.placed[rollout]
            self.do(self.scheduler.rollout_done(rollout))
        self.do(self.scheduler.progress(self.book.progress()))
        self.do(self.scheduler.policy_published(builders.published(self.published)))

    def take_up(self, name: str) -> None:
        """The generator loads the newest policy."""
        if self.generators[name].connected:
            self.generators[name].version = self.published
            self.load(name)

    def lose(self, name: str) -> None:
        """Nothing of the generator is heard any more. It goes on by itself."""
        if self.generators[name].connected:
            self.generators[name].connected = False
            self.do(self.scheduler.engine_silent(name))
            self.do(self.scheduler.engine_gone(name))

    def back(self, name: str) -> None:
        """The generator is heard again, and told what moved."""
        if not self.generators[name].connected:
            self.generators[name].connected = True
            self.do(self.scheduler.engine_heard(name))
            self.tell(self.generators[name])
            self.load(name)

    def restart(self, name: str, *, told_first: bool) -> None:
        """The generator has a new process, which has forgotten everything."""
        before = self.generators[name]
        self.generators[name] = Generator(self.published, before.incarnation + 1)
        if told_first:
            self.do(self.scheduler.engine_replaced(name, before.incarnation + 1))
        self.load(name)
        self.do(self.scheduler.engine_replaced(name, before.incarnation + 1))

    def drain(self, name: str) -> None:
        """The generator is stopped in order, and a new one takes its place."""
        if self.generators[name].connected:
            self.do(self.scheduler.engine_draining(name))
            self.finish(name, 0)
            self.generators[name].copies.clear()
            self.do(self.scheduler.engine_gone(name))
            self.generators[name] = Generator(0, self.generators[name].incarnation + 1)
            self.load(name)

    def run_to_the_end(self) -> None:
        """Nothing fails any more, and one generator at least is there: the stage must end."""
        for _ in range(2000):
            if self.published == STEPS:
                return
            for name in ENGINES:
                self.take_up(name)
                if self.generators[name].connected:
                    self.finish(name, 0)
        raise AssertionError(f"stuck at version {self.published}: {self.scheduler.waiting_for}")


EVENTS = st.tuples(
    st.sampled_from(["finish"] * 6 + ["take_up"] * 3 + ["lose", "back", "back", "restart", "told restart", "drain"]),
    st.sampled_from(ENGINES),
    st.integers(0, 20),
)


@settings(max_examples=150)
@given(
    st.lists(EVENTS, max_size=120),
    st.sampled_from(ENGINES),
    st.sampled_from(["wait", "drop"]),
    st.integers(0, 2),
)
def test_nothing_is_lost_or_trained_twice_whatever_engines_come_and_go(
    events: list[tuple[str, str, int]], last: str, on_stale: str, max_staleness: int
) -> None:
    world = World(on_stale=on_stale, max_staleness=max_staleness)
    for name in ENGINES:
        world.load(name)
    for event, name, number in events:
        match event:
            case "finish":
                world.finish(name, number)
            case "restart" | "told restart":
                world.restart(name, told_first=event == "told restart")
            case _:
                getattr(world, event)(name)
    for name in ENGINES:
        (world.back if name == last else world.lose)(name)
    world.run_to_the_end()
    assert set(world.counted.values()) <= {1}
    assert set(world.trained.values()) <= {1}
    assert len(world.trained) >= STEPS
    assert max(world.staleness, default=0) <= max_staleness


def begin(**load: Any) -> World:
    world = World(**load)
    for name in ENGINES[:2]:
        world.load(name)
    return world


def test_a_lost_engine_counts_no_longer_and_its_rollouts_go_elsewhere_first() -> None:
    world = begin(groups_per_step=2)
    before = [place.request for place in world.placed.values() if place.generator == "gen.0"]
    assert len(before) == ROWS
    world.lose("gen.0")
    assert {place.generator for place in world.placed.values()} == {"gen.1"}
    while len(world.counted) < ROWS:
        world.finish("gen.1", 0)
    moved = [place.request for place in world.placed.values() if place.request.move]
    assert [(request.rollout, request.move) for request in moved] == [(each.rollout, 1) for each in before]
    assert [replace(request, move=0) for request in moved] == before  # with their ids and seeds


def test_an_engine_that_returns_abandons_what_moved_and_keeps_what_waits() -> None:
    world = begin()
    copies = set(world.generators["gen.0"].copies)
    world.lose("gen.0")
    for _ in range(2):
        world.finish("gen.1", 0)
    moved = {rollout for rollout, place in world.placed.items() if place.request.move}
    assert len(moved) == 2
    world.back("gen.0")
    kept = world.generators["gen.0"].copies
    assert not moved & kept.keys()
    assert copies - moved <= kept.keys()
    assert all(kept[rollout].move == 1 for rollout in copies - moved)


def test_the_first_trajectory_of_a_moved_rollout_counts() -> None:
    world = begin()
    rollout = next(iter(world.generators["gen.0"].copies))
    world.lose("gen.0")
    world.finish("gen.1", 0)
    assert rollout in world.generators["gen.1"].copies
    for name in ("gen.0", "gen.1"):  # the lost engine's trajectory comes after all, before the other one's
        world.finish(name, list(world.generators[name].copies).index(rollout))
        assert world.counted[rollout] == 1
    assert rollout not in world.placed


def test_an_engine_that_returns_with_an_old_policy_waits_until_it_has_caught_up() -> None:
    world = begin(max_staleness=0)
    world.lose("gen.0")
    while world.published < 1:
        world.finish("gen.1", 0)
    world.take_up("gen.1")
    opened = len(world.groups)
    world.back("gen.0")  # at version 0
    assert not [place for place in world.placed.values() if place.generator == "gen.0"]
    while world.published < 2:
        world.finish("gen.1", 0)
    world.take_up("gen.1")
    assert len(world.groups) > opened  # the budget does not wait for it either
    world.take_up("gen.0")
    world.finish("gen.1", 0)
    assert [place for place in world.placed.values() if place.generator == "gen.0"]


def test_a_silent_or_leaving_engine_gets_nothing_and_keeps_what_it_has() -> None:
    world = begin()
    had = {rollout for rollout, place in world.placed.items() if place.generator == "gen.0"}
    world.do(world.scheduler.engine_silent("gen.0"))
    world.finish("gen.0", 0)
    now = {rollout for rollout, place in world.placed.items() if place.generator == "gen.0"}
    assert now < had
    world.do(world.scheduler.engine_heard("gen.0"))
    assert len([place for place in world.placed.values() if place.generator == "gen.0"]) == ROWS
    world.do(world.scheduler.engine_draining("gen.0"))
    world.finish("gen.0", 0)
    assert len([place for place in world.placed.values() if place.generator == "gen.0"]) == ROWS - 1


@pytest.mark.parametrize("leaves", ["gone", "draining"])
def test_with_no_engine_left_it_says_so(leaves: str) -> None:
    world = World()
    assert world.scheduler.waiting_for is not None
    assert world.scheduler.waiting_for[1] == "an engine (none has reported yet)"
    world.load("gen.0")
    getattr(world.scheduler, f"engine_{leaves}")("gen.0")
    said = {"gone": "gen.0 is gone", "draining": "gen.0 is about to leave"}[leaves]
    assert world.scheduler.waiting_for[1] == f"an engine ({said})"
    assert world.scheduler.figures.engines == (leaves == "draining")


def test_rollouts_of_another_stage_or_of_a_dropped_group_do_not_move() -> None:
    world = begin()
    dropped = next(place.request.group for place in world.placed.values() if place.generator == "gen.0")
    world.do(world.scheduler.progress(GroupsProgress(0, 0, 0, (), (dropped,))))
    world.lose("gen.0")
    assert not [place for place in world.placed.values() if place.request.move and place.request.group == dropped]
    later = builders.published(1)
    world.do(world.scheduler.policy_published(PolicyPublished(later.policy, later.uri, 1, 1)))
    assert world.scheduler.engine_gone("gen.1")[0] == Withdraw("gen.1")
    assert world.scheduler.figures.rollouts_in_flight == 0


def test_a_restarted_scheduler_asks_what_is_unfinished_once_each_generator_has_reported_or_is_gone():
    world = World(awaited=ENGINES)
    first, *others = ENGINES
    world.load(first)
    assert not world.placed
    for name in others:
        assert not world.placed
        world.do(world.scheduler.engine_gone(name))
    assert world.placed
