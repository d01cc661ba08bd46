"""Random histories of links: the promises hold whatever is lost, doubled, late, cut or restarted, in any order.

Nodes in an in-memory network and virtual time. One node sends over two push links and calls. The other is restarted,
answers, refuses, and acknowledges some pushes only later. Afterwards the network is sound and everything must be
settled.
"""

import math
from collections import Counter, defaultdict

import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.transport.contract import ContractBase, Item, Question
from transport import CallFailed, CallRefused, CallTimeout, PeerGone, PeerLost
from transport.memory import MemoryNetwork

LINKS = ("items", "others")
WINDOW = 3
OUTSTANDING = 2

SECONDS = st.sampled_from([0.0, 0.1, 0.5, 1.5, 4.0])
# How long after it was sent each copy of a frame arrives: none is a loss, two are a duplicate.
FATES = st.lists(SECONDS, max_size=2)
LONGEST = 40 * 9.0 + 60.0
"""Seconds of virtual time: as many of the longest cuts as a history may have, and time to recover."""
SUSPENDED = 200.0
EVENTS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(LINKS)),
    st.tuples(st.just("announce"), st.sampled_from([Item, Question])),
    st.tuples(st.just("call"), st.integers(0, 4)),
    st.tuples(st.just("forth"), st.lists(FATES, min_size=1, max_size=6)),
    st.tuples(st.just("back"), st.lists(FATES, min_size=1, max_size=6)),
    st.tuples(st.just("cut"), st.sampled_from([0.5, 3.0, 9.0])),
    st.tuples(st.just("restart"), SECONDS),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("wait"), SECONDS),
)


class Disturbed:
    """A network whose next frames, forth to an inbox or back from it, meet ``fates``; other frames arrive at once."""

    def __init__(self, nursery):
        self.memory = MemoryNetwork()
        self.fates = {"forth": [], "back": []}
        self.cut = False
        self.suspended = {"forth": None, "back": None}
        self.nursery = nursery

    def attach(self, name, incarnation, limits):
        port = self.memory.attach(name, incarnation, limits)
        port.send = self._disturbing(port.send, "forth")
        port.send_back = self._disturbing(port.send_back, "back")
        return port

    async def suspend(self, way, seconds):
        """What is sent this way piles up, and arrives all at once afterwards."""
        self.suspended[way] = []
        await trio.sleep(seconds)
        piled, self.suspended[way] = self.suspended[way], None
        for send, whom, frames in piled:
            send(whom, frames)

    def _disturbing(self, send, way):
        fates = self.fates[way]

        async def later(seconds, whom, frames):
            await trio.sleep(seconds)
            if not self.cut:
                send(whom, frames)

        def disturbed(whom, frames):
            if self.cut:
                return
            if self.suspended[way] is not None:
                self.suspended[way].append((send, whom, frames))
                return
            for seconds in fates.pop(0) if fates else [0.0]:
                if seconds:
                    self.nursery.start_soon(later, seconds, whom, frames)
                else:
                    send(whom, frames)

        return disturbed


class History(ContractBase):
    """One run: what was sent, what each process of the receiver handled, what came of it, and the promises."""

    def __init__(self, nursery):
        self.disturbed = Disturbed(nursery)
        self.nursery = nursery
        self.handled = defaultdict(list)  # numbers, by (incarnation, link)
        self.completed = set()  # (link, number): handled, and released where that was deferred
        self.acknowledged = Counter()
        self.before = {}  # what was acknowledged when an incarnation started
        self.deferred = []
        self.deferring = True
        self.newest = {}
        self.news = defaultdict(list)  # what was announced and handled, by (incarnation, type)
        self.told_again = False
        self.calls_handled = Counter()
        self.call_ends = Counter()
        self.calls = 0
        self.sent = Counter()
        self.accepted = Counter()
        self.incarnation = -1
        self.receiver = None
        self.most_queued = 0

    def network(self, _names):
        return self.disturbed

    async def restart(self, world):
        if self.receiver is not None:
            self.told_again |= bool(self.receiver.reported(PeerGone))
            await self.receiver.stop()
        self.incarnation += 1
        self.before[self.incarnation] = set(self.acknowledged)
        self.receiver = await world.start("b", self.handler(self.incarnation), incarnation=self.incarnation)

    def handler(self, incarnation):
        async def handle(delivery):
            self.most_queued = max(self.most_queued, self.receiver.node.figures["queued"])
            number, link = delivery.message.number, delivery.link
            if delivery.kind == "announce":
                await trio.sleep(0.05 * (number % 3))
                self.news[incarnation, type(delivery.message)].append(number)
                return None
            if delivery.kind == "call":
                self.calls_handled[number] += 1
                await trio.sleep(0.3)
                if number % 4 == 3:
                    raise CallRefused("refused")
                return Item(number)
            self.handled[incarnation, link].append(number)
            await trio.sleep(0.05 * (number % 3))
            if self.deferring and number % 3 == 0:
                self.deferred.append((link, number, delivery.defer()))
            else:
                self.completed.add((link, number))
            return None

        return handle

    def release(self, count):
        for _ in range(min(count, len(self.deferred))):
            link, number, release = self.deferred.pop(0)
            self.completed.add((link, number))
            release()

    async def push(self, link, name, numbers):
        async for number in numbers:
            await link.send(Item(number), on_ack=self.on_ack(name, number))
            self.accepted[name] += 1

    def on_ack(self, link, number):
        def note():
            assert (link, number) in self.completed, "acknowledged before it was handled and released"
            self.acknowledged[link, number] += 1

        return note

    async def announce(self, news, kind, node):
        """Whoever waits until it was handled waits at least so long, unless the receiver is silent or restarted."""
        self.newest[kind] = number = self.newest.get(kind, 0) + 1
        news.set(kind(number))
        await news.acknowledged()
        assert node.events or number <= max(max(each) for (_, of), each in self.news.items() if of is kind)

    async def call(self, call, number, patience):
        try:
            reply = await call(Question(number), timeout=0.1 + 3 * patience)
        except (CallTimeout, PeerLost) as error:
            self.call_ends[number, type(error).__name__] += 1
        except CallFailed as error:
            self.call_ends[number, error.reason] += 1
        else:
            assert reply == Item(number)
            self.call_ends[number, "answered"] += 1

    async def run_events(self, events):
        longest = LONGEST + SUSPENDED * sum(kind == "suspend" for kind, _ in events)
        async with self.world("a", "b", seconds=longest) as world:
            await self.restart(world)
            sender = await world.start("a")
            node = sender.node
            links = {name: node.push(name, ["b"], window=WINDOW) for name in LINKS}
            call = node.call("questions", ["b"], outstanding=OUTSTANDING, timeout=60.0)
            news, queues = node.announce("news", ["b"]), {}
            for name, link in links.items():
                queues[name], numbers = trio.open_memory_channel(math.inf)
                self.nursery.start_soon(self.push, link, name, numbers)
            for kind, argument in events:
                if kind == "send":
                    queues[argument].send_nowait(self.sent[argument])
                    self.sent[argument] += 1
                elif kind == "announce":
                    self.nursery.start_soon(self.announce, news, argument, sender)
                elif kind == "call":
                    self.nursery.start_soon(self.call, call, self.calls, argument)
                    self.calls += 1
                elif kind in self.disturbed.fates:
                    self.disturbed.fates[kind] += argument
                elif kind == "cut":
                    self.disturbed.cut = True
                    await trio.sleep(argument)
                    self.disturbed.cut = False
                elif kind == "restart":
                    await self.restart(world)
                    await trio.sleep(argument)
                elif kind == "suspend":
                    await self.disturbed.suspend(argument, SUSPENDED)
                elif kind == "release":
                    self.release(argument)
                else:
                    await trio.sleep(argument)
                await trio.testing.wait_all_tasks_blocked()
                self.check_credit()
            await self.settle(links)
            assert news.unhandled == ()
            self.check(node)

    async def settle(self, links):
        for fates in self.disturbed.fates.values():
            fates.clear()
        self.deferring = False
        self.release(len(self.deferred))
        with trio.fail_after(600):
            while self.total() > sum(self.acknowledged.values()) or self.calls > sum(self.call_ends.values()):
                await trio.sleep(1)
                self.release(len(self.deferred))
            for link in links.values():
                await link.drained()
        await trio.sleep(20)  # whatever is still late arrives, and changes nothing

    def total(self):
        return sum(self.sent.values())

    def check_credit(self):
        for link in LINKS:
            taken = {number for (_, name), numbers in self.handled.items() if name == link for number in numbers}
            assert self.accepted[link] <= len(taken) + WINDOW

    def check(self, node):
        self.told_again |= bool(self.receiver.reported(PeerGone))
        everything = {(link, number) for link in LINKS for number in range(self.sent[link])}
        assert set(self.acknowledged) == everything
        assert set(self.acknowledged.values()) <= {1}
        for (incarnation, link), numbers in self.handled.items():
            assert numbers == sorted(set(numbers)), "once, and in order, at each process"
            assert not {(link, number) for number in numbers} & self.before[incarnation], "settled before it started"
        for numbers in self.news.values():
            assert numbers == sorted(numbers if self.told_again else set(numbers)), "each is newer than the last"
        for kind, number in self.newest.items():
            assert self.news[self.incarnation, kind][-1] == number
        assert self.most_queued <= len(LINKS) * WINDOW + OUTSTANDING + len(self.newest)
        assert Counter(number for number, _ in self.call_ends.elements()) == Counter(range(self.calls))
        assert set(self.calls_handled.values()) <= {1}
        assert {number % 4 for number, end in self.call_ends if end == "refused"} <= {3}
        assert {end for _, end in self.call_ends} <= {"answered", "refused", "CallTimeout", "PeerLost"}
        answered = {number for number, end in self.call_ends if end in ("answered", "refused")}
        assert answered <= set(self.calls_handled)
        assert node.figures["unacknowledged"] == node.figures["outstanding_calls"] == 0


SUSPENSIONS = st.tuples(st.just("suspend"), st.sampled_from(["forth", "back"]))


@given(st.lists(EVENTS | SUSPENSIONS, max_size=12))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_suspensions_of_minutes_break_no_promise(events):
    test_whatever_happens_every_promise_is_kept.hypothesis.inner_test(events)


@given(st.lists(EVENTS, max_size=40))
@example([("back", [[], [1.5]]), ("restart", 1.5), ("announce", Item)])  # a goodbye after the successor's first word
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_every_promise_is_kept(events):
    async def main():
        async with trio.open_nursery() as nursery:
            await History(nursery).run_events(events)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
