"""What every push link keeps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trio

from tests.transport.contract.base import (
    PATIENCE,
    Block,
    ContractBase,
    Item,
    Losing,
    Question,
    Recorder,
    appending,
)
from transport.errors import (
    CreditWait,
    PeerReplaced,
)
from transport.inbound import Delivery, current_delivery


class PushContract(ContractBase):
    """Order, window, acknowledgement, and what happens when processes or frames are lost."""

    frames_to_lose = 24
    """How many frames of a run are lost in turn, one in each run."""

    async def test_pushes_arrive_once_in_order(self) -> None:
        """Also when there are many more of them than the window."""
        async with self.pair() as (a, _, recorder, _):
            link = a.node.push("items", ["b"], window=8)
            for number in range(300):
                await link.send(Item(number))
            with trio.fail_after(PATIENCE):
                await link.drained()
            assert recorder.numbers == list(range(300))
            assert {(each.sender, each.link, each.kind) for each in recorder.deliveries} == {("a", "items", "push")}

    async def test_arrays_arrive_whole_and_read_only(self) -> None:
        """A megabyte, its values unchanged."""
        async with self.pair() as (a, _, recorder, _):
            values = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
            await a.node.push("blocks", ["b"], window=1).send(Block(values))
            await recorder.count(1)
            received = recorder.deliveries[0].message.values
            assert np.array_equal(received, values)
            assert not received.flags.writeable

    async def test_window_bounds_what_is_not_taken(self) -> None:
        """One message is with the handler, as many as the window wait in the queue, and the sender waits."""
        async with self.pair(closed=True) as (a, b, recorder, _), trio.open_nursery() as nursery:
            link = a.node.push("items", ["b"], window=4)
            sent: list[int] = []

            async def send() -> None:
                for number in range(12):
                    await link.send(Item(number))
                    sent.append(number)

            nursery.start_soon(send)
            await recorder.until(lambda recorder: recorder.started == 1)
            await self.heartbeats(4)
            assert sent == [0, 1, 2, 3, 4]
            assert b.node.figures["queued"] == 4
            assert link.unacknowledged() == 5
            recorder.gate.set()
            await recorder.count(12)
            assert recorder.numbers == list(range(12))

    async def test_credit_returns_before_the_acknowledgement(self) -> None:
        """Deferred messages leave the queue, so others follow; they are acknowledged when they are released."""
        async with self.world("a", "b") as world:
            releases: list[Callable[[], None]] = []

            async def defer(delivery: Delivery) -> None:
                await trio.lowlevel.checkpoint()
                assert current_delivery() is delivery
                releases.append(current_delivery().defer())

            recorder = Recorder(answers=defer)
            a, _ = await world.start("a"), await world.start("b", recorder)
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
            with trio.fail_after(PATIENCE):
                await link.drained()
            assert sorted(acknowledged) == list(range(9))

    async def test_a_restarted_receiver_gets_what_is_not_acknowledged_in_order(self) -> None:
        """And nothing else, within the window."""
        async with self.world("a", "b") as world:

            async def acknowledge_even(delivery: Delivery) -> None:
                await trio.lowlevel.checkpoint()
                if delivery.message.number % 2:
                    delivery.defer()

            first, second = Recorder(answers=acknowledge_even), Recorder()
            a, b = await world.start("a"), await world.start("b", first)
            link = a.node.push("items", ["b"], window=4)
            for number in range(20):
                await link.send(Item(number))
            await first.count(20)
            await self.heartbeats(2)
            assert link.unacknowledged() == 10
            await b.stop()
            second.gate = trio.Event()
            b = await world.start("b", second, incarnation=1)
            await second.until(lambda recorder: recorder.started == 1)
            await self.heartbeats(2)
            assert b.node.figures["queued"] == 4  # the window holds for what is sent again, too
            second.gate.set()
            with trio.fail_after(PATIENCE):
                await link.send(Item(20))
                await link.drained()
            assert second.numbers == [*range(1, 20, 2), 20]
            assert a.reported(PeerReplaced) == [PeerReplaced("b", 1)]

    async def test_a_restarted_sender_starts_anew(self) -> None:
        """Its numbers begin at 1 again and are no duplicates of its predecessor's."""
        async with self.world("a", "b") as world:
            recorder = Recorder()
            await world.start("b", recorder)
            for incarnation in range(3):
                a = await world.start("a", incarnation=incarnation)
                link = a.node.push("items", ["b"], window=2)
                for number in range(5):
                    await link.send(Item(10 * incarnation + number))
                with trio.fail_after(PATIENCE):
                    await link.drained()
                await a.stop()
            assert recorder.numbers == [10 * i + number for i in range(3) for number in range(5)]

    async def test_duplicates_are_dropped(self) -> None:
        """Every frame arrives twice, control frames too."""
        async with self.pair(copies=lambda *_: 2) as (a, b, recorder, _):
            link = a.node.push("items", ["b"], window=3)
            acknowledged: list[int] = []
            for number in range(20):
                await link.send(Item(number), on_ack=appending(acknowledged, number))
            call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE)
            assert [await call(Question(number)) for number in (20, 21)] == [Item(20), Item(21)]
            with trio.fail_after(PATIENCE):
                await link.drained()
            assert recorder.numbers == list(range(22))
            assert acknowledged == list(range(20))
            assert b.node.figures["duplicates_dropped"] >= 22

    async def test_any_one_lost_frame_is_made_good(self) -> None:
        """Whichever frame of the conversation is lost: everything arrives once, in order, and is acknowledged."""

        async def lose(lost: int) -> None:
            async with self.pair(copies=Losing(lost)) as (a, _, recorder, _):
                link = a.node.push("items", ["b"], window=2)
                for number in range(7):
                    await link.send(Item(number))
                with trio.fail_after(PATIENCE):
                    await link.drained()
                assert recorder.numbers == list(range(7)), lost

        for lost in range(1, self.frames_to_lose + 1):
            await lose(lost)

    async def test_most_credit_is_preferred(self) -> None:
        """Without a named target the pushes spread; a full target is passed over."""
        async with self.world("a", "b", "c") as world:
            slow, quick = Recorder(), Recorder()
            slow.gate = trio.Event()
            a, _, _ = await world.start("a"), await world.start("b", slow), await world.start("c", quick)
            link = a.node.push("items", ["c", "b"], window=2)
            await link.send(Item(0))
            await link.send(Item(1), to="b")
            await link.send(Item(2), to="b")
            await quick.until(lambda _: True)
            for number in range(3, 9):
                await link.send(Item(number))
                await self.heartbeats(0.5)
            slow.gate.set()
            with trio.fail_after(PATIENCE):
                await link.drained()
            assert slow.numbers[0] == 0  # ties go by name
            assert set(slow.numbers) >= {0, 1, 2}
            assert sorted(slow.numbers + quick.numbers) == list(range(9))
            assert len(quick.numbers) >= 5

    async def test_a_long_wait_for_credit_is_reported_once(self) -> None:
        """And goes on."""
        async with self.pair(closed=True) as (a, _, recorder, _), trio.open_nursery() as nursery:
            link = a.node.push("items", ["b"], window=1)
            await link.send(Item(0))
            await recorder.until(lambda recorder: recorder.started == 1)
            await link.send(Item(1))
            nursery.start_soon(link.send, Item(2))
            await trio.sleep(2 * self.limits.credit_report_after + 2 * self.limits.heartbeat_interval)
            (wait,) = a.reported(CreditWait)
            assert (wait.link, wait.peer) == ("items", "b")
            assert wait.seconds >= self.limits.credit_report_after
            recorder.gate.set()
            await recorder.count(3)
