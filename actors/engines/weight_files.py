"""Checks whether published weights fit a model: safetensors files by their header, and offered transfers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from safetensors import SafetensorError, safe_open

from actors.engines.base import EngineError
from agent_rl.messages import TransferOffer

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
"""safetensors' names of torch's dtypes."""
LM_HEAD = "lm_head.weight"


class TensorSpec(NamedTuple):
    """One tensor of a model. ``dtype``: safetensors' name. A file with one of the ``aliases`` may leave it out."""

    shape: tuple[int, ...]
    dtype: str
    aliases: frozenset[str] = frozenset()


TensorSpecs: TypeAlias = Mapping[str, TensorSpec]


def read_specs(path: Path) -> TensorSpecs:
    """The tensors of one file. Raises EngineError when the file is missing or incomplete."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {name: TensorSpec(tuple(each.get_shape()), str(each.get_dtype())) for name, each in slices.items()}
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read weights from {path}: {error}") from error


def model_specs(directory: Path) -> TensorSpecs:
    """The tensors of all of a model's files. Raises EngineError when there are none.

    The files of a model with tied weights leave out the output layer, and a published file may contain it.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{directory} holds no safetensors file")
    specs = {name: spec for file in files for name, spec in read_specs(file).items()}
    embedding = next((name for name in specs if name.endswith("embed_tokens.weight")), None)
    if embedding is not None:
        specs.setdefault(LM_HEAD, specs[embedding]._replace(aliases=frozenset({embedding})))
    return specs


def check_file(path: Path, specs: TensorSpecs) -> None:
    """Raise EngineError, with the first faults, unless the file has the tensors of ``specs``."""
    _check(read_specs(path), specs, str(path))


def check_offer(offer: TransferOffer, specs: TensorSpecs) -> None:
    """Raise EngineError, with the first faults, unless the tensors of ``specs`` are offered."""
    offered = zip(offer.names, offer.shapes, offer.dtypes, strict=True)
    given = {name: TensorSpec(tuple(shape), DTYPES.get(dtype, dtype)) for name, shape, dtype in offered}
    _check(given, specs, "the offered policy")


def _check(given: TensorSpecs, specs: TensorSpecs, source: str) -> None:
    faults = [f"{name} is not in the model" for name in sorted(given.keys() - specs.keys())]
    for name, spec in specs.items():
        if name not in given:
            if not spec.aliases & given.keys():
                faults.append(f"{name} is missing")
        elif given[name].shape != spec.shape:
            faults.append(f"{name} has shape {list(given[name].shape)}, the model's is {list(spec.shape)}")
        elif given[name].dtype != spec.dtype:
            faults.append(f"{name} has dtype {given[name].dtype}, the model's is {spec.dtype}")
    if faults:
        raise EngineError(f"{source} does not fit the model: {'; '.join(faults[:5])} ({len(faults)} faults)")
