"""Tensors in files: any part can be read, however the files divide them."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from agent_rl.learning.tensor_files import STARTS, TensorFiles

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
def test_any_part_is_read_from_any_blocks(
    rows: list[int], columns: list[int], wanted: tuple[slice, slice], *, twice: bool
) -> None:
    blocks = [(slice(*row), slice(*column)) for row, column in product(pairwise(rows), pairwise(columns))]
    with TemporaryDirectory() as folder, TensorFiles(write(Path(folder), blocks * (2 if twice else 1))) as files:
        assert files.shape("x") == (ROWS, COLUMNS)
        assert torch.equal(files.part("x", wanted), WHOLE[wanted])
        assert torch.equal(files.whole("x"), WHOLE)


def test_without_starts_parts_are_rows_in_the_order_of_the_files(tmp_path: Path) -> None:
    everywhere = slice(0, COLUMNS)
    blocks = [(slice(0, 3), everywhere), (slice(3, 3), everywhere), (slice(3, ROWS), everywhere)]
    with TensorFiles(write(tmp_path, blocks, told=False)) as files:
        assert torch.equal(files.whole("x"), WHOLE)
        assert torch.equal(files.part("x", (slice(2, 5), slice(1, 4))), WHOLE[2:5, 1:4])


def test_a_part_that_no_file_holds_is_missed(tmp_path: Path) -> None:
    blocks = [(slice(0, 3), slice(0, 5)), (slice(5, ROWS), slice(0, 5))]
    with TensorFiles(write(tmp_path, blocks)) as files:
        assert torch.equal(files.part("x", (slice(1, 3), slice(0, 5))), WHOLE[1:3])
        with pytest.raises(ValueError, match="parts of x are missing"):
            files.whole("x")
