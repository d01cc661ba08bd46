"""Tensors of a model on disk, whichever ranks hold them: each rank writes its own parts, and reads its own parts.

::

    rank 0: files with headers and room --agreed--> every rank: its parts, tensor by tensor --agreed--> whole

No process ever has the whole model: a rank has its own parts, and of these one in the type of the file. All ranks must
see the files. `write_together` is a collective: all ranks call it. A full or broken disk of one rank is raised on every
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from agent_rl.files.disk import DiskError, disk_errno, partial_of, whole
from agent_rl.learning import sharding
from agent_rl.learning.finite import TrainingStoppedError, refuse_not_finite
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.tensor_files import INDEX, Layout, TensorFiles, TensorParts, file_layouts, index_of

OwnParts: TypeAlias = Mapping[str, tuple[tuple[slice, ...], Callable[[], Tensor]]]
"""This rank's parts of tensors: where each lies in the whole, and what makes it in the type of the file."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Tensors as files hold them, and this rank's parts of them.

    Made between two steps, and used at any time: while a sharded model computes, it must not be asked for its tensors.
    """

    layout: Layout
    parts: OwnParts

    @classmethod
    def served(cls, model: PolicyModel, copies: Mapping[str, Tensor]) -> Shares:
        """The tensors that engines load. See `PolicyModel.served_parts`."""
        return cls(model.served_layout(), model.served_parts(copies))

    @classmethod
    def whole(cls, tensors: Mapping[str, Tensor]) -> Shares:
        """Tensors that this rank has whole."""
        layout = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        return cls(layout, {name: (sharding.own_part(tensor), tensor.detach) for name, tensor in tensors.items()})

    def copied(self, device: torch.device) -> Shares:
        """The same with copies of the present values, in the types of the layout."""
        copies = {name: make().to(device, copy=True).contiguous() for name, (_, make) in self.parts.items()}
        return Shares(self.layout, {name: (self.parts[name][0], copy.detach) for name, copy in copies.items()})

    @classmethod
    def trained(cls, model: PolicyModel, copies: Mapping[str, Tensor]) -> Shares:
        """The tensors that training changes; ``copies`` are of this rank's parts, and none on a rank that writes
        nothing.
        """
        parameters = dict(model.named_parameters())
        parts = {name: (sharding.own_part(parameters[name]), copy.detach) for name, copy in copies.items()}
        return cls({name: (p.shape, p.dtype) for name, p in parameters.items()}, parts)


def write_together(
    files: Mapping[Path, Layout], parts: OwnParts, ranks: Ranks, *, first: Callable[[], object] = lambda: None
) -> None:
    """Write files of tensors, each rank its own parts. As rank 0, do ``first`` before. Raises DiskError."""

    def begin() -> None:
        first()
        for path, layout in files.items():
            TensorParts.create(path, layout)

    def fill() -> None:
        for path, layout in files.items():
            with TensorParts(path, layout) as file:
                for name in layout:
                    part, make = parts[name]
                    file.write(name, part, make())

    path = next(iter(files))
    raise_together(noted(begin) if ranks.rank == 0 else 0, path, ranks)
    raise_together(noted(fill) if ranks.saves else 0, path, ranks)


def write_model(model: PolicyModel, shares: Shares, directory: Path, most_bytes: int, ranks: Ranks) -> None:
    """Write a directory that `from_pretrained` loads, in files of at most so many bytes, or one tensor.

    ``shares`` are `Shares.served`. Raises DiskError.
    """
    layout = shares.layout
    files = file_layouts(layout, most_bytes)

    def describe() -> None:
        model.module.config.save_pretrained(directory)
        model.module.generation_config.save_pretrained(directory)
        if len(files) > 1:
            size = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in layout.values())
            (directory / INDEX).write_text(index_of(files, size))

    write_together({directory / name: part for name, part in files.items()}, shares.parts, ranks, first=describe)


def write_one(shares: Shares, path: Path, ranks: Ranks) -> None:
    """Write one file, completely or not at all. Raises DiskError."""
    if ranks.rank == 0:
        with whole(path) as part:
            write_together({part: shares.layout}, shares.parts, ranks)
    else:
        write_together({partial_of(path): shares.layout}, shares.parts, ranks)


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


def refuse_together(tensors: Mapping[str, Tensor], path: Path | str, ranks: Ranks) -> None:
    """Raise TrainingStoppedError on all ranks when a tensor of one of them, meant for ``path``, is not finite."""
    fault = ""
    try:
        refuse_not_finite(tensors, path)
    except TrainingStoppedError as error:
        fault = str(error)
    if found := ranks.agreed(fault):
        raise TrainingStoppedError(found)


def own_parts(model: PolicyModel, files: TensorFiles) -> dict[str, Tensor]:
    """The parts of trained tensors that this rank holds. Raises KeyError or ValueError for those of another model."""
    parts = {}
    for name, parameter in model.named_parameters():
        if files.shape(name) != tuple(parameter.shape):
            raise ValueError(f"{name} has the shape {files.shape(name)}, and the model's has {tuple(parameter.shape)}")
        parts[name] = files.part(name, sharding.own_part(parameter))
    return parts
