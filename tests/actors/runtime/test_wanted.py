"""Swaps, scalings, drains and kills in any order: what runs in the end is what the answers said. In virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio

from agent_rl.messages import Changed, DrainWanted, Progress, ScaleWanted, StopWanted
from agent_rl.records.document import Host
from tests.actors.runtime.virtual_run import OTHER, PLAIN, World, swap

ONE = "settings = { number = 1 }"


def of(world: World, actor: str) -> list[str]:
    """What an actor's processes were when they got ready, in order."""
    return [event.split(maxsplit=2)[2] for event in world.events if event.startswith(f"up {actor} ")]


async def test_a_process_that_dies_during_a_swap_that_is_refused_was_never_of_the_refused_class(world: World) -> None:
    """It starts from what is wanted of it, not from a file that the swap has written."""
    world.write(first="", second=f"replicas = 3\n{ONE}")
    async with world.running():
        async with trio.open_nursery() as nursery:
            answers: list[Changed] = []

            async def ask() -> None:
                answers.append(await world.ask(swap("second", OTHER, "lives=0.2", "prepares=3.0", "only=1")))

            nursery.start_soon(ask)
            await trio.sleep(5.0)
            assert of(world, "second.0")[-1] == "Other 1"
            next(child for child in world.children if child.actor == "second.2").kill()
        assert "second.1 exited with status 7 before it was ready" in answers[0].refused[0]
        await trio.sleep(2.0)
        assert of(world, "second.0") == ["Plain 1", "Other 1", "Plain 1"]
        assert of(world, "second.2") == ["Plain 1", "Plain 1"]
        assert not world.document.others


@pytest.mark.parametrize("killed", ["", "a", "b"])
async def test_a_swap_and_its_way_back_over_two_hosts(world: World, killed: str) -> None:
    world.write("a", "b", first='host = "a"', second=f'hosts = ["b", "a"]\n{ONE}')
    async with world.running("a", "b"):
        for round_, (path, name) in enumerate(((OTHER, "Other"), (PLAIN, "Plain")) * 2):
            assert (await world.ask(swap("second", path))).refused == ()
            if killed and not round_:
                await world.kill(killed)
                world.start(killed)
                await trio.sleep(20.0)
            assert {of(world, actor)[-1] for actor in ("second.0", "second.1")} == {f"{name} 1"}
            assert {world.stored("second", host)[0] for host in "ab"} == {path}


async def test_a_host_that_could_not_follow_as_it_started_tries_again(world: World) -> None:
    """No command waits for it then, and none takes the change back."""
    world.write("a", "b", first='host = "a"', second=f'host = "b"\nrestarts = 99\n{ONE}')
    async with world.running("a", "b"):
        assert (await world.ask(swap("second", OTHER, "prepares=2.0"))).done
        await world.kill("b")
        world.start("b")
        await trio.sleep(1.5)
        old, _successor = [each for each in world.children if each.actor == "second.0" and not each.ended]
        old.kill()
        await trio.sleep(30.0)
        assert of(world, "second.0") == ["Plain 1", "Other 1", "Plain 1", "Plain 1", "Other 1"]
        assert not world.document.others


async def test_a_replica_that_is_stopping_is_none_that_runs(world: World) -> None:
    """The main host was killed while it was scaled down: the replica on the other host still stops as it is wanted."""
    slow = 'class = "tests.actors.runtime.virtual_run:Slow"\nhosts = ["b"]\nreplicas = 2\nsettings = { stops = 40.0 }'
    world.write("a", "b", first='host = "a"', second=slow)
    async with world.running("a", "b", code=None):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, world, ScaleWanted("second", 1))
            await trio.sleep(3.0)
            nursery.cancel_scope.cancel()
        await world.kill("a")
        world.start("a")
        await trio.sleep(10.0)
        assert not [event for event in world.events if event.startswith("left second.1")], "it stops still"
        assert (await world.ask(ScaleWanted("second", 2))).done[-1] == "second has 2 processes"
        assert world.events[-2:] == ["left second.1 Slow 0", "up second.1 Slow 0"]


async def test_a_role_is_scaled_down_to_replicas_that_are_there(world: World) -> None:
    world.write("a", "b", first='host = "a"', second=f'hosts = ["b", "a"]\nreplicas = 4\n{ONE}')
    async with world.running("a", "b"):
        assert (await world.ask(DrainWanted("b"))).done
        await world.ended("b")
        answer = await world.ask(ScaleWanted("second", 1))
        assert answer == Changed((), ("second.3 has left", "second has 1 process"))
        await trio.sleep(2.0)
        assert not world.document.others
        assert [name for name, each in world.document.processes.items() if each.role == "second"] == ["second.1"]


async def test_a_command_says_what_it_waits_for_and_a_stop_does_not_wait(world: World) -> None:
    world.write("a", "b", first='host = "a"', second=f'host = "b"\n{ONE}')
    async with world.running("a", "b"):
        waits: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, world, swap("second", OTHER, "prepares=30.0", "starts=20.0"), waits)
            await trio.sleep(5.0)
            assert waits == ["b: second.0 (up)"] or waits[-1].startswith("b: ")
            assert "another change is under way" in (await _ask(world, swap("first", OTHER), sender=1)).refused[0]
            began = trio.current_time()
            assert (await _ask(world, StopWanted(), sender=1)).done
            assert trio.current_time() - began < 0.5


async def test_an_answer_is_given_again_and_only_to_a_number_that_there_is(world: World) -> None:
    world.write(first="", second=f"replicas = 2\nstart = 1\n{ONE}")
    async with world.running():
        answer = await world.ask(ScaleWanted("second", 2))
        assert await world.ask(Progress(1)) == answer
        assert "does not know this command any more" in (await world.ask(Progress(7))).refused[0]


async def _ask(world: World, wanted: object, waits: list[str] | None = None, *, sender: int = 0) -> Changed:
    return await world.ask(wanted, sender=f"control.{sender}", waits=(waits if waits is not None else []).append)


# Any order.


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))])
async def test_what_runs_in_the_end_is_what_was_answered(world: World, seed: int) -> None:
    """Commands one after the other, and two at once, beside kills of processes and supervisors and a host cut off."""
    rng = random.Random(seed)
    second = (
        'hosts = ["b", "a", "c"]\nreplicas = 6\nstart = 3\nrestarts = 99\nstart_seconds = 60\nsettings = { number = 0 }'
    )
    world.write("a", "b", "c", first='host = "a"\nrestarts = 99', second=second)
    number, runs, drained, asked = 0, 3, "", 0

    def command() -> tuple[object, Callable[[], None]]:
        nonlocal asked
        asked += 1
        kind = rng.choice(["swap", "swap", "wrong", "scale", "drain"])
        prepares = f"prepares={rng.choice([0.1, 2.0])}"
        if kind in {"swap", "wrong"}:
            extra = ["lives=0.2", f"only={rng.randrange(3)}"] if kind == "wrong" else ["lives=1e9", "only=-1"]
            wanted = swap("second", OTHER, f"number={asked}", prepares, *extra)
            return wanted, lambda at=asked: sets(number=at)
        if kind == "scale":
            many = rng.randrange(1, 5)
            return ScaleWanted("second", many), lambda: sets(runs=many)
        return DrainWanted(host := rng.choice("bc")), lambda: sets(drained=host)

    def sets(**values: object) -> None:
        nonlocal number, runs, drained
        number, runs, drained = values.get("number", number), values.get("runs", runs), values.get("drained", drained)  # type: ignore[assignment]

    async def trouble() -> None:
        for _ in range(rng.randrange(3)):
            await trio.sleep(rng.random() * 4)
            kind, host = rng.choice(["process", "supervisor", "cut"]), rng.choice("bc")
            if kind == "process":
                alive = [child for child in world.children if child.actor.startswith("second") and not child.ended]
                if alive:
                    rng.choice(alive).kill()
            elif kind == "supervisor" and host != drained and host in world.lives:
                await world.kill(host)
                await trio.sleep(rng.random() * 3)
                world.start(host)
            elif host != drained:
                world.network.cut |= {f"supervisor.{host}"}
                await trio.sleep(rng.choice([0.3, 20.0]))
                world.network.cut.clear()

    async with world.running("a", "b", "c", code=None):
        for _ in range(5):
            wanted, done = command()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble)
                await trio.sleep(rng.random() * 3)
                answer = await _ask(world, wanted)
            if not answer.refused:
                done()
            if drained:
                await trio.sleep(10.0)
                if drained not in world.lives or world.lives[drained][1].is_set():  # else it was started meanwhile
                    world.start(drained)
                drained = ""
            await trio.sleep(40.0)
        await trio.sleep(60.0)
        document = world.document
        assert not document.others, document.others
        assert document.hosts == {host: Host(wanted=True, state="up") for host in "abc"}
        up = {name for name, each in document.processes.items() if each.role == "second"}
        assert len(up) == runs
        assert {of(world, name)[-1].split()[-1] for name in up} == {str(number)}
        alive = [child for child in world.children if not child.ended]
        assert sorted(child.actor for child in alive) == sorted({"first.0", *up}), "one process each"
        for host in "abc":
            assert world.stored("second", host)[1]["number"] == number
