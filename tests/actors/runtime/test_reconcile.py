"""What becomes of the process of one actor, over random orders of events, and each row of its table."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.exits import TOGETHER
from actors.runtime.reconcile import (
    TABLE,
    USER_MISTAKE,
    Action,
    Ending,
    Event,
    Fail,
    Plan,
    ProcessLifecycle,
    Replaced,
    RestartBudget,
    Say,
    Start,
    State,
    Word,
)
from agent_rl.config.processes import ActorEntry
from agent_rl.groups.outages import FAULTS

START, DRAIN = 100.0, 30.0


def plan(name: str, restarts: int = 2) -> Plan:
    entry = ActorEntry.model_validate(
        {"class": f"m:{name}", "host": "a", "restarts": restarts, "restart_window_seconds": 60, "start_seconds": START}
    )
    return Plan(entry, DRAIN, {})


def ending(status: int, **given: Any) -> Ending:
    return Ending(status, f"ended with {status}", **given)


STATUSES = st.sampled_from([0, 1, 1, 1, USER_MISTAKE, TOGETHER, TOGETHER, -signal.SIGKILL, -signal.SIGTERM])


class Lives(RuleBasedStateMachine):
    """A shell that does what it is told, around a life. The environment ends, readies and is late as it likes."""

    @initialize(added=st.booleans())
    def begin(self, added: bool) -> None:
        self.now, self.plans, self.added = 0.0, 0, added
        self.life = ProcessLifecycle("a.0", "a", plan("first", restarts=6), 7, "log", added=added)
        self.asked = int(added)
        """How many answers are due."""
        self.running: Start | None = None
        self.successor: Start | None = None
        self.signals: list[str] = []
        self.numbers: list[int] = []
        self.ended = self.failed = self.wanted_no_more = False
        self.do(self.life.start(self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.ended or isinstance(action, Replaced), "nothing follows the end but an answer"
            match action:
                case Start(beside=True):
                    assert self.running is not None
                    assert self.successor is None
                    self.successor = action
                case Start():
                    assert self.running is None, "one process at a time"
                    assert self.successor is None
                    self.running, self.signals = action, []
                    self.numbers.append(action.incarnation)
                case "promote":
                    assert self.running is None
                    self.running, self.successor, self.signals = self.successor, None, []
                    assert self.running is not None
                    self.numbers.append(self.running.incarnation)
                case "terminate":
                    assert self.running is not None
                    assert "terminate" not in self.signals, "a second SIGTERM would end it before it has drained"
                    self.signals.append(action)
                case "kill":
                    assert self.running is not None
                    self.signals.append(action)
                case "kill successor" | "drop successor":
                    assert self.successor is not None
                    self.signals.append(action)
                    if action == "drop successor":
                        self.successor = None
                case Replaced():
                    self.asked -= 1
                    assert self.asked >= 0, "nobody asked"
                case Fail():
                    self.failed = True
                case Word("stopped") if self.life.state != "waiting":
                    self.ended = True
                case Say() | Word():
                    pass

    @rule(seconds=st.sampled_from([0.5, 10.0, 200.0]))
    def time(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.life.elapsed(self.now))

    @precondition(lambda self: self.running)
    @rule()
    def ready(self) -> None:
        self.do(self.life.ready(self.now))

    @precondition(lambda self: self.running)
    @rule(status=STATUSES, lately=st.booleans(), blocked=st.sampled_from(["", "", "user.py:3"]))
    def end(self, status: int, lately: bool, blocked: str) -> None:
        self.running = None
        self.do(self.life.ended(ending(status, blocked_at=blocked), self.now, swapped_lately=lately))

    @precondition(lambda self: self.successor)
    @rule()
    def prepared(self) -> None:
        self.do(self.life.prepared(self.now))

    @precondition(lambda self: self.successor)
    @rule(status=STATUSES)
    def successor_ends(self, status: int) -> None:
        self.successor = None
        self.do(self.life.successor_ended(ending(status)))

    @precondition(lambda self: not self.asked)
    @rule(beside=st.booleans())
    def replace(self, beside: bool) -> None:
        self.asked, self.plans = 1, self.plans + 1
        self.do(self.life.replace(plan(f"p{self.plans}", restarts=6), self.now, beside=beside))

    @precondition(lambda self: not self.ended)
    @rule()
    def adopt(self) -> None:
        self.plans += 1
        self.life.adopt(plan(f"p{self.plans}", restarts=6))

    @precondition(lambda self: self.now > 300.0)
    @rule()
    def give_up(self) -> None:
        self.do(self.life.given_up())

    @precondition(lambda self: self.now > 300.0)  # else most lives would be short
    @rule()
    def stop(self) -> None:
        self.wanted_no_more = True
        self.do(self.life.stop(self.now, DRAIN))

    @rule(last=st.booleans())
    def kill(self, last: bool) -> None:
        last &= self.now > 300.0
        self.wanted_no_more |= last
        self.do(self.life.kill("because", last=last))

    @invariant()
    def is_sound(self) -> None:
        life = self.life
        assert self.numbers == sorted(set(self.numbers)), "peers refuse a process that is not newer"
        assert self.ended == (life.state == "gone")
        assert (self.running is not None) == (life.state in {"starting", "up", "draining"})
        assert bool(life.spent) == (life.state == "waiting")
        if self.running is not None:
            assert (self.running.plan, self.running.incarnation) == (life.plan, life.incarnation)
        if self.wanted_no_more:
            assert life.stops
            assert self.successor is None
        if self.ended:
            assert not self.asked, "everybody has an answer"
        if self.asked and not {"kill", "kill successor"} & {*self.signals}:
            assert life.deadline < math.inf, "who waits for an answer gets one"
        if not self.asked and life.state in {"starting", "up"}:
            assert life.deadline == math.inf, "it is killed for silence alone"
        if life.state == "gone" and not self.wanted_no_more and not self.added:
            assert self.failed, "an actor that is wanted ends only with the run"


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def a_life(*, added: bool = False, restarts: int = 2) -> ProcessLifecycle:
    life = ProcessLifecycle("a.0", "a", plan("first", restarts), 7, "log", added=added)
    life.start(0.0)
    return life


def told(actions: list[Action]) -> list[Any]:
    """What is done, without what is shown."""
    return [action for action in actions if not isinstance(action, Word | Say)]


FIRST, OTHER = plan("first"), plan("other")


def test_every_event_in_every_state_leads_where_the_table_says() -> None:
    """All orders of a few events: no other state follows, and each that the table names is reached."""
    happens: dict[Event, Callable[[ProcessLifecycle, float], object]] = {
        "start": lambda life, now: life.start(now) if life.state == "idle" else [],
        "stop": lambda life, now: life.stop(now, DRAIN),
        "kill for good": lambda life, now: life.kill(last=True) and now,
        "replace": lambda life, now: life.replace(OTHER, now, beside=False),
        "replace beside": lambda life, now: life.replace(OTHER, now, beside=True),
        "ready": lambda life, now: life.ready(now) if life.state == "starting" else [],
        "prepared": lambda life, now: life.prepared(now),
        "late": lambda life, now: life.elapsed(now + 1000.0),
        "given up": lambda life, now: life.given_up() and now,
    }
    ends = [(status, lately) for status in (1, USER_MISTAKE, TOGETHER) for lately in (False, True)]
    events: list[Any] = [*happens, *ends]
    seen: dict[tuple[State, Event], set[State]] = {}
    for added in (False, True):
        for order in product(events, repeat=3):
            life, now = ProcessLifecycle("a.0", "a", plan("first", restarts=0), 7, "log", added=added), 0.0
            for event in order if order[0] in TABLE["idle"] else ("start", *order):
                before: State = life.state
                now += 1.0
                if isinstance(event, tuple):
                    if before not in {"starting", "up", "draining"}:
                        continue
                    life.ended(ending(event[0]), now, swapped_lately=event[1])
                else:
                    happens[event](life, now)
                seen.setdefault((before, "ended" if isinstance(event, tuple) else event), set()).add(life.state)
    for (state, event), after in seen.items():
        assert after - {state} == {*TABLE[state].get(event, ())} - {state}, (state, event)
    assert all((state, event) in seen for state, row in TABLE.items() for event in row)


def test_a_process_is_replaced_in_place_and_the_answer_comes_when_the_new_one_is_ready() -> None:
    life = a_life()
    life.ready(1.0)
    assert told(life.replace(OTHER, 2.0, beside=False)) == ["terminate"]
    assert told(life.ended(ending(0), 3.0)) == [Start(OTHER, 8)]
    assert life.ready(5.0) == [Replaced("", 2.0)]


def test_a_successor_is_prepared_first_and_takes_the_place_of_the_former_one() -> None:
    life = a_life()
    assert life.replace(OTHER, 2.0, beside=True) == [Start(OTHER, 8, beside=True)]
    assert told(life.prepared(3.0)) == ["terminate"]
    assert told(life.ended(ending(0), 4.0)) == ["promote"]
    assert (life.plan, life.incarnation) == (OTHER, 8)


@pytest.mark.parametrize("kind", ["dies", "late"])
def test_the_former_plan_comes_back_where_the_new_process_does_not_run(kind: str) -> None:
    life = a_life()
    life.replace(OTHER, 2.0, beside=False)
    life.ended(ending(0), 3.0)
    if kind == "late":
        assert life.elapsed(3.0 + START) == ["kill"]
    answer, start = told(life.ended(ending(-9, words=("no such device",)), 104.0))
    assert start == Start(FIRST, 9)
    late = "a.0 was not ready after 100 s (actors.a.start_seconds) and is killed: see `prepare` and `start` of m:other"
    assert answer.fault.startswith(late if kind == "late" else "a.0 ended with -9 before it was ready: no such device")
    assert life.deadline == math.inf, "no trial: the former one has run"


def test_a_replica_that_cannot_start_is_not_started_again_and_fails_no_run() -> None:
    life = a_life(added=True)
    assert told(life.ended(ending(1), 1.0)) == [
        Replaced("a.0 ended with 1 before it was ready: cannot run as it is configured")
    ]
    assert life.state == "gone"


def test_a_process_that_ends_with_another_spends_no_restart_and_says_nothing() -> None:
    life = a_life(restarts=0)
    for number in range(8, 12):
        assert life.ended(ending(TOGETHER), 1.0) == [Word("restarting"), Start(life.plan, number)]
    life.stop(2.0, DRAIN)
    assert life.ended(ending(TOGETHER), 3.0) == [Word("stopped")]
    assert isinstance(a_life(restarts=0).ended(ending(1), 1.0)[0], Fail)


def test_spent_restarts_end_the_run_or_wait_for_the_way_back_of_a_swap() -> None:
    life = a_life(restarts=0)
    assert told(life.ended(ending(1, words=("oh",)), 1.0, swapped_lately=True)) == []
    assert life.spent == "a.0 ended with 1, and its 0 restarts in 60 s are spent\n  oh\n  more in log"
    assert told(life.replace(OTHER, 2.0, beside=True)) == [Start(OTHER, 8)], "there is nothing to stand beside"
    life.ready(2.5)
    assert told(life.ended(ending(1), 3.0))[0] == Start(OTHER, 9, restarted=True)
    for lives in (a_life(restarts=0), a_life()):
        lives.ended(ending(1, words=("oh",)), 1.0, swapped_lately=True)
        gone = lives.state == "waiting"
        assert [type(action) for action in told(lives.given_up())] == [Fail] * gone, "none waits but one that is spent"
        assert (lives.state == "gone") == gone


@pytest.mark.parametrize(("lived", "between", "ends"), [(1.0, False, True), (3700.0, False, False), (1.0, True, False)])
@pytest.mark.parametrize("lately", [False, True])
def test_what_lacks_memory_twice_in_a_row_is_not_started_into_the_same_wall_again(
    lived: float, between: bool, ends: bool, lately: bool
) -> None:
    life, killed, now = a_life(restarts=5), ending(-9, lacked_memory=True), 2.0
    first = life.ended(killed, now)
    assert isinstance(told(first)[0], Start)
    if between:
        life.ready(now)
        life.ended(ending(-9), now)
    life.ready(now)
    (done, *_) = life.ended(killed, now + lived, swapped_lately=lately)
    remedy = "a.0 ended with -9, and so was the one before it: take what `agent-rl check` names, or give the host more"
    match done:
        case Fail():
            assert (ends, lately, done.exit_code) == (True, False, 2)
            assert done.reason.startswith(remedy)
        case Say():
            assert done.text.startswith(remedy if ends else "a.0 ended with -9; starting it again")
            assert life.state == ("waiting" if ends else "starting")


def test_a_rank_follows_its_learner_at_its_next_start() -> None:
    life = a_life()
    life.adopt(OTHER)
    assert life.plan == FIRST, "it goes on"
    assert told(life.ended(ending(TOGETHER), 1.0)) == [Start(OTHER, 8)]
    assert told(life.ended(ending(TOGETHER), 2.0)) == [Start(OTHER, 9)]


def test_a_mistake_and_code_that_blocks_again_and_again_end_the_run() -> None:
    assert told(a_life().ended(ending(USER_MISTAKE, message="no"), 1.0)) == [Fail("a.0: no", 2)]
    stopped = a_life()
    stopped.stop(1.0, DRAIN)
    assert told(stopped.ended(ending(USER_MISTAKE, message="no"), 2.0)) == [Fail("a.0: no", 2)]
    blocked = ending(-9, blocked_at="user.py:3")
    for between in (None, ending(1)):
        life = a_life(restarts=9)
        faults = [type(life.ended(blocked, 1.0)[0]) for _ in range(FAULTS - 1)]
        if between is not None:
            life.ended(between, 1.0)
        assert [*faults, type(life.ended(blocked, 1.0)[0])] == [Say] * (FAULTS - 1) + [Say if between else Fail]


def test_what_the_process_before_a_swap_did_is_not_held_against_the_one_after_it() -> None:
    life, blocked = a_life(restarts=FAULTS), ending(-9, blocked_at="user.py:3")
    for now in (1.0, 3.0):
        for _ in range(FAULTS - 1):
            assert isinstance(life.ended(blocked, now)[0], Say)
        life.replace(plan("other", FAULTS), now, beside=False)
        assert life.ended(ending(USER_MISTAKE), now) == [
            Say(f"a.0 ended with {USER_MISTAKE} while stopping"), Word("restarting"), Start(life.plan, life.incarnation)
        ]  # fmt: skip
        assert life.ready(now + 0.5) == [Replaced("", 0.5)]


def test_a_process_that_dies_in_each_start_is_not_judged_by_the_life_of_the_one_before() -> None:
    life = a_life(restarts=2)
    life.ready(1.0)
    assert isinstance(life.ended(ending(1), 100.0)[0], Say), "it worked for long"
    deaths = [life.ended(ending(1), 100.0 * turn)[0] for turn in (2, 3, 4)]
    assert [type(death) for death in deaths] == [Say, Say, Fail]


@pytest.mark.parametrize(
    ("ends", "failure", "killed", "said"),
    [
        (ending(1), "", "", "a.0 ended with 1; starting it again"),
        (ending(1, words=("a", "oh")), "", "", "a.0 ended with 1; starting it again (oh)"),
        (ending(-9, words=("a", "oh")), "", "", "a.0 ended with -9; starting it again"),
        (ending(-9, words=("oh",), message="no"), "", "", "a.0 ended with -9; starting it again (no)"),
        (ending(1, words=("oh",), message="no"), "ill", "", "a.0 ended with 1; starting it again (ill)"),
        (ending(-9, blocked_at="u.py"), "ill", "mute", "mute; starting it again (its event loop stood still in u.py)"),
    ],
)
def test_why_a_process_is_started_again(ends: Ending, failure: str, killed: str, said: str) -> None:
    life = a_life()
    life.failure = failure
    if killed:
        assert life.kill(killed) == ["kill"]
    assert life.ended(ends, 1.0)[0] == Say(said)
    assert life.ready(3.5) == [Say("a.0 runs again, 2.5 s after it ended")]
    assert life.ready(4.0) == []
    assert life.ended(ending(1), 9.0)[0] == Say("a.0 ended with 1; starting it again"), "nothing of it is left"


def test_a_process_has_the_shorter_of_two_times_to_stop_and_who_is_killed_none() -> None:
    for seconds, deadline in ((100.0, 2.0 + DRAIN), (5.0, 15.0)):
        life = a_life()
        life.ready(1.0)
        life.replace(OTHER, 2.0, beside=False)
        assert told(life.stop(10.0, seconds)) == [Replaced("the run ended meanwhile")]
        assert life.deadline == deadline
        assert life.elapsed(deadline - 0.1) == []
        assert life.elapsed(deadline) == [Say("a.0 did not stop in time and is killed"), "kill"]
        assert life.deadline == math.inf
        assert life.ended(ending(-9), deadline) == [Word("stopped")]
    life = a_life()
    life.stop(1.0, DRAIN)
    assert life.kill(last=True) == ["kill"]
    assert life.deadline == math.inf


def test_a_successor_that_is_late_is_killed_and_its_plan_is_named() -> None:
    life = a_life()
    life.ready(1.0)
    life.replace(OTHER, 2.0, beside=True)
    assert life.elapsed(2.0 + START) == ["kill successor"]
    (answer,) = life.successor_ended(ending(-9, words=("oh",)))
    assert isinstance(answer, Replaced)
    assert "`start` of m:other, and log\n  oh" in answer.fault
    assert (life.state, life.deadline, life.plan) == ("up", math.inf, FIRST)


def test_a_restart_budget_counts_within_its_window() -> None:
    budget = RestartBudget(restarts=2, seconds=10)
    assert [budget.spend(now) for now in (0.0, 5.0, 9.9, 10.0, 14.9, 15.0)] == [True, True, False, True, False, True]
    assert not RestartBudget(restarts=0, seconds=10).spend(0.0)


def test_a_process_that_dies_before_it_did_anything_is_not_started_for_ever_however_long_it_starts() -> None:
    budget = RestartBudget(restarts=2, seconds=10)
    assert [budget.spend(100.0 * turn, early=True) for turn in range(3)] == [True, True, False]
    assert budget.within == "in a row, before it did anything,"
    budget = RestartBudget(restarts=2, seconds=10)
    assert all(budget.spend(100.0 * turn, early=turn % 3 != 2) for turn in range(30))
