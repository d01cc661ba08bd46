"""Checkpoints on disk: a Hugging Face directory, with a folder ``training`` from which training continues exactly.

::

    config.json, model*.safetensors, tokenizer   as `from_pretrained` and vLLM load them; adapters merged
    training/state.json                       position, step counts, the learner's data; size and checksum of every file
    training/adapter.safetensors                 the adapters, of a model trained by adapters
    training/rank-0/optimizer*.safetensors       moments and float32 master weights, in files of at most `SHARD_BYTES`
    training/rank-0/rng.safetensors              states of torch's random generators

Model loaders read every ``*.safetensors`` of the top folder as weights, so no other tensors are there. Each process of
a sharded optimizer would have its own ``rank-N``; today there is one.

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

from agent_rl.files.disk import remove, whole
from agent_rl.learning.finite import refuse_not_finite
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.policy_model import PolicyModel
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
RANK = "training/rank-0"
RNG_FILE = f"{RANK}/rng.safetensors"
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
    """Write a checkpoint. ``extra`` is stored as JSON beside the position.

    Raises TrainingStoppedError and writes nothing when weights or moments are not finite.
    """
    tensors, steps = optimizer.state()
    refuse_not_finite(model.module.state_dict() | tensors, directory)
    with whole(directory) as partial:
        (partial / RANK).mkdir(parents=True)
        model.save(partial)
        tokenizer.save_pretrained(partial)
        if model.adapted:
            adapters = {name: tensor.cpu().contiguous() for name, tensor in model.trained().items()}
            save_file(adapters, partial / ADAPTER_FILE)
        _save_sharded(tensors, partial / RANK, "optimizer")
        on_gpus = {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
        save_file({"cpu": torch.get_rng_state(), **on_gpus}, partial / RNG_FILE)
        written = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        files = {path.relative_to(partial).as_posix(): _flushed(path) for path in written}
        state = {**asdict(position), "optimizer_steps": steps, "extra": dict(extra), "files": files}
        (partial / STATE_FILE).write_text(json.dumps(state | {"checksum": checksum_of_state(state)}))
        _flushed(partial / STATE_FILE)
        for folder in (partial / RANK, partial / "training", partial):
            _flush_names(folder)
        remove(directory)  # an incomplete checkpoint of this name
    _flush_names(directory.parent)


def load_checkpoint(directory: Path, *, model: PolicyModel, optimizer: Optimizer) -> tuple[Position, dict[str, Any]]:
    """Restore weights, moments and random states; return the position and the extra data.

    Raises CheckpointError when a file is missing or changed since it was written; then nothing was restored.
    """
    state = verify(directory)
    tensors = {path: path.name for path in map(directory.joinpath, state["files"]) if path.suffix == ".safetensors"}

    def read(kind: str) -> dict[str, Tensor]:
        """All tensors in the files whose names begin with ``kind``."""
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
        raise CheckpointError(f"{directory} holds another model than the topology names: {error}") from error
    states = read("rng")
    torch.set_rng_state(states["cpu"])
    for index in range(min(len(states) - 1, torch.cuda.device_count())):
        torch.cuda.set_rng_state(states[f"cuda.{index}"], index)
    return position_of(state), state["extra"]


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
