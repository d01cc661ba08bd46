"""What a supervisor of another host may say, and what the main host makes of it. In virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from agent_rl import messages
from agent_rl.messages import ActorReport, HostHello, Observed, Wanted
from agent_rl.messages.pipes import Expect
from tests.actors.runtime.virtual_run import World
from tests.builders import status
from transport import AnnounceLink, Delivery, Node, Registry


@asynccontextmanager
async def supervisor_of_b(world: World) -> AsyncIterator[tuple[AnnounceLink, list[Wanted]]]:
    """A link by which the host b tells the main host, and what it is told."""
    told: list[Wanted] = []

    async def handle(delivery: Delivery) -> HostHello | None:
        await trio.lowlevel.checkpoint()
        if isinstance(delivery.message, Wanted):
            told.append(delivery.message)
        return delivery.message if isinstance(delivery.message, HostHello) else None  # of one release and topology

    node = Node("supervisor.b", world.network, Registry.of(messages), incarnation=5)
    link = node.announce("run", ["supervisor.a"])
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(node.run, handle))
        yield link, told
        nursery.cancel_scope.cancel()


def said(*reports: ActorReport, state: str = "running", **incarnations: int) -> Observed:
    named = {f"{name}.0": number for name, number in incarnations.items()}
    states = {each.status.actor: "running" for each in reports}
    return Observed(0, (), (), named, states, reports, {}, state, "no memory" if state == "failed" else "")


def expected(world: World) -> dict[str, int]:
    """What the actors of the main host know of nodes."""
    known: dict[str, int] = {}
    for message in world.children[0].told:
        known |= message.incarnations if isinstance(message, Expect) else {}
    return known


async def test_a_supervisor_speaks_for_the_actors_of_its_host_alone(world: World) -> None:
    world.write("a", "b", "c", first='host = "a"', second='hosts = ["b", "c"]')
    async with world.running("a"), supervisor_of_b(world) as (link, told):
        far = 1 << 60
        for actor in ("first.0", "second.1", "nobody.0"):
            link.set(said(ActorReport(status(actor, state="finished"), 1, 1), first=far, third=far))
            await trio.sleep(2.0)
        assert world.codes == {}
        assert far not in expected(world).values()
        link.set(said(ActorReport(status("second.0"), 77, 1), second=77))
        await trio.sleep(2.0)
        assert expected(world)["second.0"] == 77
        assert told[-1].incarnations["second.0"] == 77, "the other hosts hear it from the main host"
        assert world.document.processes["second.0"].state == "up"


async def test_a_status_that_was_there_before_is_no_sign_of_life(world: World) -> None:
    world.write("a", "b", first='host = "a"', second='host = "b"\nsilent_seconds = 20')
    for fresh in ("status", "process", ""):
        async with world.running("a"), supervisor_of_b(world) as (link, _):
            for number in range(30):
                process, newest = (number if fresh == kind else 1 for kind in ("process", "status"))
                link.set(said(ActorReport(status("second.0"), process, newest), third=number))
                await trio.sleep(1.0)
            assert ("second.0 has been silent" in world.told()) == (fresh == "")


async def test_an_actor_that_ended_on_its_host_is_not_silent_and_neither_is_one_of_a_host_that_left(
    world: World,
) -> None:
    world.write("a", "b", first='host = "a"', second='host = "b"\nreplicas = 2\nsilent_seconds = 5')
    async with world.running("a"):
        async with supervisor_of_b(world) as (link, _):
            reports = [ActorReport(status(f"second.{number}"), 1, 1) for number in (0, 1)]
            link.set(said(*reports))
            await trio.sleep(1.0)
            link.set(said(reports[0]))
            await trio.sleep(1.0)
        await trio.sleep(60.0)
        assert "second" not in world.told()


async def test_a_host_that_fails_ends_the_run_and_is_told_the_end(world: World) -> None:
    world.write("a", "b", first='host = "a"', second='host = "b"')
    async with world.running("a", code=1), supervisor_of_b(world) as (link, told):
        link.set(said(state="failed"))
        await world.ended("a")
        assert "supervisor.b: no memory" in world.told()
        assert (told[-1].ending, told[-1].exit_code, told[-1].finished) == (True, 1, False)


async def test_a_host_hears_of_a_change_and_of_nothing_else_that_is_not_new(world: World) -> None:
    world.write("a", "b", first='host = "a"', second='host = "b"')
    async with world.running("a"), supervisor_of_b(world) as (link, told):
        link.set(said())
        await trio.sleep(3.0)
        before = len(told)
        for _ in range(20):
            link.set(said(ActorReport(status("second.0"), 1, 1)))
            await trio.sleep(1.0)
        assert len(told) == before, "figures of actors are no news for other hosts"


def test_messages_of_supervisors_are_small() -> None:
    """One of a thousand actors goes over a link that others wait for."""
    from transport.stream import packed

    roles: dict[str, Any] = {"rollout_generator": messages.RoleWanted((), 0, trial=False, replicas=tuple(range(1000)))}
    incarnations = {f"rollout_generator.{number}": 1 << 50 for number in range(1000)}
    wanted = Wanted(1 << 50, roles, {}, (), incarnations, (), ending=False, exit_code=0, finished=False)
    assert len(packed(wanted)) < 50_000
