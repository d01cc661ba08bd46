"""Tensors of a model on disk, whichever ranks hold them: written tensor by tensor by rank 0, and read by rows.

Every function is a collective: all ranks call it. A full or broken disk is noted while the others still gather, and
raised on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from agent_rl.files.disk import DiskError, disk_errno
from agent_rl.learning import sharding
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.tensor_files import INDEX, TensorFiles, TensorWriter, file_layouts, index_of

Layout = Mapping[str, tuple[Sequence[int], torch.dtype]]


def export(model: PolicyModel, directory: Path, most_bytes: int) -> None:
    """Write a directory that `from_pretrained` loads, with one tensor at a time in memory.

    Files have at most so many bytes, or one tensor. Raises DiskError.
    """
    layout = model.served_layout()
    files = file_layouts(layout, most_bytes)
    tensors = iter(model.served())
    number = 0
    for name, part in files.items():
        number = number or write(part, ((each, next(tensors)[1]) for each in part), directory / name, model.ranks)
    if model.ranks.rank == 0:
        model.module.config.save_pretrained(directory)
        model.module.generation_config.save_pretrained(directory)
        if len(files) > 1:
            size = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in layout.values())
            (directory / INDEX).write_text(index_of(files, size))
    raise_together(number, directory, model.ranks)


def write_trained(model: PolicyModel, path: Path) -> None:
    """Write the whole tensors that training changes to one file. Raises DiskError."""
    parameters = dict(model.named_parameters())
    layout = {name: (p.shape, p.dtype) for name, p in parameters.items()}
    whole = ((name, sharding.gathered(p.detach())) for name, p in parameters.items())
    raise_together(write(layout, whole, path, model.ranks), path, model.ranks)


def write(layout: Layout, tensors: Iterable[tuple[str, Tensor]], path: Path, ranks: Ranks) -> int:
    """Take all ``tensors``, and as rank 0 write them to a file; returns the error number of a bad disk, or 0."""
    writer: list[TensorWriter] = []
    number = noted(lambda: writer.append(TensorWriter(path, layout))) if ranks.rank == 0 else 0
    for _, tensor in tensors:
        if writer and not number:
            number = noted(lambda tensor=tensor: writer[0].write(tensor))  # type: ignore[misc]
    return number or (noted(writer[0].close) if writer else 0)


def noted(work: Callable[[], object]) -> int:
    """Do something; returns the error number of a bad disk, or 0. Other errors are raised."""
    try:
        work()
    except Exception as error:  # safetensors raises types of its own
        number = disk_errno(error)
        if number is None:
            raise
        return number
    return 0


def raise_together(number: int, path: Path, ranks: Ranks) -> None:
    """Raise DiskError on all ranks when one of them has an error number. All ranks wait for each other."""
    if found := int(ranks.greatest(number)):
        raise DiskError(path, found)


def own_parts(model: PolicyModel, files: TensorFiles) -> dict[str, Tensor]:
    """The parts of trained tensors that this rank holds. Raises KeyError or ValueError for those of another model."""
    parts = {}
    for name, parameter in model.named_parameters():
        if files.shape(name) != tuple(parameter.shape):
            raise ValueError(f"{name} has the shape {files.shape(name)}, and the model's has {tuple(parameter.shape)}")
        parts[name] = files.rows(name, *sharding.own_rows(parameter))
    return parts
