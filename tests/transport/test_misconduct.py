"""A node of the network that misbehaves is cut off and named, whatever it does; honest nodes never are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest
import trio
from trio.testing import MockClock

from tests.transport.contract.base import REGISTRY, Block, ContractBase, Item, Question, Recorder
from transport import MemoryNetwork, Node, PeerCutOff, PeerGone, Permit, Registry, ZmqNetwork, encode
from transport.arrivals import STRANGER
from transport.conduct import CALLS, CLAIM_SECONDS, REPLAYED, SMALL_AT_ONCE
from transport.frames import AnnounceFrame, CallFrame, Cancel, Goodbye, Heartbeat, PushFrame, pack

WINDOW, OUTSTANDING = 4, 2
PERMITS = {
    ("push", "items"): Permit(Registry(Item), WINDOW),
    ("call", "questions"): Permit(Registry(Question), OUTSTANDING),
    ("call", "other questions"): Permit(Registry(Question), 100 * OUTSTANDING),
    ("announce", "news"): Permit(Registry(Item)),
}
RECEIVES = {"push": [Item, Question, Block], "call": [Question], "announce": [Item, Block]}


def push(first, count=1, *, link="items", message=None, incarnation=0):
    bodies = [encode(message or Item(number))[0] for number in range(first, first + count)]
    return [pack(PushFrame(link, incarnation, first), bodies)]


def call(request, *, link="questions", message=None, timeout=60.0):
    return [pack(CallFrame(link, 0, request, timeout), encode(message or Question(request)))]


def announce(version, *, link="news", message=None):
    message = message or Item(version)
    return [pack(AnnounceFrame(link, 0, type(message).__name__, version), encode(message))]


class Stage(ContractBase):
    """A node ``b`` that takes what `PERMITS` says from ``a``, and the bare port of ``a``, which sends anything."""

    def __init__(self):
        self.memory = MemoryNetwork()
        self.recorder = Recorder()
        self.events = []
        self.node = Node(
            "b",
            self.memory,
            REGISTRY,
            incarnation=0,
            on_event=self.events.append,
            permits=lambda peer: PERMITS if peer in {"a", "c"} else None,
        )

    def network(self, _names):
        return self.memory

    async def settle(self):
        await trio.testing.wait_all_tasks_blocked()

    def port(self, name="a", incarnation=1):
        port = self.memory.attach(name, incarnation, None)
        port.connect("b")
        return port

    @property
    def rules(self):
        return [event.rule for event in self.events if isinstance(event, PeerCutOff)]


def play(act):
    async def main():
        stage = Stage()
        stage.node.announce("loads", ["a"])  # so that the peer's loss is noticed

        async def run(*, task_status):
            await stage.node.run(stage.recorder, receives=RECEIVES, task_status=task_status)

        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            await act(stage)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def many(make, count, step=1):
    return [make(number) for number in range(1, count + 1, step)]


MISCONDUCT = {
    "a push over another link": ("other role", [push(1, link="others")]),
    "a call over another link": ("other role", [call(1, link="others")]),
    "a call over a push link": ("other role", [call(1, link="items")]),
    "an announcement over another link": ("other role", [announce(1, link="loads")]),
    "a push of another type": ("other role", [push(1, message=Question(1))]),
    "a call of another type": ("other role", [call(1, message=Item(1))]),
    "an announcement of another type": ("other role", [[pack(AnnounceFrame("news", 0, "Block", 1), encode(Item(1)))]]),
    "calls beyond what was granted": ("flood", many(call, CALLS * OUTSTANDING + 2)),
    "heartbeats": ("flood", [[pack(Heartbeat(1, []))]] * (SMALL_AT_ONCE + 1)),
    "announcements": ("flood", many(announce, SMALL_AT_ONCE + 1)),
    "withdrawals": ("flood", [[pack(Cancel(0, 1))]] * (SMALL_AT_ONCE + 1)),
    "settled pushes": ("replay", [push(1), [pack(Heartbeat(1, [("items", 1)]))], *[push(1)] * (REPLAYED + 1)]),
    "calls again": ("replay", [call(1)] * (REPLAYED + 2)),
    "messages for a former process": ("replay", [push(1, 100, incarnation=7)] * 42),
    "rubbish": ("rubbish", [[b"\xff\xff"]] * (REPLAYED + 1)),
}


@pytest.mark.parametrize("what", MISCONDUCT)
def test_who_misbehaves_is_cut_off_once_and_nothing_more_of_him_is_taken(what):
    rule, frames = MISCONDUCT[what]

    async def act(stage):
        stage.recorder.gate = trio.Event()
        port = stage.port()
        for each in frames:
            port.send("b", each)
        await stage.settle()
        assert stage.rules == [rule]
        assert [event.peer for event in stage.events if isinstance(event, PeerGone)] == ["a"]
        assert stage.node.cut_off["a", rule].incarnation == 1
        stage.recorder.gate.set()
        await stage.settle()
        before = len(stage.recorder.deliveries)
        for each in ([pack(Goodbye())], push(2), call(1 << 20), announce(1 << 30)):
            port.send("b", each)
        await stage.settle()
        assert len(stage.recorder.deliveries) == before
        assert len(stage.rules) == 1
        assert stage.node.figures["frames_of_processes_cut_off"] >= 4

    play(act)


def test_calls_count_over_the_link_that_grants_them():
    async def act(stage):
        stage.recorder.gate = trio.Event()
        port = stage.port()
        many_more = CALLS * OUTSTANDING + 10
        for request in range(1, many_more):
            port.send("b", call(request, link="other questions"))
        port.send("b", call(many_more))
        await stage.settle()
        assert stage.rules == [], "one call over a link that grants two"
        for request in range(many_more + 1, 2 * many_more):
            port.send("b", call(request))
        await stage.settle()
        assert stage.rules == ["flood"]
        stage.recorder.gate.set()

    play(act)


def test_pushes_beyond_the_window_are_not_even_decoded():
    async def act(stage):
        stage.recorder.gate = trio.Event()
        stage.port().send("b", push(1, WINDOW + 3))
        await stage.settle()
        assert stage.rules == ["flood"]
        assert stage.node.figures["queued"] + stage.node.figures["handling"] <= WINDOW

    play(act)


def test_what_was_withdrawn_leaves_the_queue():
    async def act(stage):
        stage.recorder.gate = trio.Event()
        port = stage.port()
        for number in range(1, 6000):
            port.send("b", call(number))
            port.send("b", [pack(Cancel(0, number))])
        await stage.settle()
        assert stage.rules == []
        assert stage.node.figures["queued"] <= 1100

    play(act)


def test_the_next_process_is_taken():
    async def act(stage):
        stage.port().send("b", push(1, link="others"))
        await stage.settle()
        assert stage.rules == ["other role"]
        stage.node.expect("a", 2)
        assert not stage.node.cut_off
        stage.port(incarnation=2).send("b", push(1, 2))
        await stage.settle()
        assert stage.recorder.numbers == [1, 2]
        assert "a" not in stage.node.gone

    play(act)


def test_a_goodbye_makes_nothing_undone():
    async def act(stage):
        port = stage.port()
        for frames in (push(1, 2), [pack(Goodbye())], push(1, 2)):
            port.send("b", frames)
        await stage.settle()
        assert stage.recorder.numbers == [1, 2]

    play(act)


def test_the_others_are_not_disturbed_and_strangers_are_named_once():
    async def act(stage):
        stage.node._port.knows = lambda name: name in {"a", "c"}
        c, stranger, liar = stage.port("c"), stage.port("nobody"), stage.port()
        for number in range(1, SMALL_AT_ONCE + 3):
            stranger.send("b", [b""])
            if number % 1000 == 0:
                c.send("b", push(number // 1000))
                liar.send("b", push(1, link="others"))
                await stage.settle()
        await stage.settle()
        assert stage.recorder.numbers == list(range(1, 21))
        assert [(event.peer, event.rule) for event in stage.events if isinstance(event, PeerCutOff)] == [
            ("a", "other role"),
            (STRANGER, "flood"),
        ]

    play(act)


def test_two_processes_of_one_name_and_incarnation_are_named_and_neither_is_heard():
    async def act(stage):
        port = stage.port()
        source = "process 17"
        stage.node._port.source = lambda: source
        stage.node.on_inbox(port.identity, push(1), 1)
        stage.node.on_inbox(port.identity, push(2), 2)  # the same process connects anew
        source = "process 18"
        stage.node.on_inbox(port.identity, push(3), 3)
        await stage.settle()
        assert stage.recorder.numbers == [1, 2]
        (event,) = [event for event in stage.events if isinstance(event, PeerCutOff)]
        assert event.rule == "forged name"
        assert "process 17, process 18" in event.evidence

    play(act)


def test_connections_that_two_processes_take_from_each_other_are_told_from_an_honest_ones():
    async def act(stage):
        port = stage.port()
        stage.node._port.source = lambda: "a process at 10.0.0.2"
        for number in range(100):
            await trio.sleep(1.5)
            stage.node.on_inbox(port.identity, [pack(Heartbeat(1, []))], number)
        assert stage.rules == []
        for number in range(100, 150):
            await trio.sleep(0.1)
            stage.node.on_inbox(port.identity, [pack(Heartbeat(1, []))], number)
        assert stage.rules == ["forged name"]

    play(act)


def test_an_incarnation_that_nobody_gave_out_is_named_within_ten_seconds_and_the_true_process_goes_on():
    async def act(stage):
        stage.node.expect("a", 1)
        stage.port(incarnation=2).send("b", push(1))
        await trio.sleep(5)
        stage.port().send("b", push(1))
        assert stage.rules == []
        await trio.sleep(5)
        assert stage.rules == ["forged incarnation"]
        stage.port().send("b", push(2))
        stage.port(incarnation=2).send("b", push(2))
        await trio.sleep(20)
        assert stage.recorder.numbers == [1, 2]
        assert stage.rules == ["forged incarnation"]
        stage.node.expect("a", 2)
        assert not stage.node.cut_off

    play(act)


def test_news_of_a_new_process_that_come_late_are_no_misconduct():
    async def act(stage):
        stage.node.expect("a", 1)
        stage.port(incarnation=2).send("b", push(1))
        await trio.sleep(CLAIM_SECONDS - 1)
        stage.node.expect("a", 2)
        stage.port(incarnation=2).send("b", push(1))
        await trio.sleep(20)
        assert stage.recorder.numbers == [1]
        assert stage.rules == []

    play(act)


POSER = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.ROUTING_ID, b"a#1")
socket.connect(sys.argv[1])
socket.send(b"")
sys.stdin.read()
"""


def test_over_unix_sockets_the_kernel_says_which_processes_have_one_name():
    async def main():
        events = []
        cut = trio.Event()

        def note(event):
            events.append(event)
            if isinstance(event, PeerCutOff):
                cut.set()

        with tempfile.TemporaryDirectory(prefix="link") as directory:
            network = ZmqNetwork({name: f"ipc://{directory}/{name}" for name in "ab"})
            recorder = Recorder()
            a = Node("a", network, REGISTRY, incarnation=1)
            b = Node("b", network, REGISTRY, incarnation=1, on_event=note, permits=lambda _: PERMITS)

            async def run(node, handler, *, task_status):
                await node.run(handler, task_status=task_status)

            async with trio.open_nursery() as nursery:
                await nursery.start(run, b, recorder)
                await nursery.start(run, a, Recorder())
                link = a.push("items", ["b"], window=WINDOW)
                await link.send(Item(1))
                await recorder.count(1)
                command = [sys.executable, "-c", POSER, f"ipc://{directory}/b"]
                poser = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220
                with trio.fail_after(60):
                    await cut.wait()
                (event,) = [event for event in events if isinstance(event, PeerCutOff)]
                assert event.rule == "forged name"
                assert f"process {os.getpid()}, process {poser.pid}" in event.evidence
                poser.communicate()
                nursery.cancel_scope.cancel()

    trio.run(main)
