"""The contract of links, as tests that every network must pass: see ``transport/testing.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from transport.codec import Registry
from transport.errors import (
    CallFailed,
    CallRefused,
    CallTimeout,
    CreditWait,
    MalformedFrames,
    MessageRejected,
    PeerBack,
    PeerLost,
    PeerReplaced,
    PeerSilent,
)
from transport.inbound import Delivery, current_delivery
from transport.testing import PATIENCE, Block, ContractBase, Item, Question, Recorder, Running, Unheard

if TYPE_CHECKING:
    from transport.schema import Buffer

KNOWS_MORE = Registry(Item, Question, Block, Unheard)


class PushContract(ContractBase):
    """Order, window, acknowledgement, and what happens when processes or frames are lost."""

    frames_to_lose = 24
    """How many frames of a run are lost in turn, one in each run."""

    def test_pushes_arrive_once_in_order(self) -> None:
        """Also when there are many more of them than the window."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                recorder = Recorder()
                a, _ = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=8)
                for number in range(300):
                    await link.send(Item(number))
                with trio.fail_after(PATIENCE):
                    await link.drained()
                assert recorder.numbers == list(range(300))
                assert {(each.sender, each.link, each.kind) for each in recorder.deliveries} == {("a", "items", "push")}

        self.run(main)

    def test_arrays_arrive_whole_and_read_only(self) -> None:
        """A megabyte, its values unchanged."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                recorder = Recorder()
                a, _ = await world.start("a"), await world.start("b", recorder)
                values = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
                await a.node.push("blocks", ["b"], window=1).send(Block(values))
                await recorder.count(1)
                received = recorder.deliveries[0].message.values
                assert np.array_equal(received, values)
                assert not received.flags.writeable

        self.run(main)

    def test_window_bounds_what_is_not_taken(self) -> None:
        """One message is with the handler, as many as the window wait in the queue, and the sender waits."""

        async def main() -> None:
            async with self.world("a", "b") as world, trio.open_nursery() as nursery:
                recorder = Recorder()
                recorder.gate = trio.Event()
                a, b = await world.start("a"), await world.start("b", recorder)
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

        self.run(main)

    def test_credit_returns_before_the_acknowledgement(self) -> None:
        """Deferred messages leave the queue, so others follow; they are acknowledged when they are released."""

        async def main() -> None:
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
                    await link.send(Item(number), on_ack=lambda number=number: acknowledged.append(number))
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

        self.run(main)

    def test_a_restarted_receiver_gets_what_is_not_acknowledged_in_order(self) -> None:
        """And nothing else, within the window."""

        async def main() -> None:
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
                assert a.told(PeerReplaced) == [PeerReplaced("b", 1)]

        self.run(main)

    def test_a_restarted_sender_starts_anew(self) -> None:
        """Its numbers begin at 1 again and are no duplicates of its predecessor's."""

        async def main() -> None:
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

        self.run(main)

    def test_duplicates_are_dropped(self) -> None:
        """Every frame arrives twice, control frames too."""

        async def main() -> None:
            async with self.world("a", "b", copies=lambda *_: 2) as world:
                recorder = Recorder()
                a, b = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=3)
                acknowledged: list[int] = []
                for number in range(20):
                    await link.send(Item(number), on_ack=lambda number=number: acknowledged.append(number))
                call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE)
                assert [await call(Question(number)) for number in (20, 21)] == [Item(20), Item(21)]
                with trio.fail_after(PATIENCE):
                    await link.drained()
                assert recorder.numbers == list(range(22))
                assert acknowledged == list(range(20))
                assert b.node.figures["duplicates_dropped"] >= 22

        self.run(main)

    def test_any_one_lost_frame_is_made_good(self) -> None:
        """Whichever frame of the conversation is lost: everything arrives once, in order, and is acknowledged."""

        async def lose(lost: int) -> None:
            seen = 0

            def copies(_source: str, _destination: str, _frames: Sequence[Buffer]) -> int:
                nonlocal seen
                seen += 1
                return int(seen != lost)

            async with self.world("a", "b", copies=copies) as world:
                recorder = Recorder()
                a, _ = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=2)
                for number in range(7):
                    await link.send(Item(number))
                with trio.fail_after(PATIENCE):
                    await link.drained()
                assert recorder.numbers == list(range(7)), lost

        async def main() -> None:
            for lost in range(1, self.frames_to_lose + 1):
                await lose(lost)

        self.run(main)

    def test_most_credit_is_preferred(self) -> None:
        """Without a named target the pushes spread; a full target is passed over."""

        async def main() -> None:
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

        self.run(main)

    def test_a_long_wait_for_credit_is_reported_once(self) -> None:
        """And goes on."""

        async def main() -> None:
            async with self.world("a", "b") as world, trio.open_nursery() as nursery:
                recorder = Recorder()
                recorder.gate = trio.Event()
                a, _ = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=1)
                await link.send(Item(0))
                await recorder.until(lambda recorder: recorder.started == 1)
                await link.send(Item(1))
                nursery.start_soon(link.send, Item(2))
                await trio.sleep(2 * self.limits.credit_report_after + 2 * self.limits.heartbeat_interval)
                (wait,) = a.told(CreditWait)
                assert (wait.link, wait.peer) == ("items", "b")
                assert wait.seconds >= self.limits.credit_report_after
                recorder.gate.set()
                await recorder.count(3)

        self.run(main)


class CallContract(ContractBase):
    """Where calls go, and every way in which they end."""

    async def _replicas(self, world: Any, recorders: Sequence[Recorder]) -> tuple[Running, list[Running]]:
        caller = await world.start("a")
        return caller, [
            await world.start(f"s{index}", recorder, concurrency=8) for index, recorder in enumerate(recorders)
        ]

    def test_calls_go_to_the_fewest_outstanding(self) -> None:
        """Two replicas share six calls, and no more than the limit is ever outstanding at one."""

        async def main() -> None:
            async with self.world("a", "s0", "s1") as world, trio.open_nursery() as nursery:
                recorders = [Recorder(), Recorder()]
                for recorder in recorders:
                    recorder.gate = trio.Event()
                a, _ = await self._replicas(world, recorders)
                call = a.node.call("questions", ["s0", "s1"], outstanding=2, timeout=PATIENCE)
                answers: list[Item] = []

                async def ask(number: int) -> None:
                    answers.append(await call(Question(number)))

                for number in range(6):
                    nursery.start_soon(ask, number)
                for recorder in recorders:
                    await recorder.until(lambda recorder: recorder.started == 2)
                await self.heartbeats(2)
                assert [recorder.started for recorder in recorders] == [2, 2]
                recorders[1].gate.set()
                await recorders[1].count(4)  # the two that waited for room went where there was some
                recorders[0].gate.set()
                await recorders[0].count(2)
                with trio.fail_after(PATIENCE):
                    while len(answers) < 6:
                        await self.heartbeats(0.5)
                assert sorted(answer.number for answer in answers) == list(range(6))

        self.run(main)

    def test_deadline_and_cancellation_end_the_handler(self) -> None:
        """The caller gets CallTimeout; the handler is cancelled; the room is free again."""

        async def main() -> None:
            async with self.world("a", "s0") as world:
                recorder = Recorder()
                recorder.gate = trio.Event()
                a, _ = await self._replicas(world, [recorder])
                call = a.node.call("questions", ["s0"], outstanding=1, timeout=self.limits.heartbeat_interval * 4)
                await raises(CallTimeout, call, Question(0))
                await recorder.until(lambda recorder: recorder.started == 1 and recorder.running == 0)
                with trio.move_on_after(self.limits.heartbeat_interval * 4):
                    await call(Question(1), timeout=PATIENCE)
                await recorder.until(lambda recorder: recorder.started == 2 and recorder.running == 0)
                recorder.gate.set()
                assert await call(Question(2)) == Item(2)
                assert a.node.figures["outstanding_calls"] == 0

        self.run(main)

    def test_a_key_stays_with_its_replica(self) -> None:
        """Until it is forgotten, even where another replica has fewer outstanding."""

        async def main() -> None:
            async with self.world("a", "s0", "s1") as world:
                recorders = [Recorder(), Recorder()]
                a, _ = await self._replicas(world, recorders)
                call = a.node.call("questions", ["s0", "s1"], outstanding=2, timeout=PATIENCE)
                for number in range(4):
                    await call(Question(number), key="session")
                assert recorders[0].numbers == [0, 1, 2, 3]
                recorders[0].gate = trio.Event()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call, Question(4))
                    await recorders[0].until(lambda recorder: recorder.running == 1)
                    nursery.start_soon(lambda: call(Question(5), key="session"))
                    await recorders[0].until(lambda recorder: recorder.running == 2)
                    call.forget("session")
                    assert await call(Question(6), key="session") == Item(6)
                    recorders[0].gate.set()
                assert recorders[1].numbers == [6]

        self.run(main)

    def test_a_replaced_replica_loses_its_calls(self) -> None:
        """PeerLost names it, pinned keys are free, and the next call reaches the new process."""

        async def main() -> None:
            async with self.world("a", "s0") as world:
                recorder = Recorder()
                recorder.gate = trio.Event()
                a, (server,) = await self._replicas(world, [recorder])
                call = a.node.call("questions", ["s0"], outstanding=4, timeout=PATIENCE)
                lost: list[str] = []

                async def ask() -> None:
                    error = await raises(PeerLost, call, Question(0))
                    lost.append(error.peer)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    await recorder.until(lambda recorder: recorder.started == 1)
                    await server.stop()
                    await world.start("s0", Recorder(), incarnation=1)
                assert lost == ["s0"]
                assert await call(Question(1)) == Item(1)

        self.run(main)

    def test_refusal_and_undecodable_requests_fail_the_call(self) -> None:
        """With the reason; the link lives on."""

        async def main() -> None:
            async with self.world("a", "s0") as world:

                async def refuse(delivery: Delivery) -> object:
                    await trio.lowlevel.checkpoint()
                    if delivery.message.number == 0:
                        raise CallRefused("not today")
                    return Unheard(1) if delivery.message.number == 1 else Item(2)

                a, (server,) = await self._replicas(world, [Recorder(answers=refuse)])
                call = a.node.call("questions", ["s0"], outstanding=1, timeout=PATIENCE)
                assert (await raises(CallFailed, call, Question(0))).reason == "not today"
                assert "Unheard" in (await raises(CallFailed, call, Question(1))).reason  # the reply
                assert "Unheard" in (await raises(CallFailed, call, Unheard(2))).reason  # the request
                assert await call(Question(3)) == Item(2)
                assert len(server.told(MalformedFrames)) == len(a.told(MalformedFrames)) == 1

        self.run(main)


class AnnounceContract(ContractBase):
    """Newest wins, whatever is lost."""

    announcements_to_lose = 12
    """How many frames of a run are lost in turn, one in each run."""

    def test_newest_wins(self) -> None:
        """What waits in the queue becomes the newest; setting never blocks."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                recorder = Recorder()
                recorder.gate = trio.Event()
                a, _ = await world.start("a"), await world.start("b", recorder)
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

        self.run(main)

    def test_any_one_lost_frame_changes_nothing(self) -> None:
        """The newest value arrives all the same, and once."""

        async def lose(lost: int) -> None:
            seen = 0

            def copies(_source: str, _destination: str, _frames: Sequence[Buffer]) -> int:
                nonlocal seen
                seen += 1
                return int(seen != lost)

            async with self.world("a", "b", copies=copies) as world:
                recorder = Recorder()
                a, _ = await world.start("a"), await world.start("b", recorder)
                link = a.node.announce("news", ["b"])
                for number in range(3):
                    link.set(Item(number))
                    await self.heartbeats(0.2)
                await recorder.until(lambda recorder: recorder.numbers[-1:] == [2])
                await self.heartbeats(3)
                assert recorder.numbers.count(2) == 1, lost

        async def main() -> None:
            for lost in range(1, self.announcements_to_lose + 1):
                await lose(lost)

        self.run(main)

    def test_a_restarted_peer_is_told_again(self) -> None:
        """The newest value goes to every new process."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                a = await world.start("a")
                a.node.announce("news", ["b"]).set(Item(1))
                for incarnation in range(3):
                    recorder = Recorder()
                    b = await world.start("b", recorder, incarnation=incarnation)
                    await recorder.count(1)
                    assert recorder.numbers == [1]
                    await b.stop()

        self.run(main)

    def test_announcements_pass_a_full_house(self) -> None:
        """With concurrency above 1, busy handlers do not hold them up."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                forever = trio.Event()

                async def block_pushes(delivery: Delivery) -> None:
                    await (forever.wait() if delivery.kind == "push" else trio.lowlevel.checkpoint())

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

        self.run(main)


class LivenessContract(ContractBase):
    """Silence, and frames that cannot be read."""

    def test_a_silent_peer_is_reported_once_and_when_it_is_back(self) -> None:
        """With what waits for it. Calls under way end as lost."""

        async def main() -> None:
            silenced = False
            async with self.world("a", "b", copies=lambda *_: int(not silenced)) as world:
                recorder = Recorder()
                recorder.gate = trio.Event()
                a, _ = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=4)
                call = a.node.call("questions", ["b"], outstanding=1, timeout=PATIENCE)
                await link.send(Item(0))
                await recorder.until(lambda recorder: recorder.started == 1)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(raises, PeerLost, call, Question(1))
                    await self.heartbeats(1)
                    silenced = True
                await self.heartbeats(4)
                (event,) = a.told(PeerSilent)
                assert event.peer == "b"
                assert event.seconds >= self.limits.silent_after
                assert event.waiting_for == ("1 unacknowledged on items", "1 calls on questions")
                assert not a.told(PeerBack)
                silenced = False
                recorder.gate.set()
                with trio.fail_after(PATIENCE):
                    await link.send(Item(2))
                    await link.drained()
                    while not a.told(PeerBack):
                        await self.heartbeats(1)
                assert [back.peer for back in a.told(PeerBack)] == ["b"]
                assert not a.told(PeerReplaced)

        self.run(main)

    def test_an_undecodable_push_is_rejected_and_the_link_lives_on(self) -> None:
        """It is not sent again, its sender hears why, and its on_ack is not called."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                recorder = Recorder()
                a = await world.start("a", registry=KNOWS_MORE)
                b = await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=2)
                acknowledged: list[int] = []
                for number, kind in enumerate((Item, Unheard, Item, Unheard, Item)):
                    await link.send(kind(number), on_ack=lambda number=number: acknowledged.append(number))
                with trio.fail_after(PATIENCE):
                    await link.drained()
                a.node.announce("news", ["b"]).set(Unheard(5))
                await self.heartbeats(3)
                await link.send(Item(6))
                await recorder.count(4)
                assert recorder.numbers == [0, 2, 4, 6]
                assert acknowledged == [0, 2, 4]
                rejected = a.told(MessageRejected)
                assert [(event.peer, event.link) for event in rejected] == [("b", "items")] * 2
                assert all("Unheard" in event.reason for event in rejected)
                assert b.node.figures["decode_errors"] == 3
                assert len(b.told(MalformedFrames)) == 1

        self.run(main)

    def test_frames_that_are_no_envelope_are_counted(self) -> None:
        """Garbage from a peer, in either direction, is reported once, and the links go on."""

        async def main() -> None:
            async with self.world("a", "b") as world:
                recorder = Recorder()
                a, b = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=2)
                await link.send(Item(0))
                await recorder.count(1)
                for garbage in ([b""], [b"\xc1"], [b"\x93\x63\x00\x00"], [b"\x92\x01\x63"], [b"x" * 1000, b"y"]):
                    a.node._port.send("b", garbage)  # noqa: SLF001
                    b.node._port.send_back(b"a#0", garbage)  # noqa: SLF001
                await self.heartbeats(2)
                await link.send(Item(1))
                await recorder.count(2)
                for running, peer in ((a, "b"), (b, "a")):
                    assert [event.peer for event in running.told(MalformedFrames)] == [peer]
                    assert running.node.figures["decode_errors"] == 5

        self.run(main)


class LinkContract(PushContract, CallContract, AnnounceContract, LivenessContract):
    """The whole contract."""


async def raises(kind: type[Any], call: Callable[..., Any], *arguments: Any) -> Any:
    """Await ``call`` and return the error of type ``kind`` that it must raise."""
    try:
        await call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
