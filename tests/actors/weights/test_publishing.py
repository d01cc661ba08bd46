"""Publishing beside training: what the next step waits for, which policies are written, and how long each took.
Virtual time.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from actors.weights import files, publish
from actors.weights.files import PublishedWeights
from actors.weights.publish import Publisher, ServedPolicies
from agent_rl.figures import PublishFigures
from agent_rl.messages import PolicyPublished, PolicyVersion

WRITING = 10.0


class Bench:
    """A publisher whose disk takes ten seconds a policy."""

    def __init__(self, folder: Path) -> None:
        self.announced: list[tuple[float, PolicyPublished]] = []
        context: Any = SimpleNamespace(
            now=trio.current_time,
            in_thread=self._in_thread,
            link=lambda name: SimpleNamespace(
                set=lambda m: self.announced.append((trio.current_time() - self.start, m))
            ),
        )
        self.weights = PublishedWeights(folder, self.write)
        self.publisher = Publisher(context, self.weights, structlog.get_logger())
        self.start = trio.current_time()

    async def _in_thread(self, work: Callable[[], Any], *, limiter: trio.CapacityLimiter) -> Any:
        async with limiter:
            await trio.sleep(WRITING)
            return work()

    @staticmethod
    def write(weights: dict[str, Any], path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(weights))

    def versions(self) -> list[tuple[float, int]]:
        return [(when, message.policy.version) for when, message in self.announced]


@asynccontextmanager
async def publishing(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.publisher.run)
        yield bench
        nursery.cancel_scope.cancel()


async def test_steps_go_on_while_weights_are_written_and_the_newest_is_always_next(tmp_path: Path) -> None:
    async with publishing(tmp_path / "weights") as bench:
        for version in range(6):  # steps of a length that never ends together with a write
            bench.publisher.offer(PolicyVersion(1, version), {}, 0, 0)
            assert trio.current_time() - bench.start == 3.75 * version  # it waited for nothing
            await trio.sleep(3.75)
        await bench.publisher.settled()
        assert bench.versions() == [(10.0, 0), (20.0, 2), (30.0, 5)]
        assert bench.publisher.take_figures().write_seconds == WRITING


async def test_a_new_place_in_the_recipe_is_told_with_the_weights_there_are(tmp_path: Path) -> None:
    async with publishing(tmp_path / "weights") as bench:
        policy = PolicyVersion(1, 0)
        assert not bench.publisher.knows(policy)
        bench.publisher.offer(policy, {}, 0, 0)
        assert bench.publisher.knows(policy)
        bench.publisher.offer(policy, None, 1, 0)  # before the first is written: written once, told once
        await bench.publisher.settled()
        bench.publisher.offer(policy, None, 2, 0)
        await bench.publisher.settled()
        assert [(when, message.stage) for when, message in bench.announced] == [(10.0, 1), (10.0, 2)]
        assert bench.weights.path(policy).exists()


async def test_a_policys_latency_ends_when_the_last_engine_serves_it_or_a_newer_one(tmp_path: Path) -> None:
    async with publishing(tmp_path / "weights") as bench:
        for engine in "ab":
            bench.publisher.served(engine, PolicyVersion(1, 0))
        bench.publisher.offer(PolicyVersion(1, 1), {}, 0, 0)
        await trio.sleep(12.0)
        bench.publisher.served("a", PolicyVersion(1, 1))
        bench.publisher.offer(PolicyVersion(1, 2), {}, 0, 0)
        assert bench.publisher.take_figures().update_seconds is None
        await trio.sleep(3.0)
        bench.publisher.served("b", PolicyVersion(1, 1))
        figures = bench.publisher.take_figures()
        assert (figures.update_version, figures.update_seconds) == (1.0, 15.0)
        await trio.sleep(17.0)
        for engine in "ab":
            bench.publisher.served(engine, PolicyVersion(2, 0))  # newer in the order of policies
        figures = bench.publisher.take_figures()
        assert (figures.update_version, figures.update_seconds) == (2.0, 20.0)
        assert bench.publisher.take_figures() == PublishFigures()


async def test_a_lost_engine_holds_back_neither_files_nor_update_times(tmp_path: Path) -> None:
    def left() -> list[str]:
        return [path.name for path in tmp_path.glob("policy-*")]

    async with publishing(tmp_path) as bench:
        for version in (1, 2):
            bench.publisher.offer(PolicyVersion(1, version), {}, 0, 0)
            await bench.publisher.settled()
            bench.publisher.served("rollout_generator.0", PolicyVersion(1, version))
            bench.publisher.served("rollout_generator.1", PolicyVersion(1, 1))
        bench.publisher.take_figures()
        bench.publisher.gone("rollout_generator.1")
        assert bench.publisher.take_figures().update_version == 2
        bench.publisher.offer(PolicyVersion(1, 2), None, 1, 0)
        await bench.publisher.settled()
        assert left() == ["policy-0001-00000002.safetensors"]
        bench.publisher.gone("rollout_generator.0")
        bench.publisher.served("rollout_generator.1", PolicyVersion(1, 1))  # it is back, and has to catch up
        bench.publisher.offer(PolicyVersion(1, 3), {}, 0, 0)
        await bench.publisher.settled()
        assert bench.publisher.take_figures().update_version is None
        bench.publisher.served("rollout_generator.1", PolicyVersion(1, 3))
        assert bench.publisher.take_figures().update_version == 3


async def test_files_are_kept_from_the_oldest_policy_on_that_an_engine_serves(tmp_path: Path) -> None:
    async with publishing(tmp_path) as bench:
        for version in range(1, 8):
            bench.publisher.served("slow", PolicyVersion(1, max(1, version - 3)))
            bench.publisher.served("fast", PolicyVersion(1, version))
            bench.publisher.offer(PolicyVersion(1, version), {}, 0, 0)
            await bench.publisher.settled()
            kept = [int(path.stem.rpartition("-")[2]) for path in sorted(tmp_path.glob("policy-*"))]
            assert kept == list(range(max(1, version - 3), version + 1))


async def test_of_too_many_policies_that_no_engine_takes_up_the_newest_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "MOST_WAITED_FOR", 2)
    async with publishing(tmp_path) as bench:
        for version in range(1, 6):
            bench.publisher.offer(PolicyVersion(1, version), {}, 0, 0)
            await trio.sleep(1.0)
        with capture_logs() as logs:
            bench.publisher.served("a", PolicyVersion(1, 5))
        assert [line["version"] for line in logs] == [4, 5]


def test_what_is_handed_out_is_a_whole_part_of_a_file_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 10)
    contents = {version: random.Random(version).randbytes(34 + version) for version in range(1, 5)}
    kept = PublishedWeights(tmp_path, lambda weights, path: path.write_bytes(contents[len(weights)]), fetched=True)
    for version, content in contents.items():
        _, size, checksum = kept.keep(PolicyVersion(1, version), dict.fromkeys(map(str, range(version))))
        assert size == len(content)
        assert checksum == files.whole_checksum(zlib.crc32(content[at : at + 10]) for at in range(0, size, 10))
    kept.clean(PolicyVersion(1, 2))
    for version, content in contents.items():
        for offset in range(60):
            part = kept.part(PolicyVersion(1, version), offset)
            whole = content[offset : offset + 10] if version >= 2 and offset % 10 == 0 else b""
            assert part.data.tobytes() == whole
            assert not whole or not files.fault_of(part, offset, len(whole))
            assert not whole or files.fault_of(part, offset + 10, len(whole))


def test_the_folder_of_weights_may_be_a_link_to_one_that_hosts_share(tmp_path: Path) -> None:
    shared, folder = tmp_path / "shared", tmp_path / "run" / "weights"
    shared.mkdir()
    folder.parent.mkdir()
    folder.symlink_to(shared)
    weights = PublishedWeights(folder, Bench.write)
    uri, _, _ = weights.keep(PolicyVersion(1, 1), {})
    assert uri == (shared / "policy-0001-00000001.safetensors").as_uri()
    weights.remove()
    assert list(shared.iterdir()) == []
    weights.keep(PolicyVersion(1, 2), {})
    assert folder.is_symlink()


def test_the_oldest_policy_follows_engines_that_report_leave_and_come_back() -> None:
    rng = random.Random(7)
    served, expected = ServedPolicies(), dict[str, PolicyVersion]()
    for _ in range(2_000):
        engine, before = f"rollout_generator.{rng.randrange(6)}", min(expected.values(), default=None)
        if rng.random() < 0.2:
            expected.pop(engine, None)
            changed = served.gone(engine)
        else:
            expected[engine] = PolicyVersion(rng.randrange(2), rng.randrange(5))
            changed = served.served(engine, expected[engine])
        assert served.oldest == min(expected.values(), default=None)
        assert changed == (served.oldest != before)


def test_a_report_that_changes_nothing_looks_at_one_engine(monkeypatch: Any) -> None:
    """Comparisons of policies, counted: the oldest over all engines would compare every one of them."""
    compared: list[None] = []
    for name in ("__eq__", "__lt__", "__le__", "__gt__", "__ge__"):
        compare = getattr(PolicyVersion, name)
        counted = lambda one, other, compare=compare: compared.append(None) or compare(one, other)  # noqa: E731
        monkeypatch.setattr(PolicyVersion, name, counted)

    def reports(engines: int) -> Iterator[float]:
        served = ServedPolicies()
        for version in (0, 0, 1, 1, 2, 2):  # every engine moves on twice, one after the other
            compared.clear()
            for number in range(engines):
                served.served(f"rollout_generator.{number}", PolicyVersion(1, version))
            yield len(compared) / engines
            assert served.oldest == PolicyVersion(1, version)

    for few, many in zip(reports(50), reports(400), strict=True):
        assert many <= min(few + 1, 8)
