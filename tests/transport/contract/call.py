"""What every call link keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from tests.transport.contract.base import PATIENCE, ContractBase, Item, Question, Recorder, Running, Unheard, raises
from transport.errors import (
    CallFailed,
    CallRefused,
    CallTimeout,
    MalformedFrames,
    PeerDraining,
    PeerLeft,
    PeerLost,
    PeerReplaced,
    PeerSilent,
)
from transport.inbound import Delivery


class CallContract(ContractBase):
    """Where calls go, and every way in which they end."""

    async def _replicas(self, world: Any, recorders: Sequence[Recorder]) -> tuple[Running, list[Running]]:
        caller = await world.start("a")
        return caller, [
            await world.start(f"s{index}", recorder, concurrency=8) for index, recorder in enumerate(recorders)
        ]

    async def test_deadline_and_cancellation_end_the_handler(self) -> None:
        """The caller gets CallTimeout; the handler is cancelled; the room is free again."""
        async with self.world("a", "s0") as world:
            recorder = Recorder()
            recorder.gate = trio.Event()
            a, _ = await self._replicas(world, [recorder])
            call = a.node.call("questions", ["s0"], outstanding=1, timeout=self.limits.heartbeat_interval * 4)
            await raises(CallTimeout, call, Question(0))
            await recorder.until(lambda recorder: recorder.started == 1 and recorder.running == 0)
            with trio.move_on_after(self.limits.heartbeat_interval * 4):
                await call(Question(1), timeout=5 * PATIENCE)  # only a cancellation can end it soon
            await recorder.until(lambda recorder: recorder.started == 2 and recorder.running == 0)
            recorder.gate.set()
            assert await call(Question(2)) == Item(2)
            assert a.node.figures["outstanding_calls"] == 0

    async def test_a_replaced_replica_loses_its_calls(self) -> None:
        """PeerLost names it, pinned keys are free, and the next call reaches the new process."""
        async with self.world("a", "s0", "s1") as world:
            recorder, other = Recorder(), Recorder()
            recorder.gate = trio.Event()
            a, (server, _) = await self._replicas(world, [recorder, other])
            call = a.node.call("questions", ["s0", "s1"], outstanding=4, timeout=PATIENCE)
            lost: list[str] = []

            async def ask() -> None:
                error = await raises(PeerLost, partial(call, key="session"), Question(0))
                lost.append(error.peer)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await recorder.until(lambda recorder: recorder.started == 1)
                await server.stop()
                successor = Recorder()
                successor.gate = trio.Event()
                await world.start("s0", successor, incarnation=1)
            assert lost == ["s0"]
            with trio.fail_after(PATIENCE):
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
            recorders = [Recorder(), Recorder()]
            a, (leaving, other) = await self._replicas(world, recorders)
            call = a.node.call("questions", ["s0", "s1"], outstanding=4, timeout=PATIENCE)
            assert await call(Question(0), key="session") == Item(0)
            recorders[0].gate = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, Question(1))
                await recorders[0].until(lambda recorder: recorder.started == 2)
                leaving.node.drain()
                while not a.reported(PeerDraining):
                    await self.heartbeats(1)
                for number in (2, 3):
                    assert await call(Question(number), key="session") == Item(number)
                recorders[0].gate.set()
                await leaving.node.idle()
                await leaving.stop()
            assert a.reported(PeerDraining) == [PeerDraining("s0")]
            assert not a.reported(PeerSilent)
            assert recorders[1].numbers == [2, 3]
            await other.stop()
            while len(a.reported(PeerLeft)) < 2:
                await self.heartbeats(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, Question(4))
                await self.heartbeats(2)
                assert a.node.figures["waiting_to_send"] == 1
                assert not call.reachable
                back = Recorder()
                await world.start("s0", back, incarnation=1)
                await call.until_reachable()
            assert back.numbers == [4]

    async def test_refusal_and_undecodable_requests_fail_the_call(self) -> None:
        """With the reason; the link lives on."""
        async with self.world("a", "s0") as world:

            async def refuse(delivery: Delivery) -> object:
                await trio.lowlevel.checkpoint()
                if delivery.message.number == 0:
                    raise CallRefused("not today")
                return Question(1) if delivery.message.number == 1 else Item(2)

            a, (server,) = await self._replicas(world, [Recorder(answers=refuse)])
            call = a.node.call("questions", ["s0"], outstanding=1, timeout=PATIENCE, reply=Item)
            for message, reason in (
                (Question(0), "not today"),
                (Question(1), "undecodable reply: header: message type 'Question' is unknown here or not expected"),
                (Unheard(2), "undecodable request: header: message type 'Unheard' is unknown here or not expected"),
            ):
                assert (await raises(CallFailed, call, message)).reason == reason
            assert await call(Question(3)) == Item(2)
            assert len(server.reported(MalformedFrames)) == len(a.reported(MalformedFrames)) == 1
