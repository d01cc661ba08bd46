"""Files of tensors that several processes write by parts: what any reader of the format finds there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from agent_rl.files.disk import FULL
from agent_rl.learning.tensor_files import Layout, TensorFiles, TensorParts
from tests.full_disk import no_file_longer_than

TYPES = (torch.float32, torch.bfloat16, torch.int64)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.sampled_from(TYPES)), min_size=1, max_size=5),
    ranks=st.integers(1, 4),
    columns=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_parts_written_in_any_order_are_the_tensors(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, int, torch.dtype]],
    ranks: int,
    columns: int,
    order: object,
) -> None:
    path = tmp_path_factory.mktemp("rows") / "model.safetensors"
    tensors = {
        f"layer.{number}": (torch.arange(rows * width) * (number + 1)).reshape(rows, width).to(dtype)
        for number, (rows, width, dtype) in enumerate(sizes)
    }
    layout = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    TensorParts.create(path, layout)
    parts = [(name, rank, column) for name in tensors for rank in range(ranks) for column in range(columns)]
    order.shuffle(parts)  # type: ignore[attr-defined]
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


def test_parts_of_another_type_or_size_are_refused(tmp_path: Path) -> None:
    layout: Layout = {"a": ((4, 2), torch.float32)}
    TensorParts.create(tmp_path / "file", layout)
    with TensorParts(tmp_path / "file", layout) as file:
        for wrong in (torch.zeros(1, 2, dtype=torch.bfloat16), torch.zeros(1, 3)):
            with pytest.raises(ValueError, match=r"a is torch\.float32 of \[4, 2\], and its part of \[1, 2\] is"):
                file.write("a", (slice(0, 1), slice(0, 2)), wrong)


def test_a_disk_without_room_says_so_before_anything_is_computed(tmp_path: Path) -> None:
    with no_file_longer_than(1000), pytest.raises(OSError, match="File too large") as refused:
        TensorParts.create(tmp_path / "file", {"a": ((1000,), torch.float32)})
    assert refused.value.errno in FULL
