"""Weights fetched over a link: whole or not at all, once a host, and on from where it stopped."""

from __future__ import annotations

import fcntl
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from actors.weights import fetch as fetching
from actors.weights import files
from actors.weights.fetch import LOCK_SECONDS, FetchedWeights, FetchError, host_directory
from actors.weights.files import part_checksums, read_part, weights_name, whole_checksum
from agent_rl.files.leftovers import sweep
from agent_rl.messages import PolicyPublished, PolicyVersion, WeightsPart, WeightsWanted
from agent_rl_contract.stage import in_thread
from transport import PeerLost

PART = 1000
SIZE = 10 * PART + 123


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PART_BYTES", PART)
    monkeypatch.setattr(fetching, "AHEAD", 4)


def checksum_of(path: Path) -> int:
    return whole_checksum(part_checksums(path))


class Learner:
    """Publishes random files and hands out their parts, as a learner does; a test may put something in the way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[int] = []
        self.spoil: Callable[[WeightsPart], WeightsPart] = lambda part: part
        self.before: Callable[[int], Awaitable[None]] = self._shuffle

    def publish(self, version: int, size: int = SIZE) -> PolicyPublished:
        policy = PolicyVersion(1, version)
        path = self.folder / weights_name(policy)
        path.write_bytes(random.Random(version).randbytes(size))
        return PolicyPublished(policy, path.as_uri(), 0, 0, size, checksum_of(path))

    async def ask(self, source: str, wanted: WeightsWanted) -> WeightsPart:
        assert not source
        self.asked.append(wanted.offset)
        await self.before(wanted.offset)
        path = self.folder / weights_name(wanted.policy)
        if not path.exists():
            return files.nothing(wanted.offset)
        return self.spoil(read_part(path, wanted.offset, part_checksums(path)))

    async def _shuffle(self, offset: int) -> None:
        """Parts come in any order."""
        for _ in range(random.Random(offset).randrange(20)):
            await trio.lowlevel.checkpoint()

    def content(self, version: int) -> bytes:
        return (self.folder / weights_name(PolicyVersion(1, version))).read_bytes()


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    (tmp_path / "learner").mkdir()
    return Learner(tmp_path / "learner")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


@pytest.mark.real_time
async def test_generators_of_a_host_share_one_download(learner: Learner, host: Path) -> None:
    published = learner.publish(3)
    paths = []

    async def one() -> None:
        paths.append(await FetchedWeights(host, learner.ask).fetch(published))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(one)
    assert {path.read_bytes() for path in paths} == {learner.content(3)}
    assert sorted(learner.asked) == list(range(0, SIZE, PART))


async def lock_held_for_ever(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    if work is fcntl.flock:
        await trio.sleep_forever()
    return work(*arguments)


@pytest.mark.parametrize("minutes", [0, 60])
async def test_a_download_of_another_generator_is_waited_for_while_it_grows(
    learner: Learner, host: Path, minutes: int
) -> None:
    """On a slow link; then the other generator is gone, and nothing grows any more."""
    published = learner.publish(3)
    partial = host / f".{weights_name(published.policy)}-{published.checksum:08x}.partial"
    given_up = []

    async def wait() -> None:
        with pytest.raises(FetchError, match="another generator of this host has been downloading"):
            await FetchedWeights(host, learner.ask, lock_held_for_ever).fetch(published)
        given_up.append(trio.current_time())

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for grown in range(minutes):
            await trio.sleep(60.0)
            partial.write_bytes(bytes(grown + 1))
    grew = 60.0 * minutes
    assert max(grew, LOCK_SECONDS) <= given_up[0] - began <= grew + 2 * LOCK_SECONDS


@pytest.mark.parametrize(
    ("size", "done"),
    [
        *((size, 0) for size in (1, PART - 1, PART, PART + 1, SIZE)),
        *((SIZE, done) for done in (1, PART - 1, PART, 3 * PART + 77, SIZE - 1, SIZE)),
    ],
)
def test_what_is_fetched_is_what_was_published_and_a_download_that_was_cut_off_goes_on_where_it_stopped(
    learner: Learner, host: Path, monkeypatch: pytest.MonkeyPatch, size: int, done: int
) -> None:
    """A part that was cut is fetched again; room is needed for what is missing alone."""
    published = learner.publish(3, size)
    partial = host / f".{weights_name(published.policy)}-{published.checksum:08x}.partial"
    partial.write_bytes(learner.content(3)[:done])
    whole = done // PART * PART
    for lacking in (1, 0):
        room = shutil.disk_usage(host)._replace(free=size - whole - lacking)
        monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path, room=room: room)
        if lacking:
            with pytest.raises(FetchError, match=f"has room for {room.free} of the {size - whole} bytes"):
                trio.run(FetchedWeights(host, learner.ask).fetch, published)
            assert learner.asked == []
    fetched = FetchedWeights(host, learner.ask)
    assert trio.run(fetched.fetch, published).read_bytes() == learner.content(3)
    assert sorted(learner.asked) == list(range(whole, size, PART))
    assert fetched.fetched_bytes == size - whole


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: replace(part, data=part.data ^ np.uint8(1)),
        lambda part: replace(part, offset=part.offset + PART),
        lambda part: replace(part, data=part.data[:-1]),
    ],
    ids=["damaged", "misplaced", "cut"],
)
def test_a_part_that_is_not_what_was_sent_is_noticed(learner: Learner, host: Path, spoil: Any) -> None:
    published = learner.publish(3)
    learner.spoil = lambda part: spoil(part) if part.offset == 4 * PART else part
    with pytest.raises(FetchError):
        trio.run(FetchedWeights(host, learner.ask).fetch, published)
    assert not [path for path in host.iterdir() if not path.name.startswith(".")]
    learner.spoil = lambda part: part
    assert trio.run(FetchedWeights(host, learner.ask).fetch, published).read_bytes() == learner.content(3)


def test_what_another_run_left_is_never_served(learner: Learner, host: Path) -> None:
    """A file of another run's policy of the same number, whole or begun, is not this one's."""
    published = learner.publish(3)
    path = trio.run(FetchedWeights(host, learner.ask).fetch, published)
    partial = path.with_name(f".{path.name}.partial")
    path.unlink()
    partial.write_bytes(b"x" * (2 * PART))
    with pytest.raises(FetchError, match="checksum"):
        trio.run(FetchedWeights(host, learner.ask).fetch, published)
    assert trio.run(FetchedWeights(host, learner.ask).fetch, published).read_bytes() == learner.content(3)

    other = learner.folder / weights_name(published.policy)
    other.write_bytes(b"y" * SIZE)
    again = replace(published, checksum=checksum_of(other))
    assert trio.run(FetchedWeights(host, learner.ask).fetch, again).read_bytes() == b"y" * SIZE


def test_older_policies_make_room_for_the_next(learner: Learner, host: Path) -> None:
    for version in (3, 4, 5):
        path = trio.run(FetchedWeights(host, learner.ask).fetch, learner.publish(version))
        assert [each for each in host.iterdir() if not each.name.startswith(".")] == [path]
    assert len(list(host.iterdir())) == 2  # and the lock of the newest


@pytest.mark.real_time
async def test_a_download_that_another_generator_overtakes_is_told(learner: Learner, host: Path) -> None:
    old, new = learner.publish(3), learner.publish(4)

    async def overtaken(offset: int) -> None:
        if offset == 10 * PART:
            learner.before = learner._shuffle
            await FetchedWeights(host, learner.ask).fetch(new)

    learner.before = overtaken
    with pytest.raises(FetchError, match="overtaken by a newer policy"):
        await FetchedWeights(host, learner.ask).fetch(old)


def test_a_generator_that_is_behind_leaves_the_newer_file_to_the_others(learner: Learner, host: Path) -> None:
    newer, older = learner.publish(4), learner.publish(3)
    paths = [trio.run(FetchedWeights(host, learner.ask).fetch, published) for published in (newer, older)]
    assert [path.read_bytes() for path in paths] == [learner.content(4), learner.content(3)]


async def test_what_is_passed_on_is_of_the_policy_that_is_asked_for(learner: Learner, host: Path) -> None:
    """Whole parts of the newest; nothing of others, nor of one that was given up."""
    fetched = FetchedWeights(host, learner.ask, in_thread)
    policies = {version: learner.publish(version) for version in (3, 4)}

    async def parts(version: int) -> bytes:
        wanted = [WeightsWanted(policies[version].policy, offset) for offset in range(0, SIZE + PART, PART)]
        given = [await fetched.part(each) for each in wanted]
        assert not any(part.later for part in given)
        assert all(not files.fault_of(part, part.offset, len(part.data)) for part in given if len(part.data))
        return b"".join(part.data.tobytes() for part in given)

    for version in (3, 4):
        await fetched.fetch(policies[version])
        assert [await parts(each) for each in (3, 4)] == [learner.content(v) if v == version else b"" for v in (3, 4)]
    assert fetched.passed_bytes == 2 * SIZE
    (learner.folder / weights_name(policies[3].policy)).unlink()
    with pytest.raises(FetchError, match=r"no longer has all of policy-0001-00000003\.safetensors"):
        await fetched.fetch(replace(policies[3], checksum=1))
    assert await parts(3) == b""


async def test_a_part_that_is_not_here_yet_comes_later(learner: Learner, host: Path) -> None:
    published, going = learner.publish(3), trio.Event()

    async def slow(offset: int) -> None:
        if offset == 10 * PART:  # the last one, which is asked for when others are here
            await going.wait()

    learner.before = slow
    fetched = FetchedWeights(host, learner.ask, in_thread)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetched.fetch, published)
        await trio.sleep(1.0)
        began, given = trio.current_time(), []
        for offset in (0, 9 * PART, 10 * PART):
            part = await fetched.part(WeightsWanted(published.policy, offset))
            given.append((len(part.data), part.later))
        assert given == [(PART, False), (PART, False), (0, True)]
        assert trio.current_time() - began == fetching.HOLD_SECONDS
        going.set()


async def test_a_source_that_fails_late_does_not_take_the_place_of_the_present_one(
    learner: Learner, host: Path
) -> None:
    failed: list[str] = []

    async def ask(source: str, wanted: WeightsWanted) -> WeightsPart:
        if source == "a":
            await trio.sleep(0.0 if not wanted.offset else 5.0)
            raise PeerLost("a")
        if source == "b":
            await trio.sleep(1.0)
            return await learner.ask("", wanted)
        failed.append(wanted.failed)
        return files.nothing(wanted.offset, source="b" if "a" in failed else "a")

    path = await FetchedWeights(host, ask, in_thread).fetch(learner.publish(3))
    assert path.read_bytes() == learner.content(3)
    assert failed == ["", "a"]


def test_nothing_stays_in_memory_once_nobody_holds_it() -> None:
    directory, held = host_directory("fetched", "of-a-test")
    (directory / "policy").touch()
    assert directory not in sweep()
    held.release()
    assert directory in sweep()
