"""The state of a run at its main host: which hosts are waited for, whom nobody waits for, and what is on disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from actors.runtime.run_state import RunState
from agent_rl.config.load import load_topology
from agent_rl.messages import Observed
from agent_rl.records.document import FILE, Document
from tests.actors.runtime.virtual_run import PLAIN, World


def state_of(world: World, *overrides: str, former: Document | None = None) -> RunState:
    world.write("a", "b", "c", first='host = "a"', x='host = "b"', y='host = "c"\nreplicas = 2')
    (world.folder / "run").mkdir(exist_ok=True)
    topology = load_topology(world.path, overrides)
    start: Any = SimpleNamespace(topology=topology, hosts=("a",), incarnation=1 << 30)
    return RunState(start, former, print)


def seen(generation: int, *faults: str, **given: Any) -> Observed:
    return Observed(
        generation, ("done",), faults, {}, {}, (), given.get("spent", {}), given.get("state", "running"), ""
    )


async def test_actors_of_a_lost_host_are_doubted_until_its_supervisor_is_heard(world: World) -> None:
    state = state_of(world)
    assert state.doubted == ()
    for host, event, doubted in (
        ("c", "lost", ("y.0", "y.1")),
        ("c", "lost", ("y.0", "y.1")),  # each node of this process reports it
        ("b", "left", ("x.0", "y.0", "y.1")),
        ("c", "heard", ("x.0",)),
    ):
        if event == "heard":
            state.heard(host)
        else:
            state.lost(host, left=event == "left")
        assert state.doubted == doubted


async def test_replicas_that_are_not_to_run_and_optional_hosts_that_were_never_heard_are_presumed_lost(
    world: World,
) -> None:
    state = state_of(world, "actors.y.start=1", "hosts.b.optional=true")
    assert state.doubted == ("x.0", "y.1")
    state.heard("b")
    state.scale("y", 2)
    assert state.doubted == ()
    state.scale("y", 1)
    assert state.doubted == ("y.1",)


async def test_a_change_waits_for_the_hosts_that_are_heard_and_for_those_of_this_generation(world: World) -> None:
    state = state_of(world)
    for host in "ab":
        state.observed(host, seen(state.generation), 7)
    assert state.waiting == [], "c was never heard"
    state.swap("x", [f'actors.x.class="{PLAIN}"'])
    assert state.waiting == ["a", "b"]
    state.observed("a", seen(state.generation), 7)
    state.observed("b", seen(state.generation - 1, "of the last one"), 7)
    state.observed("c", seen(state.generation, "no such device"), 7)
    assert (state.waiting, state.outcome()) == (["b"], (["done", "done"], ["supervisor.c: no such device"]))
    state.lost("b")
    assert state.waiting == []
    state.heard("b", 8)
    assert state.waiting == ["b"], "it has to say it anew"
    state.observed("b", seen(state.generation, spent={"x.0": "it died"}), 8)
    assert (state.spent, state.waiting) == ({"x": "it died"}, [])
    state.heard("b", 9)
    assert (state.spent, state.waiting) == ({}, ["b"]), "what the supervisor before has said does not count"


async def test_a_host_is_asked_to_leave_and_its_next_supervisor_is_welcome(world: World) -> None:
    state = state_of(world)
    state.observed("b", seen(state.generation), 7)
    state.drain("b")
    assert state.wanted({}).leaving == {"b": 7}
    state.observed("b", seen(state.generation), 7)
    assert state.wanted({}).leaving == {"b": 7}, "it has not left yet"
    again = state_of(world, former=state.document)
    again.observed("b", seen(again.generation), 7)
    assert again.wanted({}).leaving == {"b": 7}, "nor does it come back when this supervisor was started again"
    again.observed("b", seen(again.generation), 8)
    assert (again.wanted({}).leaving, again.away) == ({}, set())


async def test_what_it_was_before_holds_again_and_so_does_what_was_before_that(world: World) -> None:
    state = state_of(world)
    keys = [f"actors.x.settings.number={number}" for number in range(3)]
    state.swap("x", [keys[0]])
    undo = state.swap("x", [keys[1]])
    first = state.document.swaps
    assert state.on_trial("x")
    state.restore("x", undo)
    assert (state.document.swaps, state.on_trial("x")) == ({"x": (keys[0],)}, True), first
    former = state.former("x")
    assert former is not None
    state.restore("x", former)
    assert (state.document.swaps, state.on_trial("x"), state.former("x")) == ({}, False, None)
    assert state.topology.actors["x"].settings == {}


async def test_what_is_seen_is_on_disk_once_a_second_and_what_is_wanted_at_once(world: World) -> None:
    state = state_of(world)

    def written(actor: str) -> tuple[str, int]:
        document = world.document
        return document.processes[actor].state, document.processes[actor].incarnation

    state.tick({"first.0": 7, "x.0": 8})
    assert written("first.0") == ("wanted", 7)
    state.process("first.0", "running")
    state.tick({})
    assert written("first.0") == ("wanted", 7)
    await trio.sleep(1.0)
    state.tick({"x.0": 9})
    assert (written("first.0"), written("x.0")) == (("up", 7), ("wanted", 9))
    state.process("x.0", "starting")
    state.scale("y", 1)
    assert written("x.0")[0] == "starting"
    (world.folder / "run" / FILE).unlink()
    await trio.sleep(5.0)
    state.tick({})
    assert not (world.folder / "run" / FILE).exists(), "there is nothing new"
