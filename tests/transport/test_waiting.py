"""Waiting for room: in order, and at a cost of what changes, however much waits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.transport.contract import Item, Question
from transport import CallTimeout, Registry
from transport.frames import StreamProgress
from transport.handles import CallLink, PushLink, WaitingLine
from transport.inbound import Delivery, Inbound, Queue
from transport.limits import Limits

MESSAGE = Item(0)


class Replica:
    """Takes calls and pushes, and answers when the test says so."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.available = True
        self.call_links: list[Any] = []
        self.pushes: dict[str, Any] = {}
        self.calls: list[Any] = []

    def begin(self, call: Any) -> None:
        call.target = self
        self.calls.append(call)

    def abandon(self, call: Any) -> None:
        self.calls.remove(call)

    def send_pushes(self, link: str) -> None:
        """Nothing is transmitted."""

    def answer(self) -> None:
        self.calls.pop(0).finish("done")

    def gone(self) -> None:
        """What `Outbound` does for a peer that is silent, before anything was sent to it."""
        self.available = False
        for link in self.call_links:
            link.lost(self.peer)
        calls, self.calls = self.calls, []
        for call in calls:
            call.link.again(call)


def call_link(replicas: list[Replica], outstanding: int) -> tuple[CallLink, list[int]]:
    """A link to the replicas, and the number of its attempts to begin a call, in a list."""
    targets: Any = {each.peer: each for each in replicas}
    link = CallLink("calls", targets, outstanding, 60.0, Registry(), Limits())
    attempts = [0]
    begin = link.router.begin

    def counting(*arguments: Any) -> str | None:
        attempts[0] += 1
        return begin(*arguments)

    link.router.begin = counting
    return link, attempts


async def in_turn(nursery: trio.Nursery, task: Callable[[], Any]) -> None:
    """Start a task, and let it begin to wait."""
    nursery.start_soon(task)
    await wait_all_tasks_blocked()


def test_an_item_that_moves_keeps_its_age_and_a_line_keeps_nothing_of_items_that_left():
    line: WaitingLine[int] = WaitingLine()
    for item in range(4):
        line.add(item, "a" if item % 2 else None)
    line.move(0, "a")
    assert line.at("a") == [0, 1, 3]
    line.move(0, None)
    assert line.at(None) == [0, 2]
    for item in range(10, 10_000):  # calls that run into their deadline while nobody has room
        line.add(item, None)
        line.discard(item)
    assert sum(map(len, line._heaps.values())) < 200


@pytest.mark.parametrize("key", [None, "pinned"])
async def test_calls_that_wait_cost_what_is_answered_and_not_what_waits(key):
    """Attempts to begin a call, over all calls: some for each, where a look at every call in the line is a square."""

    async def attempts_of(count: int) -> int:
        replicas = [Replica("a"), Replica("b")]
        link, attempts = call_link(replicas, 2)
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(partial(link, MESSAGE, key=None if key is None else f"{key} {number % 7}"))
            await wait_all_tasks_blocked()
            assert link.waiting == count - 4
            while any(each.calls for each in replicas):
                next(each for each in replicas if each.calls).answer()
        assert not link.waiting
        return attempts[0]

    assert await attempts_of(50) <= 4 * 50
    assert await attempts_of(200) <= 4 * 200


# The keys of calls that are made one after the other, each replica with room for one; then who answers, or is gone (`!`),
# or what key is forgotten (`~`), each with the keys of the calls that the replicas have afterwards.
STORIES = [
    (
        "first other first .",
        "b=first|. b=first| a=first| a=|",
        "calls of one key wait for its replica, and others pass",
    ),
    (
        ". . key key .",
        "b=.|key a=.|key b=.|key b=.| a=|",
        "waiting calls of a key follow it where the first of them goes",
    ),
    ("key other key .", "!a=|other b=|key b=|. b=|key b=|", "calls that waited for a lost replica keep their age"),
    ("key key", "~key=key|key a=|key b=|", "a forgotten key lets its calls go anywhere"),
    ("to:b . .", "a=.|to:b a=|to:b b=|", "a call to one replica goes to it, though others have fewer"),
    ("to:b . to:b", "!b=.| a=to:b| a=to:b| a=|", "until that is lost"),
]


@pytest.mark.parametrize(("keys", "events"), [pytest.param(*each[:2], id=each[2]) for each in STORIES])
async def test_calls_wait_in_order_where_their_keys_are(keys, events):
    replicas = {name: Replica(name) for name in "ab"}
    link, _ = call_link(list(replicas.values()), 1)
    async with trio.open_nursery() as nursery:
        for key in keys.split():
            given = {"to": key[3:]} if key.startswith("to:") else {"key": None if key == "." else key}
            await in_turn(nursery, partial(link, MESSAGE, **given))
        for event in events.split():
            what, _, expected = event.partition("=")
            if what.startswith("~"):
                link.forget(what[1:])
            elif what.startswith("!"):
                replicas[what[1:]].gone()
                link.available()
            else:
                replicas[what].answer()
            has = ("".join((call.key or ".").replace(" ", ":") for call in each.calls) for each in replicas.values())
            assert "|".join(has) == expected, event


async def test_a_call_that_no_replica_takes_or_answers_says_so_at_its_deadline():
    replica = Replica("a")
    link, _ = call_link([replica], 1)
    async with trio.open_nursery() as nursery:
        for seconds, reason in ((5, "a did not answer"), (3, "no replica had room"), (1, "no replica was heard")):
            replica.available = seconds != 1
            nursery.start_soon(
                raises, f"Item over calls: {reason} within {seconds} s", partial(link, MESSAGE, timeout=seconds)
            )
            await wait_all_tasks_blocked()
        await trio.sleep(2)
        replica.available = True
    assert (link.waiting, link.router._outstanding, replica.calls) == (0, {"a": 0}, [])


async def raises(reason: str, call: Callable[[], Any]) -> None:
    with pytest.raises(CallTimeout, match=f"^{reason}$"):
        await call()


async def test_a_send_goes_to_the_most_credit_of_the_available_and_to_others_only_where_there_are_none():
    targets: Any = {name: Replica(name) for name in "cab"}
    link = PushLink("pushes", targets, 2, Limits())
    targets["a"].available = False
    for sent in ((0, 1, 0), (0, 1, 1), (0, 2, 1), (0, 2, 2)):
        await link.send(MESSAGE)
        assert tuple(link.unacknowledged(name) for name in "abc") == sent
    async with trio.open_nursery() as nursery:
        for to in (None, "b", None, "c"):
            await in_turn(nursery, partial(link.send, MESSAGE, to=to))
        assert link.waiting == 4, "the one that is not available has room"
        await link.send(MESSAGE, to="a")
        for name, sent in (("c", (1, 2, 3)), ("b", (1, 3, 3)), ("c", (1, 3, 4)), ("c", (1, 3, 5))):
            sender = targets[name].pushes["pushes"][0]
            taken = len(list(sender.to_transmit())) and sender._taken + 1
            sender.progressed(StreamProgress("pushes", taken, [], []))
            link.moved(name)
            assert tuple(link.unacknowledged(each) for each in "abc") == sent
    targets["b"].available = targets["c"].available = False
    await link.send(MESSAGE)
    assert link.unacknowledged("a") == 2


QUEUED = st.tuples(
    st.sampled_from(["push", "call", "announce", "announce", "withdraw", "forget", "pop"]), st.integers(0, 3)
)


@given(st.lists(QUEUED, max_size=40))
def test_a_queue_is_in_order_and_has_the_newest_of_each_announcement(events):
    queue, waiting, processes = Queue(), [], [Inbound(b"", name, 0, 0, lambda _: None) for name in "ab"]
    for number, (event, which) in enumerate(events):
        kind, inbound = (Item, Question)[which // 2], processes[which % 2]
        delivery = Delivery(kind(number), event, "link", inbound, number)
        same = [each for each in waiting if each[:3] == ["announce", kind, inbound.peer]]
        if event == "forget":
            queue.forget_announcements(inbound.peer)
            waiting = [[*each[:4], each[4] and each[::2][:2] != ["announce", inbound.peer]] for each in waiting]
        elif event == "withdraw":
            for each in [each for each in queue._items if each.kind == "call"][:1]:
                each.withdraw()
                waiting = [[*entry[:4], entry[4] and entry[3] != each.number] for entry in waiting]
        elif event == "pop":
            popped = queue.pop()
            while waiting and not waiting[0][4]:
                waiting.pop(0)
            assert (popped and popped.number) == (waiting.pop(0)[3] if waiting else None)
            assert popped is None or popped.message.number == popped.number
        else:
            queue.put(delivery)
            if event == "announce" and same:
                same[0][3:] = number, True
            else:
                waiting.append([event, kind, inbound.peer, number, True])
        assert len(queue) == len(waiting)


def test_calls_that_are_withdrawn_fill_no_memory_and_are_not_deferred():
    queue, inbound = Queue(), Inbound(b"", "a", 0, 0, lambda _: None)
    queue.put(Delivery(MESSAGE, "push", "link", inbound, 1))
    for number in range(10_000):
        queue.put(call := Delivery(MESSAGE, "call", "link", inbound, number))
        call.withdraw()
        assert len(queue) <= 1100
    with pytest.raises(RuntimeError, match="only a push can be deferred, this is a call"):
        call.defer()
    assert (kept := queue.pop()) is not None
    assert kept.kind == "push"
    assert queue.pop() is None


async def test_sends_that_wait_cost_what_is_sent_and_not_what_waits():
    """As for calls: attempts to send, while each of two receivers returns credit for one message after another."""

    async def attempts_of(count: int, to: str | None) -> int:
        targets: Any = {name: Replica(name) for name in ("a", "b")}
        link = PushLink("pushes", targets, 1, Limits())
        attempts, sent = 0, {"a": 0, "b": 0}
        offer = link._serve

        def counting(waiting: Any) -> bool:
            nonlocal attempts
            attempts += 1
            return offer(waiting)

        link._serve = counting
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(partial(link.send, MESSAGE, to=to if number % 2 else None))
            await wait_all_tasks_blocked()
            while link.waiting:
                for name in "ab":
                    sender = targets[name].pushes["pushes"][0]
                    sent[name] += len(list(sender.to_transmit()))
                    progress = StreamProgress("pushes", sent[name], [(1, sent[name])], [])
                    sender.progressed(progress)
                    link.moved(name)
        return attempts

    for to in (None, "a"):
        assert await attempts_of(50, to) <= 5 * 50
        assert await attempts_of(200, to) <= 5 * 200
