"""What every announce link keeps."""

from __future__ import annotations

import trio

from tests.transport.contract.base import PATIENCE, ContractBase, Item, Recorder
from transport import PeerSilent
from transport.inbound import Delivery


class AnnounceContract(ContractBase):
    """Newest wins, whatever is lost."""

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
        async with self.world("a", "b") as world:
            forever = trio.Event()

            async def block_pushes(delivery: Delivery) -> None:
                if delivery.kind == "push":
                    await forever.wait()

            recorder = Recorder(answers=block_pushes)
            a, _ = await world.start("a"), await world.start("b", recorder, concurrency=2)
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
