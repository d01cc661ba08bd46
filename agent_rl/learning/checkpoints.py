"""Checkpoints on disk: a Hugging Face directory, with a folder ``training`` from which training continues exactly.

::

    config.json, model*.safetensors, tokenizer   as `from_pretrained` and vLLM load them; adapters merged
    training/state.json                       position, step counts, the learner's data; size and checksum of every file
    training/adapter.safetensors                 the adapters, of a model trained by adapters
    training/rank-N/optimizer*.safetensors       moments and float32 master weights, in files of at most `SHARD_BYTES`
    training/rank-N/rng.safetensors              states of torch's random generators

Model loaders read every ``*.safetensors`` of the top folder as weights, so no other tensors are there. Each rank that
holds a part of the optimizer writes its own ``rank-N``: of each tensor the part that it holds, and where the part
begins in the whole (`agent_rl.learning.tensor_files`). So any other number and layout of ranks can read it. The files
of the model are made by all of these ranks: each writes its parts.

::

    between two steps: weights, optimizer, random states --copied or lent--> StagedCheckpoint
    beside the next steps, in a thread:                              `--write--> files --flushed--> renamed: whole

A checkpoint is written completely or not at all, and flushed to disk before it gets its name. `verify` reads every
file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_rl.files.disk import flush, partial_of, remove, whole
from agent_rl.learning.exporting import (
    Shares,
    noted,
    own_parts,
    raise_together,
    refuse_together,
    write_model,
    write_together,
)
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.sharding import own_part
from agent_rl.learning.tensor_files import STARTS, TensorFiles
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
WRITE_SECONDS = 1800.0
"""The longest that an update waits for a checkpoint that is written from its weights."""


class StagedCheckpoint:
    """All that a checkpoint holds, of the time between two steps. Training goes on while a thread writes it (`write`).

    Copies take as much host memory as the checkpoint takes of the disk, until they are dropped. What is ``lent`` takes
    none: whoever changes weights or moments calls `give_back` first. Of several ranks each has copies of its own parts,
    in float32. All of them call the other methods, `write` in a thread of its own.
    """

    def __init__(
        self,
        directory: Path,
        position: Position,
        *,
        model: PolicyModel,
        optimizer: Optimizer,
        tokenizer: Any,
        extra: Mapping[str, Any],
        lent: bool = False,
    ) -> None:
        """``extra`` is stored as JSON beside the position. No other thread may use ``tokenizer``.

        ``lent``: of one rank on a processor, whose tensors are in host memory.
        """
        self._lock = threading.Lock()
        self._lent, self._written = lent, threading.Event()
        self._directory, self._position = directory, position
        self._extra = json.loads(json.dumps(dict(extra)))  # the caller's lists may grow
        self._model, self._tokenizer, self._ranks = model, tokenizer, model.ranks.beside
        several, copied = model.ranks.size > 1, model.ranks.saves
        self._tensors, self._steps = optimizer.state(copy=not lent) if copied else ({}, {})
        own = {name: own_part(parameter) for name, parameter in model.named_parameters()}
        self._starts = {key: [one.start for one in own[key.rpartition(".")[0]]] for key in self._tensors}
        on_gpus = {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
        self._random = {"cpu": torch.get_rng_state(), **on_gpus}
        self._trained: dict[str, Tensor] = {}
        if copied and (several or model.adapted):
            for name, tensor in model.trained().items():
                master = self._tensors.get(f"{name}.master") if several else None
                self._trained[name] = tensor.to("cpu", copy=not lent) if master is None else master
        self._shares = Shares.served(model, self._trained) if several else None
        self._adapters = Shares.trained(model, self._trained) if model.adapted else None
        fresh = lent or model.adapted  # adapters are merged into new tensors, and the others are never trained
        served = () if several else model.served()
        self._served = {name: tensor.to("cpu", copy=not fresh) for name, tensor in served}

    def write(self) -> None:
        """Write the checkpoint, completely or not at all.

        Raises DiskError, and TrainingStoppedError when weights or moments are not finite; then nothing was written.
        """
        with self._lock:
            self._lent = False
        try:
            self._write()
        finally:
            self._written.set()

    def give_back(self) -> None:
        """Wait until what was lent is written; copy it where that has not begun. Raises TrainingStoppedError."""
        with self._lock:
            if self._lent:
                self._lent = False
                for tensors in (self._tensors, self._trained, self._served):
                    tensors |= {name: tensor.clone() for name, tensor in tensors.items()}
                self._adapters = self._adapters and Shares.trained(self._model, self._trained)
                return
        if not self._written.wait(WRITE_SECONDS):
            raise TrainingStoppedError(f"{self._directory} is not written after {WRITE_SECONDS:g} s: is the disk well?")

    def _write(self) -> None:
        directory, ranks = self._directory, self._ranks
        refuse_together(self._served | self._trained | self._tensors, directory, ranks)
        if ranks.rank > 0:
            self._write_parts(partial_of(directory))
            return
        with whole(directory) as partial:
            (partial / "training").mkdir(parents=True)
            self._tokenizer.save_pretrained(partial)
            files = self._write_parts(partial)
            state = {**asdict(self._position), "optimizer_steps": self._steps, "extra": self._extra, "files": files}
            (partial / STATE_FILE).write_text(json.dumps(state | {"checksum": checksum_of_state(state)}))
            remove(directory)  # an incomplete checkpoint of this name

    def _write_parts(self, partial: Path) -> dict[str, tuple[int, int]]:
        """Write the model and the optimizer, each rank its parts; returns size and checksum of every file by name."""
        model, ranks = self._model, self._ranks
        ranks.agreed("")  # the folder exists from here on
        if self._shares is None:
            model.save(partial, self._served)
        else:
            write_model(model, self._shares, partial, SHARD_BYTES, ranks)
        if self._adapters is not None:
            write_together({partial / ADAPTER_FILE: self._adapters.layout}, self._adapters.parts, ranks)
        folder = partial / f"{RANKS}{ranks.shard}"

        def own_files() -> None:
            folder.mkdir()
            _save_sharded(self._tensors, folder, "optimizer", self._starts)
            save_file(self._random, folder / RNG_FILE)

        raise_together(noted(own_files) if ranks.saves else 0, folder, ranks)
        return _flushed_together(partial, ranks)


def _flushed_together(partial: Path, ranks: Ranks) -> dict[str, tuple[int, int]]:
    """Flush all files to the disk, each rank some of them; returns their sizes and checksums by name."""
    seen = [path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()]
    # of all ranks: another host may list files of this one late
    names = sorted({name for message in ranks.gather(json.dumps(seen).encode()) for name in json.loads(message)})
    found: dict[str, tuple[int, int]] = {}

    def flush_own() -> None:
        for name in names[ranks.rank :: ranks.size]:
            flush(partial / name)
            found[name] = file_checksum(partial / name)

    raise_together(noted(flush_own), partial, ranks)
    parts = [json.loads(message) for message in ranks.gather(json.dumps(found).encode())]
    return dict(sorted((name, tuple(file)) for part in parts for name, file in part.items()))


def load_checkpoint(directory: Path, *, model: PolicyModel, optimizer: Optimizer) -> tuple[Position, dict[str, Any]]:
    """Restore weights, moments and random states; return the position and the extra data.

    The checkpoint may have been written by any number of ranks. Raises CheckpointError when a file is missing or
    changed since it was written; then nothing was restored.
    """
    state = _verified(directory, model.ranks)
    own = {name: own_part(parameter) for name, parameter in model.named_parameters()}

    def read(kind: str) -> TensorFiles:
        """All files whose names begin with ``kind``, rank by rank."""
        found = [Path(name) for name in state["files"] if Path(name).name.startswith(kind)]
        of_tensors = [path for path in found if path.suffix == ".safetensors"]
        return TensorFiles([directory / path for path in sorted(of_tensors, key=_by_rank)])

    try:
        with read("adapter" if model.adapted else "model") as files, read("optimizer") as kept:
            weights = own_parts(model, files)
            moments = {key: kept.part(key, own[key.rpartition(".")[0]]) for key in kept.names()}
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


def _save_sharded(
    tensors: Mapping[str, Tensor], directory: Path, stem: str, starts: Mapping[str, Sequence[int]]
) -> None:
    """Write tensors, in their order, to files of at most `SHARD_BYTES`; a larger tensor has its own file.

    ``starts``: where each begins in the whole tensor.
    """
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
        of_shard = {key: starts[key] for key in shard}
        save_file(shard, directory / f"{name}.safetensors", {STARTS: json.dumps(of_shard)})
