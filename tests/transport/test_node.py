from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from tests.transport.clouds import same
from tests.transport.contract import REGISTRY, Block, Cut, InMemory, Item, Question, Recorder, raises
from transport import (
    BindError,
    CallTimeout,
    EncodeError,
    IncarnationRefused,
    Limits,
    Node,
    PeerLeft,
    PeerSilent,
    UnknownPeer,
    encode,
)
from transport.codec import size_of
from transport.frames import CallFrame, Goodbye, Heartbeat, PushFrame, ReplyFrame, pack
from transport.inbound import Dispatcher
from transport.memory import MemoryNetwork, MemoryPort


async def test_a_handlers_exception_ends_the_node():
    case = InMemory()

    async def fail(delivery):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError(delivery.message)

    node = Node("b", case.memory, REGISTRY, incarnation=0)
    async with case.world("a") as world:
        a = await world.start("a")
        await a.node.push("items", ["b"], window=1).send(Item(0))
        with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
            await node.run(fail)


def test_links_are_made_once_and_lead_somewhere():
    node = Node("a", MemoryNetwork(), REGISTRY, incarnation=0)
    node.push("items", ["b"], window=1)
    with pytest.raises(ValueError, match="has a link items already"):
        node.announce("items", ["b"])
    with pytest.raises(ValueError, match="leads nowhere"):
        node.call("questions", [], outstanding=1, timeout=1.0)
    with pytest.raises(ValueError, match="window of link others must be at least 1, got 0"):
        node.push("others", ["b"], window=0)
    with pytest.raises(ValueError, match="outstanding of link others must be at least 1, got 0"):
        node.call("others", ["b"], outstanding=0, timeout=1.0)


async def test_a_goodbye_counts_for_the_process_that_said_it():
    case = InMemory()
    async with case.world("a", "b") as world:
        a = await world.start("a")
        await world.start("b", incarnation=1)
        link = a.node.push("items", ["b"], window=1)
        await link.send(Item(0))
        await link.drained()
        for incarnation, gone in ((0, set()), (1, {"b"})):  # that of an earlier process comes late
            a.node.on_back("b", pack(Goodbye(incarnation)))
            assert set(a.node.gone) == gone


async def test_errors_of_the_sender_are_raised_at_once():
    case = InMemory()
    async with case.world("a") as world:
        link = (await world.start("a")).node.push("items", ["b"], window=1)
        with pytest.raises(EncodeError, match=r"Item\.number"):
            await link.send(Item("0"))
        with pytest.raises(UnknownPeer, match="no target of link items"):
            await link.send(Item(0), to="c")
        with pytest.raises(BindError, match="a runs already"):
            await Node("a", case.memory, REGISTRY, incarnation=1).run(Recorder())


async def test_what_the_peer_would_not_take_is_refused_where_it_is_sent_and_the_largest_passes():
    case = InMemory()
    case.limits = Limits(message_bytes=1000)
    async with case.pair() as (a, _, recorder, _):
        push = a.node.push("items", ["b"], window=1)
        call = a.node.call("questions", ["b"], outstanding=1, timeout=1.0)
        announce = a.node.announce("news", ["b"])
        room = 1000 - size_of(encode(Item(0, "x" * 900))) + 900
        large, too_large = Item(0, "x" * room), Item(0, "x" * (room + 1))
        for send in (push.send, call, announce.set):
            with pytest.raises(EncodeError, match="Item: 1001 bytes, the limit is 1000"):
                await send(too_large)
        await push.send(large)
        announce.set(large)
        assert await call(large) == Item(0)
        await recorder.count(3)


async def test_handlers_that_never_wait_let_others_run_and_can_be_cancelled():
    case = InMemory()
    async with case.world("a", "b") as world, trio.open_nursery() as nursery:
        handled, turns = [], []

        async def handle(delivery):
            handled.append(delivery.message.number)
            if len(handled) == 400:
                b.scope.cancel()

        async def watch():
            while True:
                await trio.lowlevel.checkpoint()
                turns.append(len(handled))

        ready = trio.Event()

        async def hold_then_handle(delivery):
            if not ready.is_set():
                await ready.wait()
            await handle(delivery)

        a, b = await world.start("a"), await world.start("b", hold_then_handle)
        link = a.node.push("items", ["b"], window=1000)
        for number in range(1000):
            await link.send(Item(number))
        await case.heartbeats(2)
        nursery.start_soon(watch)
        ready.set()
        await b.ended.wait()
        assert handled == list(range(len(handled)))
        assert 400 <= len(handled) <= 464
        stretches = [after - before for before, after in itertools.pairwise(turns)]
        assert max(stretches) <= 128  # tasks of one turn run in any order
        nursery.cancel_scope.cancel()


async def test_what_is_not_for_this_process_or_not_of_the_senders_present_one_is_counted_and_not_handled():
    async with InMemory().pair() as (former, b, recorder, world):
        first = former.node.push("items", ["b"], window=1)
        await first.send(Item(0))
        await first.drained()
        await former.stop()
        a = await world.start("a", incarnation=1)
        call = a.node.call("questions", ["b"], outstanding=1, timeout=9.0)
        link = a.node.push("items", ["b"], window=1)
        for number in (1, 2):
            await call(Question(number))
        await link.send(Item(3))
        await link.drained()
        message = encode(Question(9))
        for incarnation, envelope, figure in (
            (0, PushFrame("items", 0, 2), "frames_of_replaced_processes"),
            (1, PushFrame("items", 7, 2), "frames_for_another_incarnation"),
            (1, CallFrame("questions", 7, 3, 9.0), "frames_for_another_incarnation"),
            (1, CallFrame("questions", 0, 2, 9.0), "duplicates_dropped"),
            (1, CallFrame("questions", 0, 1, 9.0), "duplicates_dropped"),
            (1, PushFrame("items", 0, 1), "duplicates_dropped"),
            (1, PushFrame("items", 0, 3), "duplicates_dropped"),
            (1, ReplyFrame(1), "decode_errors"),
        ):
            before = b.node.figures
            b.node.on_inbox(b"a#%d" % incarnation, pack(envelope, message))
            assert b.node.figures == {**before, figure: before[figure] + 1}
        await link.send(Item(4))
        await link.drained()
        assert recorder.numbers == [0, 1, 2, 3, 4]


async def test_a_call_ends_at_its_deadline_where_it_is_handled_though_nothing_is_heard_of_the_caller():
    case, cut = InMemory(), Cut()
    async with case.pair(copies=cut, closed=True) as (a, b, recorder, _), trio.open_nursery() as nursery:
        call = a.node.call("questions", ["b"], outstanding=2, timeout=3.0)
        began = trio.current_time()
        for number in range(2):
            nursery.start_soon(raises, CallTimeout, call, Question(number))
        await recorder.until(lambda recorder: recorder.started == 1)
        cut.closed = True
        await recorder.until(lambda recorder: recorder.running == 0)
        assert trio.current_time() - began == 3.0
        await case.heartbeats(1)
        assert (recorder.started, b.node.figures["queued"]) == (1, 0)  # the other one's time was over, too


async def test_the_figures_say_what_waits_and_a_node_is_idle_when_nothing_does():
    case, cut = InMemory(), Cut()
    async with case.pair(copies=cut, closed=True) as (a, b, recorder, _), trio.open_nursery() as nursery:
        link = a.node.push("items", ["b"], window=1)
        call = a.node.call("questions", ["b"], outstanding=1, timeout=60.0)
        for number in range(3):
            nursery.start_soon(link.send, Item(number))
            await case.heartbeats(1)
        for number in (3, 4):
            nursery.start_soon(call, Question(number))
        with trio.move_on_after(1.0):
            await b.node.idle()
            raise AssertionError("it is not idle")
        names = ("queued", "handling", "handled", "unacknowledged", "outstanding_calls", "waiting_to_send", "peers")
        assert [a.node.figures[name] for name in names] == [0, 0, 0, 2, 1, 2, 1]
        assert [b.node.figures[name] for name in names] == [2, 1, 0, 0, 0, 0, 1]
        recorder.gate.set()
        await recorder.count(5)
        await b.node.idle()
        assert [b.node.figures[name] for name in names] == [0, 0, 5, 0, 0, 0, 1]
        cut.closed = True
        await case.heartbeats(9)
        assert a.node.figures["silent_peers"] == b.node.figures["silent_peers"] == 1


async def test_messages_of_one_turn_arrive_each_with_its_arrays():
    async with InMemory().pair() as (a, _, recorder, _):
        link = a.node.push("blocks", ["b"], window=9)
        blocks = [Block(np.full((rows, 200), rows, np.float32)) for rows in (0, 1, 90, 2, 100)]  # two are not copied
        for block in blocks:
            await link.send(block)
        await link.drained()
        assert all(map(same, [delivery.message for delivery in recorder.deliveries], blocks))
        assert {(each.sender, each.link, each.kind) for each in recorder.deliveries} == {("a", "blocks", "push")}


async def test_a_cancelled_send_sends_nothing_and_keeps_no_credit():
    case = InMemory()
    async with case.pair(closed=True) as (a, _, recorder, _):
        link = a.node.push("items", ["b"], window=1)
        await link.send(Item(0))
        await recorder.until(lambda recorder: recorder.started == 1)
        await link.send(Item(1))
        with trio.move_on_after(1) as scope:
            await link.send(Item(2))
        assert scope.cancelled_caught
        recorder.gate.set()
        await link.send(Item(3))
        await link.drained()
        assert recorder.numbers == [0, 1, 3]


async def test_a_connection_that_nothing_comes_back_over_is_made_anew_though_the_peer_is_heard(monkeypatch):
    """The peer's own connection stands. ZeroMQ knows connections that both ends hold and that carry nothing."""
    case = InMemory()
    dead = False

    def copies(source, destination, _frames):
        return int(not (dead and (source, destination) == ("a", "b")))

    def renew(_port, peer):
        nonlocal dead
        dead = dead and peer != "b"

    monkeypatch.setattr(MemoryPort, "renew", renew)
    async with case.world("a", "b", copies=copies) as world:
        recorder = Recorder()
        a, b = await world.start("a"), await world.start("b")
        link = a.node.push("items", ["b"], window=16)
        await case.heartbeats(2)
        dead = True
        await b.stop()
        b = await world.start("b", recorder, incarnation=1)
        b.node.push("items", ["a"], window=1)
        await link.send(Item(0))
        await case.heartbeats(case.limits.lost_after / case.limits.heartbeat_interval - 5)
        assert dead
        assert not a.node.gone
        with trio.fail_after(20 * case.limits.heartbeat_interval):
            await link.drained()
        assert recorder.numbers == [0]


@pytest.mark.parametrize("sends", ["a to b", "b to a", "both", "both, and what a sends is lost"])
async def test_a_node_that_leaves_in_order_is_reported_once_and_its_silence_never(sends):
    """Also before the connection to it stands."""
    case, cut = InMemory(), Cut()
    lost = sends.endswith("lost")
    async with case.pair(copies=lambda *way: cut(*way) * (not lost or way[0] != "a")) as (a, b, _, world):
        if sends != "b to a":
            a.node.announce("news", ["b"]).set(Item(1))
        if sends != "a to b":
            b.node.announce("news", ["a"]).set(Item(1))
        await case.heartbeats(2)
        await b.stop()
        await case.heartbeats(20)
        assert a.reported(PeerLeft) == [PeerLeft("b")]
        assert not a.reported(PeerSilent)
        if lost:
            return
        assert a.node.figures["peers"] == (sends != "b to a")
        again = await world.start("b", incarnation=1)
        again.node.announce("more", ["a"]).set(Item(2))
        await case.heartbeats(3)
        cut.closed = True  # one that says nothing is silent
        await case.heartbeats(20)
        assert len(a.reported(PeerSilent)) == 1


@pytest.mark.parametrize("comes", ["before it is told", "after"])
async def test_a_process_with_a_higher_incarnation_than_its_supervisor_gave_it_is_refused(comes):
    """An impostor's messages are not handled once it is recognised; the node's own messages always are."""
    case = InMemory()
    async with case.pair() as (a, b, recorder, world):
        b.node._only_expected = True
        if comes == "after":
            b.node.expect("a", a.node.incarnation)
        impostor = Node("a", case.memory, REGISTRY, incarnation=1 << 40, limits=case.limits)
        impostor._port.connect("b")
        impostor._port.send("b", pack(Heartbeat(1 << 40, [])))
        await case.heartbeats(2)
        if comes != "after":
            assert not b.reported(IncarnationRefused)
            b.node.expect("a", a.node.incarnation)
        impostor._port.send("b", pack(PushFrame("items", b.node.incarnation, 1), encode(Item(666))))
        link = a.node.push("items", ["b"], window=8)
        for number in range(5):
            await link.send(Item(number))
        with trio.fail_after(20):
            await link.drained()
        assert recorder.numbers == [0, 1, 2, 3, 4]
        told = b.reported(IncarnationRefused)
        assert told == [IncarnationRefused("a", 1 << 40, a.node.incarnation)]
        assert b.node.figures["incarnations_refused"] >= 1
        await a.stop()  # its successor is believed as soon as it is told of
        b.node.expect("a", a.node.incarnation + 1)
        again = await world.start("a")
        link = again.node.push("items", ["b"], window=8)
        await link.send(Item(6))
        await link.drained()
        assert recorder.numbers[-1] == 6


async def test_the_same_messages_take_the_same_virtual_time():
    async def slow(_delivery):
        await trio.sleep(0.25)

    for _ in range(2):
        case = InMemory()
        async with case.pair(answers=slow) as (a, _, _, _):
            link, began = a.node.push("items", ["b"], window=2), trio.current_time()
            for number in range(8):
                await link.send(Item(number))
            await link.drained()
            assert trio.current_time() - began == 2.0


async def test_a_call_that_arrives_after_the_handlers_have_stopped_is_left_unanswered():
    """The node's sockets are read until its last task has ended, in no fixed order."""
    handled: list[Any] = []
    delivery: Any = SimpleNamespace(kind="call", withdrawn=False, taken=lambda: handled.append("taken"))

    async def handle(message: object) -> None:
        handled.append(message)

    dispatcher = Dispatcher(lambda *_: None, Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run, handle, 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    dispatcher.put(delivery)
    assert dispatcher.queued == 1
    assert handled == []
