"""Files of tensors that several processes write by parts: what any reader of the format finds there."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from agent_rl.files.disk import FULL
from agent_rl.learning.tensor_files import STARTS, Layout, TensorFiles, TensorParts
from tests.full_disk import no_file_longer_than

TYPES = (torch.float32, torch.bfloat16, torch.int64)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.sampled_from(TYPES)), min_size=1, max_size=5),
    ranks=st.integers(1, 4),
    columns=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_parts_written_in_any_order_are_the_tensors(tmp_path_factory, sizes, ranks, columns, order):
    path = tmp_path_factory.mktemp("rows") / "model.safetensors"
    tensors = {
        f"layer.{number}": (torch.arange(rows * width) * (number + 1)).reshape(rows, width).to(dtype)
        for number, (rows, width, dtype) in enumerate(sizes)
    }
    layout = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    TensorParts.create(path, layout)
    parts = [(name, rank, column) for name in tensors for rank in range(ranks) for column in range(columns)]
    order.shuffle(parts)
    with TensorParts(path, layout) as file:
        for name, *place in parts:
            whole = tensors[name]
            part = tuple(
                slice(number * size // count, (number + 1) * size // count)
                for number, size, count in zip(place, whole.shape, (ranks, columns), strict=True)
            )
            file.write(name, part, whole[part])
    found = load_file(path)
    assert found.keys() == tensors.keys()
    assert all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in tensors.items()
    )
    with TensorFiles([path]) as files:
        assert files.names() == tensors.keys()


def test_parts_of_another_type_or_size_are_refused(tmp_path):
    layout: Layout = {"a": ((4, 2), torch.float32)}
    TensorParts.create(tmp_path / "file", layout)
    with TensorParts(tmp_path / "file", layout) as file:
        for wrong in (torch.zeros(1, 2, dtype=torch.bfloat16), torch.zeros(1, 3)):
            with pytest.raises(ValueError, match=r"a is torch\.float32 of \[4, 2\], and its part of \[1, 2\] is"):
                file.write("a", (slice(0, 1), slice(0, 2)), wrong)


def test_a_disk_without_room_says_so_before_anything_is_computed(tmp_path):
    with no_file_longer_than(1000), pytest.raises(OSError, match="File too large") as refused:
        TensorParts.create(tmp_path / "file", {"a": ((1000,), torch.float32)})
    assert refused.value.errno in FULL


ROWS, COLUMNS = 7, 5
WHOLE = torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS)


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    """Where a dimension is cut; parts may be empty."""
    return st.lists(st.integers(0, size), max_size=3).map(lambda inner: [0, *sorted(inner), size])


def bounds(size: int) -> st.SearchStrategy[slice]:
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda pair: slice(min(pair), max(pair)))


def write(folder: Path, blocks: list[tuple[slice, slice]], *, told: bool = True) -> list[Path]:
    paths = [folder / f"{number}.safetensors" for number in range(len(blocks))]
    for path, block in zip(paths, blocks, strict=True):
        metadata = {STARTS: json.dumps({"x": [each.start for each in block]})} if told else None
        save_file({"x": WHOLE[block].contiguous()}, path, metadata)
    return paths


@settings(max_examples=25, deadline=None)
@given(rows=cuts(ROWS), columns=cuts(COLUMNS), wanted=st.tuples(bounds(ROWS), bounds(COLUMNS)), twice=st.booleans())
def test_any_part_is_read_from_any_blocks(rows, columns, wanted, *, twice):
    blocks = [(slice(*row), slice(*column)) for row, column in product(pairwise(rows), pairwise(columns))]
    with TemporaryDirectory() as folder, TensorFiles(write(Path(folder), blocks * (2 if twice else 1))) as files:
        assert files.shape("x") == (ROWS, COLUMNS)
        assert torch.equal(files.part("x", wanted), WHOLE[wanted])
        assert torch.equal(files.whole("x"), WHOLE)


def test_without_starts_parts_are_rows_in_the_order_of_the_files(tmp_path):
    everywhere = slice(0, COLUMNS)
    blocks = [(slice(0, 3), everywhere), (slice(3, 3), everywhere), (slice(3, ROWS), everywhere)]
    with TensorFiles(write(tmp_path, blocks, told=False)) as files:
        assert torch.equal(files.whole("x"), WHOLE)
        assert torch.equal(files.part("x", (slice(2, 5), slice(1, 4))), WHOLE[2:5, 1:4])


def test_a_part_that_no_file_holds_is_missed(tmp_path):
    blocks = [(slice(0, 3), slice(0, 5)), (slice(5, ROWS), slice(0, 5))]
    with TensorFiles(write(tmp_path, blocks)) as files:
        assert torch.equal(files.part("x", (slice(1, 3), slice(0, 5))), WHOLE[1:3])
        with pytest.raises(ValueError, match="parts of x are missing"):
            files.whole("x")
