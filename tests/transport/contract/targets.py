"""What links keep when their targets change while the node runs."""

from __future__ import annotations

import pytest
import trio

from tests.transport.contract.base import PATIENCE, ContractBase, Item, Question, Recorder
from transport.errors import MalformedFrames, PeerLost


class TargetsContract(ContractBase):
    """Targets that come and go."""

    def address(self, name: str) -> str:
        """Where a node that the network does not know yet listens."""
        raise NotImplementedError

    async def test_calls_are_shared_with_a_new_replica_and_go_on_without_one_that_was_removed(self) -> None:
        """A call under way at a removed replica fails, and no later call goes there."""
        async with self.world("a", "b") as world:
            b, c = Recorder(), Recorder()
            a = await world.start("a")
            await world.start("b", b)
            link = a.node.call("ask", ["b"], outstanding=1, timeout=PATIENCE)
            assert await link(Question(0)) == Item(0)
            b.gate, failed = trio.Event(), []

            async def ask(number: int) -> None:
                try:
                    await link(Question(number))
                except PeerLost as error:
                    failed.append(str(error))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, 1)
                await b.until(lambda recorder: recorder.running == 1)
                nursery.start_soon(ask, 2)  # no replica has room
                await self.heartbeats(1)
                world.network.extend({"c": self.address("c")})
                await world.start("c", c)
                a.node.set_targets({"ask": ["b", "c"]})
                await c.count(1)
                a.node.set_targets({"ask": ["c"]})
                assert await link(Question(3)) == Item(3)
            assert c.numbers == [2, 3]
            assert failed
            assert "b" in failed[0]
            assert list(a.node.targets("ask")) == ["c"]
            assert a.reported(MalformedFrames) == []
            b.gate.set()

    async def test_pushes_of_a_removed_target_go_elsewhere_unless_they_were_for_it_alone(self) -> None:
        """Nothing is lost that any target may have. A message to a removed target alone is withdrawn."""
        async with self.world("a", "b", "c") as world:
            c, acknowledged = Recorder(), list[int]()
            a = await world.start("a")
            link = a.node.push("items", ["b"], window=3)
            for number in range(2):  # nobody listens at b
                await link.send(Item(number), on_ack=lambda number=number: acknowledged.append(number))
            await link.send(Item(2), to="b", on_ack=lambda: acknowledged.append(2))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.send, Item(3))  # without credit
                await self.heartbeats(1)
                await world.start("c", c)
                a.node.set_targets({"items": ["b", "c"]})
                await c.count(1)
                a.node.set_targets({"items": ["c"]})
                await c.count(3)
                await link.send(Item(4), to="b")
                with trio.fail_after(PATIENCE):
                    await link.drained()
            assert sorted(c.numbers) == [0, 1, 3]
            assert sorted(acknowledged) == [0, 1]
            a.node.set_targets({"items": ["b", "c"]})  # the name is a target again
            b = Recorder()
            await world.start("b", b, incarnation=1)
            await link.send(Item(5), to="b")
            await b.count(1)
            assert b.numbers == [5]

    async def test_a_new_target_of_an_announce_link_gets_the_newest_value_of_each_type(self) -> None:
        """Also of a link that had no target when the values were set; a removed target gets nothing more."""
        async with self.world("a", "b") as world:
            a, recorder = await world.start("a"), Recorder()
            link = a.node.announce("news", [], growing=True)
            with pytest.raises(ValueError, match="leads nowhere"):
                a.node.announce("other", [])
            for number in range(3):
                link.set(Item(number))
            link.set(Question(7))
            b = await world.start("b", recorder)
            a.node.set_targets({"news": ["b"]})
            await recorder.count(2)
            assert recorder.numbers == [2, 7]
            a.node.set_targets({"news": []})
            link.set(Item(9))
            await self.heartbeats(3)
            assert recorder.numbers == [2, 7]
            await b.stop()
            await world.start("b", recorder, incarnation=1)
            a.node.set_targets({"news": ["b"]})
            await recorder.count(4)
            assert recorder.numbers[2:] == [9, 7]

    async def test_a_link_without_targets_waits_for_one(self) -> None:
        """Pushes and calls wait while the last target is removed and no other was added."""
        async with self.world("a", "b", "c") as world:
            a, c = await world.start("a"), Recorder()
            await world.start("b")
            push = a.node.push("items", ["b"], window=1)
            call = a.node.call("ask", ["b"], outstanding=1, timeout=PATIENCE)
            await call(Question(0))
            a.node.set_targets({"items": [], "ask": []})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(push.send, Item(1))
                nursery.start_soon(call, Question(2))
                await self.heartbeats(1)
                assert (push.waiting, call.waiting) == (1, 1)
                await world.start("c", c)
                a.node.set_targets({"items": ["c"], "ask": ["c"]})
            await c.count(2)
