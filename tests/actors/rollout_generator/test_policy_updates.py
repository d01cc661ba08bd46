"""The newest policy is served: found or fetched, again when it could not be had, and not for ever when the engine
refuses it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from actors.engines.base import EngineError, EngineRefusedError
from actors.rollout_generator.policy_updates import (
    AGAIN_SECONDS,
    FIRST_ATTEMPTS,
    OFFER_SECONDS,
    REPLACED_SECONDS,
    ServedPolicy,
)
from actors.weights.fetch import FetchedWeights
from actors.weights.files import nothing, part_checksums, read_part, weights_name, whole_checksum
from actors.weights.transfer import TransferError
from agent_rl.messages import PolicyPublished, PolicyVersion, TransferOffer, TransferWanted, WeightsPart, WeightsWanted
from transport import CallTimeout, PeerLost

pytestmark = pytest.mark.clock(make=lambda: MockClock(autojump_threshold=0.05))


class Engine:
    """Remembers what it was told to load; refuses the policies a test names, as often as the test says."""

    ranks = 2

    def __init__(self) -> None:
        self.lost = 0
        self.policy = PolicyVersion(0, 0)
        self.loaded: list[tuple[PolicyVersion, bytes]] = []
        self.refuses: set[PolicyVersion] = set()

    async def load_weights(self, source: Path | TransferOffer, policy: PolicyVersion) -> None:
        await trio.lowlevel.checkpoint()
        if policy in self.refuses:
            raise EngineError(f"{source} does not fit the model")
        if isinstance(source, TransferOffer):
            self.lost -= 1
            if self.lost >= 0:
                raise TransferError("the learner is gone")
            self.loaded.append((policy, source.key.encode()))
        else:
            try:
                self.loaded.append((policy, source.read_bytes()))
            except FileNotFoundError as error:
                raise EngineError(f"cannot read weights from {source}") from error
        self.policy = policy


class Desk:
    """A ServedPolicy, its engine, and a learner to be asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, link: bool) -> None:
        self.folder, self.engine, self.link = folder, Engine(), link
        self.faults: list[Exception] = []
        self.asked: list[int] = []
        context: Any = SimpleNamespace(
            links={"weights": None} if link else {},
            in_thread=trio.to_thread.run_sync,
            first=True,
            link={"transfer": self.offer}.__getitem__,
            wait=lambda message, thing: f"{message.__name__}: {thing}",
        )
        self.kept = PolicyVersion(0, 0)
        self.offers: list[TransferWanted] = []
        fetched = FetchedWeights(folder / "host", self.ask, trio.to_thread.run_sync)
        monkeypatch.setattr(ServedPolicy, "_over_links", lambda served: fetched)
        (folder / "host").mkdir()
        (folder / "learner").mkdir()
        self.served = ServedPolicy(context, self.engine, structlog.get_logger())  # type: ignore[arg-type]

    async def ask(self, source: str, wanted: WeightsWanted) -> WeightsPart:
        assert not source
        await trio.lowlevel.checkpoint()
        self.asked.append(wanted.offset)
        if self.faults:
            raise self.faults.pop(0)
        path = self.folder / "learner" / weights_name(wanted.policy)
        if not path.exists():
            return nothing(wanted.offset)
        return read_part(path, wanted.offset, part_checksums(path))

    async def offer(self, wanted: TransferWanted, *, timeout: float) -> TransferOffer:
        await trio.sleep(timeout / 4)
        if self.faults:
            raise self.faults.pop(0)
        self.offers.append(wanted)
        port = 1 if wanted.policy == self.kept else 0
        return TransferOffer("gloo", "127.0.0.1", port, f"key {len(self.offers)}", 1, wanted.ranks, 1, (), (), ())

    def keep(self, version: int) -> PolicyVersion:
        """As publish, of weights that are sent."""
        self.kept = PolicyVersion(1, version)
        self.served.published(PolicyPublished(self.kept, f"gloo:{weights_name(self.kept)}", 0, 0))
        return self.kept

    def publish(self, version: int) -> PolicyVersion:
        policy = PolicyVersion(1, version)
        path = self.folder / "learner" / weights_name(policy)
        path.write_bytes(b"weights of %d" % version)
        size, checksum = (path.stat().st_size, whole_checksum(part_checksums(path))) if self.link else (0, 0)
        self.served.published(PolicyPublished(policy, path.as_uri(), 0, 0, size, checksum))
        return policy


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Desk:
    return Desk(tmp_path, monkeypatch, link=getattr(request, "param", False))


links = pytest.mark.parametrize("desk", [True], indirect=True, ids=["link"])


@asynccontextmanager
async def serving(desk: Desk, changed: Callable[[], Any] = lambda: None) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.served.run, changed)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.real_time
@pytest.mark.parametrize("desk", [False, True], indirect=True, ids=["files", "link"])
async def test_the_newest_policy_is_taken_up(desk: Desk) -> None:
    changes = list[PolicyVersion]()
    async with serving(desk, lambda: changes.append(desk.engine.policy)):
        assert desk.served.waiting_for == "PolicyPublished: a policy"
        desk.publish(1)  # overtaken before its turn
        newest = desk.publish(2)
        await desk.served.ready.wait()
        assert desk.engine.loaded == [(newest, b"weights of 2")]
        assert (desk.served.waiting_for, changes) == ("", [newest])
    assert bool(desk.asked) == desk.link


@links
@pytest.mark.parametrize("fault", [CallTimeout("no answer"), PeerLost("learner.0 was restarted")], ids=["slow", "lost"])
async def test_weights_that_could_not_be_fetched_are_asked_for_again(desk: Desk, fault: Exception) -> None:
    desk.faults = [fault] * 3
    async with serving(desk):
        desk.publish(1)
        began = trio.current_time()
        await desk.served.ready.wait()
        assert 3 * AGAIN_SECONDS <= trio.current_time() - began < 4 * AGAIN_SECONDS


async def test_a_refused_policy_makes_way_for_a_newer_one(desk: Desk) -> None:
    desk.engine.refuses = {PolicyVersion(1, 1)}
    async with serving(desk):
        desk.publish(1)
        await trio.sleep(REPLACED_SECONDS / 2)
        assert desk.served.waiting_for == "PolicyPublished: the weights of version 1"
        assert not desk.served.ready.is_set()
        newer = desk.publish(2)
        await desk.served.ready.wait()
        assert desk.engine.policy == newer


async def test_a_policy_that_stays_refused_is_what_the_generator_fails_of(desk: Desk, tmp_path: Path) -> None:
    policy = desk.publish(1)
    (tmp_path / "learner" / weights_name(policy)).unlink()
    with pytest.raises(EngineError, match="cannot read weights"):
        await desk.served.run(lambda: None)
    assert trio.current_time() >= REPLACED_SECONDS


async def test_weights_that_were_not_sent_to_the_end_are_asked_for_again_however_often_later(desk: Desk) -> None:
    desk.faults, desk.engine.lost = [PeerLost("learner.0 was restarted")], 2
    async with serving(desk):
        policy = desk.keep(1)
        await desk.served.ready.wait()
        assert desk.offers == [TransferWanted(policy, Engine.ranks)] * 3
        assert desk.engine.loaded == [(policy, b"key 3")]  # each time in a place of its own
        desk.engine.lost = FIRST_ATTEMPTS + 2
        newer = desk.keep(2)
        await trio.sleep((FIRST_ATTEMPTS + 3) * (AGAIN_SECONDS + OFFER_SECONDS))
        assert desk.engine.policy == newer


async def test_a_policy_that_a_newer_replaced_is_not_waited_for(desk: Desk) -> None:
    async with serving(desk):
        older = desk.keep(1)
        await trio.sleep(OFFER_SECONDS / 8)
        newer = desk.keep(2)  # while the older is being asked for
        await desk.served.ready.wait()
        assert [wanted.policy for wanted in desk.offers] == [older, newer]
        assert desk.engine.loaded == [(newer, b"key 2")]


async def test_a_run_whose_first_policy_never_comes_ends_with_why(desk: Desk) -> None:
    desk.engine.lost = 99
    desk.keep(1)
    with pytest.raises(EngineRefusedError, match=r"in 3 attempts: the learner is gone; .* change weights_in"):
        await desk.served.run(lambda: None)
    assert len(desk.offers) == FIRST_ATTEMPTS
