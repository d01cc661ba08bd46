"""Engines join, fall silent, drain, restart and are lost while rollouts run there, beside a plain model of the rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_rl.messages import GroupOpened, GroupsUnfinished, PolicyVersion, Retry, TurnsCompleted, UnfinishedGroup
from agent_rl.scheduling.ids import rollout_id, rollout_seed
from agent_rl.scheduling.instructions import AskUnfinished, Assign, OpenGroup, Unwanted, Withdraw
from agent_rl.scheduling.kept_turns import KeptTurns, size_of
from agent_rl_contract import builders
from tests.agent_rl.scheduling.test_kept_turns import history
from tests.agent_rl.scheduling.world import progress, scheduler

NAMES, NEED, SAMPLES, STEPS, OLD = ("gen.0", "gen.1", "gen.2"), 30, 2, 5, PolicyVersion(1, 0)


@dataclass
class Engine:
    """A generator's process, and what the scheduler has heard of it; ``known``: the incarnation that it knows."""

    total: int
    rows: int
    policy: PolicyVersion = OLD
    incarnation: int = 1
    known: int = 0
    here: bool = False
    silent: bool = False
    draining: bool = False


class Fleet(RuleBasedStateMachine):
    """One rl stage. The filter, the learner and the generators are part of the model."""

    @initialize(
        budget=st.integers(0, 2), size=st.integers(1, 2), engines=st.tuples(*[st.tuples(st.integers(1, 5), st.integers(1, 5))] * 3)
    )  # fmt: skip
    def begin(self, budget, size, engines):
        self.budget, self.size, self.epoch, self.published = budget, size, 1, 0
        self.engines = {name: Engine(30 * kv + 15, rows) for name, (kv, rows) in zip(NAMES, engines, strict=True)}
        self.groups: dict[str, GroupOpened] = {}
        self.wanted: dict[str, Retry] = {}
        """The rollouts that are recorded and have not ended."""
        self.places: dict[str, Assign] = {}
        self.recording, self.former, self.log, self.dropped, self.uncounted = [], [], [], set(), 0
        self.lost_at, self.moves, self.moved, self.turns = {}, {}, {}, {}
        self.starts(impatient=False)

    # The model

    @property
    def pending(self):
        return self.wanted.keys() - self.places.keys()

    def at(self, name):
        return [rollout for rollout, place in self.places.items() if place.generator == name]

    def counting(self):
        """The engines that the staleness budget counts."""
        new = (engine for engine in self.engines.values() if engine.here and engine.policy.epoch == self.epoch)
        return [engine for engine in new if engine.policy >= self.required and not engine.draining]

    def free(self):
        """KV tokens and rows of each engine that may get rollouts."""
        for name, engine in self.engines.items():
            if engine in self.counting() and not engine.silent:
                yield engine.total - NEED * len(self.at(name)), engine.rows - len(self.at(name))

    def may_open(self):
        free, beside = [(max(0, kv), max(0, rows)) for kv, rows in self.free()], SAMPLES * len(self.recording)
        if self.pending or not free:
            return False
        steps = min(self.budget + min(each.policy.version for each in self.counting()) + 1, STEPS)
        roomy = sum(kv for kv, _ in free) > NEED * beside and sum(rows for _, rows in free) > beside
        return len(self.groups) - self.uncounted < steps * self.size and (roomy or not self.recording)

    # Instructions

    def do(self, event, *given):
        """The scheduler hears of an event, and its instructions are carried out."""
        asked, withdrawn = False, []
        for instruction in getattr(self.scheduler, event)(*given):
            match instruction:
                case Unwanted():
                    self.told = instruction
                case Withdraw(name):
                    withdrawn.append(name)
                case OpenGroup(opened):
                    assert self.may_open()
                    assert opened.number == len(self.groups)
                    assert opened.policy == min(engine.policy for engine in self.counting())
                    self.groups[opened.group] = opened
                    self.recording.append(opened.group)
                    self.required = max(self.required, opened.policy)
                case Assign():
                    self.assigned(instruction)
                case AskUnfinished():
                    asked = True
        self.log += self.kept.changes()
        if asked:
            self.answer()
        return withdrawn

    def assigned(self, place):
        request = place.request
        name, rollout, missing = place.generator, request.rollout, self.wanted[request.rollout]
        assert rollout not in self.places
        assert request.placement_epoch == self.moves.get(rollout, 0)
        assert request.seed == rollout_seed(0, request.group, request.sample, request.attempt)
        assert (request.sample, request.attempt) == (missing.sample, missing.attempt)
        turns = self.scheduler.with_turns(request).turns
        assert [*map(id, turns)] == [*map(id, self.turns.get(rollout, ()))]
        if self.orphans.pop(rollout, "") != name:
            engine = self.engines[name]
            assert engine in self.counting()
            assert not engine.silent
            assert len(self.at(name)) < engine.rows
            assert engine.total - NEED * len(self.at(name)) >= NEED
        self.places[rollout] = place
        if self.lost_at.pop(rollout, name) != name:
            self.moved[rollout] = request.placement_epoch

    def answer(self):
        """The filter says what is unfinished: groups that were recorded, and samples that have not ended."""
        for group in self.recording:
            self.recorded(group)
        self.recording = []
        open_groups = {group: [each for each in self.wanted.values() if each.group == group] for group in self.groups}
        unfinished = [UnfinishedGroup(self.groups[name], tuple(each)) for name, each in open_groups.items() if each]
        for rollout in self.pending - self.orphans.keys():
            self.moves.pop(rollout, None)
        self.lost_at.clear()
        policies = [each.opened.policy for each in unfinished if each.opened.policy.epoch == self.epoch]
        self.required = max([PolicyVersion(self.epoch, 0), *policies])
        self.do("unfinished", GroupsUnfinished(0, len(self.groups), tuple(unfinished), uncounted=self.uncounted))

    def recorded(self, group):
        for sample in range(SAMPLES):
            self.wanted[rollout_id(group, sample, 0)] = Retry(group, sample, 0, self.groups[group].number)

    def lose(self, name, event, *given):
        """The rollouts of a generator wait again."""
        had = self.at(name)
        for rollout in had:
            self.former.append(self.places.pop(rollout))
            self.moved.pop(rollout, None)
            if rollout in self.wanted:
                self.moves[rollout] = self.moves.get(rollout, 0) + 1
                self.lost_at[rollout] = name
            else:
                self.turns.pop(rollout, None)
        self.engines[name].silent = self.engines[name].draining = False
        assert self.do(event, *given) == [name] * bool(had)

    # Engines

    @rule(name=st.sampled_from(NAMES), lag=st.sampled_from([0, 0, 1, 2, 9]), late=st.booleans())
    def reports(self, name, lag, late):
        engine = self.engines[name]
        if late and engine.here:  # a former process said this
            load = builders.engine_load(name, version=self.published, epoch=self.epoch)
            self.do("engine_load", replace(load, incarnation=engine.known - 1))
            return
        if self.published >= lag:
            engine.policy = max(engine.policy, PolicyVersion(self.epoch, self.published - lag))
        engine.here = True
        if engine.known < engine.incarnation:
            engine.known = engine.incarnation
            self.lose(name, "engine_load", self.load(name))
        else:
            self.do("engine_load", self.load(name))

    def load(self, name, **orphans):
        engine = self.engines[name]
        load = builders.engine_load(name, total=engine.total, max_rollouts=engine.rows)
        return replace(load, policy=engine.policy, incarnation=engine.incarnation, orphans=orphans)

    @rule(name=st.sampled_from(NAMES), event=st.sampled_from(["silent", "heard", "heard", "draining"]))
    def is_told_of(self, name, event):
        engine = self.engines[name]
        engine.silent = event == "silent" or (engine.silent and event == "draining")
        engine.draining |= event == "draining"
        self.do(f"engine_{event}", name)

    @rule(name=st.sampled_from(NAMES))
    def is_gone(self, name):
        self.engines[name].here = False
        self.lose(name, "engine_gone", name)

    @rule(name=st.sampled_from(NAMES), told=st.booleans())
    def restarts(self, name, told):
        engine = self.engines[name]
        engine.incarnation += 1
        if told:
            engine.here, engine.known = False, engine.incarnation
            self.lose(name, "engine_replaced", name, engine.incarnation)
            self.do("engine_replaced", name, engine.incarnation)

    # Rollouts

    @precondition(lambda self: self.recording)
    @rule()
    def is_recorded(self):
        self.recorded(group := self.recording.pop(0))
        self.do("group_recorded", group)

    @precondition(lambda self: self.places)
    @rule(at=st.integers(0, 20), elsewhere=st.sampled_from([False, False, True]))
    def completes_a_turn(self, at, elsewhere):
        rollout = sorted(self.places)[at % len(self.places)]
        place, chain = self.places[rollout], self.turns.get(rollout, [])
        chain = [*chain, history(*range(len(chain) + 1))[-1]]
        name = NAMES[NAMES.index(place.generator) - elsewhere]
        if not elsewhere:
            self.turns[rollout] = chain
        self.do(
            "turns_completed",
            TurnsCompleted(rollout, name, tuple(chain[-1:]), "goes_on", place.request.placement_epoch),
        )

    @precondition(lambda self: self.places)
    @rule(at=st.lists(st.integers(0, 20), min_size=1, max_size=3), again=st.booleans())
    def ends(self, at, again):
        for number in at[: len(self.places)]:
            rollout = sorted(self.places)[number % len(self.places)]
            place, missing = self.places.pop(rollout), self.wanted.pop(rollout, None)
            for known in (self.moved, self.turns, self.moves):
                known.pop(rollout, None)
            self.do("acknowledged", place)
            self.former.append(place)
            if again and missing is not None:
                missing = replace(missing, attempt=missing.attempt + 1)
                self.wanted[rollout_id(missing.group, missing.sample, missing.attempt)] = missing
                self.totals()

    @precondition(lambda self: self.former)
    @rule()
    def is_acknowledged_late(self):
        assert self.scheduler.acknowledged(self.former.pop()) == []

    @precondition(lambda self: self.wanted)
    @rule()
    def is_dropped(self):
        group = self.groups[max(self.wanted.values(), key=lambda each: each.number).group].group
        self.dropped.add(group)
        self.uncounted += 1
        for rollout in [each for each, missing in self.wanted.items() if missing.group == group]:
            if rollout not in self.places:
                self.turns.pop(rollout, None)
            del self.wanted[rollout]
        self.totals()

    @rule()
    def totals(self):
        """The filter repeats what is to be sampled again until it has ended."""
        retries = tuple(each for each in self.wanted.values() if each.attempt)
        dropped = tuple(sorted(self.dropped))
        self.do("progress", progress(uncounted=self.uncounted, retries=retries, dropped_groups=dropped))

    # Learner and scheduler

    @rule()
    def publishes(self):
        self.published += 1
        self.do("policy_published", builders.published(self.published, epoch=self.epoch))

    @rule(back=st.integers(0, 2))
    def is_restored(self, back):
        """The learner goes on from a checkpoint. What waits is asked for again."""
        self.epoch, self.published = self.epoch + 1, max(0, self.published - back)
        self.required = PolicyVersion(self.epoch, 0)
        self.do("policy_published", builders.published(self.published - 1, epoch=self.epoch - 1))
        self.do("policy_published", builders.published(self.published, epoch=self.epoch))

    @rule(impatient=st.booleans())
    def starts(self, impatient):
        """A new process of the scheduler takes over what generators that report run for the former one."""
        self.kept = KeptTurns(10**6, recorded=True)
        self.kept.restore(self.log)
        self.scheduler = scheduler(
            kept=self.kept, awaited=NAMES, stages=[builders.rl_stage(steps=STEPS)], fault=self.faulty,
            algorithm={"samples": SAMPLES, "groups_per_step": self.size, "max_staleness": self.budget},
        )  # fmt: skip
        self.told, self.required, self.moved = Unwanted(()), PolicyVersion(self.epoch, 0), {}
        running = {rollout: place for rollout, place in self.places.items() if rollout in self.wanted}
        self.former, self.places = [], {}
        self.orphans = {rollout: place.generator for rollout, place in running.items()}
        self.turns = {rollout: turns for rollout, turns in self.turns.items() if rollout in self.wanted}
        self.do("policy_published", builders.published(self.published, epoch=self.epoch))
        absent = [name for name in NAMES if not self.engines[name].here]
        for name, engine in self.engines.items():
            engine.silent = engine.draining = False
            if engine.here:
                engine.known = engine.incarnation
                moves = {each: self.moves.get(each, 0) for each in running if running[each].generator == name}
                self.do("engine_load", self.load(name, **moves))
            else:
                engine.known = 0
                assert not self.places
                self.do("engine_gone", name) if not impatient else None
        if absent and impatient:
            assert not self.places
            self.do("awaits_no_longer")

    def faulty(self, name, what):
        raise AssertionError(f"{name}: {what}")

    @invariant()
    def all_that_can_be_placed_or_opened_is(self):
        if not hasattr(self, "scheduler"):
            return
        assert not self.pending or not any(kv >= NEED and rows > 0 for kv, rows in self.free())
        assert not self.may_open()
        assert not self.orphans
        figures = self.scheduler.figures
        assert (figures.rollouts_in_flight, figures.rollouts_pending) == (len(self.places), len(self.pending))
        assert figures.engines == sum(engine.here for engine in self.engines.values())
        assert figures.kv_promised == NEED * len(self.places)
        assert figures.kept_mib * 2**20 == sum(size_of(turn) for turns in self.turns.values() for turn in turns)
        unwanted = {place.request.group for place in self.places.values()} & self.dropped
        assert (self.told.groups, self.told.moved) == (tuple(sorted(unwanted)), self.moved)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=50, stateful_step_count=30)


@pytest.mark.parametrize(
    "story",
    [
        "is_told_of gen.0 draining; is_gone gen.0; reports gen.0",
        "is_told_of gen.0 silent; is_gone gen.0; reports gen.0",
        "publishes; reports gen.1",
        "is_told_of gen.0 silent; publishes; reports gen.1",
        "is_dropped; is_restored",
        "restarts gen.0; reports gen.0",
        "is_gone gen.0; reports gen.1; starts",
        "completes_a_turn; is_gone gen.0; starts",
        "is_recorded; reports gen.1",
        "is_recorded; is_recorded; is_restored; starts; reports gen.0",
    ],
)
def test_stories_that_chance_seldom_tells(story):
    """An engine has reported, and a first group of two rollouts is recorded. The last stories are of more groups."""
    fleet, roomy = Fleet(), story.startswith("is_recorded")
    fleet.begin(budget=2 * roomy, size=1 + roomy, engines=[(5, 5), (3, 5), (1, 1)])
    rest = {
        "reports": (0, False),
        "restarts": (False,),
        "completes_a_turn": (0, False),
        "is_restored": (0,),
        "starts": (False,),
    }
    for step in ("reports gen.0", "is_recorded", *story.split("; ")):
        event, *given = step.split()
        getattr(fleet, event)(*given, *rest.get(event, ()))
        fleet.all_that_can_be_placed_or_opened_is()
