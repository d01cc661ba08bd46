"""Which tensors count as finite. The fast path is a sum, so sums that overflow or cancel are what may go wrong."""

import pytest
import torch

from agent_rl.learning.finite import is_finite, not_finite

INFINITE = float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [[float("nan")], [INFINITE], [-INFINITE], [INFINITE, -INFINITE]])
def test_one_wrong_number_among_many_is_found(dtype: torch.dtype, wrong: list[float]) -> None:
    tensor = torch.linspace(-1, 1, 10_000).to(dtype).reshape(100, 100)
    assert is_finite(tensor)
    tensor[7, : len(wrong)] = torch.tensor(wrong, dtype=dtype)
    assert not is_finite(tensor)
    assert not is_finite(tensor.t())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_numbers_whose_sum_overflows_are_finite(dtype: torch.dtype) -> None:
    assert is_finite(torch.full((1000,), torch.finfo(dtype).max, dtype=dtype))


def test_empty_tensors_and_whole_numbers_are_finite() -> None:
    assert not_finite([("empty", torch.zeros(0, 3)), ("whole", torch.ones(3, dtype=torch.int64))]) == []
