"""Weights over links: a generator without a disk shared with the learner fetches each policy's file in parts.

::

    generator --WeightsWanted (call)--> learner: sends the part, or names the generator that fetched before this one
              --WeightsWanted (call)--> that generator: sends the part as soon as it has it
              <--WeightsPart-----------

So hosts form a chain (`actors.weights.chain`), and parts pass along it while they come. When the generator before this
one ends or does not answer, this one asks the learner for another and goes on from where it is.

The generators of one host share the fetched files. One generator at a time downloads a policy and holds a lock. The
kernel releases the lock when the generator dies, and the next one continues the download. A file gets its final name
only when the file is complete and its checksum matches the learner's. So no engine ever reads an incomplete file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import trio

from actors.weights import files
from actors.weights.chain import LEARNER
from actors.weights.files import weights_name
from agent_rl.files.disk import writing
from agent_rl.files.leftovers import PREFIX, Claim, claim
from agent_rl.messages import PolicyPublished, WeightsPart, WeightsWanted
from transport import TransportError

LINK = "weights"
"""The generator's link to the learner, where the topology has one."""
AHEAD = 16
"""Requests in flight at once: enough to keep the link busy while a part is written and passed on."""
LOCK_SECONDS = 120.0
"""Another generator's download is waited for until it has not grown for so long. Then this generator tries again, if
the policy is still the newest."""
HOLD_SECONDS = 2.0
"""A generator that is asked for a part that it lacks answers after so long that the part comes later."""
SOURCE_SECONDS = 20.0
"""How long the answer of another generator may take, waiting included. Then the learner is asked for another source."""
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


@dataclass(eq=False, slots=True)
class _Asked:
    offset: int
    came: trio.Event = field(default_factory=trio.Event)
    part: WeightsPart | None = None
    fault: Exception | None = None


class _Download:
    """A policy's file on its way to this process, or here since; other generators may ask for its parts."""

    def __init__(self, published: PolicyPublished, path: Path) -> None:
        self.policy = published.policy
        self.size = published.size
        self.paths = path.with_name(f".{path.name}.partial"), path
        self.checksums: list[int] = []
        """The checksums of the parts that are here."""
        self.source: str | None = None
        """Who sends; None: the learner must be asked."""
        self.failed = LEARNER
        self.asking = trio.Lock()
        self.ended = False
        """No part comes any more: all are here, or the download failed or was given up."""
        self._grown = trio.Event()

    def grow(self, checksum: int) -> None:
        """A part was written."""
        self.checksums.append(checksum)
        self._wake()

    def end(self) -> None:
        """No part comes any more."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = trio.Event()

    async def until(self, offset: int) -> bool:
        """Wait until the part is here, but not long. False when it comes later."""
        with trio.move_on_after(HOLD_SECONDS):
            while not (self.has(offset) or self.ended):
                await self._grown.wait()
        return self.has(offset) or self.ended

    def has(self, offset: int) -> bool:
        """Whether the part is here."""
        return offset < len(self.checksums) * files.PART_BYTES

    def read(self, offset: int) -> WeightsPart:
        """The part, in a thread; without data when a newer policy took the file's place."""
        for path in self.paths if self.has(offset) else ():
            with suppress(FileNotFoundError):
                return files.read_part(path, offset, self.checksums)
        return files.nothing(offset)


class FetchedWeights:
    """Fetches policies into a directory that a host's generators share, and passes their parts on.

    ``ask`` calls a generator by its name, or the learner, with retries.
    """

    def __init__(
        self,
        directory: Path,
        ask: Callable[[str, WeightsWanted], Awaitable[WeightsPart]],
        in_thread: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync,
    ) -> None:
        self._directory = directory
        self._ask = ask
        self._in_thread = in_thread
        self._newest: _Download | None = None
        self.fetched_bytes = 0
        """Bytes that this process fetched over the link, without those that other generators of the host fetched."""
        self.passed_bytes = 0
        """Bytes that this process sent to generators of other hosts."""

    @property
    def source(self) -> str:
        """The generator from which the newest download came; empty: the learner, or another generator of this host."""
        return (self._newest.source if self._newest is not None else None) or LEARNER

    async def fetch(self, published: PolicyPublished) -> Path:
        """The policy's file on this host. Raises FetchError, DiskError, and the errors of ``ask``."""
        path = self._directory / f"{weights_name(published.policy)}-{published.checksum:08x}"
        if self._newest is not None and self._newest.policy != published.policy:
            self._newest.end()
        with path.with_name(f".{path.name}.lock").open("wb") as lock:
            await self._locked(lock, path)
            if not path.exists():
                self._remove_older(path)
                download = self._newest = _Download(published, path)
                try:
                    await self._download(download, published, path)
                finally:
                    download.end()
        return path

    async def part(self, wanted: WeightsWanted) -> WeightsPart:
        """A part for another generator, as soon as it is here; without data when it comes later, or not at all."""
        download = self._newest
        if download is None or download.policy != wanted.policy:
            return files.nothing(wanted.offset)
        if not await download.until(wanted.offset):
            return files.nothing(wanted.offset, later=True)
        part: WeightsPart = await self._in_thread(download.read, wanted.offset)
        self.passed_bytes += len(part.data)
        return part

    async def _locked(self, lock: IO[bytes], path: Path) -> None:
        """Take the lock. Raises FetchError when the generator that holds it does not get on."""
        partial = path.with_name(f".{path.name}.partial")
        stalled = False

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal stalled
            before = -1
            while before < (size := _size(partial)):
                before = size
                await trio.sleep(LOCK_SECONDS)
            stalled = True
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await self._in_thread(fcntl.flock, lock, fcntl.LOCK_EX, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        if stalled:
            raise FetchError(
                f"another generator of this host has been downloading {path.name}, and has got nothing for "
                f"{LOCK_SECONDS:g} s"
            )

    def _remove_older(self, path: Path) -> None:
        """Delete the files of older policies: engines only load newer ones."""
        for old in self._directory.iterdir():
            if old.name.lstrip(".") < path.name:
                old.unlink(missing_ok=True)

    async def _download(self, download: _Download, published: PolicyPublished, path: Path) -> None:
        partial, _ = download.paths
        with writing(partial), partial.open("ab", buffering=0) as file:
            done = file.tell() // files.PART_BYTES * files.PART_BYTES
            file.truncate(done)  # the last part may have been cut
            room = shutil.disk_usage(self._directory).free
            if published.size - done > room:
                raise FetchError(
                    f"{self._directory} has room for {room} of the {published.size - done} bytes of {path.name}"
                )
            for checksum in await self._in_thread(files.part_checksums, partial):
                download.grow(checksum)
            await self._fill(download, file, range(done, published.size, files.PART_BYTES))
        found = files.whole_checksum(download.checksums)
        if found != published.checksum:
            partial.unlink()
            raise FetchError(f"{path.name} was received with checksum {found:08x}, not {published.checksum:08x}")
        try:
            partial.replace(path)
        except FileNotFoundError:  # another generator of the host fetches a newer policy, and removed this file
            raise FetchError(f"{path.name} was overtaken by a newer policy") from None

    async def _fill(self, download: _Download, file: IO[bytes], missing: range) -> None:
        """Ask for the missing parts, some ahead, and write them in order."""
        offsets = deque(missing)
        asked: deque[_Asked] = deque()
        fault: Exception | None = None
        async with trio.open_nursery() as nursery:
            while (offsets or asked) and fault is None:
                while offsets and len(asked) < AHEAD:
                    asked.append(_Asked(offsets.popleft()))
                    nursery.start_soon(self._ask_for, download, asked[-1])
                try:
                    part = await self._take(asked.popleft())
                    await self._in_thread(_write, file, part)
                except Exception as error:  # noqa: BLE001 - raised below, outside of the nursery's exception group
                    fault = error
                    nursery.cancel_scope.cancel()
                else:
                    self.fetched_bytes += len(part.data)
                    download.grow(part.checksum)
        if fault is not None:
            raise fault

    @staticmethod
    async def _take(asked: _Asked) -> WeightsPart:
        await asked.came.wait()
        if asked.part is None:
            assert asked.fault is not None
            raise asked.fault
        return asked.part

    async def _ask_for(self, download: _Download, asked: _Asked) -> None:
        try:
            asked.part = await self._get(download, asked.offset)
        except Exception as error:  # noqa: BLE001 - `_take` raises it
            asked.fault = error
        asked.came.set()

    async def _get(self, download: _Download, offset: int) -> WeightsPart:
        """A valid part, from whoever has it."""
        length = min(files.PART_BYTES, download.size - offset)
        while True:
            source = download.source
            if source is None or source == LEARNER:
                part = await self._of_learner(download, offset)
                if part is None:
                    continue
                if not part.data.size:
                    raise FetchError(f"the learner no longer has all of {weights_name(download.policy)}")
                if fault := files.fault_of(part, offset, length):
                    raise FetchError(f"{weights_name(download.policy)} of the learner: {fault}")
                return part
            try:
                part = await self._ask(source, WeightsWanted(download.policy, offset))
            except TransportError:
                pass  # the learner is told below that this source failed, and names another
            else:
                if part.later:
                    continue
                if not files.fault_of(part, offset, length):
                    return part
            if download.source == source:
                download.source, download.failed = None, source

    async def _of_learner(self, download: _Download, offset: int) -> WeightsPart | None:
        """A part of the learner; None when another generator is to be asked. One task at a time asks who that is."""
        if download.source == LEARNER:
            part = await self._ask(LEARNER, WeightsWanted(download.policy, offset, passes_on=True))
        else:
            async with download.asking:
                if download.source is not None:  # another task has asked meanwhile
                    return None
                wanted = WeightsWanted(download.policy, offset, passes_on=True, failed=download.failed)
                part = await self._ask(LEARNER, wanted)
                download.source = part.source
        if part.source:
            download.source = part.source
            return None
        return part


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _write(file: IO[bytes], part: WeightsPart) -> None:
    """Write all of a part: an unbuffered file may take less at once."""
    data = part.data.data
    while data:
        data = data[file.write(data) :]
