"""Weights over links: a generator without a disk shared with the learner fetches each policy's file in parts.

::

    generator --WeightsWanted (call)--> learner
              <--WeightsPart----------- reads the part from the published file, adds its CRC-32

The generators of one host share the fetched files. One generator at a time downloads a policy and holds a lock. The
kernel releases the lock when the generator dies, and the next one continues the download. A file gets its final name
only when the file is complete and its checksum matches the learner's. So no engine ever reads an incomplete file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio

from actors.weights.files import checksum_of, weights_name
from agent_rl.files.disk import writing
from agent_rl.files.leftovers import PREFIX, Claim, claim
from agent_rl.messages import Policy, PolicyPublished, WeightsPart, WeightsWanted

LINK = "weights"
"""The generator's link to the learner, where the topology has one."""
PART_BYTES = 4 << 20
AHEAD = 4
"""Requests in flight at once: enough to keep the link busy while a part is written to disk."""
LOCK_SECONDS = 120.0
"""Seconds to wait for another generator's download. After that, a generator retries if the policy is still newest."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - in a directory of mode 0700


class FetchError(Exception):
    """A policy's weights could not be fetched; the message says why. A newer policy may still be available."""


def host_directory(kind: str, run_digest: str) -> tuple[Path, Claim]:
    """The directory of this host for a run's weights, ``fetched`` or ``published``; in memory where possible.

    It is removed once no process holds it. Raises `agent_rl.files.leftovers.Unsafe` when another user owns it.
    """
    base = SHARED_MEMORY if has_shared_memory() else Path(tempfile.gettempdir())
    directory = base / f"{PREFIX}{kind}-{os.getuid()}-{run_digest}"
    return directory, claim(directory)


def has_shared_memory() -> bool:
    """Whether this host has a file system in memory that this user may write to."""
    return os.access(SHARED_MEMORY, os.W_OK)


def read_part(path: Path, offset: int) -> WeightsPart:
    """A part of a published file; an empty part when the file is gone or ends before ``offset``."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = np.frombuffer(file.read(PART_BYTES), np.uint8)
    except FileNotFoundError:
        data = np.zeros(0, np.uint8)
    return WeightsPart(offset, zlib.crc32(data.data), data)


@dataclass(eq=False, slots=True)
class _Asked:
    offset: int
    came: trio.Event = field(default_factory=trio.Event)
    part: WeightsPart | None = None
    fault: Exception | None = None


class FetchedWeights:
    """Fetches policies into a directory that a host's generators share. ``ask`` calls the learner, with retries."""

    def __init__(
        self,
        directory: Path,
        ask: Callable[[WeightsWanted], Awaitable[WeightsPart]],
        in_thread: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync,
    ) -> None:
        self._directory = directory
        self._ask = ask
        self._in_thread = in_thread
        self.fetched_bytes = 0
        """Bytes that this process fetched over the link, without those that other generators of the host fetched."""

    async def fetch(self, published: PolicyPublished) -> Path:
        """The policy's file on this host. Raises FetchError, DiskError, and the errors of ``ask``."""
        path = self._directory / f"{weights_name(published.policy)}-{published.checksum:08x}"
        with path.with_name(f".{path.name}.lock").open("wb") as lock:
            with trio.move_on_after(LOCK_SECONDS) as waiting:
                await self._in_thread(fcntl.flock, lock, fcntl.LOCK_EX, abandon_on_cancel=True)
            if waiting.cancelled_caught:
                raise FetchError(
                    f"another generator of this host has been downloading {path.name} for {LOCK_SECONDS:g} s"
                )
            if not path.exists():
                self._remove_older(path)
                await self._download(published, path)
        return path

    def _remove_older(self, path: Path) -> None:
        """Delete the files of older policies: engines only load newer ones."""
        for old in self._directory.iterdir():
            if old.name.lstrip(".") < path.name:
                old.unlink(missing_ok=True)

    async def _download(self, published: PolicyPublished, path: Path) -> None:
        partial = path.with_name(f".{path.name}.partial")
        with writing(partial), partial.open("ab") as file:
            done = file.tell()
            room = shutil.disk_usage(self._directory).free
            if published.size - done > room:
                raise FetchError(
                    f"{self._directory} has room for {room} of the {published.size - done} bytes of {path.name}"
                )
            checksum = await self._in_thread(checksum_of, partial)
            offsets = deque(range(done, published.size, PART_BYTES))
            asked: deque[_Asked] = deque()
            fault: Exception | None = None
            async with trio.open_nursery() as nursery:
                while (offsets or asked) and fault is None:
                    while offsets and len(asked) < AHEAD:
                        asked.append(_Asked(offsets.popleft()))
                        nursery.start_soon(self._ask_for, published.policy, asked[-1])
                    try:
                        data = await self._take(asked.popleft(), published)
                    except Exception as error:  # noqa: BLE001 - raised below, outside of the nursery's exception group
                        fault = error
                        nursery.cancel_scope.cancel()
                    else:
                        await self._in_thread(file.write, data)
                        checksum = zlib.crc32(data, checksum)
            if fault is not None:
                raise fault
        if checksum != published.checksum:
            partial.unlink()
            raise FetchError(f"{path.name} was received with checksum {checksum:08x}, not {published.checksum:08x}")
        try:
            partial.replace(path)
        except FileNotFoundError:  # another generator of the host fetches a newer policy, and removed this file
            raise FetchError(f"{path.name} was overtaken by a newer policy") from None

    async def _ask_for(self, policy: Policy, asked: _Asked) -> None:
        try:
            asked.part = await self._ask(WeightsWanted(policy, asked.offset))
        except Exception as error:  # noqa: BLE001 - `_take` raises it
            asked.fault = error
        asked.came.set()

    async def _take(self, asked: _Asked, published: PolicyPublished) -> memoryview:
        await asked.came.wait()
        if asked.part is None:
            assert asked.fault is not None
            raise asked.fault
        data = asked.part.data.data
        if len(data) != min(PART_BYTES, published.size - asked.offset):
            raise FetchError(f"the learner no longer has all of {weights_name(published.policy)}")
        if asked.part.offset != asked.offset or zlib.crc32(data) != asked.part.checksum:
            raise FetchError(f"a part of {weights_name(published.policy)} arrived with a wrong offset or checksum")
        self.fetched_bytes += len(data)
        return data
