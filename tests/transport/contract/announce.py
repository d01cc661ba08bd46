"""What every announce link keeps."""

from __future__ import annotations

import trio

from tests.transport.contract.base import (
    PATIENCE,
    ContractBase,
    Item,
    Losing,
    Question,
    Recorder,
)
from transport import PeerLeft, PeerSilent
from transport.inbound import Delivery


class AnnounceContract(ContractBase):
    """Newest wins, whatever is lost."""

    announcements_to_lose = 12
    """How many frames of a run are lost in turn, one in each run."""

    async def test_newest_wins(self) -> None:
        """What waits in the queue becomes the newest; setting never blocks."""
        async with self.pair(closed=True) as (a, _, recorder, _):
            link = a.node.announce("news", ["b"])
            link.set(Item(0))
            await recorder.until(lambda recorder: recorder.started == 1)
            for number in range(1, 40):
                link.set(Item(number))
                await self.heartbeats(0.1)
            link.set(Question(7))  # another type has a newest value of its own
            await self.heartbeats(2)
            recorder.gate.set()
            await recorder.count(3)
            assert recorder.numbers == [0, 39, 7]

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

    async def test_any_one_lost_frame_changes_nothing(self) -> None:
        """The newest value arrives all the same, and once."""

        async def lose(lost: int) -> None:
            async with self.pair(copies=Losing(lost)) as (a, _, recorder, _):
                link = a.node.announce("news", ["b"])
                for number in range(3):
                    link.set(Item(number))
                    await self.heartbeats(0.2)
                await recorder.until(lambda recorder: recorder.numbers[-1:] == [2])
                await self.heartbeats(3)
                assert recorder.numbers.count(2) == 1, lost

        for lost in range(1, self.announcements_to_lose + 1):
            await lose(lost)

    async def test_who_leaves_may_wait_until_the_last_announcement_is_handled(self) -> None:
        """Both ends announce, so that a goodbye comes over another connection than the announcement."""
        async with self.pair(closed=True) as (a, b, recorder, _):
            b.node.announce("back", ["a"]).set(Item(0))
            link = a.node.announce("news", ["b"])
            link.set(Item(1))
            await recorder.until(lambda recorder: recorder.started == 1)
            link.set(Item(2))

            async def leave() -> None:
                await link.acknowledged()
                await a.stop()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave)
                await self.heartbeats(3)
                assert not b.reported(PeerLeft), "an announcement that waits was taken for a handled one"
                recorder.gate.set()
            assert recorder.numbers == [1, 2]

    async def test_nobody_waits_for_a_silent_peer(self) -> None:
        """A target that is never heard counts as silent after a while."""
        async with self.world("a", "b") as world:
            a = await world.start("a")
            link = a.node.announce("news", ["b"])
            link.set(Item(1))
            with trio.fail_after(PATIENCE):
                await link.acknowledged()
            assert [event.peer for event in a.reported(PeerSilent)] == ["b"]

    async def test_a_restarted_peer_is_told_again(self) -> None:
        """The newest value goes to every new process."""
        async with self.world("a", "b") as world:
            a = await world.start("a")
            a.node.announce("news", ["b"]).set(Item(1))
            for incarnation in range(3):
                recorder = Recorder()
                b = await world.start("b", recorder, incarnation=incarnation)
                await recorder.count(1)
                assert recorder.numbers == [1]
                await b.stop()

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
