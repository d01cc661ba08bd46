"""Hosts pass the parts of a policy on: what the learner sends, how long all hosts take, and what a lost host costs.

Virtual time: every node sends at `RATE`, one part after the other, to whomever.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.weights import files
from actors.weights.chain import LEARNER
from actors.weights.fetch import FetchedWeights
from actors.weights.files import PublishedWeights
from agent_rl.messages import PolicyPublished, PolicyVersion, WeightsPart, WeightsWanted
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


async def in_place(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return work(*arguments)


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
        content = random.Random(3).randbytes(SIZE)
        self.store = PublishedWeights(folder / "learner", lambda _, path: whole(path, content), fetched=True)
        self.published = PolicyPublished(
            POLICY, *self.store.keep(POLICY, {})[:1], 0, 0, *self.store.keep(POLICY, {})[1:]
        )
        self.content = content
        self.links = {name: Uplink() for name in (LEARNER, *(f"host{number:02d}" for number in range(hosts)))}
        self.hosts = {name: self._host(folder / name, name) for name in self.links if name}
        self.lost: dict[str, trio.Event] = {name: trio.Event() for name in self.hosts}
        self.done: dict[str, float] = {}
        self.broken: set[tuple[str, str]] = set()

    def _host(self, folder: Path, name: str) -> FetchedWeights:
        folder.mkdir()

        async def ask(source: str, wanted: WeightsWanted) -> WeightsPart:
            return await self.ask(name, source, wanted)

        return FetchedWeights(folder, ask, in_place)

    async def ask(self, asker: str, source: str, wanted: WeightsWanted) -> WeightsPart:
        if source == LEARNER:
            return await self.links[LEARNER].carry(await self.store.hand_out(wanted, asker, in_place))
        if (asker, source) in self.broken:
            await trio.sleep(SILENT_SECONDS)
            raise PeerLost(source)
        part: WeightsPart | None = None
        async with trio.open_nursery() as nursery:

            async def lost() -> None:
                await self.lost[source].wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(lost)
            part = await self.links[source].carry(await self.hosts[source].part(wanted))
            nursery.cancel_scope.cancel()
        if part is None:
            await trio.sleep(SILENT_SECONDS)
            raise PeerLost(source)
        return part

    async def fetch(self, name: str) -> None:
        async with trio.open_nursery() as nursery:

            async def lost() -> None:
                await self.lost[name].wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(lost)
            path = await self.hosts[name].fetch(self.published)
            assert path.read_bytes() == self.content
            self.done[name] = trio.current_time()
            nursery.cancel_scope.cancel()

    async def fetch_all(self, lose: dict[str, float] | None = None) -> float:
        """Seconds until every host that is left has the policy. ``lose``: hosts, and when each ends."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in self.hosts:
                nursery.start_soon(self.fetch, name)
            for name, when in (lose or {}).items():
                await trio.sleep_until(began + when)
                self.lost[name].set()
        assert self.hosts.keys() - self.done.keys() == set(lose or {})
        return max(self.done.values()) - began


def whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def seconds_of(network: Network, lose: dict[str, float] | None = None) -> float:
    return trio.run(network.fetch_all, lose, clock=MockClock(autojump_threshold=0))


def test_sixteen_hosts_take_little_longer_than_one_and_the_learner_sends_each_byte_once(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one, many = Network(tmp_path / "one", 1), Network(tmp_path / "many", HOSTS)
    alone, together = seconds_of(one), seconds_of(many)
    assert alone == pytest.approx(SIZE / RATE, rel=0.01)
    assert together <= alone + 3 * HOSTS * PART / RATE  # a few parts for each host on the way
    assert one.links[LEARNER].sent == many.links[LEARNER].sent == SIZE
    assert max(link.sent for link in many.links.values()) == SIZE
    assert sum(host.passed_bytes for host in many.hosts.values()) == (HOSTS - 1) * SIZE


@pytest.mark.parametrize("lost", [0, 4, 7])
def test_a_host_that_dies_midway_stops_no_other(tmp_path: Path, lost: int) -> None:
    """The hosts behind it go on from where they are."""
    network = Network(tmp_path, 8)
    seconds = seconds_of(network, {f"host{lost:02d}": 4.5})
    assert len(network.done) == 7
    assert seconds <= 1.25 * SIZE / RATE + 2 * SILENT_SECONDS
    assert network.links[LEARNER].sent <= 2 * SIZE


def test_hosts_that_die_one_after_the_other_stop_no_other(tmp_path: Path) -> None:
    network = Network(tmp_path, 10)
    lose = {name: 0.8 + 0.8 * number for number, name in enumerate(random.Random(5).sample(sorted(network.hosts), 6))}
    seconds_of(network, lose)
    assert network.links[LEARNER].sent <= 2 * SIZE


def test_two_hosts_that_cannot_reach_each_other_both_get_the_policy(tmp_path: Path) -> None:
    network = Network(tmp_path, 4)
    network.broken = {(one, other) for one in network.hosts for other in network.hosts if one < other}
    seconds_of(network)
    assert len(network.done) == 4


async def test_a_host_that_comes_late_is_sent_nothing_by_the_learner(tmp_path: Path) -> None:
    network = Network(tmp_path, 3)
    for name in network.hosts:
        await network.fetch(name)
    assert network.links[LEARNER].sent == SIZE


def test_what_was_damaged_on_the_way_comes_from_another(tmp_path: Path) -> None:
    network = Network(tmp_path, 3)
    honest = network.ask

    async def ask(asker: str, source: str, wanted: WeightsWanted) -> WeightsPart:
        part = await honest(asker, source, wanted)
        if source and wanted.offset == 20 * PART:
            return WeightsPart(part.offset, part.checksum ^ 1, part.data)
        return part

    network.ask = ask  # type: ignore[method-assign]
    seconds_of(network)
    assert len(network.done) == 3
