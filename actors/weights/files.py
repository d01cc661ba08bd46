"""Weights and models on disk: immutable files of published policies, and the model that a run starts from."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from actors.weights.chain import Chains
from agent_rl.config.topology import Topology
from agent_rl.files.disk import remove, sweep_partial, whole, writing
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import PolicyVersion, WeightsPart, WeightsWanted
from agent_rl.models.hub import HubError, is_hub_name, model_files
from agent_rl.records.checkpoint_files import CheckpointError, Position, read_position

if TYPE_CHECKING:
    from torch import Tensor
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

PART_BYTES = 1 << 20
"""Small, since a part is passed on when it has come whole: 16 hosts in a chain lag by 16 parts."""


def part_checksums(path: Path) -> list[int]:
    """The CRC-32 of each part of a file, in order."""
    with path.open("rb") as file:
        return [zlib.crc32(data) for data in iter(lambda: file.read(PART_BYTES), b"")]


def whole_checksum(checksums: Iterable[int]) -> int:
    """The checksum of a file by those of its parts, so that nobody reads the bytes twice."""
    return zlib.crc32(np.array(list(checksums), dtype="<u4").tobytes())


def nothing(offset: int, *, source: str = "", later: bool = False) -> WeightsPart:
    """An answer without data."""
    return WeightsPart(offset, 0, np.zeros(0, np.uint8), source, later)


def read_part(path: Path, offset: int, checksums: Sequence[int]) -> WeightsPart:
    """A part of a file with these checksums. Raises FileNotFoundError."""
    number, misplaced = divmod(offset, PART_BYTES)
    if misplaced or number >= len(checksums):
        return nothing(offset)
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        return WeightsPart(offset, checksums[number], np.frombuffer(file.read(PART_BYTES), np.uint8))


def fault_of(part: WeightsPart, offset: int, length: int) -> str:
    """Why a received part is not the one of ``length`` bytes from ``offset`` on; empty when it is."""
    if len(part.data) != length:
        return f"{len(part.data)} of {length} bytes came"
    if part.offset != offset or zlib.crc32(part.data.data) != part.checksum:
        return "a part arrived with a wrong offset or checksum"
    return ""


T = TypeVar("T")


def named_directory(name: str) -> Path:
    """The directory of a model that a directory or a hub name means. Raises TrainingStoppedError."""
    if not is_hub_name(name):
        return Path(name).expanduser()
    try:
        return model_files(name)  # already in the cache: `run` on this host has fetched it
    except HubError as error:
        raise TrainingStoppedError(str(error)) from error


def model_directory(topology: Topology, run_directory: Path) -> Path:
    """The Hugging Face directory that the run starts from. The first caller initialises a small architecture.

    The model depends only on the topology and the run's seed, so actors on hosts without a shared disk make the same
    one.
    """
    if topology.model.path is not None:
        return named_directory(topology.model.path)
    assert topology.model.initialise is not None
    directory = run_directory / "model"
    with writing(run_directory):
        run_directory.mkdir(parents=True, exist_ok=True)
    with (run_directory / ".model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            from agent_rl.learning.tiny import initialise_model

            with whole(directory) as partial:
                initialise_model(topology.model.initialise, partial, topology.run.seed)
    return directory


def weights_name(policy: PolicyVersion) -> str:
    """The name of the policy's weight file. The names sort in the order of policies."""
    return f"policy-{policy.epoch:04d}-{policy.version:08d}.safetensors"


class PublishedWeights:
    """The weight files of a run: one immutable file for each policy, deleted when no engine can need it any more."""

    def __init__(
        self, directory: Path, write: Callable[[dict[str, Tensor], Path], None], *, fetched: bool = False
    ) -> None:
        """``fetched``: generators fetch the files over links, and therefore need sizes and checksums."""
        self._directory = directory
        self._write = write
        self._fetched = fetched
        self._checksums: dict[PolicyVersion, list[int]] = {}
        """The checksums of the parts of each policy's file, computed once, at write."""
        self._chains = Chains()
        sweep_partial(directory)

    def keep(self, policy: PolicyVersion, weights: dict[str, Tensor] | Path) -> tuple[str, int, int]:
        """Write the policy's file; returns URI and, if ``fetched``, size and checksum. Raises errors of ``write``.

        ``weights`` may be the `path` of the file where that is written already.

        The directory may be a link to a folder that hosts share: the URI is that of the folder.
        """
        path = self.path(policy)
        if not isinstance(weights, Path):
            self._write(weights, path)
        if not self._fetched:
            return path.resolve().as_uri(), 0, 0
        checksums = self._checksums[policy] = part_checksums(path)
        return path.resolve().as_uri(), path.stat().st_size, whole_checksum(checksums)

    def part(self, policy: PolicyVersion, offset: int) -> WeightsPart:
        """A part of a policy's file; an empty part when the file is gone or ends before ``offset``."""
        try:
            return read_part(self.path(policy), offset, self._checksums.get(policy, ()))
        except FileNotFoundError:
            return nothing(offset)

    async def hand_out(
        self, wanted: WeightsWanted, asker: str, in_thread: Callable[..., Awaitable[WeightsPart]]
    ) -> WeightsPart:
        """The part, read in a thread, or the generator that sends it to ``asker``."""
        if wanted.passes_on and (source := self._chains.source(wanted.policy, asker, wanted.failed)):
            return nothing(wanted.offset, source=source)
        return await in_thread(self.part, wanted.policy, wanted.offset)

    def gone(self, generator: str) -> None:
        """A generator is lost, or has left: it passes nothing on."""
        self._chains.lost(generator)

    def path(self, policy: PolicyVersion) -> Path:
        """The path of the policy's weight file."""
        return self._directory / weights_name(policy)

    def clean(self, oldest: PolicyVersion) -> None:
        """Delete files older than ``oldest``, the oldest policy that an engine serves. Engines only load newer ones."""
        keep = self.path(oldest).name
        self._checksums = {policy: sums for policy, sums in self._checksums.items() if policy >= oldest}
        for path in self._directory.glob("policy-*.safetensors"):
            if path.name < keep:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is over: delete all files. The checkpoints hold the weights. A link to the directory stays."""
        with suppress(OSError):
            for path in self._directory.glob("policy-*.safetensors"):
                path.unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)  # a link is left alone


class Checkpoints:
    """The checkpoints of a run: one directory for each position. The names sort in the order of positions.

    A checkpoint within a supervised stage is always deleted at the next checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        sweep_partial(directory)

    def path(self, position: Position) -> Path:
        """The directory of the position's checkpoint."""
        within = f"-step-{position.step:06d}" if position.step else ""
        return self._directory / f"version-{position.version:06d}-stage-{position.stage:02d}{within}"

    def positions(self) -> list[Position]:
        """The positions of complete checkpoints, oldest first."""
        found = [read_position(path) for path in sorted(self._directory.glob("version-*"))]
        return [position for position in found if position is not None]

    def newest(self) -> Path | None:
        """The checkpoint from which a run continues; None when there is none."""
        positions = self.positions()
        return self.path(positions[-1]) if positions else None

    def restore(self, take_up: Callable[[Path], T], told: Callable[[str], None]) -> T | None:
        """The result of ``take_up`` for the newest checkpoint that it accepts; None when the run has no checkpoint.

        A refused one is renamed, and ``told`` gets the reason. Raises TrainingStoppedError when all are refused.
        """
        faults = []
        for path in sorted(self._directory.glob("version-*"), reverse=True):
            try:
                return take_up(path)
            except CheckpointError as error:
                aside = path.with_name(f"damaged-{path.name}")
                remove(aside)
                path.rename(aside)
                faults.append(str(error))
                told(f"{error}; it is now {aside.name}, and the run goes on from the checkpoint before it")
        if faults:
            raise TrainingStoppedError(
                f"no checkpoint of this run is whole: {'; '.join(faults)}. Put one back in {self._directory}, or start "
                "again in another run.directory"
            )
        return None

    def remove_all_but(self, keep: int, best: int | None = None) -> None:
        """Delete the oldest checkpoints. That of version ``best`` is renamed, and stays until there is a better one."""
        positions = self.positions()
        within = [position for position in positions if position.step]
        for position in within[:-1] if positions[-1:] == within[-1:] else within:
            _delete(self.path(position))
        for position in [position for position in positions if not position.step][:-keep]:
            path = self.path(position)
            if position.version != best:
                _delete(path)
                continue
            for old in self._directory.glob("best-*"):
                _delete(old)
            path.rename(path.with_name(f"best-{path.name}"))

    def of_version(self, version: int | None) -> Path | None:
        """The checkpoint of a version, also under the name for the best one."""
        found = [*self._directory.glob("best-version-*"), *self._directory.glob("version-*")]
        return next(
            (path for path in found if (at := read_position(path)) and (at.version, at.step) == (version, 0)), None
        )


def _delete(directory: Path) -> None:
    """Rename a checkpoint, then delete it: if the process is killed in between, the next process sweeps the rest."""
    partial = directory.with_name(f".{directory.name}.partial")
    remove(partial)
    directory.rename(partial)
    remove(partial)
