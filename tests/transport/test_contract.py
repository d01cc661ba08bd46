"""Both networks fulfil the contract: memory in virtual time, ZeroMQ over ipc in short real time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.transport.contract import (
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
from transport import (
    CallFailed,
    CallRefused,
    CallTimeout,
    CreditWait,
    Delivery,
    Limits,
    MalformedFrames,
    MessageRejected,
    Network,
    PeerBack,
    PeerDraining,
    PeerGone,
    PeerLeft,
    PeerLost,
    PeerReplaced,
    PeerSilent,
    Registry,
    ZmqNetwork,
    current_delivery,
)
from transport.memory import MemoryNetwork

KNOWS_MORE = Registry(*REGISTRY, Unheard)


class LinkContract(ContractBase):
    """The whole contract: derive from it, and define the network."""

    ways_to_cut = ((("a", "b"), ("b", "a")), (("a", "b"),), (("b", "a"),))
    """Directions that are cut, in one run after another."""

    # Pushes: order, window, acknowledgement.

    async def test_credit_returns_before_the_acknowledgement(self) -> None:
        """Deferred messages leave the queue, so others follow; they are acknowledged when they are released."""
        releases: list[Callable[[], None]] = []

        async def defer(delivery: Delivery) -> None:
            await trio.lowlevel.checkpoint()
            assert current_delivery() is delivery
            releases.append(current_delivery().defer())

        async with self.pair(answers=defer) as (a, _, recorder, _):
            link = a.node.push("items", ["b"], window=2)
            acknowledged: list[int] = []
            for number in range(9):
                await link.send(Item(number), on_ack=appending(acknowledged, number))
            await recorder.count(9)
            await self.heartbeats(3)
            assert link.unacknowledged() == link.unacknowledged("b") == 9
            assert acknowledged == []
            for release in reversed(releases):
                release()
                release()
            await link.drained()
            assert sorted(acknowledged) == list(range(9))

    async def test_a_long_wait_for_credit_is_reported_once(self) -> None:
        """And goes on."""
        async with self.pair(closed=True) as (a, _, recorder, _), trio.open_nursery() as nursery:
            link = a.node.push("items", ["b"], window=1)
            await link.send(Item(0))
            await recorder.until(lambda recorder: recorder.started == 1)
            await link.send(Item(1))
            nursery.start_soon(link.send, Item(2))
            await a.told(CreditWait)
            await trio.sleep(self.limits.credit_report_after + 2 * self.limits.heartbeat_interval)
            (wait,) = a.reported(CreditWait)
            assert (wait.link, wait.peer) == ("items", "b")
            assert wait.seconds >= self.limits.credit_report_after
            recorder.gate.set()
            await recorder.count(3)

    # Calls: where they go, and every way in which they end.

    async def test_deadline_and_cancellation_end_the_handler(self) -> None:
        """The caller gets CallTimeout; the handler is cancelled; the room is free again."""
        async with self.pair(closed=True) as (a, _, recorder, _):
            call = a.node.call("questions", ["b"], outstanding=1, timeout=self.limits.heartbeat_interval * 4)
            while not recorder.started:  # on a slow machine a call may end before it arrives
                await raises(CallTimeout, call, Question(0))
            await recorder.until(lambda recorder: recorder.running == 0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(call, Question(1), timeout=5 * PATIENCE))  # only a cancellation ends it soon
                await recorder.until(lambda recorder: recorder.running == 1)
                nursery.cancel_scope.cancel()
            await recorder.until(lambda recorder: recorder.running == 0)
            recorder.gate.set()
            assert await call(Question(2)) == Item(2)
            assert a.node.figures["outstanding_calls"] == 0

    async def test_a_replaced_replica_loses_its_calls(self) -> None:
        """PeerLost names it, pinned keys are free, and the next call reaches the new process."""
        async with self.world("a", "s0", "s1") as world:
            recorder, successor, other = Recorder(closed=True), Recorder(closed=True), Recorder()
            a, server = await world.start("a"), await world.start("s0", recorder, concurrency=8)
            await world.start("s1", other, concurrency=8)
            call = a.node.call("questions", ["s0", "s1"], outstanding=4, timeout=PATIENCE)
            lost: list[str] = []

            async def ask() -> None:
                error = await raises(PeerLost, partial(call, key="session"), Question(0))
                lost.append(error.peer)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await recorder.until(lambda recorder: recorder.started == 1)
                await server.stop()
                await world.start("s0", successor, incarnation=1)
            assert lost == ["s0"]
            while not call.targets["s0"].available:  # it is called again once it is heard
                await self.heartbeats(0.5)
            assert a.reported(PeerReplaced) == [PeerReplaced("s0", 1)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, Question(1))
                await successor.until(lambda successor: successor.started == 1)
                assert await call(Question(2), key="session") == Item(2)
                successor.gate.set()
            assert other.numbers == [2]

    async def test_a_replica_that_is_about_to_leave_finishes_and_gets_no_more_calls(self) -> None:
        """Pinned keys move too. A call waits while there is no other replica."""
        async with self.world("a", "s0", "s1") as world:
            first, second, back = Recorder(), Recorder(), Recorder()
            a, leaving = await world.start("a"), await world.start("s0", first, concurrency=8)
            other = await world.start("s1", second, concurrency=8)
            call = a.node.call("questions", ["s0", "s1"], outstanding=4, timeout=PATIENCE)
            assert await call(Question(0), key="session") == Item(0)
            first.gate = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, Question(1))
                await first.until(lambda recorder: recorder.started == 2)
                leaving.node.drain()
                await a.told(PeerDraining)
                for number in (2, 3):
                    assert await call(Question(number), key="session") == Item(number)
                first.gate.set()
                await leaving.node.idle()
                await leaving.stop()
            assert a.reported(PeerDraining) == [PeerDraining("s0")]
            assert not a.reported(PeerSilent)
            assert second.numbers == [2, 3]
            await other.stop()
            await a.told(PeerLeft, 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, Question(4))
                await self.heartbeats(2)
                assert a.node.figures["waiting_to_send"] == 1
                assert not call.reachable
                await world.start("s0", back, incarnation=1)
                await call.until_reachable()
            assert back.numbers == [4]

    async def test_refusal_and_undecodable_requests_fail_the_call(self) -> None:
        """With the reason; the link lives on."""

        async def refuse(delivery: Delivery) -> object:
            await trio.lowlevel.checkpoint()
            if delivery.message.number == 0:
                raise CallRefused("not today")
            return Question(1) if delivery.message.number == 1 else Item(2)

        async with self.pair(answers=refuse) as (a, b, _, _):
            call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE, reply=Item)
            for message, reason in (
                (Question(0), "not today"),
                (Question(1), "undecodable reply: header: message type 'Question' is unknown here or not expected"),
                (Unheard(2), "undecodable request: header: message type 'Unheard' is unknown here or not expected"),
            ):
                assert (await raises(CallFailed, call, message)).reason == reason
            assert await call(Question(3)) == Item(2)
            assert len(b.reported(MalformedFrames)) == len(a.reported(MalformedFrames)) == 1

    # Announcements: the newest wins, whatever is lost.

    async def test_a_value_for_one_target_replaces_that_for_all_and_the_reverse(self) -> None:
        """Whichever was set last counts."""
        async with self.world("a", "b", "c") as world:
            recorders = {name: Recorder() for name in ("b", "c")}
            a = await world.start("a")
            for name, recorder in recorders.items():
                await world.start(name, recorder)
            link = a.node.announce("news", ["b", "c"])
            for number, to in ((1, None), (2, "b")):
                link.set(Item(number), to=to)
                for name in to or "bc":
                    await recorders[name].count(number)
                await self.heartbeats(2)
            link.set(Item(4))
            for recorder in recorders.values():
                await recorder.until(lambda recorder: recorder.numbers[-1:] == [4])
            assert [recorder.numbers for recorder in recorders.values()] == [[1, 2, 4], [1, 4]]

    async def test_nobody_waits_for_a_silent_peer(self) -> None:
        """A target that is never heard counts as silent after a while."""
        async with self.world("a", "b") as world:
            a = await world.start("a")
            link = a.node.announce("news", ["b"])
            link.set(Item(1))
            with trio.fail_after(PATIENCE):
                await link.acknowledged()
            assert [event.peer for event in a.reported(PeerSilent)] == ["b"]

    async def test_announcements_pass_a_full_house(self) -> None:
        """With concurrency above 1, busy handlers do not hold them up."""
        forever = trio.Event()

        async def block_pushes(delivery: Delivery) -> None:
            if delivery.kind == "push":
                await forever.wait()

        async with self.pair(answers=block_pushes, concurrency=2) as (a, _, recorder, _):
            link = a.node.push("items", ["b"], window=8)
            for number in range(5):
                await link.send(Item(number))
            await recorder.count(2)
            a.node.announce("news", ["b"]).set(Item(100))
            await recorder.until(lambda recorder: 100 in recorder.numbers)
            await self.heartbeats(2)
            assert sorted(recorder.numbers) == [0, 1, 100]
            forever.set()
            await recorder.count(6)
            assert recorder.most_running <= 3

    async def test_no_announcement_of_a_process_arrives_after_it_left(self) -> None:
        """Its state would be taken for that of a living process."""
        async with self.world("a", "b") as world:
            recorder = Recorder(closed=True)
            a, b = await world.start("a", recorder), await world.start("b")
            await b.node.push("items", ["a"], window=2).send(Item(0))
            await recorder.until(lambda recorder: recorder.running == 1)
            b.node.announce("news", ["a"]).set(Item(1))
            await self.heartbeats(2)
            await b.stop()
            await a.told(PeerLeft)
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
                        await at[other].count(message.number)
                        await news.acknowledged()
                loses = [destination for _, destination in ways]
                for times in (1, 2):
                    closed = True
                    for name in loses:
                        await nodes[name].told(PeerGone, times)
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

    # Silence, ends, and frames that cannot be read.

    async def test_a_silent_peer_is_reported_once_and_when_it_is_back(self) -> None:
        """With what waits for it. Calls under way end as lost."""
        cut = Cut()
        async with self.pair(copies=cut, closed=True) as (a, _, recorder, _):
            link = a.node.push("items", ["b"], window=4)
            call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE)
            await link.send(Item(0))
            await recorder.until(lambda recorder: recorder.started == 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raises, PeerLost, call, Question(1))
                await self.heartbeats(1)
                cut.closed = True
            await self.heartbeats(4)
            (event,) = a.reported(PeerSilent)
            assert event.peer == "b"
            assert event.seconds >= self.limits.silent_after
            assert event.waiting_for == ("1 unacknowledged on items", "1 calls on questions")
            assert not a.reported(PeerBack)
            cut.closed = False
            recorder.gate.set()
            await link.send(Item(2))
            await link.drained()
            assert [back.peer for back in await a.told(PeerBack)] == ["b"]
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
                (gone,) = await a.told(PeerGone)
                assert a.node.gone == {"b"}
                assert link.withdraw("b") == 3
            assert link.unacknowledged() == 0
            cut.closed = False
            await a.told(PeerBack)
            for number in (4, 5, 6):
                await link.send(Item(number), to="b", on_ack=appending(acknowledged, number))
            await link.drained()
            assert recorder.numbers == [0, 4, 5, 6]
            assert acknowledged == [0, 4, 5, 6]
            assert (a.node.gone, a.reported(PeerGone)) == (set(), [gone])
            assert gone.peer == "b"
            assert gone.seconds >= self.limits.lost_after

    async def test_a_process_that_has_ended_is_lost_within_a_heartbeat(self) -> None:
        """Its supervisor says so. Calls fail, what waited goes to the next process, and what it said counts no more."""
        cut = Cut()

        async def never(_: Delivery) -> None:
            await trio.sleep_forever()

        async with self.pair(copies=cut, answers=never) as (a, b, answers, world):
            a.node.expect("b", 0)
            call = a.node.call("questions", ["b"], outstanding=2, timeout=PATIENCE)
            link = a.node.push("items", ["b"], window=2)
            failed = trio.Event()

            async def ask() -> None:
                await raises(PeerLost, call, Question(1))
                failed.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await answers.until(lambda recorder: recorder.running == 1)
                cut.closed = True  # as after SIGKILL: no goodbye
                await b.stop()
                await link.send(Item(1))
                a.node.expect("b", 1)
                with trio.fail_after(PATIENCE):
                    await failed.wait()
            assert [event.peer for event in a.reported(PeerGone)] == ["b"]
            assert not a.reported(PeerSilent)
            assert a.node.gone == {"b"}
            cut.closed = False
            recorder = Recorder()
            await world.start("b", recorder, incarnation=1)
            await link.drained()
            await a.told(PeerBack)
            assert (recorder.numbers, a.node.gone) == ([1], set())

    async def test_a_successor_that_is_told_of_is_served_before_the_next_heartbeat(self) -> None:
        """It has no link of its own to whoever waits for it."""
        self.limits = replace(self.limits, heartbeat_interval=10 * PATIENCE, silent_after=100 * PATIENCE)
        async with self.pair(closed=True) as (a, b, former, world):
            recorder = Recorder()
            link = a.node.push("items", ["b"], window=2)
            await link.send(Item(1))
            await former.until(lambda recorder: recorder.running == 1)
            await b.stop()
            a.node.expect("b", 1)
            await world.start("b", recorder, incarnation=1)
            with trio.fail_after(PATIENCE):
                while link.unacknowledged():
                    with trio.move_on_after(0.5):
                        await link.drained()
                    a.node.expect("b", 1)  # who has not noticed the former's end asks in vain
            assert recorder.numbers == [1]

    async def test_what_cannot_be_read_or_is_not_expected_is_rejected_and_the_link_lives_on(self) -> None:
        """It is not handled nor sent again, its sender hears why, and its on_ack is not called."""
        async with self.world("a", "b") as world:
            recorder = Recorder()
            a = await world.start("a", registry=KNOWS_MORE)
            b = await world.start("b", recorder, receives={"push": [Item], "call": [Question]})
            link = a.node.push("items", ["b"], window=2)
            call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE)
            acknowledged: list[int] = []
            for number, kind in enumerate((Item, Unheard, Item, Question, Item)):
                await link.send(kind(number), on_ack=appending(acknowledged, number))
            await link.drained()
            for number, kind in enumerate((Unheard, Item), 5):
                a.node.announce(kind.__name__, ["b"]).set(kind(number))
            assert "'Item' is unknown here or not expected" in (await raises(CallFailed, call, Item(7))).reason
            assert await call(Question(8)) == Item(8)
            await self.heartbeats(3)
            await link.send(Item(9))
            await recorder.count(5)
            assert recorder.numbers == [0, 2, 4, 8, 9]
            assert acknowledged == [0, 2, 4]
            rejected = a.reported(MessageRejected)
            assert [(event.peer, event.link) for event in rejected] == [("b", "items")] * 2
            for kind, event in zip((Unheard, Question), rejected, strict=True):
                assert f"'{kind.__name__}' is unknown here or not expected" in event.reason
            assert b.node.figures["decode_errors"] == 5
            assert [type(event) for event in b.events] == [MalformedFrames]

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


class TestMemory(LinkContract):
    def network(self, _names: Iterable[str]) -> Network:
        return MemoryNetwork()


@pytest.mark.real_time
class TestZmq(LinkContract):
    limits = Limits(heartbeat_interval=0.05, silent_after=0.6, lost_after=1.2, credit_report_after=0.2, linger=0.2)
    ways_to_cut = ((("a", "b"),),)  # the other network cuts all

    @pytest.fixture(autouse=True)
    def _sockets(self, sockets: Path) -> Iterator[None]:
        self.sockets = sockets
        yield
        assert not list(sockets.iterdir())  # every socket file was removed

    def network(self, names: Iterable[str]) -> Network:
        return ZmqNetwork({name: f"ipc://{self.sockets / name}" for name in names})
