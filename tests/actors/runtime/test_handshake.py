"""Supervisors greet each other over a network in memory: what is wrong with a host is said on both, and it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.runtime.handshake import AGAIN_SECONDS, KEY_SECONDS, Handshake, Reports, release
from actors.runtime.networks import starting_node
from agent_rl import messages
from agent_rl.config.agreement import settings_to_agree
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.environments.load import shown_settings
from agent_rl.messages import HostHello, Observed
from tests.end_to_end.topologies import write_three_hosts, write_two_hosts
from transport import KeyRefused, MalformedFrames, Node, PeerBack, PeerReplaced, PeerSilent, Registry, Unauthenticated
from transport.memory import MemoryNetwork

TOLD = Observed(0, (), (), {"rollout_generator.0": 7}, {}, (), {}, "running", "")


class Host:
    """A supervisor's greetings, and what they report. ``clock``: how far the host's clock is ahead, in seconds."""

    def __init__(self, name: str, topology: Topology, clock: float = 0.0) -> None:
        self.name = f"supervisor.{name}"
        self.said: list[str] = []
        self.refused: list[str] = []
        self.admitted: list[str] = []
        self.clock = clock
        reports = Reports(self.said.append, self.refused.append, lambda sender, _: self.admitted.append(sender))
        self.greetings = Handshake(
            topology,
            [name],
            settings_to_agree(topology, shown_settings),
            reports,
            wall=lambda: 1e9 + trio.current_time() + self.clock,
        )

    async def run(self, network: MemoryNetwork, nursery: trio.Nursery) -> None:
        async def hear(delivery: Any) -> HostHello | None:
            await trio.lowlevel.checkpoint()
            if isinstance(delivery.message, HostHello):
                return self.greetings.heard(delivery.sender, delivery.message)
            self.greetings.told(delivery.sender, delivery.message)
            return None

        node = Node(self.name, network, Registry.of(messages), incarnation=1, on_event=self.greetings.link_event)
        node.announce("incarnations", ["supervisor.b" if self.name == "supervisor.a" else "supervisor.a"]).set(TOLD)
        await nursery.start(partial(node.run, hear))
        nursery.start_soon(self.greetings.run, node)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_hosts(tmp_path_factory.mktemp("hosts"), (5700, 5800))[0]


def meet(a: Host, b: Host, seconds: float = 3.0, then: Callable[[], Awaitable[None]] | None = None) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            network = MemoryNetwork()
            await a.run(network, nursery)
            await trio.sleep(40.0)  # the other host is late
            await b.run(network, nursery)
            await trio.sleep(seconds)
            if then is not None:
                await then()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_hosts_of_one_release_and_topology_are_admitted_and_their_actors_told_of(path: Path) -> None:
    a, b = (Host(name, load_topology(path), clock) for name, clock in (("a", 0.0), ("b", 4.0)))
    meet(a, b)
    assert (a.admitted, b.admitted) == (["supervisor.b"], ["supervisor.a"])
    assert [*a.refused, *b.refused, *b.said] == []
    assert a.greetings.final_words == []
    assert a.greetings.is_admitted("supervisor.b")


def test_hosts_that_do_not_greet_each_other_take_the_actors_of_the_other(tmp_path: Path) -> None:
    three = load_topology(write_three_hosts(tmp_path, (5700, 5800, 5900), steps=1)[0])
    b = Host("b", three)
    for sender in ("supervisor.a", "supervisor.c"):
        b.greetings.told(sender, TOLD)
    assert b.admitted == ["supervisor.c"]


def test_another_topology_is_named_by_key_on_both_hosts_and_the_other_host_ends(path: Path) -> None:
    a, b = Host("a", load_topology(path)), Host("b", load_topology(path, ["algorithm.samples=8"]))
    meet(a, b)
    (text,) = [each for each in a.said if "topology" in each]
    assert text.startswith("host b is refused: it has another topology: algorithm.samples is 4 here and 8 there; ")
    assert f"at the end: {text}" in a.greetings.final_words
    assert b.refused[0].startswith("this host is refused: the main host a has another topology: algorithm.samples is 8")
    assert a.refused == a.admitted == b.admitted == []
    assert a.greetings.is_refused("supervisor.b")
    assert not Host("a", load_topology(path)).greetings.is_refused("supervisor.b")  # one that has not greeted yet


def test_another_release_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Host("a", load_topology(path))
    monkeypatch.setattr("actors.runtime.handshake.release", lambda: "0.0.9 (messages 0)")
    b = Host("b", load_topology(path))
    meet(a, b)
    words = f"has another release of agent_rl: {release()} here and 0.0.9 (messages 0) there; install the same on both"
    assert f"host b is refused: it {words}, and start it again" in a.said
    assert b.refused[0].startswith("this host is refused: the main host a has another release")
    assert a.admitted == []


@pytest.mark.parametrize(("ahead", "words"), [(12.0, "12 s ahead of"), (-7.0, "7 s behind")])
def test_clocks_that_are_apart_are_said_and_taken_back_once_they_agree(path: Path, ahead: float, words: str) -> None:
    a, b = Host("a", load_topology(path)), Host("b", load_topology(path), clock=ahead)

    async def mend() -> None:
        assert f"the clock of host b is {words} the clock of this host; synchronise both (NTP)" in a.said
        assert [text for text in b.said if text.startswith("the clock of host a")]
        assert a.greetings.final_words
        b.clock = 0.0
        await trio.sleep(AGAIN_SECONDS + 1)
        assert a.greetings.final_words == []

    meet(a, b, then=mend)
    assert a.admitted
    assert b.refused == []


def test_a_host_that_refuses_the_key_is_named_and_the_other_host_ends_after_a_while(path: Path) -> None:
    a, b = Host("a", load_topology(path)), Host("b", load_topology(path))
    for seconds in (0.2, KEY_SECONDS + 0.1, KEY_SECONDS + 0.2):
        a.greetings.link_event(KeyRefused("supervisor.b", seconds))
        b.greetings.link_event(KeyRefused("supervisor.a", seconds))
        assert len(b.refused) == (0 if seconds < KEY_SECONDS else len(b.said) + (seconds > KEY_SECONDS + 0.1))
    (said,) = a.said
    assert said.startswith("host b at tcp://127.0.0.1:5800 refuses the key of this host: it has another key or none")
    assert a.refused == []
    assert b.refused[0].endswith("copy its key to cluster.key of this host, and start again")
    a.greetings.link_event(Unauthenticated("127.0.0.1"))
    assert len(a.said) == 1


def test_a_stranger_at_the_address_of_a_host_is_named_and_others_are_not(path: Path) -> None:
    a = Host("a", load_topology(path, ["hosts.b.address=10.0.0.2"]))
    a.greetings.link_event(Unauthenticated("10.9.9.9"))
    assert a.said == []
    a.greetings.link_event(Unauthenticated("10.0.0.2"))
    assert a.said[0].startswith("a process at 10.0.0.2, the address of host b, has another key or none")


def test_frames_that_cannot_be_read_are_another_release_unless_the_host_was_admitted(path: Path) -> None:
    a = Host("a", load_topology(path))
    a.greetings.link_event(MalformedFrames("supervisor.b", "wire version 1, this is version 2"))
    assert "has another release of agent_rl: wire version 1, this is version 2" in a.said[0]
    hello = Host("b", load_topology(path)).greetings
    trio.run(_greeted, a, hello)
    a.greetings.link_event(MalformedFrames("supervisor.b", "not an envelope"))
    assert len(a.said) == 1
    assert a.greetings.is_admitted("supervisor.b")
    a.greetings.link_event(PeerReplaced("supervisor.b", 2))
    assert not a.greetings.is_admitted("supervisor.b")


async def _greeted(host: Host, other: Handshake) -> None:
    await trio.lowlevel.checkpoint()
    host.greetings.heard("supervisor.b", other.hello())


@pytest.mark.real_time
async def test_why_a_host_does_not_start_is_said_until_it_runs(path: Path) -> None:
    a, b = Host("a", load_topology(path)), Host("b", load_topology(path))
    await trio.lowlevel.checkpoint()
    a.greetings.heard(starting_node("b"), replace(b.greetings.hello(), refusal="port 5800 is in use"))
    assert a.said == ["host b does not start: port 5800 is in use"]
    assert a.greetings.final_words == ["at the end: host b does not start: port 5800 is in use"]
    a.greetings.heard("supervisor.b", b.greetings.hello())
    assert a.greetings.final_words == []


def test_a_host_that_is_heard_again_while_its_address_is_looked_at_was_no_mistake(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is back before the connection that was to show what is wrong."""

    async def no_answer(*_: object) -> None:
        await trio.sleep(1.5)
        raise OSError

    a, b = (Host(name, load_topology(path)) for name in "ab")

    async def silent_for_a_second() -> None:
        monkeypatch.setattr(trio, "open_tcp_stream", no_answer)
        before = list(a.said)
        a.greetings.link_event(PeerSilent("supervisor.b", 6.0, ()))
        await trio.sleep(1.0)
        a.greetings.link_event(PeerBack("supervisor.b", 7.0))
        await trio.sleep(2.0)
        assert a.said == before
        assert a.greetings.final_words == []
        a.greetings.link_event(PeerSilent("supervisor.b", 6.0, ()))
        await trio.sleep(2.0)
        assert a.said[-1].startswith("supervisor.b has been silent for 6 s")

    meet(a, b, then=silent_for_a_second)
