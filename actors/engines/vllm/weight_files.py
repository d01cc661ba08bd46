"""Checks whether published weights fit a model: safetensors files by their header, and offered transfers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from safetensors import SafetensorError, safe_open

from actors.engines.base import EngineError
from agent_rl.messages import TransferOffer

FileSpecs: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype (safetensors' name) of every tensor of a model."""

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
"""safetensors' names of torch's dtypes."""

TIED = "lm_head.weight"
"""A file may leave this tensor out if the model's own files do: it is tied to the embedding."""


def read_specs(path: Path) -> FileSpecs:
    """The tensors of one file. Raises EngineError when the file is missing or incomplete."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {name: (tuple(found.get_shape()), str(found.get_dtype())) for name, found in slices.items()}
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read weights from {path}: {error}") from error


def model_specs(directory: Path) -> FileSpecs:
    """The tensors of all of a model's files. Raises EngineError when there are none."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{directory} holds no safetensors file")
    specs: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in files:
        specs.update(read_specs(file))
    return specs


def check_weights(path: Path, specs: FileSpecs) -> None:
    """Raise EngineError, with the first faults, unless the file holds exactly the tensors of ``specs``."""
    _check(read_specs(path), specs, str(path))


def check_offer(offer: TransferOffer, specs: FileSpecs) -> None:
    """Raise EngineError, with the first faults, unless exactly the tensors of ``specs`` are offered."""
    dtypes = [DTYPES.get(name, name) for name in offer.dtypes]
    given = dict(zip(offer.names, zip(map(tuple, offer.shapes), dtypes, strict=True), strict=True))
    _check(given, specs, "the offered policy")


def _check(given: FileSpecs, specs: FileSpecs, source: str) -> None:
    faults = [f"{name} is not in the model" for name in sorted(given.keys() - specs.keys() - {TIED})]
    faults += [f"{name} is missing" for name in sorted(specs.keys() - given.keys())]
    for name in sorted(given.keys() & specs.keys()):
        for what, ours, theirs in zip(("shape", "dtype"), specs[name], given[name], strict=True):
            if ours != theirs:
                faults.append(f"{name} has {what} {theirs}, the model's is {ours}")
    if faults:
        raise EngineError(f"{source} does not fit the model: {'; '.join(faults[:5])} ({len(faults)} faults)")
