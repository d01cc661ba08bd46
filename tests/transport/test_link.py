"""The state machines of the links, against plain lists of what was sent, seen, handled and told."""

import itertools
import re
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from transport import PeerLost
from transport.frames import (
    AnnounceFrame,
    CallFrame,
    Cancel,
    HeartbeatBack,
    Progress,
    PushFrame,
    StreamProgress,
    StreamState,
    Withdrawn,
    unpack,
)
from transport.inbound import Inbound
from transport.link import AnnounceSender, CallRouter, Liveness, PushReceiver, PushSender, SequenceSet, Unsettled
from transport.outbound import _TOGETHER, Outbound, PendingCall


def message(number):
    return Unsettled((str(number).encode(),), None)


def transmitted(sender):
    return [(sequence, int(frames[0])) for sequence, frames in sender.to_transmit()]


@given(st.permutations(range(1, 9)))
def test_a_sequence_set_fills_up_from_below(order):
    numbers = SequenceSet()
    for count, each in enumerate(order, 1):
        assert [numbers.add(each), numbers.add(each)] == [True, False]
        assert numbers.through == min({*range(1, 10)} - {*order[:count]}) - 1
    assert not numbers.beyond


class Stream:
    """Both ends of a stream. Whatever is lost, doubled, late, withdrawn or restarted, the sender knows what holds."""

    def __init__(self, window):
        self.window, self.sender = window, PushSender(window, 1)
        self.offered, self.unsettled, self.processes = 0, [], []
        self.acknowledged, self.rejected, self.withdrawn = [], [], set()
        self.done, self.unreadable = set(), set()
        self.start()

    def start(self):
        self.receiver, self.numbered = PushReceiver("link"), list(self.unsettled)
        self.wire, self.queue, self.handling, self.reports, self.states = [], [], [], [], []
        self.seen, self.taken, self.told, self.handled, self.new, self.refused = [], 0, 0, set(), [], {}
        self.new_refused, self.known = [], 0
        self.processes.append(self.seen)

    def offer(self, _):
        if self.sender.room > 0:
            self.sender.offer(message(self.offered))
            self.numbered.append(self.offered)
            self.unsettled.append(self.offered)
            self.offered += 1

    def arrive(self, at, *, again=False, readable=True):
        if not self.wire:
            return
        number, frames = self.wire[at % len(self.wire)] if again else self.wire.pop(0)
        accepted = self.receiver.accept(number)
        assert accepted == (number == len(self.seen) + 1)
        if not accepted:
            return
        self.seen.append(None if frames is None else int(frames[0]))
        if frames is not None and readable:
            self.queue.append(number)
            return
        self.receiver.take()
        self.taken += 1
        self.handled.add(number)
        if frames is None:
            self.receiver.acknowledge(number)
            self.new.append(number)
        else:
            self.unreadable.add(self.seen[-1])
            self.refused[number] = str(self.seen[-1])
            self.new_refused.append((number, self.refused[number]))
            self.receiver.reject(number, self.refused[number])

    def take(self, _):
        if self.queue:
            self.handling.append(self.queue.pop(0))
            self.receiver.take()
            self.taken += 1

    def handle(self, at):
        if self.handling:
            number = self.handling.pop(at % len(self.handling))
            self.done.add(self.seen[number - 1])
            self.handled.add(number)
            self.new.append(number)
            self.receiver.acknowledge(number)

    def tell(self, at, *, lost=False):
        progress = self.receiver.progress()
        assert (progress.link, progress.taken) == ("link", self.taken)
        ranges = progress.acknowledged
        assert [number for first, last in ranges for number in range(first, last + 1)] == self.new
        assert all(last + 1 != first for (_, last), (first, _) in itertools.pairwise(ranges))
        assert progress.rejected == self.new_refused
        self.new.clear()
        self.new_refused.clear()
        if not lost:
            self.reports.append(progress)
            self.hear_again(at, -1)

    def hear_again(self, at, which=None):
        if self.reports:
            progress = self.reports[at % len(self.reports) if which is None else which]
            numbers = [number for first, last in progress.acknowledged for number in range(first, last + 1)]
            numbers += [number for number, _ in progress.rejected]
            self.settle(progress.taken, numbers, *self.sender.progressed(progress))

    def beat(self, at, *, again=False):
        self.states.append(self.receiver.state)
        state = self.states[at % len(self.states) if again else -1]
        self.known = max(self.known, state.received)
        self.settle(state.taken, [*range(1, state.acknowledged + 1), *state.beyond], *self.sender.heard(state))

    def settle(self, taken, numbers, acknowledged, reasons):
        self.told = max(self.told, taken)
        for number in [int(each.frames[0]) for each in acknowledged]:
            assert number in self.done, "acknowledged before it was handled"
            self.unsettled.remove(number)
            self.acknowledged.append(number)
        for number in map(int, reasons):
            assert number in self.unreadable
            self.unsettled.remove(number)
            self.rejected.append(number)
        assert not {self.numbered[number - 1] for number in numbers} & set(self.unsettled)

    def settled(self, _):
        self.receiver.settled(self.sender.settled_through)
        self.refused = {number: why for number, why in self.refused.items() if number > self.sender.settled_through}

    def withdraw(self, _):
        self.withdrawn.update(self.unsettled)
        assert self.sender.withdraw() == len(self.unsettled)
        self.unsettled.clear()

    def replace(self, _):
        self.sender.replaced()
        self.start()

    def lose(self, count):
        del self.wire[-1 - count :]

    def check(self):
        sender, transmits = self.sender, self.sender.transmits
        for number, frames in sender.to_transmit():
            assert transmits
            assert self.known < number <= self.told + self.window
            content = self.numbered[number - 1]
            assert frames == (None if content in self.withdrawn else message(content).frames)
            self.wire.append((number, frames))
        assert not sender.transmits
        assert sender.room == self.window - (len(self.numbered) - self.told)
        assert [int(each.frames[0]) for each in sender._unsettled.values()] == self.unsettled
        assert sender.unacknowledged == len(self.unsettled)
        first = self.numbered.index(self.unsettled[0]) if self.unsettled else len(self.numbered)
        assert sender.settled_through == first
        assert len(self.queue) <= self.window
        through = next(number for number in itertools.count() if number + 1 not in self.handled)
        beyond = sorted(number for number in self.handled if number > through)
        state = StreamState("link", len(self.seen), self.taken, through, beyond, list(self.refused.items()))
        assert self.receiver.state == state


EVENTS = [
    *[each for each in (Stream.offer, Stream.arrive, Stream.take) for _ in range(4)],
    *[each for each in (Stream.handle, Stream.tell, Stream.beat) for _ in range(2)],
    *(Stream.hear_again, Stream.settled, Stream.withdraw, Stream.replace, Stream.lose),
    *(partial(Stream.arrive, again=True), partial(Stream.arrive, readable=False)),
    *(partial(Stream.beat, again=True), partial(Stream.tell, lost=True)),
]
SOUND = [Stream.beat, Stream.tell, *[Stream.arrive, Stream.take, Stream.handle] * 4, Stream.settled]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 7)), min_size=40, max_size=80), st.integers(1, 4))
@settings(max_examples=120)
def test_each_process_sees_a_stream_once_and_in_order_and_all_is_settled_in_the_end(events, window):
    stream = Stream(window)
    for event, at in [*events, *((each, 0) for each in SOUND * 30)]:
        event(stream, at)
        stream.check()
    assert stream.unsettled == stream.wire == list(stream.refused) == []
    assert stream.sender.room == window
    ends = [*stream.acknowledged, *stream.rejected]
    assert len(set(ends)) == len(ends)
    assert not stream.withdrawn & set(ends)
    assert stream.withdrawn | set(ends) == set(range(stream.offered))
    for numbers in ([each for each in seen if each is not None] for seen in stream.processes):
        assert numbers == sorted(set(numbers))


def test_a_receiver_has_no_more_credit_and_acknowledges_no_more_than_was_sent():
    sender = PushSender(2, 2)
    sender.offer(message(0))
    assert transmitted(sender) == [(1, 0)]
    sender.offer(message(1))
    settled, _ = sender.progressed(StreamProgress("link", 1 << 60, [(0, 1 << 60)], []))
    assert [each.frames for each in settled] == [(b"0",)]
    assert sender.room == 1
    sender.heard(StreamState("link", 1, 1 << 60, 1, [], []))
    assert sender.room == 1


def test_what_is_lost_is_sent_again_after_two_heartbeats_without_progress_and_then_ever_more_patiently():
    sender = PushSender(4, 2)
    for number in range(3):
        sender.offer(message(number))
    assert len(transmitted(sender)) == 3

    def repetitions(received, beats):
        state, found = StreamState("link", received, received, received, [], []), []
        for beat in range(1, beats):
            sender.heard(state)
            found += [beat] * (transmitted(sender) == [(number, number - 1) for number in range(received + 1, 4)])
        return found

    # progress at the first beat, stalled at 2 and 3; each repetition gets a beat to arrive, and twice the patience
    assert repetitions(1, 165) == [3, 8, 17, 34, 67, 100, 133]
    assert repetitions(2, 10) == [3, 8]
    sender.replaced()
    assert transmitted(sender) == [(1, 2)]
    assert repetitions(0, 10) == []


def test_messages_sent_since_the_last_heartbeat_are_not_taken_for_lost():
    sender = PushSender(8, 2)
    for beat in range(6):
        sender.offer(message(beat))
        assert [sequence for sequence, _ in transmitted(sender)] == [beat + 1]
        sender.heard(StreamState("link", beat, beat, beat, [], []))
        assert transmitted(sender) == []


CALLS = st.tuples(
    st.sampled_from(["begin", "begin more", "end", "forget", "lost", "pin"]),
    st.sampled_from([None, "k", "l"]),
    st.sets(st.sampled_from("abc"), max_size=2),
)


@given(st.lists(CALLS, max_size=40))
def test_calls_go_to_the_fewest_and_keys_stay_until_forgotten_or_lost(events):
    router, begun, pins = CallRouter("cab", 2), [], {}
    for event, key, some in events:
        if event.startswith("begin"):
            among = [name for name in pins.get(key, "abc") if name not in some]
            best = min(among, key=lambda name: (begun.count(name), name), default=None)
            best = best if begun.count(best) < 2 else None
            assert router.begin(key, some) == best
            begun += [] if best is None else [best]
            pins |= {} if None in (key, best) else {key: best}
        elif event == "end" and begun:
            router.end(begun.pop(0))
        elif event == "forget" and key:
            router.forget(key)
            pins.pop(key, None)
        elif event == "lost":
            for name in some:
                router.lost(name)
            pins = {each: name for each, name in pins.items() if name not in some}
        elif event == "pin":
            pins |= {router.pin(name): name for name in some}
        assert sum(router._outstanding.values()) == len(begun)
        assert all(router.pinned(each) == pins.get(each) for each in (None, "k", "l", *pins))
    with pytest.raises(ValueError, match="d is none of a, b, c"):
        router.pin("d")


def test_announcements_are_repeated_until_the_newest_is_acknowledged():
    sender = AnnounceSender()
    for number in (1, 2):
        sender.set("news", "Item", (number,))
    for sent in ([("news", "Item", 2, (2,))], []) * 2:
        assert list(sender.to_transmit()) == sent
        if not sent:
            sender.repeat()
    sender.set("news", "Item", (3,))
    for version, pending in ((2, 1), (1, 1), (99, 0), (1, 0)):
        sender.acknowledged("news", "Item", version)
        assert [sender.pending(link) for link in (None, "news", "other")] == [pending, pending, 0]
    sender.repeat()
    for again in ([("news", "Item", 3, (3,))], []):
        assert list(sender.to_transmit()) == again
    sender.set("news", "Item", (4,))
    assert sender.pending() == 1
    sender.acknowledged("news", "Item", 4)
    sender.forgotten()
    assert list(sender.to_transmit()) == [("news", "Item", 4, (4,))]
    assert sender.pending() == 1


def test_an_announcement_is_new_once_and_acknowledged_again_only_after_it_was_handled():
    inbound = Inbound(b"a#0", "a", 0, 7, lambda _: None)
    # what arrives (`=`: it is new), or was handled (`!`), and the version that the sender is told of
    for word, told in zip(
        ["2=", "2", "1", "2!", "1", "3=", "2!", "3", "3!", "~", "3!", "3=", "2!", "4=", "3!", "4!"],
        [0, 0, 0, 2, 2, 0, 2, 0, 3, 0, 0, 0, 2, 0, 3, 4],
        strict=True,
    ):
        if word == "~":
            inbound.forget_announcements(8)
        elif word.endswith("!"):
            inbound.announcement_handled("news", "Item", int(word[0]))
        else:
            assert inbound.announce("news", "Item", int(word[0])) == word.endswith("=")
        assert inbound.progress(5) == Progress(5, [], [("news", "Item", told)] if told else [])
    assert inbound.heartbeat(5, draining=True) == HeartbeatBack(5, True, 8, [])


def to_peer(frames):
    """An Outbound whose frames are unpacked into a list, and a sender of its link."""
    outbound = Outbound("b", lambda _, sent: frames.append(unpack(sent)), None, lambda _: None, lambda _: None)
    sender = PushSender(100, 2)
    outbound.pushes["items"] = sender, SimpleNamespace(moved=lambda _: None)
    return outbound, sender


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2), st.sampled_from("   wa")), max_size=20))
@settings(max_examples=60)
def test_messages_of_one_turn_share_frames_of_bounded_size_and_each_keeps_its_number_and_arrays(given_messages):
    frames, expected, acknowledged = [], {}, []
    outbound, sender = to_peer(frames)
    for number, (size, arrays, what) in enumerate(given_messages, 1):
        expected[number] = content = (bytes([number]) * (size << 10), *[b"array %d" % number] * arrays)
        sender.offer(Unsettled(content, None))
        if what == "w":
            sender.withdraw()
            expected = dict.fromkeys(expected)
        acknowledged += [number] * (what == "a")
    outbound.send_pushes("items")
    outbound.flush()
    assert not frames, "it waits until the process is identified"

    def check():
        found, pushes = {}, []
        for envelope, bodies, arrays in frames:
            assert envelope.incarnation == 5
            if isinstance(envelope, Withdrawn):
                found[envelope.sequence] = None
                continue
            pushes.append((envelope.sequence, len(bodies), sum(map(len, bodies)), bool(arrays)))
            found |= {number: (bytes(body),) for number, body in enumerate(bodies, envelope.sequence)}
            found[envelope.sequence + len(bodies) - 1] += tuple(arrays)
        assert list(found.items()) == list(expected.items())
        assert all(count == 1 or size <= _TOGETHER for _, count, size, _ in pushes)
        for (first, count, size, arrays), (then, *_) in itertools.pairwise(pushes):
            following = len(expected[then][0])
            assert arrays or then != first + count or size + following > _TOGETHER, "they could have gone together"

    outbound.receive(HeartbeatBack(5, False, 1, []), ())
    outbound.flush()
    check()
    expected = {
        number: content for number, content in expected.items() if content is None or number not in acknowledged
    }
    outbound.receive(
        Progress(5, [StreamProgress("items", 0, [(number, number) for number in acknowledged], [])], []), ()
    )
    frames.clear()
    for _ in range(3):  # all are lost
        outbound.receive(HeartbeatBack(5, False, 1, []), ())
    outbound.flush()
    check()


def test_a_peer_is_who_answers_last_and_what_an_earlier_process_or_an_impostor_says_counts_no_more():
    frames = []
    outbound, sender = to_peer(frames)
    outbound.announce("news", "Item", (b"news",))
    sender.offer(message(0))
    beats = [  # incarnation, draining, memory; what follows: pushes and announcements sent, and whether calls may go
        ((3, False, 1), 1, 1, True),
        ((3, False, 1), 0, 0, True),
        ((3, True, 1), 0, 0, False),
        ((3, True, 2), 0, 1, False),
        ((2, False, 9), 0, 0, False),
        ((4, False, 2), 1, 1, True),
        ((3, True, 9), 0, 0, True),
        ((4, False, 3), 0, 1, True),
        ((8, False, 9), 0, 0, True),
    ]
    outbound.expect(7)
    for (incarnation, draining, memory), pushes, news, available in beats:
        frames.clear()
        streams = [] if pushes else [StreamState("items", 1, 0, 0, [], [])]
        outbound.receive(HeartbeatBack(incarnation, draining, memory, streams), ())
        outbound.flush()
        kinds = Counter(type(each.envelope) for each in frames)
        assert (kinds[PushFrame], kinds[AnnounceFrame]) == (pushes, news), (incarnation, draining, memory)
        assert outbound.available == available
    for incarnation, lacking in ((3, 1), (5, 1), (4, 0)):
        streams = [StreamProgress(link, 1, [(1, 1)], []) for link in ("unknown", "items")]
        outbound.receive(Progress(incarnation, streams, [("news", "Item", 1)]), ())
        assert (sender.unacknowledged, outbound.announcements.pending()) == (lacking, lacking)
    outbound.expect(3)
    assert outbound.incarnation is None, "it was an impostor"
    sender.offer(message(1))
    for incarnation, sent in ((4, []), (3, [PushFrame("items", 3, 1)])):
        frames.clear()
        outbound.receive(HeartbeatBack(incarnation, False, 1, []), ())
        outbound.flush()
        assert [each.envelope for each in frames if isinstance(each.envelope, PushFrame)] == sent


async def test_a_call_is_sent_with_the_time_that_is_left_once_its_peer_is_heard_and_not_beyond_its_deadline():
    frames = []
    outbound, sender = to_peer(frames)
    ended, again, began = [], [], trio.current_time()
    link = SimpleNamespace(name="questions", ended=ended.append, again=again.append)
    calls = [PendingCall(link, (b"q",), None, began + seconds) for seconds in (3.0, 4.0, 10.0)]
    for call in calls:
        outbound.begin(call)
    await trio.sleep(4)
    outbound.receive(HeartbeatBack(5, False, 1, []), ())
    for call in (*calls, calls[2]):
        outbound.abandon(call)
    outbound.silent = True
    outbound.begin(late := PendingCall(link, (b"q",), None, began + 20.0))
    assert [each.envelope for each in frames] == [CallFrame("questions", 5, 3, 6.0), Cancel(5, 3)]
    outbound.back()
    assert frames[2].envelope == CallFrame("questions", 5, late.request, 16.0)
    outbound.silent = True
    outbound.begin(unsent := PendingCall(link, (b"q",), None, began + 20.0))
    outbound.lost()
    assert (ended, again, outbound.calls) == ([late], [unsent], {})
    outbound.back()
    sender.offer(message(0))
    outbound.send_pushes("items")
    outbound.begin(PendingCall(link, (b"q",), None, began + 20.0))
    assert [type(each.envelope) for each in frames[3:]] == [PushFrame, CallFrame], "in the order of sending"
    assert isinstance(late.failure, PeerLost)


# Peers that are silent, lost, back, and gone on purpose.

# Peers are letters. `+a` a is watched; `a7` something arrives of its process 7; `a*` something arrives each second from
# now on, `a/` nothing more; `12` time goes on to 12, a tick each second; `z63` this process stands still until 63;
# `a~7` its process 7 says goodbye, `a!7` has ended; `?ab` a and b are in doubt; `a-` a is watched no longer. Then what is
# told: who is silent, gone, left or back, each after so many seconds; and who is gone at the end.
STORIES = [
    ("+a 3 z63 64 66 a1 a- 99", "silent a6, back a7", "", "the stall of this process is no silence of its peers"),
    ("+a 40 a1 41", "silent a6, gone a21, back a40", "", "a silent peer is lost once and may come back"),
    ("+a 40", "silent a6, gone a21", "a", "or may not"),
    ("+a a* 40 a/ 46", "silent a6", "", "who is heard is not silent"),
    ("+a 7 a1 14", "silent a6, back a7, silent a6", "", "silence begins anew"),
    ("+a 7 a- +a 13", "silent a6, silent a6", "", "a peer that was forgotten is another one"),
    ("+a a7 1 a~7 a7 a~7 60", "left a", "a", "a process that left is gone at once, and never silent"),
    ("+a a7 1 a~7 60 a8 61 a~7 66", "left a, back a59", "", "only a new process of it comes back"),
    ("+d +r d7 r7 d!7 r!7 d7 r8 1 2 d8 d!7 x!7 4", "gone d1, back d2", "", "who has ended is lost at the next tick"),
    ("+a 5 a!7 6", "gone a6", "a", "who has ended is not silent first"),
    ("+d +h +p d1 p1 h* 8 ?dh ?dh h/ 14", "silent d6, silent p6, gone d7, silent h6, gone h6", "dh", "doubt needs silence"),
    ("?at +a +t +l t1 1 ?atl ?", "gone a1, gone l1", "al", "who was never heard is lost at once in doubt"),
    ("?at +a +t +l t1 1 ?atl ? l1", "gone a1, gone l1, back l1", "a", "until it is heard"),
    ("+a 7 ?a a1 ? 40", "silent a6, gone a7, back a7, silent a6, gone a21", "a", "who is in doubt no longer is waited for"),
    ("+a a1 1 a- ?a +a 2", "gone a1", "a", "who was heard before it was forgotten was never heard"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "told", "gone"), [pytest.param(*each[:3], id=each[3]) for each in STORIES])
def test_peers_are_silent_lost_back_and_gone_on_purpose(story, told, gone):
    liveness, now, heard, steady = Liveness(5.0, 20.0), 0, [], set()
    for peer, sign, process in (re.fullmatch(r"([a-z?]*)(\W?)(\w*)", word).groups() for word in story.split()):
        if peer.startswith("?"):
            heard += [f"gone {name}{seconds:g}" for name, seconds in liveness.doubt(peer[1:], now)]
        elif peer in {"", "z"} and process.isdigit():
            ticks = [int(process)] if peer else range(now + 1, int(process) + 1)
            for now in ticks:
                for each in steady:
                    liveness.heard(each)
                silent, lost = liveness.tick(float(now), 1.0)
                heard += [f"silent {name}{seconds:g}" for name, seconds in silent]
                heard += [f"gone {name}{seconds:g}" for name, seconds in lost]
        elif sign == "+":
            liveness.expect(process, float(now))
        elif sign == "-":
            liveness.forget(peer)
        elif sign == "!":
            liveness.ended(peer, int(process))
        elif sign == "~":
            heard += [f"left {peer}"] * liveness.leaves(peer, int(process), float(now))
        elif sign in {"*", "/"}:
            steady = {peer} if sign == "*" else set()
        elif not liveness.has_left(peer, int(process)):
            liveness.heard(peer)
            if peer in liveness.silent:
                heard.append(f"back {peer}{liveness.back(peer, float(now)):g}")
    assert ", ".join(heard) == told
    assert liveness.gone == set(gone) <= liveness.silent
