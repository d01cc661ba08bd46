"""Sampling: the right distribution, drawn from the row's own seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actors.engines.torch.sampling import sample, uniforms


def float_array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    draws = uniforms(seeds.reshape(-1), positions.reshape(-1)).reshape(200, 200)
    assert 0.0 <= draws.min() < draws.max() < 1.0
    histogram = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert np.abs(histogram / 2000 - 1).max() < 0.12
    for shifted in (draws[1:] - draws[:-1], draws[:, 1:] - draws[:, :-1]):
        assert abs(shifted.var() - 1 / 6) < 0.01, "neighbouring seeds or positions correlate"


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_a_draw_depends_on_nothing_but_seed_and_position(seed: int, position: int) -> None:
    alone = uniforms(np.array([seed], np.uint64), np.array([position]))
    company = uniforms(np.array([1, seed, 2**63], np.uint64), np.array([5, position, 0]))
    assert alone[0] == company[1]


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    tokens, logprobs = sample(logits, float_array(0.0, 2.0, 1.0), float_array(0.99, 0.999, 0.0))
    assert tokens.tolist() == [1, 2, 0]
    expected = [logits[0].log_softmax(-1)[1], (logits[0] / 2).log_softmax(-1)[2], logits[0].log_softmax(-1)[0]]
    torch.testing.assert_close(logprobs, torch.stack(expected))


def test_the_largest_draw_never_takes_what_is_impossible() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 97, generator=generator)
    logits[:, 60:] = -float("inf")
    largest = np.full(500, 1 - 2.0**-23, np.float32)
    tokens, logprobs = sample(logits, np.ones(500, np.float32), largest)
    assert tokens.max() < 60
    assert logprobs.isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "filters", "kept"),
    [
        (0.7, (), [0, 1, 3, 4]),
        (1.0, (1.0, 2), [1, 3]),
        (1.0, (1.0, 1), [3]),
        (1.0, (0.5, 0), [3]),
        (1.0, (0.9, 0), [0, 1, 3]),
        (1.0, (0.5, 3), [3]),
        (1.0, (1.0, 99), [0, 1, 3, 4]),
        (1.0, (1e-6, 0), [3]),
    ],
)
def test_frequencies_follow_the_distribution_at_its_temperature_of_the_likeliest_tokens_alone(
    temperature: float, filters: tuple[float, ...], kept: list[int]
) -> None:
    count = 20000
    logits = torch.tensor([0.0, 1.0, -float("inf"), 2.0, -1.0])  # 0.09, 0.24, 0, 0.64, 0.03
    draws = uniforms(np.arange(count, dtype=np.uint64), np.full(count, 17))
    of_rows = [np.full(count, each, kind) for each, kind in zip(filters, (np.float32, np.int64), strict=False)]
    tokens, logprobs = sample(logits.expand(count, 5), np.full(count, temperature, np.float32), draws, *of_rows)
    expected = torch.zeros(5)
    expected[kept] = (logits / temperature).softmax(-1)[kept]
    frequencies = torch.bincount(tokens, minlength=5) / count
    assert frequencies.nonzero()[:, 0].tolist() == kept
    assert (frequencies - expected / expected.sum()).abs().max() < 0.012
    torch.testing.assert_close(logprobs, (expected / expected.sum()).log()[tokens])


def test_tokens_as_likely_as_the_last_of_the_top_k_are_kept() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]]).expand(500, 5)
    draws = uniforms(np.arange(500, dtype=np.uint64), np.zeros(500, np.int64))
    tokens, _ = sample(logits, np.full(500, 5.0, np.float32), draws, np.ones(500, np.float32), np.full(500, 2))
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_a_row_without_filters_draws_as_if_it_were_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 97, generator=generator)
    draws = uniforms(np.arange(64, dtype=np.uint64), np.zeros(64, np.int64))
    temperatures = np.where(np.arange(64) % 4 == 1, 0.0, 1.0).astype(np.float32)
    alone, _ = sample(logits, temperatures, draws)
    top_k = np.where(np.arange(64) % 2 == 0, 3, 0)
    mixed, _ = sample(logits, temperatures, draws, np.ones(64, np.float32), top_k)
    assert mixed[1::2].tolist() == alone[1::2].tolist()
    assert all(token in row.topk(3).indices for token, row in zip(mixed[::2], logits[::2], strict=True))
