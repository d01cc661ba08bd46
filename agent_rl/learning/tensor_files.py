"""Safetensors files that need not fit into memory: read by rows, and written by rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

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

Layout: TypeAlias = Mapping[str, tuple[Sequence[int], torch.dtype]]
"""Shapes and types of tensors by name, in their order."""


class TensorFiles:
    """Tensors in files, read by rows. A tensor that several files hold is their rows, file after file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._open = ExitStack()
        self._parts: dict[str, list[Any]] = {}
        for path in paths:
            file = self._open.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                self._parts.setdefault(name, []).append(file.get_slice(name))

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
        shapes = [part.get_shape() for part in self._parts[name]]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def rows(self, name: str, start: int, end: int) -> Tensor:
        """The rows ``start`` to ``end`` of a tensor; only they are read. Raises KeyError."""
        found, at = [], 0
        for part in self._parts[name]:
            rows = part.get_shape()[0]
            first, last = max(start, at), min(end, at + rows)
            if first < last:
                found.append(part[first - at : last - at])
            at += rows
        if not found:
            return torch.empty((0, *self.shape(name)[1:]))
        return found[0] if len(found) == 1 else torch.cat(found)


def model_files_of(directory: Path) -> list[Path]:
    """The weight files of a model directory."""
    index = directory / INDEX
    if index.is_file():
        return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(directory.glob("model*.safetensors"))


class TensorRows:
    """A safetensors file of a ``layout`` (shapes and types by name), into which several processes write rows."""

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

    def write(self, name: str, first: int, rows: Tensor) -> None:
        """Write rows of a tensor, from row ``first`` on; they may be on any device. Raises OSError."""
        shape, dtype = self._layout[name]
        if rows.dtype != dtype or tuple(rows.shape[1:]) != tuple(shape[1:]):
            raise ValueError(f"{name} is {dtype} of {list(shape)}, and its rows are {rows.dtype} of {list(rows.shape)}")
        if not rows.numel():
            return
        content = rows.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        at = self._begins + self._offsets[name] + first * _size(shape[1:], dtype)
        _write(self._file, content, at)

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
