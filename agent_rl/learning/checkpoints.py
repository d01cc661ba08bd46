"""Checkpoints on disk: a Hugging Face directory, with a folder ``training`` from which training continues exactly.

::

    config.json, model*.safetensors, tokenizer   as `from_pretrained` and vLLM load them; adapters merged
    training/state.json                       position, step counts, the learner's data; size and checksum of every file
    training/adapter.safetensors                 the adapters, of a model trained by adapters
    training/rank-N/optimizer*.safetensors       moments and float32 master weights, in files of at most `SHARD_BYTES`
    training/rank-N/rng.safetensors              states of torch's random generators

Model loaders read every ``*.safetensors`` of the top folder as weights, so no other tensors are there. Each rank that
holds a part of the optimizer writes its own ``rank-N``: of each tensor the rows that it holds. The rows of all ranks,
in their order, are the tensor, so any other number of ranks can read it.

A checkpoint is written completely or not at all, and flushed to disk before it gets its name. `verify` reads every
file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_rl.files.disk import partial_of, remove, whole
from agent_rl.learning.exporting import export, noted, own_parts, raise_together, write_trained
from agent_rl.learning.finite import TrainingStoppedError, refuse_not_finite
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.sharding import local, own_rows
from agent_rl.learning.tensor_files import TensorFiles
from agent_rl.records.checkpoint_files import (
    STATE_FILE,
    CheckpointError,
    Position,
    checksum_of_state,
    file_checksum,
    position_of,
    verify,
)

ADAPTER_FILE = "training/adapter.safetensors"
RANKS = "training/rank-"
RNG_FILE = "rng.safetensors"
SHARD_BYTES = 5 * 10**9


def save_checkpoint(
    directory: Path,
    position: Position,
    *,
    model: PolicyModel,
    optimizer: Optimizer,
    tokenizer: Any,
    extra: Mapping[str, Any],
) -> None:
    """Write a checkpoint. ``extra`` is stored as JSON beside the position. With several ranks, all call this.

    Raises TrainingStoppedError and writes nothing when weights or moments are not finite.
    """
    ranks = model.ranks
    tensors, steps = optimizer.state()
    own = {name: local(tensor) for name, tensor in model.module.state_dict().items()}
    _refuse_together(own | tensors, directory, ranks)
    if ranks.rank > 0:
        _write_parts(partial_of(directory), model, tensors)
        return
    with whole(directory) as partial:
        (partial / "training").mkdir(parents=True)
        tokenizer.save_pretrained(partial)
        _write_parts(partial, model, tensors)
        written = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        files = {path.relative_to(partial).as_posix(): _flushed(path) for path in written}
        state = {**asdict(position), "optimizer_steps": steps, "extra": dict(extra), "files": files}
        (partial / STATE_FILE).write_text(json.dumps(state | {"checksum": checksum_of_state(state)}))
        _flushed(partial / STATE_FILE)
        for folder in (*partial.glob(f"{RANKS}*"), partial / "training", partial):
            _flush_names(folder)
        remove(directory)  # an incomplete checkpoint of this name
    _flush_names(directory.parent)


def _refuse_together(tensors: Mapping[str, Tensor], directory: Path, ranks: Ranks) -> None:
    fault = ""
    try:
        refuse_not_finite(tensors, directory)
    except TrainingStoppedError as error:
        fault = str(error)
    if found := ranks.agreed(fault):
        raise TrainingStoppedError(found)


def _write_parts(partial: Path, model: PolicyModel, tensors: Mapping[str, Tensor]) -> None:
    """Write the model as rank 0, and this rank's part of the optimizer."""
    ranks = model.ranks
    ranks.agreed("")  # the folder exists from here on
    if ranks.size == 1:
        model.save(partial)
    else:
        export(model, partial, SHARD_BYTES)
    if model.adapted:
        write_trained(model, partial / ADAPTER_FILE)
    folder = partial / f"{RANKS}{ranks.shard}"

    def own_files() -> None:
        folder.mkdir()
        _save_sharded(tensors, folder, "optimizer")
        on_gpus = {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
        save_file({"cpu": torch.get_rng_state(), **on_gpus}, folder / RNG_FILE)

    raise_together(noted(own_files) if ranks.saves else 0, folder, ranks)


def load_checkpoint(directory: Path, *, model: PolicyModel, optimizer: Optimizer) -> tuple[Position, dict[str, Any]]:
    """Restore weights, moments and random states; return the position and the extra data.

    The checkpoint may have been written by any number of ranks. Raises CheckpointError when a file is missing or
    changed since it was written; then nothing was restored.
    """
    state = _verified(directory, model.ranks)
    own = {name: own_rows(parameter) for name, parameter in model.named_parameters()}

    def read(kind: str) -> TensorFiles:
        """All files whose names begin with ``kind``, rank by rank."""
        found = [Path(name) for name in state["files"] if Path(name).name.startswith(kind)]
        of_tensors = [path for path in found if path.suffix == ".safetensors"]
        return TensorFiles([directory / path for path in sorted(of_tensors, key=_by_rank)])

    try:
        with read("adapter" if model.adapted else "model") as files, read("optimizer") as kept:
            weights = own_parts(model, files)
            moments = {key: kept.rows(key, *own[key.rpartition(".")[0]]) for key in kept.names()}
        model.load(weights)
        optimizer.load(moments, state["optimizer_steps"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{directory} holds another model than the topology names: {error}") from error
    of_ranks = sorted((Path(name) for name in state["files"] if Path(name).name == RNG_FILE), key=_by_rank)
    states = load_file(directory / of_ranks[model.ranks.shard if model.ranks.shard < len(of_ranks) else 0])
    torch.set_rng_state(states["cpu"])
    for index in range(min(len(states) - 1, torch.cuda.device_count())):
        torch.cuda.set_rng_state(states[f"cuda.{index}"], index)
    return position_of(state), state["extra"]


def _verified(directory: Path, ranks: Ranks) -> dict[str, Any]:
    """The content of the state file, after rank 0 has read every file."""
    fault = ""
    state: dict[str, Any] = {}
    try:
        if ranks.rank == 0:
            state = verify(directory)
    except CheckpointError as error:
        fault = str(error)
    if found := ranks.agreed(fault):
        raise CheckpointError(found)
    return state if ranks.rank == 0 else json.loads((directory / STATE_FILE).read_text())


def _by_rank(path: Path) -> tuple[int, str]:
    """Rank 10 comes after rank 2."""
    _, _, number = path.parent.name.partition("rank-")
    return int(number or 0), path.name


def _save_sharded(tensors: Mapping[str, Tensor], directory: Path, stem: str) -> None:
    """Write tensors, in their order, to files of at most `SHARD_BYTES`; a larger tensor has its own file."""
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


def _flushed(path: Path) -> tuple[int, int]:
    """Flush a file to the disk; return its size and checksum."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return file_checksum(path)


def _flush_names(directory: Path) -> None:
    """Make the names in a directory durable; `os.fsync` of a file does not do that."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
