"""Who is told that a key is refused: both sides of a connection between nodes of different keys, or of none."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
import trio

from tests.transport.contract.base import REGISTRY, Item, Recorder
from tests.transport.test_zeromq import free_port
from transport import CurveKeys, KeyRefused, Limits, Node, Unauthenticated, ZmqNetwork, turn_away

pytestmark = pytest.mark.real_time

LIMITS = Limits(heartbeat_interval=0.1, silent_after=60.0, linger=0.1)


class Side:
    """A node that stores its events."""

    def __init__(self, name: str, peer: str, network: ZmqNetwork) -> None:
        self.events: list[Any] = []
        self.news = trio.lowlevel.ParkingLot()
        self.node = Node(name, network, REGISTRY, incarnation=1, limits=LIMITS, on_event=self.heard)
        self.node.announce("items", [peer])

    def heard(self, event: Any) -> None:
        self.events.append(event)
        self.news.unpark_all()

    async def event(self, kind: type) -> Any:
        with trio.fail_after(20):
            while not (found := [each for each in self.events if isinstance(each, kind)]):
                await self.news.park()
        return found[-1]


@pytest.mark.parametrize("same", [False, True])
async def test_both_sides_learn_of_keys_that_differ(same):
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
    first = CurveKeys.generate()
    keys = {"a": first, "b": first if same else CurveKeys.generate()}
    a, b = (Side(name, peer, ZmqNetwork(addresses, curve=keys[name], watched=[peer])) for name, peer in ("ab", "ba"))
    async with trio.open_nursery() as nursery:
        for side in (a, b):
            await nursery.start(partial(side.node.run, Recorder()))
        if same:
            await trio.sleep(1.0)
            assert [*a.events, *b.events] == []
        else:
            for side, peer in ((a, "b"), (b, "a")):
                refused = await side.event(KeyRefused)
                assert refused.peer == peer
                await side.event(Unauthenticated)
                assert side.node.figures["unauthenticated"] > 0
        nursery.cancel_scope.cancel()


async def test_a_process_without_a_key_refuses_a_peer_at_its_address():
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
    a = Side("a", "b", ZmqNetwork(addresses, curve=CurveKeys.generate(), watched=["b"]))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(a.node.run, Recorder()))
        assert await turn_away(addresses["b"], 20.0)
        refused = await a.event(KeyRefused)
        assert refused.peer == "b"
        assert not await turn_away(addresses["a"], 20.0)  # another process listens there
        nursery.cancel_scope.cancel()
    assert not await turn_away(addresses["b"], 0.1)  # nobody came


async def test_a_peer_is_reached_although_another_program_had_its_port():
    """ZeroMQ gives a connection up when it is answered in another protocol."""
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
    key = CurveKeys.generate()
    port = int(addresses["b"].rpartition(":")[2])
    a = Node("a", ZmqNetwork(addresses, curve=key), REGISTRY, incarnation=1, limits=LIMITS)
    link = a.push("items", ["b"], window=1)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
        await nursery.start(partial(a.run, Recorder()))
        with trio.fail_after(20):
            stream = await listener.accept()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some(1024):
                    pass
        await stream.aclose()
        await listener.aclose()
        b = Node("b", ZmqNetwork(addresses, curve=key), REGISTRY, incarnation=1, limits=LIMITS)
        await nursery.start(partial(b.run, Recorder()))
        await link.send(Item(1))
        with trio.fail_after(20):
            await link.drained()
        nursery.cancel_scope.cancel()
