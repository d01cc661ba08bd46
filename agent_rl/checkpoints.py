"""Checkpoints on disk: a Hugging Face directory, and beside the model a folder with what training needs to go on exactly.

::

    config.json, model*.safetensors, tokenizer   as `from_pretrained` and vLLM load them; adapters merged
    training/state.json                          position, step counts, what the learner adds; size and checksum of every other file
    training/adapter.safetensors                 of a model trained by adapters, these alone
    training/rank-0/optimizer*.safetensors       moments and float32 master weights, in files of at most `SHARD_BYTES`
    training/rank-0/rng.safetensors              states of torch's random generators

Loaders of models take every ``*.safetensors`` of the folder they are given for weights, so nothing else lies there. A process of
a sharded optimizer has its own ``rank-N``; there is one today. Checkpoints of earlier versions, which kept everything in one folder
and the state in ``trainer.json``, are read as well.

A checkpoint appears whole or not at all, and is flushed to disk before it appears. `verify` reads all of it again.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.disk import remove, whole
from agent_rl.finite import refuse_not_finite

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.optimizer import Optimizer
    from agent_rl.policy_model import PolicyModel

STATE_FILE = "training/state.json"
ADAPTER_FILE = "training/adapter.safetensors"
RANK = "training/rank-0"
RNG_FILE = f"{RANK}/rng.safetensors"
OLD_STATE_FILE = "trainer.json"
SHARD_BYTES = 5 * 10**9
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands: the stage, the version it began at, the version (RL steps) reached; in a supervised stage its steps so far."""

    stage: int
    stage_version: int
    version: int
    step: int = 0


class CheckpointError(Exception):
    """A checkpoint cannot be gone on from; the message names the file and what is wrong with it."""


def save_checkpoint(
    directory: Path,
    position: Position,
    *,
    model: PolicyModel,
    optimizer: Optimizer,
    tokenizer: Any,
    extra: Mapping[str, Any],
) -> None:
    """Write a checkpoint. ``extra`` is kept beside the position, as JSON.

    Raises TrainingStoppedError, and writes nothing, when weights or moments are not finite.
    """
    from safetensors.torch import save_file

    tensors, steps = optimizer.state()
    refuse_not_finite(model.module.state_dict() | tensors, directory)
    with whole(directory) as partial:
        (partial / RANK).mkdir(parents=True)
        model.save(partial)
        tokenizer.save_pretrained(partial)
        if model.adapted:
            save_file(_on_host(model.trained()), partial / ADAPTER_FILE)
        _save_sharded(tensors, partial / RANK, "optimizer")
        save_file(_rng_states(), partial / RNG_FILE)
        written = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        files = {path.relative_to(partial).as_posix(): _flushed(path) for path in written}
        state = {**asdict(position), "optimizer_steps": steps, "extra": dict(extra), "files": files}
        (partial / STATE_FILE).write_text(json.dumps(state | {"checksum": _checksum_of_state(state)}))
        _flushed(partial / STATE_FILE)
        for folder in (partial / RANK, partial / "training", partial):
            _flush_names(folder)
        remove(directory)  # what is left of a directory that is no whole checkpoint
    _flush_names(directory.parent)


def load_checkpoint(directory: Path, *, model: PolicyModel, optimizer: Optimizer) -> tuple[Position, dict[str, Any]]:
    """Take up weights, moments and random states; the position, and what was kept beside it.

    Raises CheckpointError, having changed nothing, when a file is missing or not what was written.
    """
    from safetensors.torch import load_file

    state = verify(directory)
    tensors = {path: path.name for path in map(directory.joinpath, state["files"]) if path.suffix == ".safetensors"}

    def read(kind: str) -> dict[str, Tensor]:
        """All tensors in files whose names begin so, wherever the checkpoint's version puts them."""
        return {
            key: value
            for path, name in tensors.items()
            if name.startswith(kind)
            for key, value in load_file(path).items()
        }

    weights, moments = read("adapter" if model.adapted else "model"), read("optimizer")
    names = model.trained().keys()
    try:
        model.load({name: weights[name] for name in names})
        optimizer.load(moments, state["optimizer_steps"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{directory} is not of the model that the topology names: {error}") from error
    _restore_rng(read("rng"))
    return _position(state), state["extra"]


def read_position(directory: Path) -> Position | None:
    """The position of a checkpoint; None when the folder is not a whole one."""
    found = read_state(directory)
    return None if found is None else found[0]


def read_state(directory: Path) -> tuple[Position, dict[str, Any]] | None:
    """The position of a checkpoint and what is kept beside it; None when the folder is not a whole one."""
    try:
        state = _read_state(state_file(directory))
        return _position(state), dict(state.get("extra", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_state(path: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError when it is not what was written; states of earlier versions have no checksum."""
    state: dict[str, Any] = json.loads(path.read_text())
    written = state.pop("checksum", None)
    if written not in {None, _checksum_of_state(state)}:
        raise ValueError("it is not what was written: its checksum differs")
    return state


def _checksum_of_state(state: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(state).encode())


def state_file(directory: Path) -> Path:
    """The file that says what a checkpoint consists of; a Hugging Face model that no run has saved lacks it."""
    old = directory / OLD_STATE_FILE
    return old if old.is_file() else directory / STATE_FILE


def verify(directory: Path) -> dict[str, Any]:
    """What the state file holds. Raises CheckpointError when a file is missing, cut, or not what was written."""
    path = state_file(directory)
    try:
        state = _read_state(path)
        files = dict(state["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for name, (size, checksum) in files.items():
        try:
            found = _checksum(directory / name)
        except OSError as error:
            raise CheckpointError(f"{directory / name} cannot be read: {error.strerror}") from error
        if found[0] != size:
            raise CheckpointError(f"{directory / name} is {found[0]} bytes long, {size} were written")
        if found[1] != checksum:
            raise CheckpointError(f"{directory / name} is not what was written: its checksum differs")
    return state


def _position(state: Mapping[str, Any]) -> Position:
    return Position(state["stage"], state["stage_version"], state["version"], state.get("step", 0))


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _save_sharded(tensors: Mapping[str, Tensor], directory: Path, stem: str) -> None:
    """In as few files of at most `SHARD_BYTES` as their order allows; a larger tensor has one of its own."""
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = tensor
        room -= tensor.nbytes
    for number, shard in enumerate(shards):
        name = stem if len(shards) == 1 else f"{stem}-{number:05d}"
        save_file(shard, directory / f"{name}.safetensors")


def _rng_states() -> dict[str, Tensor]:
    import torch

    states = {"cpu": torch.get_rng_state()}
    return states | {f"cuda.{index}": state for index, state in enumerate(_cuda_states())}


def _cuda_states() -> list[Tensor]:
    import torch

    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _restore_rng(states: Mapping[str, Tensor]) -> None:
    import torch

    torch.set_rng_state(states["cpu"])
    for index in range(min(len(states) - 1, torch.cuda.device_count())):
        torch.cuda.set_rng_state(states[f"cuda.{index}"], index)


def _flushed(path: Path) -> tuple[int, int]:
    """Size and checksum of a file, once it is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return _checksum(path)


def _flush_names(directory: Path) -> None:
    """Make the names in a directory durable, as `os.fsync` of a file does not."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum(path: Path) -> tuple[int, int]:
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return size, checksum
