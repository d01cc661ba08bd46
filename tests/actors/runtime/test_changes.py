"""Changes of a run under way: what is refused, and what becomes of the processes. In virtual time."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

from actors.runtime import run_state
from actors.runtime.change_rules import changed_keys, differences, in_place, why_not
from actors.runtime.dry_run import shared_faults
from actors.runtime.processes import available_bytes, group_bytes
from actors.runtime.run import run_topology
from actors.runtime.run_state import RESTART_SECONDS
from actors.runtime.target import chosen
from agent_rl.config.load import load_topology
from agent_rl.config.processes import ActorEntry
from agent_rl.messages import Changed, DrainWanted, ScaleWanted, StopWanted
from agent_rl.observe.report.graph import read_wanted
from agent_rl.records.continuing import write_resolved
from agent_rl.records.document import Document, Host
from agent_rl.records.run_directory import RESTARTS, RunRefused
from tests.actors.runtime.virtual_run import OTHER, PLAIN, World, swap
from tests.end_to_end.topologies import write_micro
from transport import CallFailed

ONE = "settings = { number = 1 }"
TWO = f"replicas = 2\n{ONE}"
BOTH = f'hosts = ["a", "b"]\n{ONE}'
HELD = "the former class and settings hold again"


def firsts(lines: tuple[str, ...]) -> list[str]:
    """What lines say before their first semicolon, with classes by their short names."""
    return [line.split(";")[0].replace(f"{PLAIN.partition(':')[0]}:", "") for line in lines]


def ups(world: World) -> list[str]:
    """The two processes that got ready last."""
    return [event for event in world.events if event.startswith("up")][-2:]


# Swaps.


@pytest.mark.parametrize("room", [True, False])
async def test_a_swap_replaces_the_processes_of_a_role_one_after_the_other(world: World, room: bool) -> None:
    world.write(first="", second=TWO)
    world.room = room
    async with world.running():
        answer = await world.ask(swap("second", OTHER, "number=5"))
        assert firsts(answer.done) == [
            "second.0 is now Other", "second.1 is now Other", "second.class: Other, was Plain",
            "second.settings.number: 5, was 1",
        ]  # fmt: skip
        how = "0.3 s (beside)" if room else "0.4 s (in place: 0.0 GiB are needed, and 0.0 are free)"
        assert all(line.endswith(f"it was away for {how}") for line in answer.done[:2])
        assert world.events[3:] == [
            event
            for actor in ("second.0", "second.1")
            for event in [f"ready {actor} Other 5"] * room + [f"left {actor} Plain 1", f"up {actor} Other 5"]
        ]
        assert (await world.ask(swap("second", fresh=True))).refused == ()
        assert world.stored("second") == (OTHER, {})
        assert world.events[-1] == "up second.1 Other 0"


async def test_a_swap_holds_until_the_run_ends_also_for_a_supervisor_that_is_killed(world: World) -> None:
    world.write(first="", second=TWO)
    async with world.running(code=None):
        for settings in (("number=4",), ("number=5",)):
            assert (await world.ask(swap("second", OTHER, *settings))).done
        await trio.sleep(2)
    assert not world.document.ended
    for held, said in (
        ("Other 5", f"second stays what it was swapped for before this supervisor was killed: class {OTHER}"),
        ("Plain 1", f"second was swapped in the last start, and now is what the file says: class {PLAIN}"),
    ):
        before = len(world.events)
        async with world.running():
            assert sorted(world.events[before:]) == ["up first.0 Plain 0", *(f"up second.{at} {held}" for at in (0, 1))]
            assert said in world.told()
        assert world.document.ended
        assert world.children[-1].incarnation > world.children[0].incarnation


LATE = "was not ready after 60 s (actors.second.start_seconds) and is killed: see `prepare` and `start`"


@pytest.mark.parametrize(
    ("room", "settings", "fault"),
    [
        (True, ["lives=0.2", "only=1"], "second.1 exited with status 7 before it was ready: no such device"),
        (False, ["lives=0.2", "only=1"], "second.1 exited with status 7 before it was ready: no such device"),
        (True, ["starts=1e8"], f"second.0 {LATE}"),
        (False, ["starts=1e8"], f"second.0 {LATE}"),
        (True, ["prepares=1e8"], f"second.0 {LATE}"),
    ],
)
async def test_a_process_that_does_not_run_leaves_its_place_to_the_former_one(
    world: World, room: bool, settings: list[str], fault: str
) -> None:
    world.write(first="", second=f"start_seconds = 60\n{TWO}")
    world.room = room
    async with world.running():
        answer = await world.ask(swap("second", OTHER, *settings))
        assert answer.done == ()
        assert answer.refused[0].startswith(fault)
        assert answer.refused[0].endswith(HELD)
        assert world.stored("second") == (PLAIN, {"number": 1})
        await trio.sleep(2)
        for actor in ("second.0", "second.1"):
            assert [event for event in world.events if event.startswith("up") and actor in event][-1].endswith(
                "Plain 1"
            )
        assert ("left second.1 Plain 1" in world.events) == ("only=1" in settings), "who was not reached went on"
        assert not world.document.others, "all of it runs"
        assert (await world.ask(swap("second", OTHER))).done, "the run can be changed again"


async def test_a_swap_that_is_refused_stops_nothing(world: World) -> None:
    world.write(first="", second=TWO)
    async with world.running():
        before = list(world.events)
        world.refused = ["there is no module 'refused'", "mend it"]
        assert await world.ask(swap("second", "refused:Class")) == Changed(
            ("there is no module 'refused'", "mend it"), ()
        )
        world.refused = []
        gone = (await world.ask(swap("second", "gone:Class"))).refused[0]
        assert gone.endswith("if its module has changed since the run began, give the class another module")
        assert (await world.ask(swap("third", OTHER))).refused == (
            "the run has no actor 'third'; there are first, second",
        )
        assert world.events == before
        edits = [(edit.what, len(edit.done), len(edit.refused)) for edit in world.document.edits]
        await trio.sleep(1.5)
        edits = [(edit.what, len(edit.done), len(edit.refused)) for edit in world.document.edits]
        assert edits == [("swap of second", 0, 2), ("swap of second", 0, 1), ("swap of third", 0, 1)]


@pytest.mark.parametrize("hosts", [(), ("a", "b")], ids=["on one host", "on another host"])
async def test_a_class_that_keeps_dying_after_its_swap_is_taken_back_on_all_hosts(world: World, hosts: Any) -> None:
    """Before it ends the run: also where its other process lives, which follows."""
    second = f"restarts = 1\n{BOTH if hosts else TWO}"
    world.write(*hosts, first='host = "a"' if hosts else "", second=second)
    async with world.running(*hosts):
        assert (await world.ask(swap("second", OTHER, "number=4"))).done
        assert (await world.ask(swap("second", OTHER, "lives=10.0", "only=1"))).done
        await trio.sleep(60)
        assert sorted(ups(world)) == ["up second.0 Other 4", "up second.1 Other 4"]
        for host in hosts or ("local",):
            assert world.stored("second", host) == (OTHER, {"number": 4})
        assert world.document.swaps == {
            "second": ('actors.second.class="' + OTHER + '"', "actors.second.settings.number=4")
        }
        said = world.told(hosts[-1] if hosts else "")
        assert "second.1 exited with status 7, and its 1 restarts in 60 s are spent" in said
        assert "the class and settings that second had before it was swapped come back" in said


@pytest.mark.parametrize(("lives", "code"), [(28.0, 0), (32.0, 1)])
async def test_a_class_that_dies_long_after_its_swap_ends_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, lives: float, code: int
) -> None:
    monkeypatch.setattr(run_state, "TRIAL_SECONDS", 30.0)
    world.write(first="", second=f"restarts = 0\nsilent_seconds = inf\n{ONE}")
    async with world.running(code=code):
        assert (await world.ask(swap("second", OTHER, f"lives={lives}"))).done
        await trio.sleep(40.0)
        assert bool(world.codes) == bool(code)
        assert ("come back" in world.told()) != bool(code)


async def test_a_process_that_dies_for_good_during_the_swap_of_its_role_waits_for_the_end_of_it(world: World) -> None:
    """Else the file that processes read and the class in force would be those of two changes."""
    world.write(first="", second=f"restarts = 0\n{TWO}")
    async with world.running():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.ask, swap("second", OTHER, "lives=1.0", "prepares=5.0", "only=0"))
            await trio.sleep(8.0)
            assert "second.0 exited with status 7, and its 0 restarts" in world.told()
            assert world.stored("second")[0] == PLAIN, "the swap goes on"
        await trio.sleep(5.0)
        assert ups(world) == ["up second.0 Plain 1", "up second.1 Plain 1"]
        assert world.stored("second") == (PLAIN, {"number": 1})
        assert world.document.edits[-1].what == "return of second to its former class"
        assert world.document.swaps == {}


async def test_a_process_that_dies_for_good_during_the_next_swap_of_its_role_gets_the_class_of_that(
    world: World,
) -> None:
    world.write(first="", second=f"restarts = 0\n{TWO}")
    async with world.running():
        assert (await world.ask(swap("second", OTHER, "lives=10.0", "only=1"))).done
        await trio.sleep(6.0)
        assert (await world.ask(swap("second", "", "lives=1e9", "number=5", "prepares=8.0"))).done
        assert "second.1 exited with status 7, and its 0 restarts" in world.told()
        await trio.sleep(9.0)
        assert ups(world) == ["up second.0 Other 5", "up second.1 Other 5"]
        assert world.stored("second")[1]["number"] == 5


async def test_where_no_swap_back_reaches_a_process_that_died_for_good_the_run_fails_and_says_why(world: World) -> None:
    """The supervisor of the main host was killed meanwhile: it does not know what the role was before."""
    world.write("a", "b", first='host = "a"', second=f"restarts = 0\n{BOTH}")
    async with world.running("a", "b", code=1):
        assert (await world.ask(swap("second", OTHER, "lives=30.0", "only=1"))).done
        await trio.sleep(2.0)
        await world.kill("a")
        world.start("a")
        await trio.sleep(60.0)
        assert "second.1 exited with status 7, and its 0 restarts in 60 s are spent" in world.told("b")


async def test_a_supervisor_that_is_killed_and_started_again_takes_up_the_swaps_that_it_missed(world: World) -> None:
    world.write("a", "b optional = true", first='host = "a"', second=f'hosts = ["b", "a"]\n{ONE}')
    async with world.running("a", "b"):
        assert (await world.ask(swap("second", OTHER, "number=2"))).done
        await world.kill("b")
        before = len(world.events)
        world.start("b")
        await trio.sleep(20.0)
        assert world.events[before:][-1] == "up second.0 Other 2"
        assert "up second.1 Plain" not in " ".join(world.events[before:]), "those of the main host are as they were"
        assert world.document.others == {}
        assert world.document.processes["second.0"].incarnation >= 2 * RESTARTS
        await world.kill("b")
        await trio.sleep(20.0)
        assert (await world.ask(DrainWanted("b"))).done
        for setting in ("number=3", "number=4"):
            assert (await world.ask(swap("first", "", setting))).done, "nothing waits for a host that is done without"
        world.start("b")
        await trio.sleep(20.0)
        assert world.stored("first", "b") == (PLAIN, {"number": 4})


# Numbers of processes.


async def test_a_role_gets_another_number_of_processes(world: World) -> None:
    world.write(first="", second=f"replicas = 3\nstart = 1\n{ONE}")
    async with world.running():
        answer = await world.ask(ScaleWanted("second", 3))
        assert answer == Changed((), ("second.1 runs", "second.2 runs", "second has 3 processes"))
        assert sorted(world.events[2:]) == ["up second.1 Plain 1", "up second.2 Plain 1"]
        assert len((await world.ask(swap("second", OTHER))).done) == 3 + 1
        answer = await world.ask(ScaleWanted("second", 1))
        assert answer == Changed((), ("second.2 has left", "second.1 has left", "second has 1 process"))
        assert sorted(world.events[-2:]) == ["left second.1 Other 1", "left second.2 Other 1"]
        assert (await world.ask(swap("second", "", "number=2"))).done
        assert (await world.ask(ScaleWanted("second", 2))).done[0] == "second.1 runs"
        assert world.events[-1] == "up second.1 Other 2"
    before = len(world.events)
    async with world.running():
        assert sorted(world.events[before:]) == ["up first.0 Plain 0", "up second.0 Plain 1"]
        line = "second was scaled in the last start, and now has as many processes as the file says: 1; it had 2"
        assert line in world.told()


async def test_replicas_that_do_not_start_are_none(world: World) -> None:
    world.write(first="", second="replicas = 2\nstart = 1\nsettings = { lives = 0.2, only = 1, once = true }")
    async with world.running():
        answer = await world.ask(ScaleWanted("second", 2))
        assert "second.1 exited with status 7 before it was ready: no such device" in answer.refused[0]
        assert answer.refused[-1] == "second keeps the processes that it had"
        assert (await world.ask(ScaleWanted("second", 2))).done[0] == "second.1 runs"
        numbers = [child.incarnation for child in world.children if child.actor == "second.1"]
        assert numbers == [numbers[0], numbers[0] + 1], "peers refuse a process that is not newer"


async def test_replicas_come_and_go_on_other_hosts(world: World) -> None:
    world.write("a", "b", first='host = "a"', second=f'hosts = ["b", "a"]\nreplicas = 4\nstart = 2\n{ONE}')
    homes = {"second.0": "b", "second.1": "a", "second.2": "b", "second.3": "a"}
    async with world.running("a", "b", code=None):
        assert (await world.ask(ScaleWanted("second", 4))).done[-1] == "second has 4 processes"
        assert sorted(world.events[3:]) == ["up second.2 Plain 1", "up second.3 Plain 1"]
        await trio.sleep(2)
        document = world.document
        assert {name: (host.wanted, host.state) for name, host in document.hosts.items()} == {
            "a": (True, "up"), "b": (True, "up"),
        }  # fmt: skip
        assert {name: each.host for name, each in document.processes.items() if each.role == "second"} == homes
        edits = [(edit.what, edit.done[-1]) for edit in document.edits]
        assert edits == [("scaling of second", "second has 4 processes")]
    before = len(world.events)
    async with world.running("a", "b"):
        ups = sorted(event for event in world.events[before:] if "second" in event)
        assert ups == [f"up {name} Plain 1" for name in homes]
        answer = await world.ask(ScaleWanted("second", 2))
        assert {*answer.done} == {"second.2 has left", "second.3 has left", "second has 2 processes"}
        assert sorted(world.events[-2:]) == ["left second.2 Plain 1", "left second.3 Plain 1"]


async def test_replicas_of_an_optional_host_that_is_away_run_once_it_comes(world: World) -> None:
    second = f'hosts = ["a", "b"]\nreplicas = 4\nstart = 2\n{ONE}'
    world.write("a", "b optional = true", first='host = "a"', second=second)
    async with world.running("a"):
        answer = await world.ask(ScaleWanted("second", 4))
        away = "second.3 runs as soon as its host b does"
        assert answer == Changed((), ("second.2 runs", away, "second has 4 processes"))
        world.start("b")
        await trio.sleep(10)
        assert sorted(world.events[3:]) == ["up second.1 Plain 1", "up second.3 Plain 1"]
        assert (await world.ask(DrainWanted("b"))).done
        await world.ended("b")
        assert len((await world.ask(swap("second", OTHER))).done) == 2 + 1, "the host that left holds nothing up"


# Hosts.


async def test_a_host_is_drained_and_the_run_goes_on_also_after_its_supervisor_was_killed(world: World) -> None:
    world.write("a", "b", first='host = "a"', second=BOTH)
    async with world.running("a", "b", code=None):
        assert await world.ask(DrainWanted("b")) == Changed((), ("host b leaves: its actors stop in order",))
        await world.ended("b")
        assert world.events[3:] == ["left second.1 Plain 1"]
        answer = await world.ask(swap("second", "", "number=2"))
        assert firsts(answer.done) == ["second.0 is now Plain", "second.settings.number: 2, was 1"]
        assert (await world.ask(DrainWanted("b"))).refused == ("host b has left already",)
        await trio.sleep(2)
        assert [edit.what for edit in world.document.edits if edit.done] == ["drain of b", "swap of second"]
        assert "second.1" not in world.document.processes
        assert "silent" not in world.told("a")
    before = len(world.events)
    async with world.running("a"):
        assert sorted(world.events[before:]) == ["up first.0 Plain 0", "up second.0 Plain 2"]
        assert (await world.ask(DrainWanted("b"))).refused == ("host b has left already",)
        assert (await world.ask(swap("second", "", "number=3"))).done, "nothing waits for the drained host"
        world.start("b")
        await trio.sleep(10)
        assert world.events[-1] == "up second.1 Plain 3"
        assert (await world.ask(swap("second", OTHER))).done[1].startswith("second.1"), "it is one of the run again"
        assert world.document.hosts["b"] == Host(wanted=True, state="up")


async def test_a_host_of_the_same_process_is_drained(world: World) -> None:
    world.write("a", "b", first='host = "a"', second=BOTH)
    async with world.running():
        assert await world.ask(DrainWanted("b")) == Changed((), ("host b has left: second.1",))
        assert world.events[3:] == ["left second.1 Plain 1"]


async def test_replicas_on_another_host_are_swapped_by_its_supervisor(world: World) -> None:
    """The hosts have run directories of their own, as on two machines."""
    world.write("a", "b", "c", first='host = "a"', second=f'hosts = ["b", "c"]\n{ONE}')
    async with world.running("a", "c"):
        world.start("b", [f'run.directory="{world.folder / "run_of_b"}"'])
        await trio.sleep(10)
        answer = await world.ask(swap("second", OTHER, "number=2"))
        assert firsts(answer.done)[:2] == ["second.0 is now Other", "second.1 is now Other"]
        assert [event for event in world.events[3:] if "second.0" in event] == [
            "ready second.0 Other 2", "left second.0 Plain 1", "up second.0 Other 2",
        ]  # fmt: skip
        gone = await world.ask(swap("second", OTHER, "lives=0.1"))
        assert gone.done == ()
        assert gone.refused[0].startswith("supervisor.b: second.0 exited with status 7 before it was ready")
        assert gone.refused[-1].endswith(HELD)
        await trio.sleep(5)
        stored = load_topology(world.folder / "run_of_b" / "topology.b.toml").actors["second"]
        assert (stored.class_path, stored.settings) == (OTHER, {"number": 2})
        assert (await world.ask(DrainWanted("b"))).done
        assert "no other host runs second" in (await world.ask(DrainWanted("c"))).refused[0]


@pytest.mark.parametrize("more", ["", " optional = true"])
@pytest.mark.parametrize("hosts", ["ab", "a"])
async def test_a_host_that_is_not_heard_is_done_without_and_takes_up_what_it_missed(
    world: World, more: str, hosts: str
) -> None:
    """Its machine may be gone for good, and no role could be swapped as long as it counts."""
    world.write("a", f"b{more}", first='host = "a"', second=BOTH)
    async with world.running(*hosts):
        if "b" in hosts:
            await world.kill("b")
            await trio.sleep(30)
        assert len((await world.ask(swap("second", OTHER))).done) == 1 + 1
        with trio.fail_after(1):
            answer = await world.ask(DrainWanted("b"))
        assert answer.done == ("host b is not heard: the run goes on without it, and it may come back",)
        assert (await world.ask(DrainWanted("b"))).refused == ("host b has left already",)
        await trio.sleep(2)
        assert not world.document.hosts["b"].wanted
        world.start("b")
        await trio.sleep(10)
        assert ups(world)[-1] == "up second.1 Other 1"
        assert world.document.hosts["b"] == Host(wanted=True, state="up")


# Who may ask, and when.


@pytest.mark.parametrize(
    ("sender", "asked"),
    [
        ("rollout_generator.0", swap("first", OTHER)),
        ("rollout_generator.0", ScaleWanted("second", 2)),
        ("rollout_generator.0", DrainWanted("b")),
        ("rollout_generator.0", StopWanted()),
        ("supervisor.b", ScaleWanted("second", 2)),
        ("supervisor.b", StopWanted()),
    ],
)
async def test_only_a_command_may_ask_for_a_change(world: World, sender: str, asked: Any) -> None:
    world.write("a", "b", first='host = "a"', second='host = "a"\nreplicas = 2\nstart = 1', third='host = "b"')
    async with world.running("a"):
        with pytest.raises(CallFailed, match=f"{sender} may not change the run"):
            await world.ask(asked, sender=sender)
        assert len(world.events) == 2


async def test_a_change_during_a_start_is_refused_and_a_command_stops_the_run_all_the_same_and_once(
    world: World,
) -> None:
    world.write(first="settings = { stops = 0.9 }", second="replicas = 2\nsettings = { starts = 1e8 }")
    async with world.running():
        for asked in (swap("first", OTHER), ScaleWanted("second", 1)):
            late = "second.0, second.1 has not started yet; ask again when all actors run"
            assert (await world.ask(asked)).refused == (late,)
        line = f"continue with: agent-rl run {world.path}"
        assert (await world.ask(StopWanted())).done == (f"the run stops in order; {line}",)
        assert "the run is ending" in (await world.ask(StopWanted())).refused[0]
        assert "the run is ending" in (await world.ask(swap("first", OTHER))).refused[0]
        await world.ended("local")
        assert world.told().count(f"stopping, as a command asks; {line}") == 1


@pytest.mark.parametrize(
    ("back", "other", "refused"),
    [
        (0.9 * RESTART_SECONDS, "", ""),
        (2.0 * RESTART_SECONDS, "", "first.0 has not started yet"),
        (1.0, "starts = 1e8", "first.0, third.0 has not started yet"),
    ],
)
async def test_a_change_waits_for_actors_that_are_started_again_and_not_for_those_that_start_first(
    world: World, back: float, other: str, refused: str
) -> None:
    """One that died just then made a role that spans hosts lose the replicas that had started on other hosts."""
    first = f"settings = {{ lives = 12.0, once = true, again = {back} }}"
    world.write(first=first, second="replicas = 2\nstart = 1", third=f"settings = {{ {other} }}")
    async with world.running(wait=13.0):
        answer = await world.ask(ScaleWanted("second", 2))
        assert refused in "".join(answer.refused)
        assert bool(answer.refused) == bool(refused)


# What is decided before anything is tried.


def runs(topology):
    return {role: list(topology.wanted(role)) for role in topology.actors}


def test_what_is_refused_before_anything_is_tried(tmp_path):
    topology = load_topology(
        write_micro(tmp_path)[0], ["actors.tool_executor.replicas=3", "actors.tool_executor.start=1"]
    )

    def refusal(asked, *, ending=False, busy=""):
        return why_not(asked, topology, runs(topology), ending=ending, busy=busy)

    sound = swap("learner", "x:Y")
    assert refusal(sound) == ""
    assert "the run is ending" in refusal(sound, ending=True)
    assert "another change is under way (swap of learner)" in refusal(sound, busy="swap of learner")
    assert "there are kv_scheduler, rollout_generator" in refusal(swap("lerner", "x:Y"))
    assert "name rollout_generator" in refusal(swap("rollout_generator.0", "x:Y"))
    assert "nothing would change" in refusal(swap("learner"))
    assert "the run has no host 'nowhere'" in refusal(DrainWanted("nowhere"))
    assert "the run has no role 'nobody'" in refusal(ScaleWanted("nobody", 2))
    more = ScaleWanted("tool_executor", 3)
    assert refusal(more) == ""
    assert "the run is ending" in refusal(more, ending=True)
    assert "another change is under way (scaling of tool_executor)" in refusal(more, busy="scaling of tool_executor")
    assert "a run has exactly one learner, which keeps its state" in refusal(ScaleWanted("learner", 2))
    assert "has at most 3 processes, as the file says; stop the run, and write" in refusal(
        ScaleWanted("tool_executor", 9)
    )
    assert "at least one process" in refusal(ScaleWanted("tool_executor", 0))
    assert "has 1 process already" in refusal(ScaleWanted("tool_executor", 1))


def test_a_new_process_starts_beside_the_former_one_where_there_is_room_for_both():
    def reason(needed, available, former=None, entry=None):
        plain, *entries = (
            ActorEntry.model_validate({"class": "x:Y", "settings": each or {}}) for each in (None, former, entry)
        )
        assert not plain.settings
        return in_place(*entries, needed, available)

    assert reason(4 << 30, 5 << 30) == ""
    assert reason(4 << 30, 4 << 30) == "4.0 GiB are needed, and 4.0 are free"
    assert reason(None, 5 << 30) == reason(1, None) == "memory is not known"
    assert reason(1, 5 << 30, {"device": "cuda:1"}) == "cuda:1 has no room for two"
    assert reason(1, 5 << 30, {}, {"device": "cuda"}) == "cuda has no room for two"
    share = {"device": "cuda", "engine_settings": {"gpu_memory_utilization": 0.4}}
    assert reason(1, 5 << 30, share, share) == ""
    assert reason(1, 5 << 30, share, {"device": "cuda"}) == "cuda has no room for two"


def test_the_page_wants_of_a_role_what_it_was_scaled_to(tmp_path):
    path, directory = write_micro(tmp_path)
    topology = load_topology(path, ["actors.tool_executor.replicas=3", "actors.tool_executor.start=1"])
    directory.mkdir()
    write_resolved(topology, directory, "local", "agent-rl run it")
    assert read_wanted(directory)["tool_executor"].processes == 1
    document = Document.begun(topology, ["local"], None)
    document.change("tool_executor", runs=[0, 1, 2])
    document.follow(topology)
    document.write(directory)
    assert read_wanted(directory)["tool_executor"].processes == 3
    document.processes["tool_executor.2"].wanted = False  # its host was drained
    document.write(directory)
    assert read_wanted(directory)["tool_executor"].processes == 2
    document.end()
    document.write(directory)
    assert read_wanted(directory)["tool_executor"].processes == 1


def test_what_memory_there_is_and_what_a_session_has(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    3 kB\n")
    assert available_bytes(tmp_path / "meminfo") == 3 << 10
    assert available_bytes(tmp_path / "none") is None
    for number, session, pages in ((1, 7, 2), (7, 7, 3), (8, 9, 5)):
        fields = ["S", "1", "1", str(session), *["0"] * 17, str(pages)]
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} (a name) {' '.join(fields)}")
    assert group_bytes(7, tmp_path) == 5 * os.sysconf("SC_PAGE_SIZE")
    assert group_bytes(6, tmp_path) is None


def test_what_host_may_be_drained(world: World) -> None:
    world.write("a", "b", "c", learner='host = "a"', second='hosts = ["b", "c"]', third='hosts = ["c", "b", "a"]')

    def refusal(host: str, *, away: str = "", absent: str = "", more: str = "run.seed=1") -> str:
        topology = load_topology(world.path, [more])
        return why_not(
            DrainWanted(host), topology, runs(topology), ending=False, busy="", away=away, absent=away + absent
        )

    assert refusal("b") == refusal("c") == refusal("b", away="a") == ""
    assert "the run has no host 'd'; there are a, b, c" in refusal("d")
    assert "host b has left already" in refusal("b", away="b")
    assert "host a runs the learner" in refusal("a")
    assert "no other host runs second" in refusal("b", away="c")
    assert "no other host runs second" in refusal("b", absent="c")
    assert "no other host runs second" in refusal("b", more='actors.second.hosts=["b"]')
    assert refusal("b", absent="b", more='actors.second.hosts=["b"]') == "", "what a dead host ran is lost already"


def test_a_role_is_scaled_on_hosts_that_have_not_left(world: World) -> None:
    world.write("a", "b", learner='host = "a"', second='hosts = ["b", "a"]\nreplicas = 4')
    topology = load_topology(world.path)
    homes = topology.homes("second")
    assert [chosen(homes, now, number, ()) for now, number in (((0, 1, 2, 3), 2), ((3,), 2), ((), 3))] == [
        (0, 1), (0, 3), (0, 1, 2),
    ]  # fmt: skip
    assert chosen(homes, (0, 1), 1, "b") == (1,), "its replica is lost, though its number is lower"
    assert chosen(homes, (0, 1), 2, "b") == (1, 3)

    def refusal(number: int) -> str:
        return why_not(ScaleWanted("second", number), topology, {"second": [0, 1]}, ending=False, busy="", away="b")

    assert (refusal(2), refusal(1)[:20]) == ("", "nothing would change")
    assert refusal(3) == "second has at most 2 processes while b has left; start that host again"


def test_a_swap_is_a_change_of_keys_and_no_other_key_can_be_reached():
    assert changed_keys(swap("a", "x:Y", "k=1", "table.k=2", fresh=True)) == [
        'actors.a.class="x:Y"',
        "actors.a.settings={}",
        "actors.a.settings.k=1",
        "actors.a.settings.table.k=2",
    ]
    assert changed_keys(swap("a", "", "k=1")) == ["actors.a.settings.k=1"]


def test_a_swap_says_what_it_changes(tmp_path):
    path, _ = write_micro(tmp_path)
    before, key = load_topology(path), "actors.rollout_generator.settings"
    now = load_topology(path, [f"{key}.max_rollouts=4", f"{key}={{max_rollouts=4, max_tool_calls=3}}"])
    assert differences("rollout_generator", before, now) == [
        "rollout_generator.settings.max_rollouts: 4, was 8",
        'rollout_generator.settings.error_detail: left out, was "last_line"',
        "rollout_generator.settings.max_tool_calls: 3, was left out",
    ]
    assert differences("learner", before, now) == [
        "learner has the class and the settings that it had; its processes are new"
    ]


def test_settings_that_several_roles_read_are_not_swapped_for_one(tmp_path):
    path, _ = write_micro(tmp_path)
    former = load_topology(path)
    assert shared_faults(former, load_topology(path, ["actors.kv_scheduler.settings.request_window=2000"])) == []
    [fault] = shared_faults(former, load_topology(path, ['actors.learner.settings.weights_in="gloo"']))
    assert "generators and learner must begin with the same way" in fault


async def test_a_swap_whose_class_is_gone_after_a_kill_is_named_with_the_remedy(world: World) -> None:
    world.write(first="", second="")
    topology = load_topology(world.path)
    document = Document.begun(topology, ["local"], None)
    document.change("second", keys=['actors.second.class="a_module_that_is_gone:Other"'], since=1)
    (world.folder / "run").mkdir()
    document.write(world.folder / "run")
    with pytest.raises(
        RunRefused, match=r"second was swapped.*a_module_that_is_gone.*state\.json elsewhere to go by the file"
    ):
        await run_topology(topology, world.path)
