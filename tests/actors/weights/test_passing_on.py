"""Hosts pass the parts of a policy on: who sends to whom, what the learner sends, and what a lost host costs.

Virtual time: every node sends at `RATE`, one part after the other, to whomever.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.weights import files
from actors.weights.chain import LEARNER, Chain, Chains
from actors.weights.fetch import FetchedWeights
from actors.weights.files import PublishedWeights
from agent_rl.messages import PolicyPublished, PolicyVersion, WeightsPart, WeightsWanted
from agent_rl_contract.stage import in_thread
from transport import PeerLost

PART = 100
PARTS, HOSTS = 96, 16
SIZE = PARTS * PART
RATE = 10 * PART
"""Bytes per second: one host has everything after 9.6 s."""
SILENT_SECONDS = 4.0
POLICY = PolicyVersion(1, 7)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PART_BYTES", PART)


class Uplink:
    """What a node sends, and how much it was."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self.sent = 0

    async def carry(self, part: WeightsPart) -> WeightsPart:
        async with self._turn:
            await trio.sleep(len(part.data) / RATE)
        self.sent += len(part.data)
        return part


class Network:
    """A learner and its hosts. A lost host answers nobody, which is noticed after a while."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.content = content = random.Random(3).randbytes(SIZE)
        (folder / "learner").mkdir(parents=True)
        self.store = PublishedWeights(folder / "learner", lambda _, path: path.write_bytes(content), fetched=True)
        uri, size, checksum = self.store.keep(POLICY, {})
        self.published = PolicyPublished(POLICY, uri, 0, 0, size, checksum)
        self.links = {name: Uplink() for name in (LEARNER, *(f"host{number:02d}" for number in range(hosts)))}
        self.hosts = {name: self._host(folder / name, name) for name in self.links if name}
        self.lost: dict[str, trio.Event] = {name: trio.Event() for name in self.hosts}
        self.done: dict[str, float] = {}

    def _host(self, folder: Path, name: str) -> FetchedWeights:
        folder.mkdir()

        async def ask(source: str, wanted: WeightsWanted) -> WeightsPart:
            return await self.ask(name, source, wanted)

        return FetchedWeights(folder, ask, in_thread)

    @asynccontextmanager
    async def alive(self, name: str) -> AsyncIterator[None]:
        """What is done within ends with the host."""
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await self.lost[name].wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            yield
            nursery.cancel_scope.cancel()

    async def ask(self, asker: str, source: str, wanted: WeightsWanted) -> WeightsPart:
        if source == LEARNER:
            return await self.links[LEARNER].carry(await self.store.hand_out(wanted, asker, in_thread))
        async with self.alive(source):
            return await self.links[source].carry(await self.hosts[source].part(wanted))
        await trio.sleep(SILENT_SECONDS)
        raise PeerLost(source)

    async def fetch(self, name: str) -> None:
        async with self.alive(name):
            path = await self.hosts[name].fetch(self.published)
            assert path.read_bytes() == self.content
            self.done[name] = trio.current_time()

    async def fetch_all(self, lose: dict[str, float] | None = None) -> float:
        """Seconds until every host that is left has the policy. ``lose``: hosts, and when each ends."""
        async with trio.open_nursery() as nursery:  # the clock begins at 0
            nursery.cancel_scope.deadline = 1000.0  # hosts that fetch in a circle would never end
            for name in self.hosts:
                nursery.start_soon(self.fetch, name)
            for name, when in (lose or {}).items():
                await trio.sleep_until(when)
                self.lost[name].set()
        assert self.hosts.keys() - self.done.keys() == set(lose or {})
        return max(self.done.values())


def seconds_of(network: Network, lose: dict[str, float] | None = None) -> float:
    return trio.run(network.fetch_all, lose, clock=MockClock(autojump_threshold=0))


def test_sixteen_hosts_take_little_longer_than_one_and_the_learner_sends_each_byte_once(tmp_path: Path) -> None:
    one, many = Network(tmp_path / "one", 1), Network(tmp_path / "many", HOSTS)
    alone, together = seconds_of(one), seconds_of(many)
    assert alone == pytest.approx(SIZE / RATE, rel=0.01)
    assert together <= alone + 3 * HOSTS * PART / RATE  # a few parts for each host on the way
    assert one.links[LEARNER].sent == many.links[LEARNER].sent == SIZE
    assert max(link.sent for link in many.links.values()) == SIZE
    assert sum(host.passed_bytes for host in many.hosts.values()) == (HOSTS - 1) * SIZE


ONE_AFTER_THE_OTHER = {f"host{lost:02d}": 0.8 + 0.8 * number for number, lost in enumerate((9, 4, 6, 2, 0, 7))}


@pytest.mark.parametrize("lose", [{"host00": 4.5}, {"host04": 4.5}, {"host09": 4.5}, ONE_AFTER_THE_OTHER], ids=len)
def test_hosts_that_die_midway_stop_no_other(tmp_path: Path, lose: dict[str, float]) -> None:
    """The hosts behind them go on from where they are."""
    network = Network(tmp_path, 10)
    assert seconds_of(network, lose) <= 1.25 * SIZE / RATE + 2 * SILENT_SECONDS * len(lose)
    assert network.links[LEARNER].sent <= 2 * SIZE


async def test_a_host_that_comes_late_is_sent_nothing_by_the_learner(tmp_path: Path) -> None:
    network = Network(tmp_path, 3)
    for name in network.hosts:
        await network.fetch(name)
    assert network.links[LEARNER].sent == SIZE


@pytest.mark.parametrize("harm", ["unreachable", "damaged"])
def test_hosts_that_do_not_reach_each_other_or_damage_what_they_send_all_get_the_policy(
    tmp_path: Path, harm: str
) -> None:
    network = Network(tmp_path, 4)
    honest = network.ask

    async def ask(asker: str, source: str, wanted: WeightsWanted) -> WeightsPart:
        if harm == "unreachable" and asker < source:
            await trio.sleep(SILENT_SECONDS)
            raise PeerLost(source)
        part = await honest(asker, source, wanted)
        spoils = harm == "damaged" and source and wanted.offset == 20 * PART
        return replace(part, checksum=part.checksum ^ 1) if spoils else part

    network.ask = ask  # type: ignore[method-assign]
    seconds_of(network)


# A story: `b>a` b asks and is to fetch from a; `b>` from the learner; `b!c>a` c did not answer b; `-a` a is lost.


@pytest.mark.parametrize(
    "story",
    [
        pytest.param("a> b>a c>b d>c", id="each fetches from the last"),
        pytest.param("a> b>a c>b b>a c>b a>", id="who asks again keeps its source"),
        pytest.param("a> b>a c!b>a d>c", id="of those that send as much the last, and not the learner"),
        pytest.param("a> b>a c>b c!b>a c!a> c>", id="a source that did not answer is not named again"),
        pytest.param("a> b>a c>b d>c b!a>", id="no source is behind the asker, however far"),
        pytest.param("a> b>a -a b> c>b", id="a source that is known to be lost is replaced before it fails"),
        pytest.param("a> b>a -b c>a", id="a lost one is no source"),
        pytest.param("a> -a a> b>a", id="one that was lost and asks again is"),
        pytest.param("a> b>a -b c!a> d>c e>d f!d>e f!e>a", id="a lost one counts for nobody"),
    ],
)
def test_story(story: str) -> None:
    chain = Chain()
    for number, word in enumerate(story.split(), 1):
        if word[0] == "-":
            chain.lost(word[1])
        elif told := re.fullmatch(r"(\w)(?:!(\w))?>(\w?)", word):
            at = " ".join(story.split()[:number])
            assert chain.source(told[1], told[2] or LEARNER) == told[3], at


def test_a_chain_has_no_circle_whatever_fails() -> None:
    """Random failures, losses and returns: whoever asks is led to the learner in the end."""
    for seed in range(30):
        rng, chain, names = random.Random(seed), Chain(), [f"g{number}" for number in range(8)]
        sources: dict[str, str] = {}
        for _ in range(200):
            asker = rng.choice(names)
            if rng.random() < 0.2:
                chain.lost(rng.choice(names))
            failed = sources.get(asker, LEARNER) if rng.random() < 0.3 else LEARNER
            sources[asker] = chain.source(asker, failed)
            assert failed == LEARNER or sources[asker] != failed
            each = asker
            for _ in names:
                each = sources.get(each, LEARNER)
            assert each == LEARNER


def test_chains_of_older_policies_are_forgotten() -> None:
    chains = Chains()
    assert chains.source(PolicyVersion(1, 1), "a") == LEARNER
    assert chains.source(PolicyVersion(1, 1), "b") == "a"
    for version in (2, 3):
        assert chains.source(PolicyVersion(1, version), "b") == LEARNER
        assert chains.source(PolicyVersion(1, version), "a") == "b"
    assert chains.source(PolicyVersion(1, 2), "c") == "a"
    for name in "ac":
        chains.lost(name)
    assert chains.source(PolicyVersion(1, 3), "d") == "b"
