"""Who is named as silent, when, and with whose waits; and when a run is said to stand. Time is counted, never waited
for.
"""

import dataclasses
import math
import time

import pytest

from agent_rl.observe import silence as silence_module
from agent_rl.observe.silence import (
    NAMED_SECONDS,
    SILENT_SECONDS,
    STARTING_SECONDS,
    Movement,
    Notice,
    Overdue,
    ProcessSeen,
    Silence,
    final_words,
)
from tests.builders import status

TICK = 0.5


class Run:
    """Actors of which each speaks at every tick unless it is silent."""

    def __init__(self, **waits):
        self.now = 100.0
        self.waits = {f"{role}.0": what for role, what in waits.items()}
        self.stopped = set()
        self.cpu = dict.fromkeys(self.waits, 0.0)
        self.silence = Silence(self.look)
        for actor in self.waits:
            self.silence.started(actor, patience=120.0)
        self.said = []
        self.tick()

    def tick(self):
        self.said += [(self.now, each) for each in self.silence.tick(self.now)]

    def look(self, actor):
        return ProcessSeen("T" if actor in self.stopped else "S", self.cpu[actor])

    def go(self, seconds, *silent):
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.tick()
            for actor, what in self.waits.items():
                if actor not in silent:
                    self.hear(actor, what)
        return self

    def hear(self, actor, what="", state="running"):
        self.silence.heard(status(actor, waiting_for=what, state=state))

    @property
    def texts(self):
        return [each.text for _, each in self.said]


def test_a_silent_actor_alone_is_named_and_once_with_who_waits_for_it_and_for_what():
    run = Run(learner="roc_filter: step 3", roc_filter="kv_scheduler: groups", kv_scheduler="").go(600)
    assert (run.texts, run.silence.silent) == ([], [])
    run.stopped.add("roc_filter.0")
    began = run.now
    run.go(60, "roc_filter.0")
    ((named, notice),) = run.said
    assert SILENT_SECONDS <= named - began <= SILENT_SECONDS + TICK
    assert notice.actor == "roc_filter.0"
    assert notice.text == (
        "roc_filter.0 has been silent for 5 s, its process is stopped (state T); learner.0 waits for it: step 3"
    )
    assert run.silence.state("roc_filter.0").startswith("silent for 60 s")
    assert run.silence.silent == ["roc_filter.0"]


CIRCLE = {"a.0": "b: x", "b.0": "a: y", "c.0": ""}
TWO = {"learner.0": "", "learner.1": "", "roc_filter.0": "learner: x"}
CHAIN = {
    "learner.0": "roc_filter: step 3", "roc_filter.0": "gen_a, gen_b: trajectories of 2 groups", "gen_a.0": "",
    "gen_b.0": "kv_scheduler: rollout requests", "kv_scheduler.0": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("waits", "actor", "said"),
    [
        (CHAIN, "kv_scheduler.0", [
            "gen_b.0 waits for it: rollout requests", "roc_filter.0 waits for gen_a, gen_b: trajectories of 2 groups",
            "learner.0 waits for roc_filter: step 3"]),
        (CHAIN, "gen_b.0", [
            "roc_filter.0 waits for gen_a, it: trajectories of 2 groups", "learner.0 waits for roc_filter: step 3"]),
        (CIRCLE, "a.0", ["b.0 waits for it: y"]), (CIRCLE, "c.0", []),
        (TWO, "learner.0", ["roc_filter.0 waits for it: x"]), (TWO, "learner.1", ["roc_filter.0 waits for it: x"]),
    ],
)  # fmt: skip
def test_who_waits_for_those_who_wait_is_named_too_nearest_first(waits, actor, said):
    silence = Silence(lambda _: None)
    for each, what in waits.items():
        silence.heard(status(each, waiting_for=what))
    assert silence.waits_for(actor) == said


def test_an_actor_nobody_waits_for_is_named_a_little_later_and_again_when_somebody_does():
    run = Run(tool_executor="", rollout_generator="").go(10)
    began = run.now
    run.go(20, "tool_executor.0")
    ((named, notice),) = run.said
    assert NAMED_SECONDS <= named - began < 10
    assert notice.text.endswith("no actor reports waiting for it")
    run.waits["rollout_generator.0"] = "tool_executor: 3 tool results"
    run.go(20, "tool_executor.0")
    assert len(run.said) == 2
    assert run.texts[-1].endswith("rollout_generator.0 waits for it: 3 tool results")


def test_who_is_heard_again_is_named_as_back_and_may_fall_silent_anew():
    run = Run(learner="", roc_filter="").go(10).go(12, "learner.0").go(10)
    assert run.texts[1:] == ["learner.0 is heard again, after 12 s"]
    assert run.silence.silent == []
    assert run.silence.state("learner.0") == ""
    run.go(9, "learner.0")
    assert len(run.said) == 3


def test_what_the_process_did_is_said_as_it_was_seen():
    run = Run(learner="").go(10)
    for _ in range(16):
        run.cpu["learner.0"] += TICK
        run.go(TICK, "learner.0")
    assert "its process lives (state S) and used 5.0 s of processor time in the last 5 s" in run.texts[0]


def test_nothing_is_said_of_a_process_that_cannot_be_seen():
    run = Run(learner="")
    run.silence = Silence(lambda actor: None)
    run.tick()
    run.go(10).go(10, "learner.0")
    assert run.texts == ["learner.0 has been silent for 8 s; no actor reports waiting for it"]


def test_a_starting_process_is_given_time_unless_it_is_stopped():
    run = Run(learner="").go(STARTING_SECONDS - 1, "learner.0")
    assert run.texts == []
    run.go(1, "learner.0")
    assert run.texts[0].startswith("learner.0 has been silent for 30 s since it was started")
    run = Run(learner="")
    run.stopped.add("learner.0")
    run.go(NAMED_SECONDS, "learner.0")
    assert "is stopped" in run.texts[0]


def test_an_actor_that_says_it_starts_may_import_for_long():
    run = Run(learner="", roc_filter="learner: a policy")
    run.go(5, "learner.0").hear("learner.0", state="starting")
    run.go(STARTING_SECONDS - 1, "learner.0")
    assert run.texts == []
    run.go(1, "learner.0")
    assert "silent for 30 s while it starts" in run.texts[0]


def test_one_that_stays_silent_is_overdue_once_and_a_new_process_starts_with_a_clean_slate():
    run = Run(learner="").go(10).go(300, "learner.0")
    ((when, overdue),) = [(when, each) for when, each in run.said if isinstance(each, Overdue)]
    assert when == 100 + 10 + 120
    assert overdue.actor == "learner.0"
    assert overdue.text.endswith("; it was killed, since it may be silent for 120 s")
    run.said.clear()
    run.silence.started("learner.0", patience=120.0)
    run.go(20, "learner.0")
    assert run.said == []


def test_who_is_asked_to_stop_is_not_watched_and_time_in_which_nobody_watched_is_nobodys_silence():
    run = Run(learner="", roc_filter="learner: x").go(10)
    run.now += 3600  # the supervisor was stopped, or the machine slept
    run.tick()
    run.go(10).silence.forget("learner.0")
    run.go(300, "learner.0")
    assert run.said == []


def test_actors_of_other_hosts_are_named_but_never_overdue():
    run = Run(learner="tool_executor: x").go(1)
    run.hear("tool_executor.0")
    run.cpu["tool_executor.0"] = 0.0
    run.go(1000)
    assert [type(each) for _, each in run.said] == [Notice]


def test_many_replicas_that_fall_silent_together_share_a_notice():
    silence = Silence(lambda _: None)
    replicas, executors = [f"gen_b.{i}" for i in range(300)], [f"tool_executor.{i}" for i in range(4)]

    def hear(actors, waits=""):
        for actor in actors:
            silence.heard(status(actor, waiting_for=waits))

    hear(replicas)
    hear(executors, "gen_b: calls")
    assert silence.tick(0.0) == []
    said = []
    for half in range(1, 13):
        hear(executors, "gen_b: calls")
        said += silence.tick(half / 2)
    waits = [f"tool_executor.{i} waits for it: calls" for i in range(3)]
    text = "; ".join(["gen_b.0 has been silent for 5 s", *waits, "1 more of tool_executor wait for gen_b"])
    text += "; the same holds for gen_b.1 and 298 more of gen_b"
    assert [(each.text, each.actor, len(each.actors)) for each in said] == [(text, "gen_b.0", 300)]
    assert silence.descriptions[0].startswith("gen_b.0 has been silent for 6 s; tool_executor.0 waits for it: calls; ")
    assert len(silence.descriptions) == 1
    hear(replicas)
    (back,) = silence.tick(6.5)
    assert back.text == "gen_b.0 is heard again, after 6 s; the same holds for gen_b.1 and 298 more of gen_b"


# Whether the run moves


def stand(movement, now, until, statuses):
    said = []
    while now < until:
        now += TICK
        for each in statuses(now):
            said += movement.observe(each, now)
        said += movement.tick(now)
    return said


def test_a_run_in_which_nothing_moves_is_named_once_with_all_waits():
    movement = Movement(180.0)
    actors = [
        status("learner.0", waiting_for="roc_filter: step 3", loss=math.nan, step=3),
        status("roc_filter.0", waiting_for="kv_scheduler: groups"),
        status("tool_executor.0"),
        status("kv_scheduler.0", state="starting"),
    ]
    assert stand(movement, 0.0, 179.0, lambda now: actors) == []
    assert not movement.stands
    (notice,) = stand(movement, 179.0, 2000.0, lambda now: actors)
    assert notice.actor == ""
    assert notice.text == (
        "nothing has moved for 3.0 minutes: kv_scheduler.0 is starting; learner.0 waits for roc_filter: step 3; "
        "roc_filter.0 waits for kv_scheduler: groups; tool_executor.0 reports no wait"
    )
    assert movement.stands
    (moves,) = movement.observe(status("learner.0", waiting_for="roc_filter: step 4"), 2001.0)
    assert moves.text.startswith("the run moves again, after 33.")
    assert not movement.stands


def test_a_run_that_stands_is_named_although_an_actor_is_silent_and_that_actor_is_not_said_to_wait():
    movement = Movement(180.0)
    silent = status("gen_b.0", waiting_for="kv_scheduler: rollout requests")
    actors = [status(f"tool_executor.{i}") for i in range(5)]
    for each in (silent, *actors):
        movement.observe(each, 0.0)
    said = []
    for second in range(1, 200):
        for each in actors:
            said += movement.observe(each, float(second))
        said += movement.tick(float(second), ["gen_b.0"])
    (notice,) = said
    assert notice.text.startswith(
        "nothing has moved for 3.0 minutes: gen_b.0 is silent; tool_executor.0 reports no wait"
    )
    assert notice.text.endswith("tool_executor.2 reports no wait; 2 more of tool_executor likewise")
    movement.forget("gen_b.0")
    assert "gen_b" not in movement.describe(300.0)


@pytest.mark.parametrize(
    ("moving", "named"),
    [
        (lambda now: status("learner.0", busy=0.9 * now), 0),  # a training step of an hour
        (lambda now: status("learner.0", generated=now), 0),
        (lambda now: status("learner.0", waiting_for=f"roc_filter: step {now // 100}"), 0),
        (lambda now: status("learner.0", state="running" if now % 100 < 50 else "resting"), 0),
        (lambda now: status("kv_scheduler.0", waiting_for="learner: x", busy=0.02 * now), 1),  # idling is no movement
    ],
)
def test_a_slow_run_that_moves_is_left_alone(moving, named):
    still = status("roc_filter.0", waiting_for="learner: x", busy=1.0)
    assert len(stand(Movement(180.0), 0.0, 2000.0, lambda now: [moving(now), still])) == named


def test_time_in_which_nobody_watched_is_no_standstill():
    movement = Movement(180.0)
    still = [status("learner.0", waiting_for="roc_filter: step 3")]
    assert stand(movement, 0.0, 100.0, lambda now: still) == []
    assert movement.tick(5000.0) == []
    assert stand(movement, 5000.0, 5070.0, lambda now: still) == []


def test_the_exit_message_repeats_what_was_silent_or_stood():
    assert final_words([], "") == []
    assert final_words(["a.0 has been silent for 6 s"], "nothing has moved for 3.0 minutes: a.0 is running") == [
        "at the end: a.0 has been silent for 6 s",
        "at the end: nothing has moved for 3.0 minutes: a.0 is running",
    ]


def half_silent(actors):
    """A run in which every second actor of two roles has been silent long enough to be named."""
    silence, names = Silence(lambda _: None), [f"role_{number % 4 // 2}.{number}" for number in range(actors)]
    for tick in range(20):
        for number, name in enumerate(names):
            if tick == 0 or number % 2:
                waits = f"role_{1 - number % 4 // 2}: {tick} results"
                silence.heard(status(name, waiting_for=waits))
        silence.tick(tick * TICK)
    assert len(silence.silent) == actors // 2
    return silence


def test_a_tick_with_half_of_the_actors_silent_costs_in_proportion_to_their_number():
    def seconds(actors):
        silence, found = half_silent(actors), []
        for tick in range(20, 25):
            began = time.process_time()
            silence.tick(tick * TICK)
            states = [silence.state(actor) for actor in silence.silent]
            found.append(time.process_time() - began)
            assert "more of role_" in states[0]
        return min(found)

    assert seconds(2400) < 8 * seconds(600)  # 16 times, if every silent actor looked at every other


def test_statuses_are_compared_until_one_of_them_shows_that_the_run_moves(monkeypatch):
    compared = []
    moves = silence_module._moves
    monkeypatch.setattr(silence_module, "_moves", lambda *given: compared.append(given) or moves(*given))
    movement = Movement(180.0)
    for tick in range(40):
        for number in range(100):
            assert movement.observe(status(f"tool_executor.{number}", calls=tick), tick * TICK) == []
    assert len(compared) <= 40
    assert movement.tick(20.0 + 179.0) == []
    assert len(movement.tick(20.0 + 181.0)) == 1


def test_actors_that_miss_the_same_peers_are_one_notice_and_so_is_their_return():
    missing, gone = silence_module.Missing(), "none of tool_executor.0 is heard"

    def said(actor, text):
        heard = dataclasses.replace(status(actor), missing=text)
        return [notice.text for notice in missing.heard(heard)]

    assert said("gen.0", "") == []
    assert said("gen.0", gone) == [f"gen.0 waits: {gone}"]
    assert said("gen.0", gone) == said("gen.1", gone) == said("gen.0", "") == []
    assert said("gen.1", "") == ["gen.1 goes on"]
    said("gen.0", gone)
    assert said("gen.0", "two hang") == ["gen.0 waits: two hang"]  # it does not go on
