"""What every node notices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import trio

from tests.transport.contract.base import (
    PATIENCE,
    REGISTRY,
    ContractBase,
    Cut,
    Item,
    Question,
    Recorder,
    Unheard,
    appending,
    raises,
)
from transport.codec import Registry
from transport.errors import (
    MalformedFrames,
    MessageRejected,
    PeerBack,
    PeerGone,
    PeerLeft,
    PeerLost,
    PeerReplaced,
    PeerSilent,
)
from transport.inbound import Delivery

KNOWS_MORE = Registry(*REGISTRY, Unheard)


class LivenessContract(ContractBase):
    """Silence, and frames that cannot be read."""

    ways_to_cut = ((("a", "b"), ("b", "a")), (("a", "b"),), (("b", "a"),))
    """Directions that are cut, in one run after another."""

    async def test_a_silent_peer_is_reported_once_and_when_it_is_back(self) -> None:
        """With what waits for it. Calls under way end as lost."""
        silenced = False
        async with self.pair(copies=lambda *_: int(not silenced), closed=True) as (a, _, recorder, _):
            link = a.node.push("items", ["b"], window=4)
            call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE)
            await link.send(Item(0))
            await recorder.until(lambda recorder: recorder.started == 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raises, PeerLost, call, Question(1))
                await self.heartbeats(1)
                silenced = True
            await self.heartbeats(4)
            (event,) = a.reported(PeerSilent)
            assert event.peer == "b"
            assert event.seconds >= self.limits.silent_after
            assert event.waiting_for == ("1 unacknowledged on items", "1 calls on questions")
            assert not a.reported(PeerBack)
            silenced = False
            recorder.gate.set()
            with trio.fail_after(PATIENCE):
                await link.send(Item(2))
                await link.drained()
                while not a.reported(PeerBack):
                    await self.heartbeats(1)
            assert [back.peer for back in a.reported(PeerBack)] == ["b"]
            assert not a.reported(PeerReplaced)

    async def test_a_lost_peer_is_sent_nothing_that_was_withdrawn(self) -> None:
        """Sends that wait for credit return, and the stream goes on without a gap when the peer is back."""
        cut = Cut()
        async with self.pair(copies=cut) as (a, _, recorder, _):
            link = a.node.push("items", ["b"], window=2)
            acknowledged: list[int] = []
            await link.send(Item(0), to="b", on_ack=appending(acknowledged, 0))
            await link.drained()
            cut.closed = True
            async with trio.open_nursery() as nursery:
                for number in (1, 2, 3):
                    nursery.start_soon(partial(link.send, Item(number), to="b", on_ack=appending(acknowledged, 1)))
                while not a.reported(PeerGone):
                    await self.heartbeats(1)
                assert a.node.gone == {"b"}
                assert link.withdraw("b") == 3
            assert link.unacknowledged() == 0
            cut.closed = False
            with trio.fail_after(PATIENCE):
                while not a.reported(PeerBack):
                    await self.heartbeats(1)
                for number in (4, 5, 6):
                    await link.send(Item(number), to="b", on_ack=appending(acknowledged, number))
                await link.drained()
            assert recorder.numbers == [0, 4, 5, 6]
            assert acknowledged == [0, 4, 5, 6]
            assert not a.node.gone
            (gone,) = a.reported(PeerGone)
            assert gone.peer == "b"
            assert gone.seconds >= self.limits.lost_after

    async def test_a_process_that_has_ended_is_lost_within_a_heartbeat(self) -> None:
        """Its supervisor says so. Calls fail, what waited goes to the next process, and what it said counts no more."""
        cut = Cut()
        async with self.world("a", "b", copies=cut) as world:

            async def never(_: Delivery) -> None:
                await trio.sleep_forever()

            answers = Recorder(answers=never)
            a, b = await world.start("a"), await world.start("b", answers)
            a.node.expect("b", 0)
            call = a.node.call("questions", ["b"], outstanding=2, timeout=PATIENCE)
            link = a.node.push("items", ["b"], window=2)
            failed = trio.Event()

            async def ask() -> None:
                with pytest.raises(PeerLost):
                    await call(Question(1))
                failed.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await answers.until(lambda recorder: recorder.running == 1)
                cut.closed = True  # as after SIGKILL: no goodbye
                await b.stop()
                await link.send(Item(1))
                a.node.expect("b", 1)
                with trio.fail_after(self.limits.silent_after):
                    await failed.wait()
            assert [event.peer for event in a.reported(PeerGone)] == ["b"]
            assert not a.reported(PeerSilent)
            assert a.node.gone == {"b"}
            cut.closed = False
            recorder = Recorder()
            await world.start("b", recorder, incarnation=1)
            await recorder.count(1)
            with trio.fail_after(PATIENCE):
                await link.drained()
                while not a.reported(PeerBack):
                    await self.heartbeats(1)
            assert (recorder.numbers, a.node.gone) == ([1], set())

    async def test_a_successor_that_is_told_of_is_served_before_the_next_heartbeat(self) -> None:
        """It has no link of its own to whoever waits for it."""
        self.limits = replace(self.limits, heartbeat_interval=10 * PATIENCE, silent_after=100 * PATIENCE)
        async with self.world("a", "b") as world:
            former, recorder = Recorder(), Recorder()
            former.gate = trio.Event()
            a, b = await world.start("a"), await world.start("b", former)
            link = a.node.push("items", ["b"], window=2)
            await link.send(Item(1))
            await former.until(lambda recorder: recorder.running == 1)
            await b.stop()
            a.node.expect("b", b.node.incarnation + 1)
            await world.start("b", recorder, incarnation=b.node.incarnation + 1)
            with trio.fail_after(PATIENCE):
                while link.unacknowledged():
                    with trio.move_on_after(0.5):
                        await link.drained()
                    a.node.expect("b", b.node.incarnation + 1)  # who has not noticed the former's end asks in vain
            assert recorder.numbers == [1]

    async def test_no_announcement_of_a_process_arrives_after_it_left(self) -> None:
        """Its state would be taken for that of a living process."""
        async with self.world("a", "b") as world:
            recorder = Recorder()
            recorder.gate = trio.Event()
            a, b = await world.start("a", recorder), await world.start("b")
            link = b.node.push("items", ["a"], window=2)
            news = b.node.announce("news", ["a"])
            await link.send(Item(0))
            await recorder.until(lambda recorder: recorder.running == 1)
            news.set(Item(1))
            await self.heartbeats(2)
            await b.stop()
            while not a.reported(PeerLeft):
                await self.heartbeats(1)
            recorder.gate.set()
            again = await world.start("b", incarnation=1)
            again.node.announce("news", ["a"]).set(Item(2))
            await recorder.count(2)
            assert recorder.numbers == [0, 2]

    async def test_who_counted_a_peer_as_lost_is_told_again_when_it_is_back(self) -> None:
        """The newest value of each type, once, though handled before. A node that lost nobody is told nothing."""

        async def cut_off(*ways: tuple[str, str]) -> None:
            closed = False

            def copies(source: str, destination: str, _: object) -> int:
                return int(not closed or (source, destination) not in ways)

            async with self.world("a", "b", copies=copies, seconds=6 * PATIENCE) as world:
                at = {"a": Recorder(), "b": Recorder()}
                nodes = {name: await world.start(name, at[name]) for name in at}
                for name, other in (("a", "b"), ("b", "a")):
                    news = nodes[name].node.announce("news", [other])
                    for message in (Item(1), Question(2), Item(3)):
                        news.set(message)
                        await self.heartbeats(2)
                loses = [destination for _, destination in ways]
                for times in (1, 2):
                    closed = True
                    with trio.fail_after(PATIENCE + self.limits.lost_after):
                        while not all(len(nodes[name].reported(PeerGone)) == times for name in loses):
                            await self.heartbeats(1)
                    closed = False
                    for name in loses:
                        await at[name].count(3 + 2 * times)
                        assert len(nodes[name].reported(PeerBack)) == times
                    await self.heartbeats(3)
                    for name, recorder in at.items():
                        again = times if name in loses else 0
                        assert recorder.numbers[:3] == [1, 2, 3]
                        assert sorted(recorder.numbers[3:]) == [2] * again + [3] * again, (ways, name)

        for ways in self.ways_to_cut:
            await cut_off(*ways)

    async def test_an_undecodable_push_is_rejected_and_the_link_lives_on(self) -> None:
        """It is not sent again, its sender hears why, and its on_ack is not called."""
        async with self.world("a", "b") as world:
            recorder = Recorder()
            a = await world.start("a", registry=KNOWS_MORE)
            b = await world.start("b", recorder)
            link = a.node.push("items", ["b"], window=2)
            acknowledged: list[int] = []
            for number, kind in enumerate((Item, Unheard, Item, Unheard, Item)):
                await link.send(kind(number), on_ack=appending(acknowledged, number))
            with trio.fail_after(PATIENCE):
                await link.drained()
            a.node.announce("news", ["b"]).set(Unheard(5))
            await self.heartbeats(3)
            await link.send(Item(6))
            await recorder.count(4)
            assert recorder.numbers == [0, 2, 4, 6]
            assert acknowledged == [0, 2, 4]
            rejected = a.reported(MessageRejected)
            assert [(event.peer, event.link) for event in rejected] == [("b", "items")] * 2
            assert all("Unheard" in event.reason for event in rejected)
            assert b.node.figures["decode_errors"] == 3
            assert len(b.reported(MalformedFrames)) == 1

    async def test_frames_that_are_no_envelope_are_counted(self) -> None:
        """Garbage from a peer, in either direction, is reported once, and the links go on."""
        async with self.pair() as (a, b, recorder, _):
            link = a.node.push("items", ["b"], window=2)
            await link.send(Item(0))
            await recorder.count(1)
            for garbage in ([b""], [b"\xc1"], [b"\x93\x63\x00\x00"], [b"\x92\x01\x63"], [b"x" * 1000, b"y"]):
                a.node._port.send("b", garbage)
                b.node._port.send_back(b"a#0", garbage)
            await self.heartbeats(2)
            await link.send(Item(1))
            await recorder.count(2)
            for running, peer in ((a, "b"), (b, "a")):
                assert [event.peer for event in running.reported(MalformedFrames)] == [peer]
                assert running.node.figures["decode_errors"] == 5
