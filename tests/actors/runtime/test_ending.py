"""How a run goes on when actors and hosts fail, and how it ends. In virtual time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

from agent_rl import messages
from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorReport, ActorStatus, Observed, RoleWanted, StopWanted, Wanted
from agent_rl.messages.pipes import PresumedLost
from agent_rl.records.run_directory import read_end
from tests.actors.runtime.virtual_run import World, ignore, swap
from transport import CallFailed, Node, PeerLost, Registry

SLOW, FIRST = (f'class = "tests.actors.runtime.virtual_run:{name}"' for name in ("Slow", "First"))
MISTAKE = "first.0: it cannot save: make room"
SPENT = "first.0 exited with status 7, and its 1 restarts in 60 s are spent"


@pytest.fixture(autouse=True)
def _as_on_a_terminal() -> Iterator[None]:
    """Hangups are heard, also where the tests run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


async def press(*numbers: int) -> None:
    for number in numbers:
        signal.raise_signal(number)  # in this thread: virtual time does not wait for another
        await trio.sleep(0.01)


def left(world: World) -> list[str]:
    return [event.split()[1] for event in world.events if event.startswith("left")]


# On one host.


@pytest.mark.parametrize(
    ("first", "code", "said", "cause"),
    [
        ('settings = { says = "finished" }', 0, "first.0 has finished", ""),
        ("settings = { lives = 2.0, status = 3 }", 2, f"stopping the run: {MISTAKE}", MISTAKE),
        ("restarts = 1\nsettings = { lives = 6.0 }", 1, f"stopping the run: {SPENT}\n  no such device", SPENT),
        (
            'restarts = 0\nsettings = { lives = 6.0, says = "failed" }',
            1,
            "it said: for a reason",
            "first.0 exited with",
        ),
    ],
)
async def test_what_ends_a_run(world: World, first: str, code: int, said: str, cause: str) -> None:
    """The first fault is the cause: a role that cannot save afterwards is none."""
    world.write(first=first, second="settings = { saves = false }" if code else "")
    async with world.running(code=code, wait=30.0):
        await world.ended("local")
    assert said in world.told()
    assert sorted(left(world)) == (["second.0"] if code else ["first.0", "second.0"])
    assert "continue with" not in world.told()
    assert read_end(world.folder / "run").startswith(cause)
    assert bool(read_end(world.folder / "run")) == bool(cause)


async def test_an_actor_that_dies_is_started_again_as_a_newer_one_and_a_later_start_is_newer_still(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the clock is set back."""
    world.write(first="settings = { lives = 2.0, once = true }")
    for clock in (2e9, 1e9):
        monkeypatch.setattr("agent_rl.records.run_directory.time.time", lambda clock=clock: clock)
        async with world.running():
            assert ("first.0 exited with status 7; starting it again (no such device)" in world.told()) == (
                clock == 2e9
            )
            assert world.told().count("first.0 runs again, 0.4 s after it ended") == (clock == 2e9)
    numbers = [child.incarnation for child in world.children]
    assert numbers == sorted({*numbers})
    assert len(numbers) == 3


@pytest.mark.parametrize(
    ("pressed", "code", "said", "stops"),
    [
        ([signal.SIGINT], 0, "SIGINT: stopping; once more kills all actors", True),
        ([signal.SIGTERM, signal.SIGINT], 130, "killing all actors", False),
        ([signal.SIGHUP, signal.SIGHUP], 0, "SIGHUP: stopping, since the terminal or its connection was closed", True),
        ([signal.SIGHUP, signal.SIGTERM], 0, "SIGTERM: stopping", True),
    ],
)
async def test_a_signal_drains_and_a_second_one_that_is_no_hangup_kills(
    world: World, pressed: list[int], code: int, said: str, stops: bool
) -> None:
    world.write(first=f"{SLOW}\nsettings = {{ stops = 50.0 }}", second=FIRST)
    async with world.running(code=code):
        await press(*pressed)
        await world.ended("local")
    assert left(world) == (["second.0", "first.0"] if stops else [])
    assert world.told().count(said) == 1
    assert ("stopped; continue with: agent-rl run" in world.told()) == stops


@pytest.mark.parametrize(("fails", "killed"), [(False, False), (True, True)])
async def test_after_a_failure_a_role_has_ten_seconds_to_stop(world: World, fails: bool, killed: bool) -> None:
    dies = "restarts = 0\nsettings = { lives = 2.0 }" if fails else ""
    world.write(first=f"{SLOW}\nsettings = {{ stops = 12.0 }}", second=dies)
    async with world.running(code=int(fails), wait=1.0):
        if fails:
            await world.ended("local")
    assert ("first.0 did not stop in time and is killed" in world.told()) == killed
    assert ("first.0" in left(world)) != killed


async def test_a_run_told_to_stop_that_cannot_save_does_not_end_well(world: World) -> None:
    world.write(first="settings = { saves = false }", second="")
    async with world.running(code=2):
        await press(signal.SIGINT)
        await world.ended("local")
    assert f"the run did not end in order: {MISTAKE}" in world.told()
    assert "continue with" not in world.told()


async def test_missing_rows_of_the_timeline_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_rl.records.timeline.TimelineFile.lost", 7)
    world.write(first="")
    async with world.running():
        await world.ask(StopWanted())
        await world.ended("local")
    assert "7 rows of timeline.jsonl are missing: the disk did not take them" in world.told()


async def test_an_actor_that_is_silent_is_named_killed_and_started_again(world: World) -> None:
    world.write(first="silent_seconds = 40.0\nsettings = { quiet = 20.0 }", second="")
    async with world.running(wait=110.0):
        assert sorted(child.actor for child in world.children) == ["first.0", "first.0", "second.0"]
        assert "first.0 has been silent for" in world.told()
        await press(signal.SIGTERM)
        await world.ended("local")
    assert "it is killed" in world.told(), "a silent one is not waited for"
    assert left(world) == ["second.0"]


async def test_a_run_in_which_nothing_moves_says_who_waits_for_what(world: World) -> None:
    world.write(run="report_standstill_seconds = 5.0", learner="")
    async with world.running():
        (said,) = [line for line in world.said["local"] if "nothing has moved" in line]
        assert said.endswith(" s: learner.0 reports no wait")
    assert "at the end: nothing has moved for " in world.told()


async def test_nobody_speaks_for_another(world: World) -> None:
    world.write("a", "b", first='host = "a"', second='host = "b"')
    running = {
        name: ActorStatus(name, "x", "finished", "", ActorFigures(), "", 0.0, 0.0) for name in ("first.0", "second.0")
    }
    report = ActorReport(running["second.0"], 0, 1)
    roles = {"second": RoleWanted((), 0, trial=False, replicas=())}
    said: list[Any] = [
        running["first.0"], Observed(1, (), (), {}, {}, (report,), {}, "failed", "for no reason"),
        Wanted(1 << 60, {}, {}, (), {}, (), ending=True, exit_code=3, finished=False),
        Wanted(1 << 60, roles, {"b": 1 << 60}, (), {}, (), ending=False, exit_code=0, finished=False),
    ]  # fmt: skip
    async with world.running("a", "b"):
        async with trio.open_nursery() as nursery:
            for number, message in enumerate(said):
                for host in "ab":
                    node = Node(f"stranger{number}{host}", world.network, Registry.of(messages), incarnation=1)
                    node.announce("status", [f"supervisor.{host}"]).set(message)
                    await nursery.start(partial(node.run, ignore))
            await trio.sleep(5.0)
            nursery.cancel_scope.cancel()
        assert world.codes == {}


@pytest.mark.parametrize(
    ("first", "asked", "pressed", "code", "said"),
    [
        (
            "lives = 12.0, once = true",
            "prepares=5.0",
            [],
            0,
            "first.0 ended while its successor was getting ready; ask",
        ),
        ("stops = 0.5", "prepares=5.0", [signal.SIGTERM], 0, "the run is ending"),
        ("stops = 0.5", "prepares=2.9", [signal.SIGTERM, signal.SIGINT], 130, "the run is ending"),
    ],
)
async def test_a_process_that_ends_takes_its_successor_along(
    world: World, first: str, asked: str, pressed: list[int], code: int, said: str
) -> None:
    world.write(first=f"settings = {{ {first} }}")
    refused: list[str] = []

    async def ask() -> None:
        with suppress(CallFailed, PeerLost):
            refused.extend((await world.ask(swap("first", "", asked))).refused)

    async with world.running(code=code):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(3.05)
            await press(*pressed)
        await trio.sleep(1.0)
        assert all(child.ended for child in world.children[:-1])
        assert world.children[-1].ended == bool(pressed)
        assert refused[0].startswith(said)


# On several hosts.


async def test_actors_of_a_host_that_is_not_heard_are_doubted_by_those_of_others_until_it_is(world: World) -> None:
    world.write("a", "b", first='host = "a"', second='hosts = ["a", "b"]\nreplicas = 3')
    async with world.running("a", "b"):
        await world.kill("b")
        await trio.sleep(20.0)
        world.start("b")
        await trio.sleep(10.0)
        for child in world.children[:3]:
            doubts = [each.actors for each in child.told if isinstance(each, PresumedLost)]
            assert child.host == "b" or doubts == [(), ("second.1",), ()]


@pytest.mark.parametrize("finished", [False, True])
async def test_a_run_that_is_finished_has_exit_code_0_on_all_hosts_and_one_that_is_stopped_what_was_asked_for(
    world: World, finished: bool
) -> None:
    ends = 'settings = { says = "finished" }' if finished else ""
    world.write("a", "b", first=f'host = "a"\n{ends}', second='host = "b"')
    async with world.running(
        "a", "b", code=0 if finished else 75, wait=1.0 if finished else 10.0, stopped_exit_code=75
    ):
        if finished:
            await world.ended("a")
    assert sorted(left(world)) == ["first.0", "second.0"]
    assert "look at these hosts" not in world.told("a")
    assert "the learner's host ends the run" in world.told("b")


@pytest.mark.parametrize("optional", [False, True])
async def test_a_host_that_gives_up_ends_the_run_unless_it_is_optional(world: World, optional: bool) -> None:
    second = 'host = "b"\nrestarts = 0\nsettings = { lives = 8.0 }'
    world.write("a", "b" + " optional = true" * optional, first='host = "a"', second=second)
    async with world.running("a", "b", code={"a": 0 if optional else 1, "b": 1}, wait=30.0):
        assert ("a" in world.codes) != optional
    why = "stopping the run: second.0 exited with status 7, and its 0 restarts in 60 s are spent"
    assert why in world.told("b")
    assert f"supervisor.b{' has failed' * optional}: {why}" in world.told("a")
    assert ("the run goes on without its host" in world.told("a")) == optional


async def test_a_host_that_is_stopped_in_order_is_not_reported_as_silent(world: World) -> None:
    """The learner's host goes on, and says once what became of the other."""
    world.write("a", "b", first='host = "a"', second='host = "b"')
    async with world.running("a", wait=0.5):
        world.start("b")  # the signal reaches the newest receiver
        await trio.sleep(10.0)
        await press(signal.SIGTERM)
        await world.ended("b")
        await trio.sleep(60.0)
    line = "supervisor.b has stopped in order, and its actors with it; start its host again"
    assert world.told("a").count(line) == 1
    assert "silent" not in world.told("a")


@pytest.mark.parametrize(("killed", "seconds"), [(True, 10.0), (False, 0.0)])
async def test_the_end_waits_a_while_for_a_host_that_was_heard_and_not_for_one_that_never_was(
    world: World, killed: bool, seconds: float
) -> None:
    world.write("a", "b optional = true", first='host = "a"\nsettings = { stops = 0.5 }', second='host = "b"')
    async with world.running("a", *["b"] * killed):
        if killed:
            await world.kill("b")
        began = trio.current_time()
        await world.ask(StopWanted())
        await world.ended("a")
        assert trio.current_time() - began == pytest.approx(seconds + 0.5, abs=0.3)
    assert ("no word that supervisor.b stopped; look at these hosts" in world.told("a")) == killed
