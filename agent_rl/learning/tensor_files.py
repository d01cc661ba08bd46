"""Safetensors files that need not fit into memory: read by parts, and written by parts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types of the format (github.com/huggingface/safetensors, README)."""
INDEX = "model.safetensors.index.json"
STARTS = "starts"
"""The key of a file's metadata that says, as JSON, where its parts of tensors begin in the whole: a list by name."""

Layout: TypeAlias = Mapping[str, tuple[Sequence[int], torch.dtype]]
"""Shapes and types of tensors by name, in their order."""


class TensorFiles:
    """Tensors in files, read by parts.

    Several files may hold parts of a tensor, some of them the same part. Their metadata (`STARTS`) says where each part
    begins. Without it, the parts are the tensor's rows, file after file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._open = ExitStack()
        self._parts: dict[str, list[_Part]] = {}
        for path in paths:
            file = self._open.enter_context(safe_open(path, framework="pt"))
            starts = json.loads((file.metadata() or {}).get(STARTS, "{}"))
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                content, before = file.get_slice(name), self._parts.setdefault(name, [])
                size = content.get_shape()
                start = starts.get(name) or [before[-1].ends[0] if before else 0, *[0] * (len(size) - 1)][: len(size)]
                ends = [one + other for one, other in zip(start, size, strict=True)]
                if all((start, ends) != (each.starts, each.ends) for each in before):
                    before.append(_Part(content, start, ends))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def names(self) -> set[str]:
        """The names of all tensors."""
        return set(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a whole tensor. Raises KeyError."""
        return tuple(map(max, zip(*(part.ends for part in self._parts[name]), strict=True)))

    def part(self, name: str, wanted: Sequence[slice]) -> Tensor:
        """A part of a tensor, a slice of each dimension; only this part is read.

        Raises KeyError, and ValueError when the files do not hold all of the part.
        """
        shape = [one.stop - one.start for one in wanted]
        whole: Tensor | None = None
        missing = math.prod(shape)
        for part in self._parts[name]:
            common = [
                (max(one.start, start), min(one.stop, end))
                for one, start, end in zip(wanted, part.starts, part.ends, strict=True)
            ]
            if any(first >= last for first, last in common):
                continue
            found: Tensor = part.content[_from(common, part.starts)]
            if list(found.shape) == shape:
                return found
            whole = found.new_empty(shape) if whole is None else whole
            whole[_from(common, [one.start for one in wanted])] = found
            missing -= found.numel()
        if missing:
            raise ValueError(f"parts of {name} are missing")
        return torch.empty(shape) if whole is None else whole

    def whole(self, name: str) -> Tensor:
        """A whole tensor. Raises KeyError."""
        return self.part(name, [slice(0, size) for size in self.shape(name)])


class _Part(NamedTuple):
    """The part of a tensor that a file holds."""

    content: Any
    starts: list[int]
    ends: list[int]


def _from(bounds: Sequence[tuple[int, int]], starts: Sequence[int]) -> tuple[slice, ...]:
    """Bounds, as slices of a part that begins at ``starts``."""
    return tuple(slice(first - start, last - start) for (first, last), start in zip(bounds, starts, strict=True))


def load_whole(path: Path, *, dtype: torch.dtype, attention: str) -> Any:
    """A Hugging Face model with all its weights. Raises ValueError where its files lack some, which would be random.

    Raises exceptions of many types for what transformers cannot load.
    """
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(
        path, trust_remote_code=False, dtype=dtype, attn_implementation=attention, output_loading_info=True
    )
    if lacking := sorted(told["missing_keys"]):
        raise ValueError(f"its files hold no {lacking[0]} ({len(lacking)} weights are missing)")
    return model


def model_files_of(directory: Path) -> list[Path]:
    """The weight files of a model directory."""
    index = directory / INDEX
    if index.is_file():
        return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(directory.glob("model*.safetensors"))


class TensorParts:
    """A safetensors file of a ``layout`` (shapes and types by name), into which several processes write parts."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """The file exists already: see `create`."""
        self._begins, self._layout = len(_header(layout)), layout
        self._offsets = _offsets(layout)
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    @staticmethod
    def create(path: Path, layout: Layout) -> None:
        """Make the file with its header, and with its whole room on the disk. Raises OSError."""
        with path.open("wb", buffering=0) as file:
            header = _header(layout)
            _write(file.fileno(), memoryview(header), 0)
            if size := sum(_size(*each) for each in layout.values()):
                os.posix_fallocate(file.fileno(), len(header), size)

    def write(self, name: str, part: Sequence[slice], values: Tensor) -> None:
        """Write a part of a tensor, a slice of each dimension; of these, the first two may be less than the whole.

        ``values`` may be on any device. Raises OSError.
        """
        shape, dtype = self._layout[name]
        wanted = [one.stop - one.start for one in part]
        if values.dtype != dtype or list(values.shape) != wanted or wanted[2:] != list(shape[2:]):
            raise ValueError(
                f"{name} is {dtype} of {list(shape)}, and its part of {wanted} is {values.dtype} of "
                f"{list(values.shape)}"
            )
        if not values.numel():
            return
        content = values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        row = _size(shape[1:], dtype)
        at = self._begins + self._offsets[name] + part[0].start * row
        if wanted[1:] == list(shape[1:]):
            _write(self._file, content, at)
            return
        own, at = _size(wanted[1:], dtype), at + part[1].start * _size(shape[2:], dtype)
        for number in range(wanted[0]):
            _write(self._file, content[number * own : (number + 1) * own], at + number * row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def _header(layout: Layout) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, (shape, dtype)), at in zip(layout.items(), _offsets(layout).values(), strict=True):
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + _size(shape, dtype)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _offsets(layout: Layout) -> dict[str, int]:
    """Where each tensor begins, counted from the end of the header."""
    ends = accumulate(_size(*each) for each in layout.values())
    return dict(zip(layout, chain([0], ends), strict=False))


def _size(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of a tensor."""
    return torch.Size(shape).numel() * dtype.itemsize


def _write(file: int, content: memoryview, at: int) -> None:
    while content:
        done = os.pwrite(file, content, at)
        content, at = content[done:], at + done


def file_layouts(layout: Layout, most_bytes: int) -> dict[str, Layout]:
    """The files of a model by name, in the order of their tensors, each of at most so many bytes or one tensor."""
    files: list[dict[str, tuple[Sequence[int], torch.dtype]]] = [{}]
    room = most_bytes
    for name, (shape, dtype) in layout.items():
        size = _size(shape, dtype)
        if files[-1] and size > room:
            files.append({})
            room = most_bytes
        files[-1][name] = shape, dtype
        room -= size
    if len(files) == 1:
        return {"model.safetensors": files[0]}
    return {f"model-{number:05d}-of-{len(files):05d}.safetensors": file for number, file in enumerate(files, 1)}


def index_of(files: Mapping[str, Iterable[str]], total: int) -> str:
    """The text of the index of several files, as transformers reads it. ``total``: bytes of all tensors."""
    weight_map = {name: file for file, names in files.items() for name in names}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2)
