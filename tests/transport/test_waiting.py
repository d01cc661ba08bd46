"""Waiting for room: in order, and at a cost of what changes, however much waits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transport.contract.base import Item
from transport import Registry
from transport.frames import StreamProgress
from transport.handles import CallLink, PushLink, WaitingLine
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

    link.router.begin = counting  # type: ignore[method-assign]
    return link, attempts


async def in_turn(nursery: trio.Nursery, task: Callable[[], Any]) -> None:
    """Start a task, and let it begin to wait."""
    nursery.start_soon(task)
    await wait_all_tasks_blocked()


def test_a_line_is_first_in_first_out_at_each_place_and_over_all() -> None:
    line: WaitingLine[str] = WaitingLine()
    for item, place in (("1 any", None), ("2 a", "a"), ("3 any", None), ("4 b", "b"), ("5 a", "a")):
        line.add(item, place)
    served: list[str] = []

    def take(count: int) -> Callable[[str], bool]:
        end = len(served) + count
        return lambda item: len(served) < end and not served.append(item)  # type: ignore[func-returns-value]

    line.serve(take(2), "a")
    assert served == ["1 any", "2 a"]
    line.discard("3 any")
    line.move("5 a", None)
    assert line.at("a") == []
    assert line.at(None) == ["5 a"]
    line.serve(take(9), "b")
    assert served[2:] == ["4 b", "5 a"]
    assert not len(line)


def test_an_item_that_moves_keeps_its_age_and_a_line_keeps_nothing_of_items_that_left() -> None:
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
async def test_calls_that_wait_cost_what_is_answered_and_not_what_waits(key: str | None) -> None:
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


async def test_calls_of_one_key_wait_for_its_replica_and_other_calls_pass_them() -> None:
    a, b = Replica("a"), Replica("b")
    link, _ = call_link([a, b], 1)
    async with trio.open_nursery() as nursery:
        for key in ("first", "other", "first", None):
            await in_turn(nursery, partial(link, MESSAGE, key=key))
        assert [call.key for call in (*a.calls, *b.calls)] == ["first", "other"]
        b.answer()  # the third call waits for a, so the fourth goes to b
        assert [call.key for call in b.calls] == [None]
        b.answer()
        assert not b.calls
        a.answer()
        assert [call.key for call in a.calls] == ["first"]
        a.answer()


async def test_waiting_calls_of_a_key_follow_it_where_the_first_of_them_goes() -> None:
    a, b = Replica("a"), Replica("b")
    link, _ = call_link([a, b], 1)
    async with trio.open_nursery() as nursery:
        for key in (None, None, "key", "key"):
            await in_turn(nursery, partial(link, MESSAGE, key=key))
        b.answer()
        assert [call.key for call in b.calls] == ["key"]
        a.answer()
        assert not a.calls, "the second call of the key waits for b"
        b.answer()
        assert [call.key for call in b.calls] == ["key"]
        b.answer()


async def test_calls_that_waited_for_a_lost_replica_go_to_another_in_order() -> None:
    a, b = Replica("a"), Replica("b")
    link, _ = call_link([a, b], 1)
    async with trio.open_nursery() as nursery:
        for key in ("key", "other", "key", None):
            await in_turn(nursery, partial(link, MESSAGE, key=key))
        a.gone()
        b.answer()
        assert [call.key for call in b.calls] == ["key"], "older than the call that may go anywhere"
        b.answer()
        b.answer()
        assert link.waiting == 0
        b.answer()


async def test_a_forgotten_key_lets_its_calls_go_anywhere() -> None:
    a, b = Replica("a"), Replica("b")
    link, _ = call_link([a, b], 1)
    async with trio.open_nursery() as nursery:
        for key in ("key", "key"):
            await in_turn(nursery, partial(link, MESSAGE, key=key))
        assert not b.calls
        link.forget("key")
        assert [call.key for call in b.calls] == ["key"]
        a.answer()
        b.answer()


async def test_sends_that_wait_cost_what_is_sent_and_not_what_waits() -> None:
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

        link._serve = counting  # type: ignore[method-assign]
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
