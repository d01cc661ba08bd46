"""What every push link keeps."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tests.transport.contract.base import PATIENCE, ContractBase, Item, Recorder, appending
from transport.errors import CreditWait
from transport.inbound import Delivery, current_delivery


class PushContract(ContractBase):
    """Order, window, acknowledgement, and what happens when processes or frames are lost."""

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
