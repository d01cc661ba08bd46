from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from transport.frames import StreamProgress, StreamState
from transport.link import AnnounceSender, CallRouter, PushReceiver, PushSender, SequenceSet, Unsettled


def message(number):
    return Unsettled((str(number).encode(),), None)


def transmitted(sender):
    return [(sequence, int(frames[0])) for sequence, frames in sender.to_transmit()]


@given(st.permutations(range(1, 9)))
def test_a_sequence_set_fills_up_from_below(order):
    numbers = SequenceSet()
    for each in order:
        assert numbers.add(each)
        assert not numbers.add(each)
        missing = next(number for number in range(1, 10) if number not in order[: order.index(each) + 1])
        assert numbers.through == missing - 1
    assert not numbers.beyond


def test_the_window_bounds_what_is_not_taken_and_acknowledging_gives_no_room():
    sender = PushSender(2, 2)
    sender.offer(message(0))
    sender.offer(message(1))
    assert sender.room == 0
    assert transmitted(sender) == [(1, 0), (2, 1)]
    settled, rejected = sender.progressed(StreamProgress("link", 0, [(2, 2)], []))
    assert [each.frames for each in settled] == [(b"1",)]
    assert rejected == []
    assert sender.room == 0
    sender.progressed(StreamProgress("link", 1, [], []))
    assert sender.room == 1
    assert sender.unacknowledged == 1
    assert sender.settled_through == 0


def test_a_replaced_receiver_is_sent_what_is_unacknowledged_numbered_anew():
    sender = PushSender(2, 2)
    for number in range(6):
        sender.offer(message(number))
        transmitted(sender)
        sender.progressed(StreamProgress("link", number + 1, [(number + 1,) * 2] if number in (1, 3) else [], []))
    sender.replaced()
    assert sender.room == -2
    assert transmitted(sender) == [(1, 0), (2, 2)]
    sender.progressed(StreamProgress("link", 2, [(1, 2)], []))
    assert transmitted(sender) == [(3, 4), (4, 5)]


def test_frames_are_sent_again_after_two_heartbeats_without_progress_and_then_more_patiently():
    sender = PushSender(4, 2)
    for number in range(3):
        sender.offer(message(number))
    assert len(transmitted(sender)) == 3
    state = StreamState("link", 1, 1, 1, [], [])
    repeated = []
    for beat in range(1, 10):
        sender.heard(state)
        repeated += [(beat, sequence) for sequence, _ in transmitted(sender)]
    # progress at the first beat, stalled at 2 and 3; the repetition gets a beat to arrive, then four, not two
    assert repeated == [(3, 2), (3, 3), (8, 2), (8, 3)]


def test_messages_sent_since_the_last_heartbeat_are_not_taken_for_lost():
    sender = PushSender(8, 2)
    for beat in range(6):
        sender.offer(message(beat))
        assert [sequence for sequence, _ in transmitted(sender)] == [beat + 1]
        sender.heard(StreamState("link", beat, beat, beat, [], []))
        assert transmitted(sender) == []


def test_a_heartbeat_makes_good_whatever_progress_was_lost():
    sender, receiver = PushSender(4, 2), PushReceiver("link")
    for number in range(4):
        sender.offer(message(number))
    for sequence, _ in sender.to_transmit():
        assert receiver.accept(sequence)
        receiver.take()
    receiver.acknowledge(1)
    receiver.acknowledge(4)
    receiver.reject(3, "unreadable")
    receiver.progress()  # this one is lost
    settled, rejected = sender.heard(receiver.state)
    assert [each.frames for each in settled] == [(b"0",), (b"3",)]
    assert rejected == ["unreadable"]
    assert sender.heard(receiver.state) == ([], [])
    assert sender.room == 4
    assert sender.settled_through == 1
    receiver.settled(sender.settled_through)
    assert receiver.state.rejected == [(3, "unreadable")]
    receiver.acknowledge(2)
    sender.heard(receiver.state)
    receiver.settled(sender.settled_through)
    assert receiver.state == StreamState("link", 4, 4, 4, [], [])


def test_calls_go_to_the_fewest_and_keys_stay_until_forgotten_or_lost():
    router = CallRouter(("b", "a"), 2)
    assert [router.begin(None, ()) for _ in range(3)] == ["a", "b", "a"]
    assert router.begin("key", ()) == "b"
    assert router.begin("key", ()) is None
    router.end("a")
    assert router.begin("key", ()) is None  # there is room, but not where it is pinned
    assert router.begin(None, ()) == "a"
    router.end("a")
    router.lost("b")
    assert router.begin("key", ()) == "a"
    router.end("b")
    router.end("a")
    router.forget("key")
    assert router.begin("key", {"a"}) == "b"
    assert router.outstanding == 3


def test_replicas_that_are_not_available_are_never_chosen():
    router = CallRouter(("a", "b"), 1)
    assert router.begin(None, {"a"}) == "b"
    assert router.begin(None, {"a"}) is None
    assert router.begin(None, {"a", "b"}) is None
    assert router.begin("key", ()) == "a"
    router.end("a")
    assert router.begin("key", {"a"}) is None


def test_announcements_are_repeated_until_the_newest_is_acknowledged():
    sender = AnnounceSender()
    sender.set("news", "Item", (b"1",))
    sender.set("news", "Item", (b"2",))
    assert list(sender.to_transmit()) == [("news", "Item", 2, (b"2",))]
    assert list(sender.to_transmit()) == []
    sender.repeat()
    assert list(sender.to_transmit()) == [("news", "Item", 2, (b"2",))]
    sender.set("news", "Item", (b"3",))
    sender.acknowledged("news", "Item", 2)
    assert (sender.pending(), sender.pending("news"), sender.pending("other")) == (1, 1, 0)
    sender.acknowledged("news", "Item", 99)
    sender.repeat()
    assert sender.pending() == 0
    assert list(sender.to_transmit()) == [("news", "Item", 3, (b"3",))]
    sender.repeat()
    assert list(sender.to_transmit()) == []
    sender.forgotten()
    assert list(sender.to_transmit()) == [("news", "Item", 3, (b"3",))]


def test_withdrawn_messages_leave_their_numbers_behind():
    sender, receiver = PushSender(4, 1), PushReceiver("link")
    for number in range(3):
        sender.offer(message(number))
    assert len(transmitted(sender)) == 3
    assert receiver.accept(1)  # the other two are lost on the way
    sender.heard(receiver.state)
    assert sender.withdraw() == 3
    assert sender.unacknowledged == 0
    sender.offer(message(3))
    sender.heard(receiver.state)  # no progress: all that the receiver lacks is sent again
    assert list(sender.to_transmit()) == [(2, None), (3, None), (4, (b"3",))]
    receiver.acknowledge(1)
    settled, _ = sender.progressed(receiver.progress())
    assert settled == []  # nobody waits for it any more


EVENTS = ["offer", "arrive", "lose", "lose all", "withdraw", "beat", "replace"]


@given(st.lists(st.sampled_from(EVENTS), max_size=60), st.integers(1, 4))
@settings(max_examples=200)
def test_a_stream_has_no_gap_and_nothing_withdrawn_before_it_arrived_arrives(events, window):
    """Whatever is lost, withdrawn or restarted: each process of the receiver sees the rest once and in order."""
    sender, receiver = PushSender(window, 1), PushReceiver("link")
    wire, offered, withdrawn, arrived, acknowledged = [], 0, set(), [[]], []
    on_the_way = set()

    def arrive():
        number, frames = wire.pop(0)
        if not receiver.accept(number):
            return
        assert receiver._received - receiver._taken <= window
        if frames is not None:
            arrived[-1].append(int(frames[0]))
            assert arrived[-1][-1] not in withdrawn or arrived[-1][-1] in on_the_way
        receiver.take()
        receiver.acknowledge(number)

    for event in [*events, *["beat", *["arrive"] * 5] * 40]:
        if event == "offer" and sender.room > 0:
            sender.offer(Unsettled((str(offered).encode(),), lambda number=offered: acknowledged.append(number)))
            offered += 1
        elif event == "arrive" and wire:
            arrive()
        elif event == "lose" and wire:
            wire.pop()
        elif event == "lose all":
            wire = []
        elif event == "withdraw":
            withdrawn.update(set(range(offered)) - set(acknowledged))
            on_the_way = {int(frames[0]) for _, frames in wire if frames is not None}
            sender.withdraw()
        elif event == "beat":
            for settled in (sender.heard(receiver.state)[0], sender.progressed(receiver.progress())[0]):
                for each in settled:
                    each.on_ack()
        elif event == "replace":
            receiver, wire = PushReceiver("link"), []
            arrived.append([])
            sender.replaced()
        wire += sender.to_transmit()
    assert not wire
    assert sender.unacknowledged == 0
    assert set(acknowledged) | withdrawn == set(range(offered))
    assert len(acknowledged) == len(set(acknowledged))
    assert set(range(offered)) - {number for numbers in arrived for number in numbers} <= withdrawn
    assert all(numbers == sorted(set(numbers)) for numbers in arrived)
    assert sender.room == window or "replace" in events
